"""What a watched sweep says about a trial follows the trial's cause, not the wording."""

from __future__ import annotations

import pytest

from rayjobs.tuning.driver import failure_of
from rayjobs.tuning.state import SweepState
from rayjobs.tuning.trials import TrialCause, TrialRecord, TrialState
from rayjobs.tuning.watch import News, state_text
from tests.unit.tuning.simulation import sweep


def ended(state: TrialState, reason: str, cause: TrialCause | None) -> TrialRecord:
    return TrialRecord(
        number=0, parameters={}, state=state, job_id="j0", reason=reason, cause=cause
    )


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (TrialCause.POLICY, "Stopped early"),
        (TrialCause.SWEEP_ENDED, "Stopped early"),
        (TrialCause.SWEEP_CANCELED, "Canceled"),
        (TrialCause.JOB, "Canceled"),
        (None, "Canceled"),
    ],
)
def test_trial_ended_by_its_sweep_is_shown_as_stopped_early(
    cause: TrialCause | None, text: str
) -> None:
    assert state_text(ended(TrialState.CANCELED, "in other words", cause)) == text


def test_reason_of_job_is_shown_with_trial_number() -> None:
    crash = "cannot load trial 0 of the archive"
    state = SweepState((ended(TrialState.FAILED, crash, TrialCause.JOB),))
    assert News(sweep()).lines(state)[-1] == f"trial 0 failed: {crash}"
    assert failure_of("", state).lines == (f"trial 0: {crash}",)


def test_reason_of_sweep_is_shown_unchanged() -> None:
    reason = "trial 0 never reported the metric 'accuracy'"
    state = SweepState((ended(TrialState.FAILED, reason, TrialCause.NO_METRIC),))
    assert News(sweep()).lines(state)[-1] == reason
    assert failure_of("", state).lines == (reason,)

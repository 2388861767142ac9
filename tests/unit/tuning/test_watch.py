"""What a watched sweep says about a trial follows the cause of its end, not the wording."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayjobs.tuning.driver import failure_of
from rayjobs.tuning.state import SweepState
from rayjobs.tuning.trials import TrialCause, TrialRecord, TrialState
from rayjobs.tuning.watch import News, newest, state_text, table_lines
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


@pytest.mark.parametrize(
    ("cause", "detail", "reason", "texts"),
    [
        (
            TrialCause.POLICY,
            "interval 4: 0.6 < 0.9",
            "stopped trial 0 at interval 4: 0.6 < 0.9",
            ("at interval 4: 0.6 < 0.9", "interval 4: 0.6 < 0.9"),
        ),
        (
            TrialCause.SWEEP_ENDED,
            "the sweep's time is up",
            "stopped trial 0: the sweep's time is up",
            ("the sweep's time is up", "the sweep's time is up"),
        ),
        (
            TrialCause.JOB,
            "",
            "trial 0 of the archive is damaged",
            ("trial 0 of the archive is damaged", "trial 0 of the archive is damaged"),
        ),
    ],
)
def test_row_of_a_trial_does_not_repeat_its_number(
    cause: TrialCause, detail: str, reason: str, texts: tuple[str, str]
) -> None:
    trial = replace(ended(TrialState.CANCELED, reason, cause), detail=detail)
    (line,) = table_lines(SweepState((trial,)), sweep())
    assert (line.reason, line.short_reason) == texts


def test_short_terminal_shows_running_trials_and_the_best() -> None:
    trials = [
        TrialRecord(
            number=n,
            parameters={},
            values=(1.0 if n == 2 else 0.5,),
            state=TrialState.COMPLETED if n < 8 else TrialState.RUNNING,
            job_id=f"x_{n}",
        )
        for n in range(10)
    ]
    lines = table_lines(SweepState(tuple(trials)), sweep(), {9: "Queued"})
    assert [line.name for line in newest(lines, 4)] == ["2*", "7", "8", "9"]
    assert [line.state for line in newest(lines, 3)] == ["Completed", "Running", "Queued"]

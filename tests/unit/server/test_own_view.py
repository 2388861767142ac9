"""Users of one workspace see only those parts of a target's answers that the server names."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.server.own_view import OTHER, own_status, own_view
from rayjobs.target.answers import (
    AllocationStatus,
    ExplainAnswer,
    JobDecision,
    ScalingJob,
    StacksAnswer,
    StatusAnswer,
    TargetAnswer,
    WaitingJob,
)

OURS, THEIRS = "/ours", "/theirs"
SECRET = "a secret of another workspace"


@dataclass(frozen=True)
class LaterStatus(StatusAnswer):
    neighbours: str = ""


@dataclass(frozen=True)
class LaterExplanation(ExplainAnswer):
    neighbours: str = ""


@dataclass(frozen=True)
class LaterAllocation(AllocationStatus):
    neighbours: str = ""


@dataclass(frozen=True)
class LaterDecision(JobDecision):
    neighbours: str = ""


@pytest.mark.parametrize(
    "answer",
    [
        LaterStatus(neighbours=SECRET),
        LaterStatus(allocations=(LaterAllocation(job=f"{OURS}::a", neighbours=SECRET),)),
        LaterExplanation(neighbours=SECRET),
        LaterExplanation(decision=LaterDecision(key=f"{OURS}::a", neighbours=SECRET)),
    ],
)
def test_a_new_field_of_an_answer_is_hidden(answer: TargetAnswer) -> None:
    shown = own_view(answer, OURS)
    assert SECRET in str(answer.to_json())
    assert SECRET not in str(shown.to_json())


def test_jobs_and_folders_of_other_workspaces_are_hidden() -> None:
    both = (f"{OURS}::a", f"{THEIRS}::b")
    whole = StatusAnswer(
        version="1",
        epoch="e",
        pid=7,
        target="local",
        live=both,
        waiting=dict.fromkeys(both, WaitingJob("waits")),
        scaling=dict.fromkeys(both, ScalingJob("waits")),
        allocations=tuple(AllocationStatus(name="x", job=job) for job in (*both, None)),
        workspaces=(OURS, THEIRS),
        refused=dict.fromkeys((OURS, THEIRS), "it is a copy"),
    )
    shown = own_status(whole, OURS)
    assert THEIRS not in str(shown.to_json())
    assert shown.live == (both[0],)
    assert list(shown.waiting) == list(shown.scaling) == [both[0]]
    assert [one.job for one in shown.allocations] == [both[0], f"{OTHER} 2", None]
    assert (shown.workspaces, list(shown.refused)) == ((OURS,), [OURS])


def _different(kind: type) -> dict[str, Any]:
    """Return a value other than the default for the fields that every answer has."""
    values: dict[str, Any] = {"ok": False, "pid": 7, "stopping": True}
    return {one.name: values.get(one.name, f"the {one.name}") for one in fields(kind)}


@pytest.mark.parametrize("kind", [StatusAnswer, ExplainAnswer, StacksAnswer])
def test_the_target_and_its_refusal_are_shown(kind: type[TargetAnswer]) -> None:
    answer = kind(**_different(TargetAnswer))
    assert own_view(answer, OURS) == answer


def test_the_decision_about_an_own_job_is_shown_without_the_jobs_of_others() -> None:
    ahead = (f"{THEIRS}::b", f"{OURS}::a")
    whole = JobDecision.from_json(
        {
            "key": f"{OURS}::c",
            "rule": "line",
            "reason": "waits",
            "position": 3,
            "ahead": ahead,
            "free": [{"node_id": "n"}],
            "nearest": "n lacks 1 GPU",
            "estimate_s": 1.0,
            "basis": "outrun",
            "is_guess": True,
            "source": "runs",
            "latest_s": 2.0,
            "remedy": "wait",
            "change": {"priority": 1.0},
            "nodes": ["n"],
        }
    )
    shown = own_view(ExplainAnswer(decision=whole), OURS)
    expected = {**whole.to_json(), "ahead": [OTHER, f"{OURS}::a"]}
    assert shown.to_json()["decision"] == expected

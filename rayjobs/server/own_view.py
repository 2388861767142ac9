"""The view of a target's answers for users of one workspace: a target can serve several.

Of a status or an explanation, users see only the fields that these functions copy: a field that is
added later keeps its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from rayjobs.target.answers import (
    AllocationStatus,
    ExplainAnswer,
    JobDecision,
    StatusAnswer,
    TargetAnswer,
)

OTHER = "another workspace"
Value = TypeVar("Value")


def own_view(answer: TargetAnswer, workspace: str) -> TargetAnswer:
    """Return a target's answer without the jobs and folders of other workspaces.

    Args:
        answer: The answer to any operation; those about a job of the workspace stay as they are.
        workspace: Path of the caller's workspace.
    """
    if isinstance(answer, StatusAnswer):
        return own_status(answer, workspace)
    if isinstance(answer, ExplainAnswer):
        return _own_explanation(answer, workspace)
    return answer


def own_status(answer: StatusAnswer, workspace: str) -> StatusAnswer:
    """Return a target's status without the jobs and folders of other workspaces.

    The capacity that they use stays: it shows what is left for the workspace's own jobs.
    """
    return StatusAnswer(
        ok=answer.ok,
        error=answer.error,
        version=answer.version,
        epoch=answer.epoch,
        pid=answer.pid,
        stopping=answer.stopping,
        target=answer.target,
        live=tuple(key for key in answer.live if _is_own(key, workspace)),
        waiting=_own(answer.waiting, workspace),
        scaling=_own(answer.scaling, workspace),
        nodes=answer.nodes,
        allocations=tuple(
            _shown(one, number, workspace) for number, one in enumerate(answer.allocations, 1)
        ),
        workspaces=tuple(path for path in answer.workspaces if path == workspace),
        refused={path: why for path, why in answer.refused.items() if path == workspace},
    )


def _own_explanation(answer: ExplainAnswer, workspace: str) -> ExplainAnswer:
    decision = answer.decision
    return ExplainAnswer(
        ok=answer.ok,
        error=answer.error,
        version=answer.version,
        epoch=answer.epoch,
        pid=answer.pid,
        stopping=answer.stopping,
        decision=None if decision is None else _own_decision(decision, workspace),
    )


def _own_decision(decision: JobDecision, workspace: str) -> JobDecision:
    return JobDecision(
        key=decision.key,
        rule=decision.rule,
        reason=decision.reason,
        position=decision.position,
        ahead=tuple(key if _is_own(key, workspace) else OTHER for key in decision.ahead),
        free=decision.free,
        nearest=decision.nearest,
        estimate_s=decision.estimate_s,
        basis=decision.basis,
        is_guess=decision.is_guess,
        source=decision.source,
        latest_s=decision.latest_s,
        remedy=decision.remedy,
        change=decision.change,
        nodes=decision.nodes,
    )


def _shown(one: AllocationStatus, number: int, workspace: str) -> AllocationStatus:
    is_other = one.job is not None and not _is_own(one.job, workspace)
    return AllocationStatus(
        name=one.name,
        shape=one.shape,
        nodes=one.nodes,
        gpus=one.gpus,
        job=f"{OTHER} {number}" if is_other else one.job,
        draining=one.draining,
    )


def _own(found: Mapping[str, Value], workspace: str) -> dict[str, Value]:
    return {key: one for key, one in found.items() if _is_own(key, workspace)}


def _is_own(key: str, workspace: str) -> bool:
    return key.startswith(f"{workspace}::")

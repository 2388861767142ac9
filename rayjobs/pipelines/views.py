"""The progress of a run's steps: states, times, and the critical path."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rayjobs.core.text import duration_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import JobLine, Pipeline, StepRow
from rayjobs.jobs.states import JobState
from rayjobs.store.requests import JobFilter

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace

REUSED = "Reused"


@dataclass(frozen=True)
class StepView:
    """The current state of a step.

    Attributes:
        name: Its key in the pipeline.
        row: Its stored row.
        job: Its job.
    """

    name: str
    row: StepRow
    job: JobLine

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.job.state.is_final

    @property
    def status(self) -> str:
        """The job's state, or `REUSED`."""
        return REUSED if self.row.original is not None else str(self.job.state)

    @property
    def waited_s(self) -> float:
        """Seconds from the submit to the start, the end, or now."""
        until = self.job.started_at or self.job.ended_at or datetime.now(UTC)
        return max(0.0, (until - self.job.submitted_at).total_seconds())

    @property
    def ran_s(self) -> float:
        """Seconds that it ran, so far; 0 for a reused step."""
        if self.job.started_at is None or self.row.original is not None:
            return 0.0
        until = self.job.ended_at or datetime.now(UTC)
        return max(0.0, (until - self.job.started_at).total_seconds())

    @property
    def text(self) -> str:
        """The state with the time or the reason, in one line."""
        if self.row.original is not None:
            return f"{REUSED} from {self.row.original}"
        if self.job.failure is not None:
            return f"{self.job.state}: {self.job.failure.message}"
        if self.job.state is JobState.COMPLETED:
            return f"{self.job.state} in {duration_text(self.ran_s)}"
        if self.job.state is JobState.CANCELED and self.job.reason:
            return f"{self.job.state}: {self.job.reason}"
        return str(self.job.state)


def views_of(workspace: OpenWorkspace, pipeline: Pipeline) -> list[StepView]:
    """Return the steps of a run, in the order of the pipeline."""
    lines = {line.id: line for line in workspace.store.job_lines(JobFilter(parent=pipeline.job.id))}
    return [
        StepView(row.name, row, lines[row.job])
        for row in workspace.store.steps(pipeline.job.id)
        if row.job in lines
    ]


def critical_path(views: list[StepView]) -> list[str]:
    """Return the steps that determine the run's duration: each is the last predecessor to end.

    Source: the critical path method (Kelley and Walker, 1959), on measured times.
    """
    by_name = {view.name: view for view in views}
    ended = [view for view in views if view.job.ended_at is not None]
    if not ended:
        return []
    path: list[str] = []
    at: StepView | None = max(ended, key=_ended_s)
    while at is not None:
        path.append(at.name)
        before = [by_name[name] for name in at.row.after if name in by_name]
        at = max(before, key=_ended_s, default=None)
    return path[::-1]


def _ended_s(view: StepView) -> float:
    return 0.0 if view.job.ended_at is None else view.job.ended_at.timestamp()

"""How much of a job's work is done again when it goes on from its newest whole checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from rayjobs.resume import checkpoints
from rayjobs.store.base import Store
from rayjobs.workspace.blobs import BlobStore


@dataclass(frozen=True)
class Lost:
    """Where a job had come to, and where its next attempt begins.

    Attributes:
        last_step: The highest step of any metric; None when none was logged with a step.
        checkpoint_step: Of the newest whole checkpoint; None when there is none.
    """

    last_step: int | None
    checkpoint_step: int | None

    @property
    def steps(self) -> int | None:
        """Steps that are done again; None where a checkpoint or the last step is not known."""
        if self.last_step is None or self.checkpoint_step is None:
            return None
        return max(0, self.last_step - self.checkpoint_step)

    @property
    def sentence(self) -> str:
        """For a job's history, after a semicolon."""
        if self.checkpoint_step is None:
            come = "" if self.last_step is None else f" (it had come to step {self.last_step})"
            return f"it has saved no checkpoint and starts from the beginning{come}"
        at = f"it continues from its checkpoint of step {self.checkpoint_step}"
        if self.steps is None:
            return at
        return f"{at}; its last step was {self.last_step}: {self.steps} lost"

    def to_dict(self) -> dict[str, int | None]:
        """Return it as plain data, for an event."""
        return {
            "last_step": self.last_step,
            "checkpoint_step": self.checkpoint_step,
            "steps_lost": self.steps,
        }


def steps_lost(store: Store, blobs: BlobStore, job_id: str) -> Lost:
    """Return what a job loses when it is started again now.

    Raises:
        NotFoundError: there is no such job.
        StoreError: store or blobs cannot be read.
    """
    steps = [point.step for point in store.metrics(job_id) if point.step is not None]
    newest = checkpoints.newest(store, blobs, job_id)
    return Lost(
        last_step=max(steps, default=None),
        checkpoint_step=None if newest is None else newest.step,
    )

"""What every store promises of sweeps and models.

A part of `store.base.Store`, which says what holds for all of its methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rayjobs.jobs.records import ChildNews, ModelFile, ModelVersion, StoredFile, Sweep, TrialRow

if TYPE_CHECKING:
    from rayjobs.spec.model import JobSpec


class SweepStore(Protocol):
    """Sweeps with their trials, and the models that come of jobs."""

    # -- sweeps --------------------------------------------------------------------------------
    def put_sweep(
        self,
        base: JobSpec,
        *,
        sweep: Mapping[str, Any],
        driver: str,
        experiment: str,
        snapshot: str | None,
        user: str,
        name: str = "sweep",
        tags: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        sweep_id: str | None = None,
    ) -> tuple[Sweep, bool]:
        """Write a sweep durably (fsync): a job of kind "sweep", Running from the start.

        No target starts it; its driver does what there is to do. It is canceled by
        `request_cancel`, and ended by its driver through `move` and `finish` with the number of
        its claim as the attempt. With a key that exists, that sweep and False.

        Args:
            base: What each trial runs, before its parameters.
            sweep: The sweep's own definition, plain JSON data.
            driver: ``module:function`` that starts a driver on a target.
        """
        ...

    def sweep(self, sweep_id: str) -> Sweep:
        """Return a sweep. Raises NotFoundError, also for a job that is none."""
        ...

    def sweeps(self, *, experiment: str | None = None, limit: int | None = None) -> list[Sweep]:
        """Return sweeps, newest first."""
        ...

    def sweeps_to_drive(self, target: str) -> list[tuple[str, str]]:
        """Return id and driver of a target's sweeps that have not ended."""
        ...

    def claim_sweep(self, sweep_id: str) -> int | None:
        """Make the caller the sweep's only driver; return the growing number of the claim.

        None for a sweep that has ended. What an earlier driver writes afterwards is refused.
        """
        ...

    def put_trials(self, sweep_id: str, *, claim: int, trials: Sequence[TrialRow]) -> bool:
        """Write rows of the trial table durably, new ones and changed ones; all or none.

        A row's parameters never change. False when there is a newer claim.
        """
        ...

    def trials(self, sweep_id: str) -> list[TrialRow]:
        """Return the trial table, in order of number."""
        ...

    def child_news(
        self, parent: str, *, metric: str, cursors: Mapping[str, Mapping[str, Any]]
    ) -> list[ChildNews]:
        """Return how children stand, with what they logged of a metric since the last look.

        One transaction, which reads new points only.

        Args:
            cursors: Job id → cursor of the last look, ``{}`` for the first.
        """
        ...

    # -- models --------------------------------------------------------------------------------
    def put_model(
        self,
        name: str,
        *,
        run: str,
        path: str,
        digest: str,
        files: Sequence[ModelFile],
        sources: Sequence[StoredFile],
        lineage: Mapping[str, Any],
        user: str = "",
        framework: str = "",
        framework_version: str = "",
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        aliases: Sequence[str] = (),
    ) -> tuple[ModelVersion, bool]:
        """Write a model's next version durably (fsync); return it and whether it is new.

        The run must have completed, and must still have the files `sources` with these digests,
        when the row is written. What has the run, path and digest of a version that is there
        gives that version: tags are added to it, aliases moved to it.

        Raises:
            NotFoundError: there is no such run.
            UsageError: the run has not completed, or its files are others.
        """
        ...

    def model(
        self, name: str, *, version: int | None = None, alias: str | None = None
    ) -> ModelVersion:
        """Return a version of a model, by number, by alias, else the newest. NotFoundError."""
        ...

    def models(
        self, *, name: str | None = None, run: str | None = None, latest: bool = False
    ) -> list[ModelVersion]:
        """Return versions by name, the newest of each first; with `latest`, only that one."""
        ...

    def update_model(
        self,
        name: str,
        version: int,
        *,
        tags: Mapping[str, str | None] | None = None,
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
    ) -> ModelVersion:
        """Change what may change: tags (None removes), description, properties (add-only)."""
        ...

    def set_model_alias(self, name: str, alias: str, version: int | None) -> None:
        """Let an alias point to a version; None takes it away. Raises NotFoundError."""
        ...

    def delete_model(self, name: str, version: int, *, force: bool = False) -> tuple[str, ...]:
        """Take a version out of the registry; its number is not given again.

        Returns the aliases that pointed to it, which are deleted too. Raises NotFoundError, and
        UsageError if there is one and `force` is off.
        """
        ...

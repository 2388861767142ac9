"""The contract of what a workspace registers: models, data and environments.

Parts of `rayjobs.store.base.Store`, whose general contract also applies here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rayjobs.jobs.records import (
    EnvironmentVersion,
    ModelDraft,
    ModelVersion,
    StoredFile,
)

if TYPE_CHECKING:  # importing pydantic would dominate the time of a listing
    from rayjobs.datastore.catalogue import Catalogue
    from rayjobs.spec.model import JobSpec


class ModelStore(Protocol):
    """Models: versions of files that completed runs produced, and aliases for versions."""

    def put_model(self, run: str | None, draft: ModelDraft) -> tuple[ModelVersion, bool]:
        """Write the next version of a model durably; return it and whether it is new.

        A model without a run (None) has run "" and attempt 0; `draft.lineage` describes its origin.
        The run must have completed and must still have the files `draft.sources` with these
        digests; this is checked in the same transaction. If a version with the same run, path and
        digest exists, it is returned: tags are added to it, and aliases moved to it.

        Raises:
            NotFoundError: there is no such run.
            UsageError: the run has not completed, or its files have changed.
        """

    def model(
        self, name: str, *, version: int | None = None, alias: str | None = None
    ) -> ModelVersion:
        """Return a version of a model: by alias, else by number, else the newest."""

    def models(
        self, *, name: str | None = None, run: str | None = None, latest: bool = False
    ) -> list[ModelVersion]:
        """Return versions by name, the newest of each first; with `latest`, only the newest."""

    def update_model(
        self,
        name: str,
        version: int,
        *,
        tags: Mapping[str, str | None] | None = None,
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
        data: Sequence[Mapping[str, Any]] = (),
    ) -> ModelVersion:
        """Change tags (None removes one) and description; add properties, and rows of data.

        Args:
            data: Added to ``data`` of the lineage, unless the same row is there.

        Raises:
            UsageError: a property already has another value.
        """

    def set_model_alias(self, name: str, alias: str, version: int | None) -> None:
        """Make an alias point to a version durably; None removes the alias.

        Raises:
            NotFoundError: there is no such version, or no such alias to remove.
        """

    def delete_model(self, name: str, version: int, *, force: bool = False) -> tuple[str, ...]:
        """Remove a version durably; its number is never used again.

        Returns:
            The aliases that pointed to it, which are removed too.

        Raises:
            UsageError: an alias points to it, without `force`.
        """


class DataStore(Protocol):
    """The catalogue of data."""

    @property
    def catalogue(self) -> Catalogue:
        """The records of datastores and datasets; raises the errors of `datastore.errors`."""


class EnvironmentStore(Protocol):
    """Registered environments: definitions with versions and labels; and the locks of jobs."""

    def put_environment(self, name: str, definition: str, *, user: str) -> EnvironmentVersion:
        """Write the next version of an environment durably; return it.

        If any version has the same definition, it is returned instead.
        """

    def environment(
        self, name: str, *, version: int | None = None, label: str | None = None
    ) -> EnvironmentVersion:
        """Return a version of an environment: by label, else by number, else the newest one."""

    def environments(self, *, name: str | None = None) -> list[EnvironmentVersion]:
        """Return the newest version of each environment, or all versions of one, newest first."""

    def set_environment_label(self, name: str, label: str, version: int) -> None:
        """Make a label point to a version durably.

        Raises:
            NotFoundError: there is no such version.
        """

    def newest_lock(self, spec: JobSpec) -> tuple[str, StoredFile] | None:
        """Return the newest job that ran with the packages requested by `spec`, and its lock.

        Jobs that request the same packages have different locks if an index offered other versions
        in between. None: `spec` requests no packages, or none of the newest 1,000 jobs with a lock
        requested the same.
        """

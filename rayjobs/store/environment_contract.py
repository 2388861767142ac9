"""The contract of registered environments; part of `rayjobs.store.base.Store`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rayjobs.jobs.records import EnvironmentVersion, StoredFile

if TYPE_CHECKING:
    from rayjobs.spec.model import JobSpec


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

"""What every store promises of registered environments; a part of `rayjobs.store.base.Store`."""

from __future__ import annotations

from typing import Protocol

from rayjobs.jobs.records import EnvironmentVersion


class EnvironmentStore(Protocol):
    """Registered environments: definitions with versions, and labels for versions."""

    def put_environment(self, name: str, definition: str, *, user: str) -> EnvironmentVersion:
        """Write the next version of an environment durably; return it.

        A version with the same definition is returned instead, whichever it is.
        """

    def environment(
        self, name: str, *, version: int | None = None, label: str | None = None
    ) -> EnvironmentVersion:
        """Return a version of an environment: by label, else by number, else the newest."""

    def environments(self, *, name: str | None = None) -> list[EnvironmentVersion]:
        """Return the newest version of each environment, or all versions of one, newest first."""

    def set_environment_label(self, name: str, label: str, version: int) -> None:
        """Make a label point to a version durably.

        Raises:
            NotFoundError: there is no such version.
        """

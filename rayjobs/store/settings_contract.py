"""The contract of values by key; part of `rayjobs.store.base.Store`."""

from __future__ import annotations

from typing import Protocol


class SettingsStore(Protocol):
    """The store's own values, and settings that users' programs keep in a workspace."""

    def meta(self, key: str) -> str | None:
        """Return one of the store's own values (workspace id, schema version, …)."""

    def set_meta(self, key: str, value: str | None) -> None:
        """Set one of the store's own values; None removes it."""

    def claim_meta(self, key: str, value: str) -> str:
        """Set one of the store's own values if there is none; return the current one."""

    def meta_under(self, prefix: str) -> dict[str, str]:
        """Return all of the store's own values whose keys begin with `prefix`, by key."""

    def meta_between(
        self, first: str, end: str, *, limit: int | None = None, newest_first: bool = False
    ) -> dict[str, str]:
        """Return the store's own values with keys from `first` up to, but excluding, `end`, by key.

        Args:
            limit: The maximum number of values.
            newest_first: Start from the end of the range instead of its beginning.
        """

    def drop_meta(self, first: str, end: str) -> int:
        """Remove values with keys from `first` up to, but excluding, `end`; return their number."""

    def program_setting(self, key: str) -> str | None:
        """Return a setting of users' programs, which are separate from the store's own values."""

    def program_settings(self, prefix: str) -> dict[str, str]:
        """Return all settings of programs whose keys begin with `prefix`, by key."""

    def put_program_setting(self, key: str, value: str | None) -> None:
        """Store a setting of programs; None removes it."""

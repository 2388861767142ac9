"""What every store promises of values by key; a part of `rayjobs.store.base.Store`."""

from __future__ import annotations

from typing import Protocol


class SettingsStore(Protocol):
    """The store's own values, and settings that programs of users keep in a workspace."""

    def meta(self, key: str) -> str | None:
        """Return a value of the store's own (workspace id, schema version, …)."""

    def set_meta(self, key: str, value: str | None) -> None:
        """Set a value of the store's own; None removes it."""

    def claim_meta(self, key: str, value: str) -> str:
        """Set a value of the store's own if there is none; return the one that is there now."""

    def meta_under(self, prefix: str) -> dict[str, str]:
        """Return all values of the store's own whose keys begin with `prefix`, by key."""

    def meta_between(
        self, first: str, end: str, *, limit: int | None = None, newest_first: bool = False
    ) -> dict[str, str]:
        """Return values of the store's own with keys from `first` up to but not `end`, by key.

        Args:
            limit: The most to return.
            newest_first: From the end of the range; otherwise from its beginning.
        """

    def drop_meta(self, first: str, end: str) -> int:
        """Remove the values with keys from `first` up to but not `end`; return how many."""

    def program_setting(self, key: str) -> str | None:
        """Return a setting that programs of users keep here, apart from the store's own values."""

    def program_settings(self, prefix: str) -> dict[str, str]:
        """Return all settings of programs whose keys begin with `prefix`, by key."""

    def put_program_setting(self, key: str, value: str | None) -> None:
        """Keep a setting of programs; None removes it."""

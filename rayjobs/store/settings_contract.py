"""What every store promises of the settings of programs; a part of `rayjobs.store.base.Store`."""

from __future__ import annotations

from typing import Protocol


class SettingsStore(Protocol):
    """Settings that programs of users keep in a workspace, such as Azure ML's names for it."""

    def program_setting(self, key: str) -> str | None:
        """Return a setting that programs of users keep here, apart from the store's own values."""

    def program_settings(self, prefix: str) -> dict[str, str]:
        """Return all settings of programs whose keys begin with `prefix`, by key."""

    def put_program_setting(self, key: str, value: str | None) -> None:
        """Keep a setting of programs; None removes it."""

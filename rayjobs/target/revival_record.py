"""The record of a target's restart: the process that does it, or why the last one failed."""

from __future__ import annotations

from typing import Any, Self

from rayjobs.core.files import read_message, write_message
from rayjobs.core.paths import TargetPaths
from rayjobs.injob.identity import MaybeOfProcess
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


@dataclass(frozen=True, kw_only=True)
class Revival(MaybeOfProcess, Message):
    """The process that starts a target, or why its last start failed (`revival.json`).

    Attributes:
        failures: How many starts in a row have failed.
        error: Why the last one did.
        failed_at_s: When it did, in seconds on the boot clock.
        spawned_at_s: When a command began to start the target, in seconds on the boot clock.
        pid: The process that starts it; None: it has not recorded itself yet.
        start_time: When that process started, in clock ticks since the boot.
        boot_id: Of the boot that all times refer to.
    """

    failures: int = 0
    error: str | None = None
    failed_at_s: float | None = None
    spawned_at_s: float | None = None
    pid: int | None = None
    start_time: int | None = None
    boot_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return its JSON without empty entries, which version 0.1.0 takes for values."""
        return {name: value for name, value in super().to_json().items() if value is not None}

    @classmethod
    def read(cls, paths: TargetPaths) -> Self:
        """Return the record, or an empty one if there is none or it is unreadable."""
        return read_message(paths.revival, cls) or cls()

    def write(self, paths: TargetPaths) -> None:
        """Replace the record. Raises OSError."""
        write_message(paths.revival, self)

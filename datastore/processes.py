"""Knows a process by number, start time and boot, so that a number used again fools nobody."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return what tells this boot of the machine from every other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, for as long as it lives. `start_time` is in clock ticks since boot."""

    pid: int
    start_time: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the identity of process `pid`, or None if there is none (a zombie is none)."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()  # the name before may hold anything
        if fields[0] in ("Z", "X"):
            return None
        return cls(pid, int(fields[19]), boot_id())

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Return the identity of this process."""
        me = cls.of(os.getpid())
        if me is None:
            raise RuntimeError("/proc does not show this process; is /proc mounted here?")
        return me

    def is_alive(self) -> bool:
        """Tell whether this very process still runs on this machine."""
        return self.boot == boot_id() and ProcessIdentity.of(self.pid) == self

    def to_json(self) -> dict[str, Any]:
        """Return the identity as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ProcessIdentity:
        """Return the identity that `to_json` wrote."""
        return cls(int(values["pid"]), int(values["start_time"]), str(values["boot"]))

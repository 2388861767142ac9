"""Detects a stalled attempt: no rank shows a sign of life, or a rank is stopped."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

from rayjobs.injob.identity import Identity, stat_of
from rayjobs.injob.lease import boot_clock_s
from rayjobs.injob.stacks import STOPPED
from rayjobs.injob.text import duration_text

_LOOK_S = 0.5


class Watched:
    """One rank: its process, and the files that show its activity."""

    def __init__(self, rank: int, identity: Identity, files: Tuple[str, ...]) -> None:
        """Watch a rank from now on."""
        self.rank = rank
        self.identity = identity
        self._files = files
        self._heard: List[Any] = []
        self.stopped_since_s: Optional[float] = None

    def is_heard(self) -> bool:
        """Whether one of its files has changed since the last check: a line, or a heartbeat."""
        now = []
        for path in self._files:
            try:
                facts = os.stat(path)
                now.append((facts.st_size, facts.st_mtime_ns))
            except OSError:
                now.append((0, 0))
        changed, self._heard = now != self._heard, now
        return changed

    def look_whether_stopped(self, now_s: float) -> None:
        """Record since when it has been stopped. A process under a debugger does not count."""
        stat = stat_of(self.identity.pid)
        is_stopped = (
            stat is not None
            and stat.start_time == self.identity.start_time
            and stat.state == STOPPED
        )
        if not is_stopped:
            self.stopped_since_s = None
        elif self.stopped_since_s is None:
            self.stopped_since_s = now_s


class StallWatch:
    """The clock of an attempt's silence on one node.

    One rank may stay quiet while another one logs. So silence is measured per node, and with
    several nodes the target compares them (`silent_s`).
    """

    def __init__(self, timeout_s: float, *, is_alone: bool) -> None:
        """Watch for `timeout_s`; `is_alone`: no other node has ranks of this attempt."""
        self.timeout_s = timeout_s
        self._is_alone = is_alone
        self._ranks: Dict[int, Watched] = {}
        self._heard_s = boot_clock_s()
        self._looked_s = 0.0

    def add(self, rank: int, identity: Identity, *files: str) -> None:
        """Watch one more rank; a known rank is left unchanged."""
        known = self._ranks.get(rank)
        if known is None or known.identity != identity:
            self._ranks[rank] = Watched(rank, identity, files)

    def look(self) -> None:
        """Check for changes, at most as often as necessary."""
        now_s = boot_clock_s()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for one in self._ranks.values():
            if one.is_heard():
                self._heard_s = now_s
            one.look_whether_stopped(now_s)

    @property
    def silent_s(self) -> float:
        """Seconds since any rank of the node showed a sign of life."""
        return boot_clock_s() - self._heard_s

    def why_stalled(self) -> Optional[str]:
        """Return why the attempt has stalled, as far as this node knows; None if it has not."""
        now_s = boot_clock_s()
        for one in self._ranks.values():
            since_s = one.stopped_since_s
            if since_s is not None and now_s - since_s >= self.timeout_s:
                how_long = duration_text(self.timeout_s)
                return f"rank {one.rank} has been stopped (SIGSTOP) for {how_long}"
        if self._is_alone and self._ranks and self.silent_s >= self.timeout_s:
            return silence(self.timeout_s)
        return None


def silence(timeout_s: float) -> str:
    """Return the message for an attempt without any sign of life."""
    return f"no rank has logged a line, a metric or a heartbeat for {duration_text(timeout_s)}"

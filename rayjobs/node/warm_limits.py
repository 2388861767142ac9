"""Limits the warm interpreters of a node, and selects which one to end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rayjobs.core.text import GIB
from rayjobs.injob.identity import Identity, is_alive
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.memory import proportional_bytes

MOST = 6  # in addition to the one of the target's own Python
MEMORY_SHARE = 0.25  # of the machine's memory
# A job that has just received an interpreter's address is about to fork from it.
IN_USE_S = 15.0


@dataclass(frozen=True)
class Use:
    """A warm interpreter of an environment, and when a job last used it.

    Attributes:
        used_s: On the event loop's clock.
    """

    socket: Path
    identity: Identity
    used_s: float


@dataclass(frozen=True)
class Limits:
    """The limits of all warm interpreters of environments on one node."""

    most: int = MOST
    bytes: int = 0

    @staticmethod
    def of(environment: Mapping[str, str]) -> Limits:
        """Return a node's limits: RAYJOBS_WARM_MOST and RAYJOBS_WARM_MEMORY_GIB, or defaults."""
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        memory = environment.get("RAYJOBS_WARM_MEMORY_GIB")
        return Limits(
            most=int(environment.get("RAYJOBS_WARM_MOST", MOST)),
            bytes=int(float(memory) * GIB) if memory else int(memory_bytes * MEMORY_SHARE),
        )

    def too_many(self, uses: list[Use], now_s: float) -> list[Use]:
        """Return those that must end, the least recently used first; none that is in use now."""
        living = sorted((one for one in uses if is_alive(one.identity)), key=lambda one: one.used_s)
        sizes = {one.socket: proportional_bytes(one.identity.pid) for one in living}
        count, total = len(living), sum(sizes.values())
        ending = []
        for one in living:
            if count <= self.most and total <= self.bytes:
                break
            if now_s - one.used_s < IN_USE_S:
                break  # all others were used later
            ending.append(one)
            count -= 1
            total -= sizes[one.socket]
        return ending

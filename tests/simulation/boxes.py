"""One simulated machine: whether it has power, runs, is reached, and what Ray has on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rayjobs.node.ends import Fence
from rayjobs.node.leases import Launching


@dataclass
class Box:
    """The true state of one machine.

    Attributes:
        name: Its address.
        clock_s: What its boot clock is ahead of the simulation's.
        node: As what Ray knows it, or knew it last.
        raylet: Counts Ray's processes on it; 0: none runs.
        is_up: It has power.
        frozen_s: Since when nothing on it runs; None: it runs.
        is_cut: Nobody reaches it.
        troubles: When something happened to it.
    """

    name: str
    clock_s: float
    node: str = ""
    raylet: int = 0
    lives: int = 0
    is_up: bool = True
    frozen_s: float | None = None
    is_cut: bool = False
    troubles: list[float] = field(default_factory=list)
    fence: Fence = field(default_factory=Fence)
    launching: Launching = field(default_factory=Launching)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        """Wake the tasks that wait for a change of it."""
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with it now."""
        return self.is_up and self.raylet > 0 and self.frozen_s is None and not self.is_cut

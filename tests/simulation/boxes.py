"""One simulated machine: its power, its clock, its network, and Ray's process on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rayjobs.node.ends import Fence
from rayjobs.node.leases import StartingLeases


@dataclass
class Box:
    """The true state of one machine.

    Attributes:
        name: Its address.
        clock_s: How far its boot clock is ahead of the simulation's.
        node: Its current, or last, node id in Ray.
        raylet: The number of its current raylet, counted from 1; 0: none runs.
        is_up: Whether it has power.
        frozen_s: Since when it has been frozen; None: it is not.
        is_cut: Whether it is disconnected from the network.
        troubles: When faults happened to it.
    """

    name: str
    clock_s: float
    node: str = ""
    raylet: int = 0
    starts: int = 0
    is_up: bool = True
    frozen_s: float | None = None
    is_cut: bool = False
    troubles: list[float] = field(default_factory=list)
    fence: Fence = field(default_factory=Fence)
    launching: StartingLeases = field(default_factory=StartingLeases)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        """Wake the tasks that wait for a change of this machine."""
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with it now."""
        return self.is_up and self.raylet > 0 and self.frozen_s is None and not self.is_cut

"""A group that waits for nodes to start: where it would stand, and whether it still need wait."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from rayjobs.policy import NodeRoom, Shape, take


@dataclass(frozen=True)
class Growing:
    """What such a group asks for.

    Attributes:
        asked: For each bundle its node; None: one that has to start.
        types: The types of nodes that have to start: others are for other groups.
        avoid: The nodes that lived when the group was made: none of them takes a bundle that
            asks for no node.
        is_needless: Set once there is room for it without any node that has to start.
    """

    asked: tuple[str | None, ...] = ()
    types: tuple[str, ...] = ()
    avoid: Collection[str] = ()
    is_needless: asyncio.Event = field(default_factory=asyncio.Event, compare=False)

    def fits_without(self, rooms: Sequence[NodeRoom], shape: Shape) -> bool:
        """Return whether the shape fits on nodes that lived when the group was made.

        Args:
            rooms: What is free, with nothing taken for this group on nodes of its own.
        """
        mine = {node for node in self.asked if node is not None}
        old = [
            # What is taken there is its own.
            room.plus(shape.cpus, shape.gpus, shape.memory) if room.node_id in mine else room
            for room in rooms
            if room.node_id in self.avoid
        ]
        return take(old, shape) is not None


def stand(
    rooms: Sequence[NodeRoom], shape: Shape, growing: Growing
) -> tuple[list[NodeRoom], tuple[str, ...]]:
    """Return the rooms with the group's bundles taken where Ray would put them, and where.

    Bundles for which no node is in sight (its type is gone) stand nowhere.
    """
    one = replace(shape, nodes=1, spread=False)
    fresh = replace(one, node_types=growing.types)
    left = {room.node_id: room for room in rooms}
    chosen: list[str] = []
    for node in growing.asked:
        used = {*chosen, *growing.asked} if shape.spread else set()
        fitting = [
            room
            for room in left.values()
            if (room.node_id == node if node else room.node_id not in {*growing.avoid, *used})
        ]
        taken = take(fitting, one if node else fresh)
        if taken is not None:
            at = taken[1][0]
            left[at] = left[at].less(shape)
            chosen.append(at)
    return list(left.values()), tuple(chosen)

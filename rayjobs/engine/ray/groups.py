"""Makes placement groups on given nodes or on nodes that have to start. For Ray processes only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from rayjobs.core.text import duration_text
from rayjobs.policy import Shape
from rayjobs.policy.node_types import TYPE_LABEL
from rayjobs.protocol.agent import NotGrownError, NotPlacedError, bundles

# Ray itself sets this label on every node.
NODE_LABEL = "ray.io/node-id"
PLACING_LOOK_S = 1.0  # how often to check that the nodes of a waiting group still exist
LOOK_S = 0.3


def selectors(
    shape: Shape, nodes: Sequence[str | None], avoid: Collection[str]
) -> list[dict[str, str]]:
    """Return each bundle's node requirement: a specific node, or one that has to start."""
    fresh = {}
    if avoid:
        fresh[NODE_LABEL] = f"!in({','.join(sorted(avoid))})"
    if shape.node_types:
        fresh[TYPE_LABEL] = f"in({','.join(shape.node_types)})"
    return [dict(fresh) if node is None else {NODE_LABEL: node} for node in nodes]


def place(
    known: dict[str, PlacementGroup],
    name: str,
    shape: Shape,
    nodes: Sequence[str],
    timeout_s: float,
    living: Callable[[], set[str]],
) -> tuple[str, ...]:
    """Create a group on these nodes, wait until Ray has placed it, and return them; blocks.

    Args:
        known: Where to register the group when it exists.
        living: Returns the ids of the living nodes.

    Raises:
        NotPlacedError: there was no capacity in time, or a node is gone; the group has been
            removed.
    """
    group = _create(name, shape, selectors(shape, nodes, ()))
    end_s = time.monotonic() + timeout_s
    while not group.wait(min(PLACING_LOOK_S, max(0.0, end_s - time.monotonic()))):
        gone = set(nodes) - living()
        if not gone and time.monotonic() < end_s:
            continue
        state = placement_group_table(group).get("stats", {}).get("scheduling_state", "")
        remove_placement_group(group)
        if gone:  # Ray would look for it forever
            raise NotPlacedError(f"node {min(gone)[:12]} was lost before the job began")
        raise NotPlacedError(
            f"Ray found no capacity for {shape.describe()} within {duration_text(timeout_s)} "
            f"({state or 'pending'})"
        )
    known[name] = group
    return _nodes_of(placement_group_table(group), shape)


def _create(name: str, shape: Shape, wanted: list[dict[str, str]]) -> PlacementGroup:
    return placement_group(
        list(bundles(shape)),
        strategy="STRICT_SPREAD" if shape.spread and shape.nodes > 1 else "PACK",
        name=name,
        lifetime="detached",
        bundle_label_selector=wanted,
    )


def _nodes_of(seen: Mapping[str, Any], shape: Shape) -> tuple[str, ...]:
    node_by_bundle = seen["bundles_to_node_id"]
    return tuple(str(node_by_bundle[index]) for index in range(shape.nodes))


async def grow(
    call: Callable[..., Awaitable[Any]],
    known: dict[str, PlacementGroup],
    name: str,
    shape: Shape,
    nodes: Sequence[str | None],
    avoid: Collection[str],
    timeout_s: float,
) -> tuple[str, ...]:
    """Create a group, wait until its nodes have started, and return them.

    Args:
        call: Runs a blocking function in a thread.
        known: Where to register the group as soon as it exists, so that it can be removed.

    Raises:
        NotGrownError: they have not started in time; the group still exists.
    """

    def create() -> PlacementGroup:
        group = known[name] = _create(name, shape, selectors(shape, nodes, avoid))
        return group

    group = await call(create)
    clock = asyncio.get_running_loop().time
    end_s = clock() + timeout_s
    while True:
        # Not `group.wait`: it would block a thread for as long as a cloud takes to start a machine.
        seen = await call(placement_group_table, group)
        if seen.get("state") == "CREATED":
            return _nodes_of(seen, shape)
        if clock() >= end_s:
            state = seen.get("stats", {}).get("scheduling_state", "") or "pending"
            raise NotGrownError(
                f"the nodes for {shape.describe()} did not start within "
                f"{duration_text(timeout_s)} (Ray says: {state.lower()})"
            )
        await asyncio.sleep(LOOK_S)

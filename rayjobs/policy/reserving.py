"""Reserves capacity for the first in line; finds what others may use without delaying it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.policy.durations import latest_end_s, likely_end_s, source_of
from rayjobs.policy.records import Reservation, Running, Waiting
from rayjobs.policy.shapes import NodeCapacity, Shape, take


@dataclass(frozen=True)
class Kept:
    """The reservation for the first in line, and what it leaves for others.

    Attributes:
        reservation: None if no set of nodes could fit it.
        likely_s: When it will probably start; None: unknown.
        basis: The basis of `likely_s`.
        source: The runs that the basis refers to, for users.
        spare: For each reserved node, the free capacity that is left when the head runs there;
            jobs without a time limit may use it.
    """

    reservation: Reservation | None
    likely_s: float | None
    basis: str
    spare: Mapping[str, NodeCapacity]
    source: str = ""

    @property
    def until_s(self) -> float:
        """Jobs that release their allocation by then may use what is reserved.

        If a job without a limit uses that capacity, there is no latest start, and only the likely
        start decides.
        """
        if self.reservation is None or self.likely_s is None:
            return -math.inf
        return min(
            math.inf if self.reservation.at_s is None else self.reservation.at_s, self.likely_s
        )


def keep(
    head: Waiting,
    running: Sequence[Running],
    capacities: Sequence[NodeCapacity],
    *,
    now_s: float,
    old: Reservation | None,
    slots: float = math.inf,
) -> Kept:
    """Return the reservation for `head`, which cannot start in `capacities` now.

    The nodes are those that are free first if every running job uses its whole time limit. They
    stay reserved until the job starts, so no later decision gives them to another job, and the
    latest start can only get earlier.

    Args:
        slots: How many more jobs the target may run.
    """
    by_latest = sorted(
        running, key=lambda one: (latest_end_s(one, now_s), likely_end_s(one, now_s)[0], one.order)
    )
    same = None
    if old is not None and old.key == head.key and old.shape in (None, head.shape):
        same = old
    nodes, index = None, 0
    if same is not None:
        index_on = _first_fit(
            by_latest, capacities, lambda now: _holds_on(now, head.shape, same.nodes), slots
        )
        if index_on is not None:
            nodes, index = same.nodes, index_on
    if nodes is None:
        found = _first_fit(
            by_latest, capacities, lambda now: take(now, head.shape) is not None, slots
        )
        if found is not None:
            taken = take(with_capacity_of(by_latest[:found], capacities), head.shape)
            assert taken is not None
            nodes, index = taken[1], found
    likely_s, basis, source = likely_start(
        head.shape, running, capacities, now_s=now_s, slots=slots
    )
    if nodes is None:
        return _keep_of_empty(head, capacities)
    at_s = latest_end_s(by_latest[index - 1], now_s) if index else now_s
    latest_s = None if math.isinf(at_s) else at_s
    if same is not None and same.at_s is not None and same.nodes == nodes:
        latest_s = same.at_s if latest_s is None else min(latest_s, same.at_s)
    by_preemption = same is not None and same.by_preemption
    if by_preemption:
        latest_s = now_s
    later = {
        capacity.node_id: capacity for capacity in with_capacity_of(by_latest[:index], capacities)
    }
    spare = {
        node: later[node].plus(*_negative(head.shape, count))
        for node, count in Counter(nodes).items()
    }
    reservation = Reservation(
        key=head.key, nodes=nodes, at_s=latest_s, by_preemption=by_preemption, shape=head.shape
    )
    return Kept(reservation, likely_s, basis, spare, source)


def likely_start(
    shape: Shape,
    running: Sequence[Running],
    capacities: Sequence[NodeCapacity],
    *,
    now_s: float,
    slots: float = math.inf,
) -> tuple[float | None, str, str]:
    """Return when there is probably capacity for the shape, the basis, and the runs behind it."""
    ends = {one.key: likely_end_s(one, now_s) for one in running}
    by_likely = sorted(running, key=lambda one: (ends[one.key][0], one.order))
    index = _first_fit(by_likely, capacities, lambda now: take(now, shape) is not None, slots)
    if index is None:
        return None, "", ""
    if not index:
        return now_s, "", ""
    last = by_likely[index - 1]
    at_s, basis = ends[last.key]
    return at_s, basis, source_of(last, basis)


def _keep_of_empty(head: Waiting, capacities: Sequence[NodeCapacity]) -> Kept:
    """Reserve nodes that other programs use now; when those programs end is unknown."""
    taken = take([capacity.emptied() for capacity in capacities], head.shape)
    if taken is None:
        return Kept(None, None, "", {})
    totals = {capacity.node_id: capacity.emptied() for capacity in capacities}
    spare = {
        node: totals[node].plus(*_negative(head.shape, count))
        for node, count in Counter(taken[1]).items()
    }
    reservation = Reservation(key=head.key, nodes=taken[1], at_s=None, shape=head.shape)
    return Kept(reservation, None, "", spare)


def least(one: NodeCapacity, other: NodeCapacity | None) -> NodeCapacity:
    """Return `one` with the smaller free amount of the two for each resource."""
    if other is None:
        return one
    return NodeCapacity(
        one.node_id,
        one.cpus,
        one.gpus,
        one.memory,
        min(one.free_cpus, other.free_cpus),
        min(one.free_gpus, other.free_gpus),
        min(one.free_memory, other.free_memory),
        one.node_type,
        one.is_up,
    )


def _first_fit(
    ending: Sequence[Running],
    capacities: Sequence[NodeCapacity],
    fits: Callable[[list[NodeCapacity]], bool],
    slots: float,
) -> int | None:
    """Return how many of `ending`, in order, must end until it fits; None if all are too few.

    More capacity never undoes a fit, so this uses binary search. Each end also frees a slot.
    """
    low, high = max(0, math.ceil(1 - slots)) if math.isfinite(slots) else 0, len(ending)
    if low > high or not fits(with_capacity_of(ending, capacities)):
        return None
    while low < high:
        middle = (low + high) // 2
        if fits(with_capacity_of(ending[:middle], capacities)):
            high = middle
        else:
            low = middle + 1
    return low


def with_capacity_of(
    ended: Iterable[Running], capacities: Sequence[NodeCapacity]
) -> list[NodeCapacity]:
    """Return the capacities after the end of these jobs."""
    more: dict[str, list[float]] = {}
    for one in ended:
        for node in one.nodes:
            back = more.setdefault(node, [0.0, 0.0, 0.0])
            back[0] += one.shape.cpus
            back[1] += one.shape.gpus
            back[2] += one.shape.memory
    return [
        capacity.plus(*more[capacity.node_id]) if capacity.node_id in more else capacity
        for capacity in capacities
    ]


def _holds_on(capacities: Sequence[NodeCapacity], shape: Shape, nodes: Sequence[str]) -> bool:
    """Return whether each node fits as many bundles as it appears in the list."""
    by_id = {capacity.node_id: capacity for capacity in capacities}
    for node, count in Counter(nodes).items():
        capacity = by_id.get(node)
        if capacity is None or not capacity.plus(*_negative(shape, count - 1)).holds(shape):
            return False
    return len(nodes) == shape.nodes


def _negative(shape: Shape, count: int) -> tuple[float, float, float]:
    return (-shape.cpus * count, -shape.gpus * count, -shape.memory * count)

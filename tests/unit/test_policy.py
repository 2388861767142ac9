"""The policy as a pure function: by table, and by properties over random queues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rayjobs.policy import Decision, NodeRoom, Shape, Waiting, decide, take


def room(name: str = "n0", *, cpus: float = 4, gpus: float = 0) -> NodeRoom:
    return NodeRoom(name, cpus, gpus, 8e9, cpus, gpus, 8e9)


def job(key: str, *, priority: int = 0, at: int = 0, **shape: float) -> Waiting:
    return Waiting(
        key=key,
        priority=priority,
        order=(f"{at:06}", at, key),
        shape=Shape(**shape),  # type: ignore[arg-type]
    )


def started(decisions: list[Decision]) -> list[str]:
    return [decision.key for decision in decisions if decision.start]


def test_priority_comes_before_age() -> None:
    decisions = decide([job("old", at=1, cpus=4), job("new", priority=1, at=2, cpus=4)], [room()])
    assert started(decisions) == ["new"]
    assert "first in line" in decisions[1].reason


def test_nobody_overtakes_a_job_that_waits_for_room() -> None:
    decisions = decide([job("big", at=1, cpus=8), job("small", at=2, cpus=1)], [room()])
    assert started(decisions) == []
    assert "8 CPUs" in decisions[0].reason
    assert "4 of 4 CPUs free" in decisions[0].reason


def test_a_blocked_job_is_not_in_the_line() -> None:
    blocked = Waiting(key="b", priority=9, order=("0", 0, "b"), shape=Shape(), blocked_by="waits")
    later = Waiting(key="l", priority=9, order=("0", 1, "l"), shape=Shape(), not_before_s=4.4)
    decisions = decide([blocked, later, job("free")], [room()])
    assert started(decisions) == ["free"]
    assert {decision.reason for decision in decisions[:2]} == {"waits", "tries again in 4 s"}


def test_nodes_of_a_spread_job_are_different() -> None:
    rooms = [room("a"), room("b")]
    taken = take(rooms, Shape(nodes=2, cpus=1, spread=True))
    assert taken is not None
    assert sorted(taken[1]) == ["a", "b"]
    assert take(rooms, Shape(nodes=3, cpus=1, spread=True)) is None


shapes = st.builds(
    Shape,
    nodes=st.integers(1, 3),
    cpus=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    gpus=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    spread=st.booleans(),
)
queues = st.lists(st.tuples(st.integers(-2, 2), shapes), max_size=12)
clusters = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), min_size=1, max_size=4)


@given(queues, clusters)
def test_never_over_capacity_and_never_out_of_turn(
    queue: list[tuple[int, Shape]], sizes: list[tuple[int, int]]
) -> None:
    waiting = [
        Waiting(key=f"j{index}", priority=priority, order=("", index, f"j{index}"), shape=shape)
        for index, (priority, shape) in enumerate(queue)
    ]
    rooms = [room(f"n{index}", cpus=c, gpus=g) for index, (c, g) in enumerate(sizes)]
    decisions = decide(waiting, rooms)
    assert {decision.key for decision in decisions} == {one.key for one in waiting}
    by_key = {one.key: one for one in waiting}
    used: dict[str, list[Shape]] = {}
    for decision in decisions:
        for node in decision.nodes:
            used.setdefault(node, []).append(by_key[decision.key].shape)
    for one in rooms:
        assert sum(shape.cpus for shape in used.get(one.node_id, [])) <= one.cpus + 1e-5
        assert sum(shape.gpus for shape in used.get(one.node_id, [])) <= one.gpus + 1e-5
    line = sorted(waiting, key=lambda one: (-one.priority, one.order))
    flags = [decision.start for decision in decisions]
    assert [decision.key for decision in decisions] == [one.key for one in line]
    assert flags == sorted(flags, reverse=True)  # all that start stand before all that wait


@given(queues, clusters)
def test_the_order_of_the_rows_does_not_matter(
    queue: list[tuple[int, Shape]], sizes: list[tuple[int, int]]
) -> None:
    waiting = [
        Waiting(key=f"j{index}", priority=priority, order=("", index, f"j{index}"), shape=shape)
        for index, (priority, shape) in enumerate(queue)
    ]
    rooms = [room(f"n{index}", cpus=c, gpus=g) for index, (c, g) in enumerate(sizes)]
    assert decide(waiting, rooms) == decide(waiting[::-1], rooms)

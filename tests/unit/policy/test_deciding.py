"""The decision by table: priority, order, limits, backfill and making way."""

from __future__ import annotations

from rayjobs.policy import (
    Limits,
    Plan,
    Rule,
    Shape,
    Situation,
    Waiting,
    decide,
    take,
)
from tests.unit.policy.jobs import job, less, room, runs


def started(plan: Plan) -> list[str]:
    return [one.key for one in plan.starts]


def test_priority_comes_before_age() -> None:
    waiting = [job("old", at=1, cpus=4), job("new", priority=1, at=2, cpus=4)]
    plan = decide(Situation(waiting=waiting, rooms=[room()], now_s=3))
    assert started(plan) == ["new"]
    assert plan.rule("old") is Rule.ROOM
    assert "first in line" in plan.explain("old").reason


def test_nobody_without_a_limit_overtakes_a_job_that_waits_for_room() -> None:
    busy = runs("busy", "n0", cpus=2)
    waiting = [job("big", at=1, cpus=4), job("small", at=2, cpus=1)]
    plan = decide(Situation(waiting=waiting, running=[busy], rooms=[less(room(), busy)]))
    assert started(plan) == []
    decision = plan.explain("big")
    assert "4 CPUs" in decision.reason
    assert "2 of 4 CPUs free" in decision.reason
    assert plan.explain("small").ahead == ("big",)
    assert plan.explain("small").position == 2


def test_a_blocked_job_is_not_in_the_line() -> None:
    blocked = Waiting(key="b", priority=9, order=("0", 0, "b"), shape=Shape(), blocked_by="waits")
    later = Waiting(key="l", priority=9, order=("0", 1, "l"), shape=Shape(), not_before_s=4.4)
    plan = decide(Situation(waiting=[blocked, later, job("free")], rooms=[room()]))
    assert started(plan) == ["free"]
    assert plan.summary("b") == (Rule.DEPENDENCY, "waits", 0)
    assert plan.summary("l") == (Rule.PAUSE, "tries again in 4 s", 0)


def test_what_can_never_fit_stops_nobody() -> None:
    plan = decide(Situation(waiting=[job("big", cpus=8), job("small", at=1)], rooms=[room()]))
    assert started(plan) == ["small"]
    assert plan.rule("big") is Rule.NEVER_FITS
    assert "4 of 4 CPUs" in plan.explain("big").reason


def test_nodes_of_a_spread_job_are_different() -> None:
    rooms = [room("a"), room("b")]
    taken = take(rooms, Shape(nodes=2, cpus=1, spread=True))
    assert taken is not None
    assert sorted(taken[1]) == ["a", "b"]
    assert take(rooms, Shape(nodes=3, cpus=1, spread=True)) is None


def test_a_target_without_nodes_starts_nothing() -> None:
    plan = decide(Situation(waiting=[job("a")], limits=Limits(jobs=1)))
    assert started(plan) == []
    assert "no node is there" in plan.explain("a").reason

"""Decisions by example: priority, order, limits, backfill and preemption."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rayjobs.jobs.outcomes import LONGEST_PAUSE_S
from rayjobs.policy import (
    Decisions,
    Limits,
    Rule,
    Shape,
    Situation,
    Waiting,
    decide,
    explain,
    summary,
    take,
)
from rayjobs.policy.estimating import DEPTH, estimate, estimates
from tests.unit.policy.jobs import capacity, job, less, runs


def started(plan: Decisions) -> list[str]:
    return [one.key for one in plan.starts]


def test_priority_comes_before_age() -> None:
    waiting = [job("old", at=1, cpus=4), job("new", priority=1, at=2, cpus=4)]
    plan = decide(Situation(waiting=waiting, capacities=[capacity()], now_s=3))
    assert started(plan) == ["new"]
    assert plan.rule("old") is Rule.CAPACITY
    assert "first in line" in explain(plan, "old").reason


def test_job_without_a_time_limit_never_overtakes_the_head() -> None:
    busy = runs("busy", "n0", cpus=2)
    waiting = [job("big", at=1, cpus=4), job("small", at=2, cpus=1)]
    plan = decide(Situation(waiting=waiting, running=[busy], capacities=[less(capacity(), busy)]))
    assert started(plan) == []
    decision = explain(plan, "big")
    assert "4 CPUs" in decision.reason
    assert "2 of 4 CPUs free" in decision.reason
    assert explain(plan, "small").ahead == ("big",)
    assert explain(plan, "small").position == 2


def test_blocked_job_is_not_in_the_queue() -> None:
    blocked = Waiting(key="b", priority=9, order=("0", 0, "b"), shape=Shape(), blocked_by="waits")
    later = Waiting(key="l", priority=9, order=("0", 1, "l"), shape=Shape(), not_before_s=4.4)
    plan = decide(Situation(waiting=[blocked, later, job("free")], capacities=[capacity()]))
    assert started(plan) == ["free"]
    assert summary(plan, "b") == (Rule.DEPENDENCY, "waits", 0)
    assert summary(plan, "l") == (Rule.PAUSE, "tries again in 4.4s", 0)


def test_a_pause_ends_though_the_clock_was_set_back() -> None:
    longest, more = LONGEST_PAUSE_S, LONGEST_PAUSE_S + 1
    waits = Waiting(key="w", priority=0, order=("0", 0, "w"), shape=Shape(), not_before_s=longest)
    set_back = Waiting(key="b", priority=0, order=("0", 1, "b"), shape=Shape(), not_before_s=more)
    plan = decide(Situation(waiting=[waits, set_back], capacities=[capacity()]))
    assert started(plan) == ["b"]
    assert plan.rule("w") is Rule.PAUSE


def test_unsatisfiable_job_blocks_no_other() -> None:
    plan = decide(
        Situation(waiting=[job("big", cpus=8), job("small", at=1)], capacities=[capacity()])
    )
    assert started(plan) == ["small"]
    assert plan.rule("big") is Rule.NEVER_FITS
    reason = "asks for 8 CPUs; the target's nodes have, when empty: 4 CPUs"
    assert explain(plan, "big").reason == reason


def test_nodes_of_a_spread_job_are_different() -> None:
    capacities = [capacity("a"), capacity("b")]
    taken = take(capacities, Shape(nodes=2, cpus=1, spread=True))
    assert taken is not None
    assert sorted(taken[1]) == ["a", "b"]
    assert take(capacities, Shape(nodes=3, cpus=1, spread=True)) is None


def test_a_target_without_nodes_starts_nothing() -> None:
    plan = decide(Situation(waiting=[job("a")], limits=Limits(jobs=1)))
    assert started(plan) == []
    assert "there are no nodes" in explain(plan, "a").reason


# -- aging and shares ----------------------------------------------------------------------------


def test_priority_level_equals_a_fixed_waiting_time() -> None:
    limits = Limits(aging_s=100)
    for submitted, first in ((1, "new"), (99, "new"), (101, "old")):
        waiting = [job("old", cpus=4), job("new", priority=1, at=submitted, cpus=4)]
        plan = decide(Situation(waiting=waiting, capacities=[capacity()], limits=limits, now_s=500))
        assert started(plan) == [first], submitted


def test_without_aging_priority_stays_priority() -> None:
    waiting = [job("old", cpus=4), job("new", priority=1, at=9e9, cpus=4)]
    plan = decide(Situation(waiting=waiting, capacities=[capacity()], limits=Limits(aging_s=None)))
    assert started(plan) == ["new"]


def test_a_sweep_has_one_share_and_its_further_trials_take_turns() -> None:
    sweep = [job(f"s{number}", at=number, group="sweep") for number in range(4)]
    other = [job(f"o{number}", at=10 + number, group="other") for number in range(2)]
    single = job("single", at=99)
    plan = decide(
        Situation(waiting=[*sweep, *other, single], capacities=[capacity(cpus=1)], now_s=100)
    )
    assert plan.line == ("s0", "o0", "single", "s1", "o1", "s2", "s3")


def test_running_sweep_keeps_its_share() -> None:
    running = runs("s0", "n0", group="sweep")
    waiting = [job("s1", at=1, group="sweep"), job("single", at=50)]
    capacities = [less(capacity(cpus=2), running)]
    plan = decide(Situation(waiting=waiting, running=[running], capacities=capacities, now_s=60))
    assert started(plan) == ["single"]


def test_lone_sweep_uses_the_whole_target() -> None:
    waiting = [job(f"s{number}", at=number, group="sweep") for number in range(6)]
    plan = decide(Situation(waiting=waiting, capacities=[capacity()], now_s=60))
    assert started(plan) == ["s0", "s1", "s2", "s3"]


def test_further_trials_of_higher_priority_go_before_jobs_of_lower() -> None:
    sweep = [job(f"s{number}", at=number, group="sweep", priority=5) for number in range(3)]
    plan = decide(Situation(waiting=[*sweep, job("low")], capacities=[capacity(cpus=1)], now_s=60))
    assert plan.line == ("s0", "s1", "s2", "low")


# -- limits --------------------------------------------------------------------------------------


def test_an_array_runs_no_more_than_its_limit() -> None:
    running = runs("a0", "n0", group="a")
    waiting = [job(f"a{number}", at=number, group="a", group_limit=2) for number in (1, 2)]
    capacities = [less(capacity(), running)]
    plan = decide(
        Situation(
            waiting=[*waiting, job("free", at=9)], running=[running], capacities=capacities, now_s=9
        )
    )
    assert started(plan) == ["free", "a1"]
    assert summary(plan, "a2") == (
        Rule.ARRAY_LIMIT,
        "at most 2 members of the array may run at a time (2 running)",
        0,
    )


def test_user_at_the_limit_is_passed_and_keeps_their_own_order() -> None:
    limits = Limits(gpus_per_user=2)
    running = runs("r", "n0", gpus=1, user="ann")
    waiting = [
        job("ann-big", at=1, gpus=2, user="ann"),
        job("ann-small", at=2, gpus=1, user="ann"),
        job("bob", at=3, gpus=2, user="bob"),
    ]
    capacities = [less(capacity(cpus=8, gpus=8), running)]
    plan = decide(
        Situation(waiting=waiting, running=[running], capacities=capacities, limits=limits)
    )
    assert started(plan) == ["bob"]
    assert plan.rule("ann-big") is Rule.USER_GPUS
    assert plan.rule("ann-small") is Rule.OWN_ORDER
    assert "2 GPUs" in explain(plan, "ann-big").reason
    assert "raise the user's limit" in explain(plan, "ann-small").remedy


def test_job_exceeding_a_user_limit_blocks_no_other_job_of_the_user() -> None:
    waiting = [job("big", gpus=4, user="ann"), job("small", at=1, gpus=1, user="ann")]
    limits = Limits(gpus_per_user=2)
    plan = decide(Situation(waiting=waiting, capacities=[capacity(cpus=8, gpus=8)], limits=limits))
    assert started(plan) == ["small"]
    assert plan.rule("big") is Rule.USER_GPUS


def test_a_target_runs_no_more_than_its_limit_of_jobs() -> None:
    waiting = [job("a"), job("b", at=1), job("c", at=2)]
    plan = decide(Situation(waiting=waiting, capacities=[capacity()], limits=Limits(jobs=2)))
    assert started(plan) == ["a", "b"]
    assert plan.rule("c") is Rule.TARGET_JOBS
    assert plan.positions["c"] == 1


# -- backfill ------------------------------------------------------------------------------------

BUSY: dict[str, Any] = {"cpus": 2, "max_duration_s": 3600.0, "expected_s": 3000.0}


def test_job_guaranteed_to_end_in_time_is_backfilled() -> None:
    busy = runs("busy", "n0", **BUSY)
    waiting = [
        job("head", at=1, cpus=4),
        job("loose", at=2),
        job("long", at=3, max_duration_s=3000.0),
        job("short", at=4, max_duration_s=600.0),
    ]
    capacities = [less(capacity(), busy)]
    plan = decide(Situation(waiting=waiting, running=[busy], capacities=capacities, now_s=10))
    assert [(one.key, one.backfilled) for one in plan.starts] == [("short", True)]
    assert plan.reservation is not None
    assert plan.reservation.nodes == ("n0",)
    explanation = explain(plan, "head")
    assert explanation.estimate_s == 2990
    assert explanation.basis == "history"
    assert explanation.latest_s == 3600 + 60 - 10
    assert "--max-duration 48m" in explain(plan, "long").remedy


def test_backfill_can_be_switched_off() -> None:
    busy = runs("busy", "n0", **BUSY)
    waiting = [job("head", at=1, cpus=4), job("short", at=4, max_duration_s=600.0)]
    situation = Situation(
        waiting=waiting,
        running=[busy],
        capacities=[less(capacity(), busy)],
        limits=Limits(backfill=False),
    )
    assert started(decide(situation)) == []


def test_capacity_the_head_does_not_need_is_free() -> None:
    busy = runs("busy", "n0", cpus=2, gpus=1)
    waiting = [
        job("head", at=1, cpus=2, gpus=1),
        job("only-cpus", at=2, cpus=1),
        job("one-cpu-too-many", at=3, cpus=2),
    ]
    capacities = [less(capacity(gpus=1, cpus=4), busy)]
    plan = decide(Situation(waiting=waiting, running=[busy], capacities=capacities, now_s=10))
    assert started(plan) == ["only-cpus"]


def test_node_the_head_cannot_use_is_free() -> None:
    busy = runs("busy", "n0", cpus=4)
    capacities = [less(capacity("n0"), busy), capacity("n1", cpus=2)]
    waiting = [job("head", at=1, cpus=4), job("loose", at=2, cpus=2)]
    plan = decide(Situation(waiting=waiting, running=[busy], capacities=capacities))
    assert [(one.key, one.nodes) for one in plan.starts] == [("loose", ("n1",))]


def test_reservation_is_kept_while_the_head_waits() -> None:
    first = runs("first", "n0", cpus=4, max_duration_s=1000.0)
    second = runs("second", "n1", cpus=4, max_duration_s=2000.0)
    capacities = [less(capacity("n0"), first), less(capacity("n1"), second)]
    waiting = [job("head", at=1, cpus=4)]
    plan = decide(
        Situation(waiting=waiting, running=[first, second], capacities=capacities, now_s=1)
    )
    assert plan.reservation is not None
    assert plan.reservation.nodes == ("n0",)
    # The other job is about to end now, but the reservation does not move.
    soon = runs("second", "n1", cpus=4, max_duration_s=20.0)
    again = decide(
        Situation(
            waiting=waiting,
            running=[first, soon],
            capacities=capacities,
            now_s=2,
            reservation=plan.reservation,
        )
    )
    assert again.reservation == plan.reservation


def test_job_requesting_more_gets_a_new_reservation() -> None:
    limited = runs("limited", "n0", cpus=2, max_duration_s=1000.0)
    endless = runs("endless", "n0", cpus=2)
    situation = Situation(
        waiting=[job("head", at=1, cpus=2)],
        running=[limited, endless],
        capacities=[less(capacity("n0"), limited, endless)],
        now_s=1,
    )
    plan = decide(situation)
    assert explain(plan, "head").latest_s is not None  # at the limit of one of the two
    grown = replace(situation, waiting=[job("head", at=1, cpus=4)], reservation=plan.reservation)
    assert explain(decide(grown), "head").latest_s is None  # it needs the endless one's CPUs too


def test_capacity_used_by_foreign_programs_is_reserved() -> None:
    stranger = [capacity("n0", cpus=4).less(Shape(cpus=3)), capacity("n1", cpus=1)]
    waiting = [
        job("head", cpus=4),
        job("small", at=1, max_duration_s=60.0),
        job("smaller", at=2, max_duration_s=60.0),
    ]
    plan = decide(Situation(waiting=waiting, capacities=stranger))
    assert [(one.key, one.nodes) for one in plan.starts] == [("small", ("n1",))]
    assert explain(plan, "head").estimate_s is None


def test_the_heads_share_of_its_users_limit_is_kept_for_it() -> None:
    busy = runs("busy", "n0", cpus=4, gpus=6, user="v", max_duration_s=3600.0)
    head = job("head", at=1, gpus=8, user="u")
    mate = job("mate", at=2, user="u", max_duration_s=60.0)
    other = job("other", at=3, user="v")
    situation = Situation(
        waiting=[head, mate, other],
        running=[busy],
        capacities=[less(capacity(cpus=16, gpus=8), busy)],
        limits=Limits(jobs_per_user=2),
    )
    assert started(decide(situation)) == ["mate", "other"]
    plan = decide(replace(situation, limits=Limits(jobs_per_user=1)))
    assert started(plan) == []
    assert plan.rule("mate") is Rule.LINE
    assert plan.reservation is not None
    later = replace(
        situation,
        running=[],
        capacities=[capacity(cpus=16, gpus=8)],
        limits=Limits(jobs_per_user=1),
        now_s=plan.reservation.at_s or 0.0,
        reservation=plan.reservation,
    )
    assert started(decide(later)) == ["head", "other"]


def test_the_heads_share_of_its_users_gpus_is_kept_for_it() -> None:
    busy = runs("busy", "n0", cpus=4, gpus=1, user="v")
    waiting = [
        job("head", at=1, cpus=8, gpus=4, user="u"),
        job("gpu", at=2, gpus=2, user="u"),
        job("no-gpu", at=3, user="u"),
    ]
    capacities = [less(capacity(cpus=8, gpus=8), busy), capacity("n1", cpus=2, gpus=2)]
    situation = Situation(waiting=waiting, running=[busy], capacities=capacities)
    assert started(decide(replace(situation, limits=Limits(gpus_per_user=6)))) == ["gpu", "no-gpu"]
    assert started(decide(replace(situation, limits=Limits(gpus_per_user=5)))) == ["no-gpu"]


def test_the_heads_slot_is_kept_for_it() -> None:
    """A job without a time limit leaves a slot for the head; one that ends in time need not."""
    busy = runs("busy", "n0", cpus=2, max_duration_s=3600.0, expected_s=3000.0)
    head, loose = job("head", at=1, cpus=4), job("loose", at=2)
    short = job("short", at=3, max_duration_s=600.0)
    situation = Situation(
        waiting=[head, loose, short],
        running=[busy],
        capacities=[less(capacity("n0"), busy), capacity("n1", cpus=2)],
        limits=Limits(jobs=2),
    )
    assert started(decide(situation)) == ["short"]
    assert started(decide(replace(situation, limits=Limits(jobs=3)))) == ["loose", "short"]


def test_a_head_that_waits_for_a_slot_is_promised_the_first_end() -> None:
    busy = runs("busy", "n0", max_duration_s=1000.0)
    situation = Situation(
        waiting=[job("head", at=1)],
        running=[busy],
        capacities=[less(capacity(), busy)],
        limits=Limits(jobs=1),
    )
    plan = decide(situation)
    assert plan.reservation is not None
    assert explain(plan, "head").latest_s == plan.reservation.at_s == 1060


# -- preemption ----------------------------------------------------------------------------------


def test_job_losing_least_is_preempted_and_its_capacity_reserved() -> None:
    lower = [
        runs("long", "n0", cpus=2, preemptible=True, started=0),
        runs("young", "n0", cpus=2, preemptible=True, started=90),
    ]
    head = job("head", priority=1, at=95, cpus=2)
    small = job("small", at=1, cpus=2, max_duration_s=1.0)
    capacities = [less(capacity(), *lower)]
    plan = decide(Situation(waiting=[small, head], running=lower, capacities=capacities, now_s=100))
    assert [(one.key, one.by) for one in plan.preempts] == [("young", "head")]
    assert plan.rule("head") is Rule.YIELDING
    assert plan.reservation is not None
    assert plan.reservation.by_preemption

    ending = [lower[0], runs("young", "n0", cpus=2, preemptible=True, is_ending=True)]
    again = decide(
        Situation(
            waiting=[small, head],
            running=ending,
            capacities=capacities,
            now_s=101,
            reservation=plan.reservation,
        )
    )
    assert not again.preempts  # a job is preempted only once
    assert not again.starts
    # Its capacity was freed, and a job of higher priority arrived: the reservation stays.
    higher = job("higher", priority=9, at=102, cpus=2)
    back = job("young", at=0, cpus=2)
    last = decide(
        Situation(
            waiting=[small, head, higher, back],
            running=[lower[0]],
            capacities=[less(capacity(), lower[0])],
            now_s=103,
            reservation=again.reservation,
        )
    )
    assert started(last) == ["head"]


def test_work_that_a_checkpoint_holds_is_not_lost() -> None:
    """The job that has run longest is preempted: all but its last minute is stored."""
    saved = runs("saved", "n0", cpus=4, preemptible=True, started=0, saved_s=940.0)
    young = runs("young", "n1", cpus=4, preemptible=True, started=800, at=1)
    resumed = runs("resumed", "n2", cpus=4, preemptible=True, started=700, saved_s=100.0, at=2)
    capacities = [less(capacity(name), saved, young, resumed) for name in ("n0", "n1", "n2")]
    urgent = job("urgent", cpus=4, priority=9, at=990)
    situation = Situation(
        waiting=[urgent],
        running=[saved, young, resumed],
        capacities=capacities,
        now_s=1000,
        limits=Limits(aging_s=None),
    )
    assert [one.key for one in decide(situation).preempts] == ["saved"]
    unsaved = [replace(saved, saved_s=None), young, resumed]
    situation = replace(situation, running=unsaved)
    assert [one.key for one in decide(situation).preempts] == ["young"]


def test_only_lower_priority_preemptible_jobs_are_preempted() -> None:
    limits = Limits(aging_s=1000)
    head = job("head", priority=1, at=2000, cpus=4)
    for victim, gives_way in (
        (runs("r", "n0", cpus=4, preemptible=True, at=1500), True),
        (runs("r", "n0", cpus=4, preemptible=False, at=1500), False),
        (runs("r", "n0", cpus=4, preemptible=True, priority=1, at=1500), False),
        # It would return to a position before the head: its wait is worth more than one level.
        (runs("r", "n0", cpus=4, preemptible=True, at=900), False),
    ):
        situation = Situation(
            waiting=[head],
            running=[victim],
            capacities=[less(capacity(), victim)],
            limits=limits,
            now_s=2000,
        )
        assert bool(decide(situation).preempts) is gives_way, victim


def test_no_job_is_preempted_in_vain() -> None:
    small = runs("small", "n0", cpus=1, preemptible=True)
    fixed = runs("fixed", "n0", cpus=3)
    situation = Situation(
        waiting=[job("head", priority=1, cpus=2)],
        running=[small, fixed],
        capacities=[less(capacity(), small, fixed)],
    )
    assert not decide(situation).preempts


def test_preemption_can_be_disabled() -> None:
    small = runs("small", "n0", cpus=4, preemptible=True)
    situation = Situation(
        waiting=[job("head", priority=1, cpus=2)],
        running=[small],
        capacities=[less(capacity(), small)],
        limits=Limits(preemption=False),
    )
    plan = decide(situation)
    assert not plan.preempts
    assert plan.rule("head") is Rule.CAPACITY


def test_preemption_chooses_few_victims_on_the_soonest_free_nodes() -> None:
    running = [
        *(runs(f"a{number}", "a", cpus=1, preemptible=True) for number in range(4)),
        runs("b", "b", cpus=4, preemptible=True),
        runs("c", "c", cpus=4, preemptible=True),
    ]
    capacities = [less(capacity(name), *running) for name in "abc"]
    head = job("head", priority=1, nodes=2, cpus=4, spread=True)
    plan = decide(Situation(waiting=[head], running=running, capacities=capacities))
    assert sorted(one.key for one in plan.preempts) == ["b", "c"]


def test_target_at_its_job_limit_preempts_one_job() -> None:
    running = [
        runs("old", "n0", preemptible=True, started=0),
        runs("young", "n0", preemptible=True, started=50),
    ]
    situation = Situation(
        waiting=[job("head", priority=1, at=90)],
        running=running,
        capacities=[less(capacity(), *running)],
        limits=Limits(jobs=2),
        now_s=100,
    )
    assert [one.key for one in decide(situation).preempts] == ["young"]


# -- explanations --------------------------------------------------------------------------------


def test_free_capacity_and_nearest_fit() -> None:
    node = "0123456789ab" * 4  # people see the beginning of a long id
    busy = runs("busy", node, gpus=3, cpus=1)
    capacities = [less(capacity(node, gpus=4), busy), capacity("n1", gpus=0)]
    plan = decide(Situation(waiting=[job("j", gpus=3)], running=[busy], capacities=capacities))
    explanation = explain(plan, "j")
    assert explanation.nearest == "0123456789ab lacks 2 GPUs"
    assert [one["free_gpus"] for one in explanation.free] == [1, 0]
    assert explanation.remedy == "with 1 GPU on one node it would start now"
    assert explanation.to_dict()["rule"] == "capacity"


def test_an_advice_knows_the_targets_limit_of_jobs_and_its_switches() -> None:
    """Without them the same change would start the job."""
    busy = runs("busy", "n0", **BUSY)
    waiting = [job("head", at=1, cpus=4), job("long", at=2, max_duration_s=3000.0)]
    situation = Situation(
        waiting=waiting, running=[busy], capacities=[less(capacity(), busy)], limits=Limits(jobs=2)
    )
    assert "--max-duration 49m or less" in explain(decide(situation), "long").remedy
    strict = replace(situation, limits=Limits(backfill=False))
    assert (
        explain(decide(strict), "long").remedy == "with priority 1 it would be first and start now"
    )
    full = replace(situation, limits=Limits(jobs=1))
    assert explain(decide(full), "long").remedy == ""


def test_a_higher_limit_of_an_array_is_advised_only_where_it_would_start_the_job() -> None:
    first = runs("arr:0", "n0", cpus=1, group="arr")
    waiting = [job("arr:1", at=1, cpus=1, group="arr", group_limit=1)]
    has_capacity = Situation(
        waiting=waiting, running=[first], capacities=[less(capacity(cpus=4), first)]
    )
    assert "higher limit after the %" in explain(decide(has_capacity), "arr:1").remedy
    full = replace(has_capacity, capacities=[less(capacity(cpus=1), first)])
    explanation = explain(decide(full), "arr:1")
    assert (explanation.rule, explanation.remedy) == (Rule.ARRAY_LIMIT, "")


def test_job_above_the_gpu_limit_of_its_user_reports_it() -> None:
    situation = Situation(
        waiting=[job("big", gpus=4)], capacities=[capacity(gpus=8)], limits=Limits(gpus_per_user=2)
    )
    assert explain(decide(situation), "big").remedy.startswith("submit it with fewer GPUs")


def test_estimates_follow_the_queue_order() -> None:
    busy = runs("busy", "n0", cpus=4, expected_s=100)
    waiting = [
        job("first", at=1, cpus=4, expected_s=50),
        job("second", at=2, cpus=4, max_duration_s=200.0),
        job("third", at=3, cpus=4),
        job("fourth", at=4, cpus=4),
    ]
    capacities = [less(capacity(), busy)]
    plan = decide(Situation(waiting=waiting, running=[busy], capacities=capacities, now_s=10))
    assert estimates(plan) == {
        "first": (90, "history"),
        "second": (140, "history"),
        "third": (340, "limit"),
    }
    explanation = explain(plan, "fourth")
    assert (explanation.estimate_s, explanation.basis) == (None, "unknown")


def test_estimates_know_the_targets_limit_of_jobs() -> None:
    busy = runs("busy", "n0", expected_s=100)
    waiting = [job("first", at=1, expected_s=50), job("second", at=2)]
    situation = Situation(
        waiting=waiting, running=[busy], capacities=[less(capacity(), busy)], limits=Limits(jobs=1)
    )
    plan = decide(situation)
    assert estimates(plan) == {"first": (100, "history"), "second": (150, "history")}


def test_just_started_job_gives_no_estimate_of_its_end() -> None:
    def estimated_start(now_s: float) -> tuple[float | None, str]:
        busy = runs("busy", "n0", cpus=4, started=0)
        capacities = [less(capacity(), busy)]
        situation = Situation(
            waiting=[job("j", cpus=4)], running=[busy], capacities=capacities, now_s=now_s
        )
        decision = explain(decide(situation), "j")
        return decision.estimate_s, decision.basis

    assert estimated_start(5) == (None, "unknown")
    limited = runs("busy", "n0", cpus=4, started=0, max_duration_s=100.0)
    situation = Situation(
        waiting=[job("j", cpus=4)],
        running=[limited],
        capacities=[less(capacity(), limited)],
        now_s=5,
    )
    assert estimate(decide(situation), "j") == (95, "limit")
    assert estimated_start(20) == (20, "elapsed")
    assert estimated_start(3600) == (3600, "elapsed")


def test_the_end_of_a_job_that_outran_all_earlier_runs_is_called_a_guess() -> None:
    def estimate(now_s: float, key: str) -> tuple[float | None, str, str, bool]:
        busy = runs(
            "busy",
            "n0",
            cpus=4,
            started=0,
            expected_s=100,
            expected_from="12 earlier runs",
            longest_s=300,
            outrun_text="busy has outrun them",
        )
        waiting = [job("next", at=1, cpus=4, expected_s=50), job("behind", at=2, cpus=4)]
        capacities = [less(capacity(), busy)]
        decision = decide(
            Situation(waiting=waiting, running=[busy], capacities=capacities, now_s=now_s)
        )
        found = explain(decision, key)
        return found.estimate_s, found.basis, found.source, found.to_dict()["is_guess"]

    for now_s in (40, 300):
        assert estimate(now_s, "next")[1:] == ("history", "12 earlier runs", False)
    for key, wait_s in (("next", 201), ("behind", 251)):
        assert estimate(301, key) == (wait_s, "outrun", "busy has outrun them", True)


def test_members_limited_by_their_array_are_estimated() -> None:
    waiting = [
        job(f"m{n}", at=n, cpus=1, expected_s=60, group="a", group_limit=2) for n in range(6)
    ]
    plan = decide(Situation(waiting=waiting, capacities=[capacity()]))
    assert [one.key for one in plan.starts] == ["m0", "m1"]
    assert [estimate(plan, f"m{n}") for n in range(2, 6)] == [
        (60, "history"), (60, "history"), (120, "history"), (120, "history"),
    ]  # fmt: skip


def test_jobs_that_depend_on_others_start_after_their_ends() -> None:
    busy = runs("busy", "n0", cpus=1, expected_s=100, started=0)
    waiting = [
        job("next", at=1, cpus=4, expected_s=50),
        job("child", at=2, cpus=1, blocked_by="waits", after=("busy", "next")),
        job("of child", at=3, cpus=1, blocked_by="waits", after=("child",)),
        job("held", at=4, cpus=1, blocked_by="held", blocked_rule=Rule.HELD),
    ]
    plan = decide(Situation(waiting=waiting, running=[busy], capacities=[less(capacity(), busy)]))
    assert estimate(plan, "child") == (150, "history")
    assert estimate(plan, "of child") == (None, "unknown")  # the duration of "child" is unknown
    assert estimate(plan, "held") == (None, "")


@pytest.mark.long
def test_why_estimates_a_job_at_any_depth_of_the_queue() -> None:
    waiting = [job(f"j{n}", at=n, cpus=4, expected_s=10) for n in range(DEPTH + 50)]
    plan = decide(Situation(waiting=waiting, capacities=[capacity()]))
    assert len(estimates(plan)) == DEPTH
    assert explain(plan, f"j{DEPTH + 40}").estimate_s == 10 * (DEPTH + 40)


def test_the_guides_example() -> None:
    """The example is in docs/guides/queue.md, "A worked example"."""
    hour = 3600.0
    now = 9000.0
    a = runs("a", "n0", gpus=6, cpus=6, max_duration_s=4 * hour, grace_s=10.0, started=now - 1800)
    a = replace(a, expected_s=2 * hour)
    waiting = [
        job("b", at=1, gpus=8, cpus=8),
        job("c", at=2, gpus=2, cpus=2, max_duration_s=2 * hour, grace_s=10.0),
        job("d", at=3, gpus=2, cpus=2, max_duration_s=hour, grace_s=10.0),
        job("e", at=4, cpus=1),
    ]
    node = less(capacity(gpus=8, cpus=16), a)
    plan = decide(Situation(waiting=waiting, running=[a], capacities=[node], now_s=now))
    assert {key: str(plan.rule(key)) for key in "bcde"} == {
        "b": "capacity",
        "c": "line",
        "d": "start",
        "e": "start",
    }
    explanation = explain(plan, "b")
    assert explanation.estimate_s == 1.5 * hour
    assert explanation.latest_s == 3.5 * hour + 70
    before_d = decide(Situation(waiting=waiting[:2], running=[a], capacities=[node], now_s=now))
    remedy = explain(before_d, "c").remedy
    assert remedy == "with --max-duration 1h28m or less it would pass those ahead and start now"
    waiting[0] = replace(waiting[0], priority=1)
    willing = replace(a, preemptible=True)
    plan = decide(Situation(waiting=waiting, running=[willing], capacities=[node], now_s=now))
    assert [one.key for one in plan.preempts] == ["a"]

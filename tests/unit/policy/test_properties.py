"""What holds for every decision and every simulation of a trace, whatever the jobs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayjobs.core.units import parse_duration
from rayjobs.policy import (
    Decisions,
    Limits,
    NodeCapacity,
    Reservation,
    Rule,
    Running,
    Shape,
    Situation,
    Waiting,
    decide,
    explain,
    summary,
    take,
)
from rayjobs.policy.durations import as_running
from rayjobs.policy.order import sort_key
from rayjobs.policy.simulate import Outcome, Pool, TraceJob, play
from rayjobs.policy.simulate.play import GRACE_S
from tests.unit.policy.jobs import capacity, less

pytestmark = pytest.mark.long

shapes = st.builds(
    Shape,
    nodes=st.integers(1, 3),
    cpus=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    gpus=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    spread=st.booleans(),
)
caps = st.sampled_from([None, 60.0, 600.0, 3600.0, 86400.0])
users = st.sampled_from(["ann", "bob"])
groups = st.sampled_from([None, None, "g1", "g2"])
times = st.integers(0, 5000)
limit_sets = st.builds(
    Limits,
    jobs=st.sampled_from([None, 3]),
    jobs_per_user=st.sampled_from([None, 2]),
    gpus_per_user=st.sampled_from([None, 2.0]),
    aging_s=st.sampled_from([None, 600.0]),
    backfill=st.booleans(),
    preemption=st.booleans(),
)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    sizes = draw(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 4)), min_size=1, max_size=4))
    capacities = [capacity(f"n{index}", cpus=c, gpus=g) for index, (c, g) in enumerate(sizes)]
    running: list[Running] = []
    for index, shape in enumerate(draw(st.lists(shapes, max_size=5))):
        placed = take_first(capacities, shape)
        if placed is None:
            continue
        one = Running(
            key=f"r{index}",
            priority=draw(st.integers(-2, 2)),
            order=("", index, f"r{index}"),
            shape=shape,
            nodes=placed,
            submitted_s=draw(times),
            started_s=draw(st.one_of(st.none(), times)),
            user=draw(users),
            group=draw(groups),
            preemptible=draw(st.booleans()),
            max_duration_s=draw(caps),
            expected_s=draw(st.sampled_from([None, 300.0])),
            is_ending=draw(st.booleans()),
        )
        running.append(one)
        capacities = [less(each, one) for each in capacities]
    waiting = [
        Waiting(
            key=f"j{index}",
            priority=draw(st.integers(-2, 2)),
            order=("", index, f"j{index}"),
            shape=draw(shapes),
            submitted_s=draw(times),
            user=draw(users),
            group=draw(groups),
            group_limit=2,
            max_duration_s=draw(caps),
            expected_s=draw(st.sampled_from([None, 300.0])),
        )
        for index in range(draw(st.integers(0, 10)))
    ]
    reservation = None
    is_promised = bool(waiting) and draw(st.booleans())
    if is_promised:
        one_of = draw(st.sampled_from(waiting))
        reservation = Reservation(
            key=one_of.key,
            nodes=tuple(draw(st.sampled_from(["n0", "gone"])) for _ in range(one_of.shape.nodes)),
            at_s=draw(st.sampled_from([None, 6000.0])),
            by_preemption=draw(st.booleans()),
        )
    return Situation(
        waiting=waiting,
        running=running,
        capacities=capacities,
        limits=draw(limit_sets),
        now_s=5000.0,
        reservation=reservation,
    )


def take_first(capacities: list[NodeCapacity], shape: Shape) -> tuple[str, ...] | None:
    taken = take(capacities, shape)
    return None if taken is None else taken[1]


@settings(max_examples=200, deadline=None)
@given(situations())
def test_single_decision_keeps_the_rules(situation: Situation) -> None:
    plan = decide(situation)
    waiting = {one.key: one for one in situation.waiting}
    running = {one.key: one for one in situation.running}
    check_capacity(plan, waiting)
    check_limits(plan, waiting)
    check_turn(plan, waiting)
    for one in plan.preempts:
        victim, head = running[one.key], waiting[one.by]
        assert victim.preemptible
        assert not victim.is_ending
        assert victim.priority < head.priority
        assert sort_key(victim, situation.limits) > sort_key(head, situation.limits)
        assert plan.reservation is not None
        assert plan.reservation.by_preemption
        assert plan.reservation.key == one.by == plan.head
    for key in waiting:  # every job has an explanation, which is valid JSON
        explanation = explain(plan, key)
        assert explanation.reason
        assert explanation.start == (key in plan.started)
        assert (explanation.position > 0) == (key in plan.positions)
        assert summary(plan, key)[0] is explanation.rule


def with_advice(job: Waiting, advice: str) -> Waiting:
    """Return the job as resubmitted according to the advice of `why`."""
    found = re.fullmatch(
        r"with (?:--max-duration (?P<limit>\S+) or less|priority (?P<priority>-?\d+)"
        r"|(?P<nodes>\d+) nodes?|(?P<gpus>\d+) GPUs? on one node|(?P<cpus>\d+) CPUs? on one node)"
        r" it would (?:pass those ahead and |be first and )?start now",
        advice,
    )
    assert found, advice
    ((name, value),) = ((name, value) for name, value in found.groupdict().items() if value)
    if name == "limit":
        return replace(job, max_duration_s=parse_duration(value))
    if name == "priority":
        return replace(job, priority=int(value))
    if name == "nodes":
        return replace(job, shape=replace(job.shape, nodes=int(value)))
    if name == "gpus":
        return replace(job, shape=replace(job.shape, nodes=1, gpus=float(value)))
    return replace(job, shape=replace(job.shape, nodes=1, cpus=float(value)))


def carried_out(plan: Decisions) -> Situation:
    """Return the situation right after a plan was carried out."""
    situation = plan.situation
    waiting = {one.key: one for one in situation.waiting}
    preempted = {one.key for one in plan.preempts}
    running = [
        replace(one, is_ending=one.is_ending or one.key in preempted) for one in situation.running
    ]
    return replace(
        situation,
        waiting=[one for one in situation.waiting if one.key not in plan.started],
        running=running + [as_running(waiting[one.key], one.nodes) for one in plan.starts],
        capacities=plan.capacities,
        reservation=plan.reservation,
    )


@settings(max_examples=400, deadline=None)
@given(situations())
def test_advice_starts_the_job(situation: Situation) -> None:
    plan = decide(situation)
    for key in plan.queue:
        advice = explain(plan, key).remedy
        if not advice.endswith("start now"):
            continue
        for now in (situation, carried_out(plan)):
            changed = [with_advice(one, advice) if one.key == key else one for one in now.waiting]
            assert key in decide(replace(now, waiting=changed)).started, (key, advice)


def numbers(text: str) -> list[float]:
    """Return the numbers of a sentence, without those of names such as n0."""
    return [float(one) for one in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text)]


@settings(max_examples=400, deadline=None)
@given(situations())
def test_reason_and_numbers_are_true_after_the_plan(
    situation: Situation,
) -> None:
    plan = decide(situation)
    now = carried_out(plan)
    limits, waiting = situation.limits, {one.key: one for one in now.waiting}
    place = {key: index for index, key in enumerate(plan.queue)}
    for key, one in waiting.items():
        rule, reason, position = summary(plan, key)
        holding = [other for other in now.running if rule is Rule.TARGET_JOBS]
        match rule:
            case Rule.ARRAY_LIMIT:
                running = sum(other.group == one.group for other in now.running)
                before = sum(
                    other.group == one.group and plan.rule(other.key) is not Rule.ARRAY_LIMIT
                    for other in waiting.values()
                )
                stated = numbers(reason)
                assert stated == [one.group_limit, running, *([before] if before else [])], reason
                assert running + before >= (one.group_limit or 0)
            case Rule.USER_JOBS:
                running = sum(other.user == one.user for other in now.running)
                assert numbers(reason) == [limits.jobs_per_user, running], reason
                assert running >= (limits.jobs_per_user or 0)
            case Rule.USER_GPUS:
                held = sum(other.gpus for other in now.running if other.user == one.user)
                most = limits.gpus_per_user or 0.0
                if one.gpus > most:
                    assert numbers(reason) == [most, one.gpus], reason
                else:
                    assert numbers(reason) == [most, held, one.gpus], reason
                    assert held + one.gpus > most
            case Rule.OWN_ORDER:
                limited = (Rule.USER_JOBS, Rule.USER_GPUS)
                assert any(
                    plan.rule(other) in limited and waiting[other].user == one.user
                    for other in waiting
                )
            case Rule.TARGET_JOBS:
                assert numbers(reason) == [limits.jobs, len(holding)], reason
                assert len(holding) >= (limits.jobs or 0)
            case Rule.CAPACITY | Rule.YIELDING:
                assert position == 1
                assert rule is Rule.YIELDING or take_first(list(now.capacities), one.shape) is None
                assert rule is Rule.CAPACITY or any(other.is_ending for other in now.running)
            case Rule.LINE:
                assert numbers(reason) == [place[key]], reason
                assert position == place[key] + 1
            case Rule.NEVER_FITS:
                emptied = [capacity.emptied() for capacity in now.capacities]
                assert take_first(emptied, one.shape) is None
    # Jobs reported as waiting do wait, as long as nothing else happens. (A member that has started
    # moves the others of its group back in the queue, and a void reservation ends then.)
    if situation.reservation is None and all(one.group is None for one in situation.waiting):
        assert not decide(now).starts


@settings(max_examples=100, deadline=None)
@given(situations())
def test_the_order_of_the_rows_does_not_matter(situation: Situation) -> None:
    turned = replace(
        situation, waiting=situation.waiting[::-1], running=list(situation.running)[::-1]
    )
    one, other = decide(situation), decide(turned)
    assert one.starts == other.starts
    assert one.line == other.line
    assert set(one.preempts) == set(other.preempts)
    assert one.reservation == other.reservation


@settings(max_examples=100, deadline=None)
@given(situations(), st.integers(1, 10**6))
def test_waiting_keeps_the_order(situation: Situation, later_s: int) -> None:
    """Of two waiting jobs without a group, the first stays first however long both wait."""
    alone = [replace(one, group=None) for one in situation.waiting]
    now = replace(situation, waiting=alone, reservation=None, running=())
    then = replace(now, now_s=now.now_s + later_s)
    assert decide(now).line == decide(then).line


def check_capacity(plan: Decisions, waiting: dict[str, Waiting]) -> None:
    capacities = {one.node_id: one for one in plan.situation.capacities}
    for start in plan.starts:
        shape = waiting[start.key].shape
        assert len(start.nodes) == shape.nodes
        if shape.spread:
            assert len(set(start.nodes)) == shape.nodes
        for node in start.nodes:
            assert capacities[node].holds(shape), start
            capacities[node] = capacities[node].less(shape)
    assert list(capacities.values()) == list(plan.capacities)


def check_limits(plan: Decisions, waiting: dict[str, Waiting]) -> None:
    limits, situation = plan.situation.limits, plan.situation
    new = [waiting[one.key] for one in plan.starts]
    now: list[Waiting | Running] = [*situation.running, *new]
    if limits.jobs is not None and new:
        assert len(now) <= limits.jobs
    for user in {one.user for one in new}:
        theirs = [one for one in now if one.user == user]
        if limits.jobs_per_user is not None:
            assert len(theirs) <= limits.jobs_per_user
        if limits.gpus_per_user is not None and any(one.gpus for one in new if one.user == user):
            assert sum(one.gpus for one in theirs) <= limits.gpus_per_user + 1e-6
    for one in new:
        if one.group is not None and one.group_limit is not None:
            assert sum(1 for other in now if other.group == one.group) <= one.group_limit


def check_turn(plan: Decisions, waiting: dict[str, Waiting]) -> None:
    """Jobs that start before a waiting one are marked; without backfill there are none."""
    place = {key: index for index, key in enumerate(plan.line)}
    for start in plan.starts:
        passed = plan.head is not None and place[start.key] > place[plan.head]
        assert start.backfilled == passed
        assert not (passed and not plan.situation.limits.backfill)
        assert not (passed and plan.head_rule is Rule.TARGET_JOBS)


# -- simulations -----------------------------------------------------------------------------------

trace_jobs = st.builds(
    TraceJob,
    job=st.just(""),
    submit_s=st.sampled_from([0.0, 0.0, 10.0, 500.0, 2000.0]),
    duration_s=st.sampled_from([30.0, 300.0, 900.0, 3000.0]),
    nodes=st.sampled_from([1, 1, 2]),
    cpus=st.sampled_from([1.0, 2.0, 4.0]),
    cap_s=st.sampled_from([400.0, 1000.0, 5000.0]),
    priority=st.sampled_from([0, 0, 1, 5]),
    user=users,
    preemptible=st.booleans(),
    expected_s=st.sampled_from([None, 200.0]),
)
POOL = Pool(nodes=2, gpus=0, cpus=4)


def named(jobs: list[TraceJob]) -> list[TraceJob]:
    return [replace(one, job=f"j{index:02}") for index, one in enumerate(jobs)]


traces = st.lists(trace_jobs, min_size=1, max_size=14).map(named)


@settings(max_examples=100, deadline=None)
@given(traces, limit_sets.map(lambda one: replace(one, gpus_per_user=None)))
def test_every_job_ends_within_capacity(trace: list[TraceJob], limits: Limits) -> None:
    outcomes = play(trace, POOL, limits)
    for one in outcomes:
        assert one.ended_s is not None
        ran_s = sum(until - since for since, until, _ in one.spells)
        assert abs(ran_s - one.lost_s - one.job.work_s) < 1e-6
        higher = sum(1 for other in trace if other.priority > one.job.priority)
        assert one.preempted <= higher  # each preempts it once at most: no ping-pong
        if not one.job.preemptible:
            assert one.preempted == 0
    check_never_too_many(outcomes)


def check_never_too_many(outcomes: list[Outcome]) -> None:
    moments = {since for one in outcomes for since, _, _ in one.spells}
    for moment in moments:
        used: Counter[str] = Counter()
        for one in outcomes:
            for since, until, nodes in one.spells:
                if since <= moment < until:
                    for node in nodes:
                        used[node] += int(one.job.cpus)
        assert all(cpus <= POOL.cpus for cpus in used.values())


def first_head(trace: list[TraceJob], limits: Limits) -> tuple[str, Reservation | None] | None:
    """Return the head of the queue after the first decision, and its reservation."""
    seen: list[tuple[str, Reservation | None] | None] = []

    def look(plan: Decisions) -> None:
        seen.append(None if plan.head is None else (plan.head, plan.reservation))

    play(trace, POOL, limits, watch=look)
    return seen[0]


@settings(max_examples=150, deadline=None)
@given(traces)
def test_backfill_never_delays_the_head_if_all_jobs_use_their_full_time(
    trace: list[TraceJob],
) -> None:
    limits = Limits(preemption=False)
    worst = [replace(one, submit_s=0.0, duration_s=one.cap_s or 0.0) for one in trace]
    found = first_head(worst, limits)
    if found is None:
        return
    with_others = {one.job.job: one.started_s for one in play(worst, POOL, limits)}
    strict = replace(limits, backfill=False)
    without = {one.job.job: one.started_s for one in play(worst, POOL, strict)}
    head = found[0]
    assert with_others[head] == without[head]


@settings(max_examples=150, deadline=None)
@given(traces)
def test_the_head_starts_by_its_promise_whatever_the_times(trace: list[TraceJob]) -> None:
    limits = Limits(preemption=False)
    at_once = [replace(one, submit_s=0.0) for one in trace]
    found = first_head(at_once, limits)
    if found is None:
        return
    head, reservation = found
    assert reservation is not None
    assert reservation.at_s is not None
    starts = {one.job.job: one.started_s for one in play(at_once, POOL, limits)}
    assert (starts[head] or 0.0) <= reservation.at_s


gpu_jobs = st.builds(
    replace,
    trace_jobs,
    submit_s=st.just(0.0),
    gpus=st.sampled_from([0.0, 1.0, 2.0]),
    user=st.sampled_from(["ann", "bob", "cid", "dan"]),
)
gpu_traces = st.lists(gpu_jobs, min_size=5, max_size=10).map(named)
GPU_POOL = replace(POOL, gpus=4)


@settings(max_examples=200, deadline=None)
@given(
    gpu_traces,
    st.sampled_from([None, 3]),
    st.sampled_from([1, 1, 2, None]),
    st.sampled_from([None, 4.0]),
)
def test_the_head_starts_by_its_promise_within_limits(
    trace: list[TraceJob], jobs: int | None, of_user: int | None, gpus: float | None
) -> None:
    limits = Limits(preemption=False, jobs=jobs, jobs_per_user=of_user, gpus_per_user=gpus)
    plans: list[Decisions] = []
    outcomes = play(trace, GPU_POOL, limits, watch=plans.append)
    starts = {one.job.job: one.started_s for one in outcomes}
    promised: dict[str, float] = {}
    passed: set[str] = set()  # those before which another job returns to the queue later
    for plan in plans:
        assert not (promised.keys() - passed) & plan.refused.keys()
        if plan.head is None:
            continue
        sort_keys = {one.key: sort_key(one, limits) for one in plan.situation.waiting}
        if any(sort_keys[key] < sort_keys[plan.head] for key in plan.refused):
            passed.add(plan.head)
        assert plan.reservation is not None
        assert plan.reservation.at_s is not None
        promised.setdefault(plan.head, plan.reservation.at_s)
    promised = {key: at_s for key, at_s in promised.items() if key not in passed}
    late = {key: at_s for key, at_s in promised.items() if (starts[key] or 0.0) > at_s}
    assert not late


@settings(max_examples=100, deadline=None)
@given(traces)
def test_preempting_job_starts_in_the_freed_capacity(trace: list[TraceJob]) -> None:
    preempted_at_s: dict[str, float] = {}

    def look(plan: Decisions) -> None:
        for one in plan.preempts:
            preempted_at_s.setdefault(one.by, plan.situation.now_s)

    outcomes = {one.job.job: one for one in play(trace, POOL, Limits(), watch=look)}
    for key, at_s in preempted_at_s.items():
        since = [since for since, _, _ in outcomes[key].spells]
        assert any(at_s <= one <= at_s + GRACE_S for one in since), (key, at_s, since)


def test_higher_priority_stream_does_not_starve_lower_priority() -> None:
    stream = [
        TraceJob(job=f"h{n:03}", submit_s=60.0 * n, duration_s=600.0, cpus=4.0, priority=2)
        for n in range(200)
    ]
    low = TraceJob(job="low", submit_s=61.0, duration_s=600.0, cpus=4.0)
    (aged,) = (
        one for one in play([*stream, low], POOL, Limits(aging_s=600.0)) if one.job.job == "low"
    )
    (never,) = (
        one for one in play([*stream, low], POOL, Limits(aging_s=None)) if one.job.job == "low"
    )
    # 20 of the stream come within two levels' worth of waiting, two run at a time.
    assert aged.waited_s <= 11 * 600.0
    assert never.waited_s > 50 * 600.0


def test_sweep_and_single_jobs_cannot_starve_each_other() -> None:
    sweep = [
        TraceJob(job=f"s{n:03}", submit_s=0.0, duration_s=600.0, cpus=4.0, group="sweep")
        for n in range(100)
    ]
    singles = [
        TraceJob(job=f"x{n:03}", submit_s=700.0 + 600.0 * n, duration_s=600.0, cpus=4.0)
        for n in range(50)
    ]
    outcomes = play([*sweep, *singles], POOL, Limits())
    waits = [one.waited_s for one in outcomes if one.job.group is None]
    assert max(waits) <= 600.0  # until the next node becomes free
    # Two nodes: while singles come, the sweep has the other one all the time.
    meanwhile = [
        one for one in outcomes if one.job.group and 700 <= (one.started_s or 0) <= 700 + 600 * 50
    ]
    assert len(meanwhile) >= 49

"""What the policy is asked, and what it answers: plain frozen records.

All times are seconds of one clock (the engine uses seconds since 1970, UTC), so that a record of
a waiting job stays true from one decision to the next and need not be computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rayjobs.policy.shapes import NodeCapacity, Shape

# A level of priority is worth so much waiting; see `Limits.aging_s`.
AGING_S = 86_400.0
# Preparing before and storing files after an attempt are not under its limit of time.
OVERHEAD_S = 60.0
# Bases of estimates that no earlier run stands for; see `Decision.basis`.
GUESSES = ("elapsed", "outrun")


class Rule(StrEnum):
    """What decided about a job. Stable names: `--json` prints them."""

    START = "start"  # it starts now
    DEPENDENCY = "dependency"  # waits for another job
    NEVER_FITS = "never_fits"  # the target's nodes are too small, were they empty
    HELD = "held"  # somebody, or quarantine, holds it
    PAUSE = "pause"  # a retry's pause
    ARRAY_LIMIT = "array_limit"  # as many of its array or sweep run as may
    USER_JOBS = "user_jobs"  # as many jobs of its user run as may
    USER_GPUS = "user_gpus"  # as many GPUs are in use by its user as may be
    OWN_ORDER = "own_order"  # an earlier job of its user waits for that user's limit
    TARGET_JOBS = "target_jobs"  # as many jobs run on the target as may
    CAPACITY = "capacity"  # first in line, and there is no capacity
    YIELDING = "yielding"  # first in line; the jobs preempted for it have not ended yet
    LINE = "line"  # stands behind the first in line, and may not pass it


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A queued job as the policy sees it.

    Attributes:
        key: Names the job over all workspaces of the target.
        order: What breaks ties of time: (text, serial, key); the text is empty on a target.
        submitted_s: When it was first submitted; retries and preemption do not change it.
        user: Whose limits it counts against.
        group: Id of its sweep or array, whose jobs have one share together; None: on its own.
        group_limit: How many jobs of the group may run at a time (``--array 0-15%4``).
        preemptible: May be stopped for a job of higher priority once it runs.
        max_duration_s: The hard limit of an attempt; None: there is none.
        grace_s: Seconds between the order to end and the end by force.
        expected_s: How long such jobs took (median of history); None: unknown. Used for
            estimates, and to make way for the first in line earlier, never to start a job.
        expected_basis: What that is from: ``history`` (the same script in the same experiment)
            or ``script`` (the same script in any experiment, which says less).
        expected_from: The same for people: "12 earlier runs of train.py in this workspace".
        not_before_s: When a retry's pause is over; None: it is.
        blocked_by: Why it cannot start whatever the capacity; None when nothing does.
        blocked_rule: The rule behind `blocked_by`.
        after: Keys of the jobs whose end it waits for.
    """

    key: str
    priority: int
    order: tuple[str, int, str]
    shape: Shape
    submitted_s: float = 0.0
    user: str = ""
    group: str | None = None
    group_limit: int | None = None
    preemptible: bool = False
    max_duration_s: float | None = None
    grace_s: float = 0.0
    expected_s: float | None = None
    expected_basis: str = "history"
    expected_from: str = ""
    not_before_s: float | None = None
    blocked_by: str | None = None
    blocked_rule: Rule = Rule.DEPENDENCY
    after: tuple[str, ...] = ()

    @property
    def gpus(self) -> float:
        """All GPUs that it holds when it runs."""
        return self.shape.nodes * self.shape.gpus


@dataclass(frozen=True, kw_only=True)
class Running:
    """A job that holds an allocation now.

    Attributes:
        nodes: Node id of each bundle.
        started_s: When its script started; None: it is being prepared.
        longest_s: How long the longest took of those that `expected_s` is from; None: unknown.
        outrun_text: For people, where it runs longer than that: "job 1f3c has already outrun
            all 12 earlier runs of train.py in this workspace (longest 12 m)".
        saved_s: When its newest checkpoint was stored: what it did since would be lost if it were
            stopped; None: there is none.
        is_ending: Its end was ordered or has begun: its capacity comes back, and it is not chosen
            as a victim again.
        is_scaling: It waits for nodes to start, and has none of its own yet: whoever stands
            before it in the line may have its place.
        The others are those of `Waiting`.
    """

    key: str
    priority: int
    order: tuple[str, int, str]
    shape: Shape
    nodes: tuple[str, ...]
    submitted_s: float = 0.0
    started_s: float | None = None
    user: str = ""
    group: str | None = None
    preemptible: bool = False
    max_duration_s: float | None = None
    grace_s: float = 0.0
    expected_s: float | None = None
    expected_basis: str = "history"
    expected_from: str = ""
    longest_s: float | None = None
    outrun_text: str = ""
    saved_s: float | None = None
    is_ending: bool = False
    is_scaling: bool = False

    @property
    def gpus(self) -> float:
        """All GPUs that it holds."""
        return self.shape.nodes * self.shape.gpus


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A target's settings for its queue. None: no limit.

    Attributes:
        jobs: How many jobs may run at a time on the target.
        jobs_per_user: How many of them may be of one user.
        gpus_per_user: How many GPUs jobs of one user may hold together.
        aging_s: How many seconds of waiting are worth one level of priority; None: priority
            is never made up for by waiting.
        backfill: Whether jobs may pass the first in line where that cannot delay it.
        preemption: Whether running preemptible jobs may be stopped for jobs of higher priority.
    """

    jobs: int | None = None
    jobs_per_user: int | None = None
    gpus_per_user: float | None = None
    aging_s: float | None = AGING_S
    backfill: bool = True
    preemption: bool = True


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What is kept for the first in line. Hand it to the next decision.

    Attributes:
        key: Of the job.
        nodes: Node id of each bundle that is kept for it.
        at_s: No job that passes it holds any of its capacity after this time; None: no such time
            is known, so none that passes it gets any of its capacity at all.
        is_claim: Running jobs were preempted for it: it stays first until it starts.
    """

    key: str
    nodes: tuple[str, ...]
    at_s: float | None
    is_claim: bool = False


@dataclass(frozen=True, kw_only=True)
class Situation:
    """All that a decision depends on.

    Attributes:
        capacities: Every living node, with what is free of everybody's use; then nodes that may be
            started (`NodeCapacity.is_up` is false).
        may_start: How many of those may be started together; None: all.
        promise: What the last decision kept for the first in line.
    """

    waiting: Sequence[Waiting]
    running: Sequence[Running] = ()
    capacities: Sequence[NodeCapacity] = ()
    limits: Limits = field(default_factory=Limits)
    now_s: float = 0.0
    promise: Promise | None = None
    may_start: int | None = None


@dataclass(frozen=True)
class Start:
    """Start this job now, on these nodes (one per bundle).

    Attributes:
        backfilled: It passes the first in line.
    """

    key: str
    nodes: tuple[str, ...]
    backfilled: bool = False


@dataclass(frozen=True)
class Preempt:
    """Stop this running job so that another, `by`, can start in its place."""

    key: str
    by: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What became of one waiting job, and why.

    Attributes:
        rule: What decided.
        reason: The same in one sentence for people.
        position: Place in the line from 1; 0 while it does not stand in it.
        ahead: Keys of jobs before it in the line, nearest first, at most `AHEAD` of them.
        free: What is free on each node.
        nearest: The node that comes nearest to holding it, and what it lacks there; empty
            where that does not say anything.
        estimate_s: Seconds until it starts, as far as is known; None: not known.
        basis: Where the estimate is from: ``history``, ``script`` (as `Waiting.expected_basis`),
            ``limit`` (the jobs' own limits of time), ``elapsed`` (a job is taken to run as long
            again as it has), ``outrun`` (a running job has taken longer than all the runs it was
            judged by), ``unknown`` (there is no duration history for the jobs ahead); empty:
            nothing that ends by itself.
        source: Which runs a basis of ``history`` or ``script`` means, or which job has outrun
            which runs, for people.
        latest_s: Seconds by which it starts even if every job takes all its time; only for
            the first in line, None where a running job has no limit.
        remedy: What change would start it now or sooner; empty: none is known.
        change: The same as fields: ``max_duration_s``, ``priority`` or ``nodes``; empty where
            the change is none of one field of the job.
        nodes: Where it starts; empty while it waits.
    """

    key: str
    rule: Rule
    reason: str
    position: int = 0
    ahead: tuple[str, ...] = ()
    free: tuple[Mapping[str, Any], ...] = ()
    nearest: str = ""
    estimate_s: float | None = None
    basis: str = ""
    source: str = ""
    latest_s: float | None = None
    remedy: str = ""
    change: Mapping[str, float] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()

    @property
    def is_guess(self) -> bool:
        """Whether the estimate rests on no run that took as long."""
        return self.basis in GUESSES

    @property
    def start(self) -> bool:
        """Whether it starts now."""
        return self.rule is Rule.START

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for `--json` and the target's socket."""
        return {
            "key": self.key,
            "rule": str(self.rule),
            "reason": self.reason,
            "position": self.position,
            "ahead": list(self.ahead),
            "free": [dict(one) for one in self.free],
            "nearest": self.nearest,
            "estimate_s": self.estimate_s,
            "basis": self.basis,
            "is_guess": self.is_guess,
            "source": self.source,
            "latest_s": self.latest_s,
            "remedy": self.remedy,
            "change": dict(self.change),
            "nodes": list(self.nodes),
        }

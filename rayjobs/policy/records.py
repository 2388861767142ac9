"""The policy's input and output: plain frozen records.

All times are seconds of one clock (the engine uses seconds since 1970, UTC), so that a record of a
waiting job stays valid from one decision to the next and need not be recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.policy.shapes import NodeCapacity, Shape

# How much waiting a level of priority is worth; see `Limits.aging_s`.
AGING_S = 86_400.0
# For preparation before and storage after an attempt, which its time limit excludes.
OVERHEAD_S = 60.0
# Bases of estimates without an earlier run; see `Decision.basis`.
GUESSES = ("elapsed", "outrun")


class Rule(StrEnum):
    """The rule that decided about a job. Stable names: `--json` prints them."""

    START = "start"  # it starts now
    DEPENDENCY = "dependency"  # waits for another job
    NEVER_FITS = "never_fits"  # the target's nodes are too small even when empty
    HELD = "held"  # on hold: by a user, or after failures that more attempts would repeat
    PAUSE = "pause"  # a retry's pause
    ARRAY_LIMIT = "array_limit"  # the limit of its array is reached
    USER_JOBS = "user_jobs"  # its user's limit of running jobs is reached
    USER_GPUS = "user_gpus"  # its user's limit of GPUs is reached
    OWN_ORDER = "own_order"  # an earlier job of its user waits for that user's limit
    TARGET_JOBS = "target_jobs"  # the target's limit of running jobs is reached
    CAPACITY = "capacity"  # first in line, without capacity
    YIELDING = "yielding"  # first in line; the jobs preempted for it have not ended yet
    LINE = "line"  # behind the first in line, and may not pass it


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A queued job for the policy.

    Attributes:
        key: Unique over all workspaces of the target.
        order: Breaks ties of time: (text, serial, key). Only simulations use the text.
        submitted_s: When it was first submitted; retries and preemption do not change it.
        user: Whose limits it counts against.
        group: Id of its sweep, array or pipeline run, whose jobs have one share; None: none.
        group_limit: How many jobs of the group may run at a time (``--array 0-15%4``).
        preemptible: Whether it may be preempted for a job of higher priority.
        max_duration_s: The hard limit of an attempt; None: no limit.
        grace_s: Seconds between SIGTERM and SIGKILL.
        expected_s: How long such jobs took (median of history); None: unknown. Used for estimates,
            and so that backfilled jobs free capacity earlier for the first in line; never to
            start a job.
        expected_basis: The basis: ``history`` (the same script in the same experiment)
            or ``script`` (the same script in any experiment, which says less).
        expected_from: The same for users: "12 earlier runs of train.py in this workspace".
        not_before_s: When a retry's pause ends; None: no pause.
        blocked_by: Why it cannot start whatever the capacity; None: nothing blocks it.
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
        """The number of GPUs that it uses when it runs."""
        return self.shape.nodes * self.shape.gpus


@dataclass(frozen=True, kw_only=True)
class Running:
    """A job with an allocation.

    Attributes:
        nodes: Node id of each bundle.
        started_s: When its script started; None: it is being prepared.
        longest_s: The longest of the runs that `expected_s` is based on; None: unknown.
        outrun_text: For users, if it runs longer than that: "job 1f3c has already outrun
            all 12 earlier runs of train.py in this workspace (longest 12 m)".
        saved_s: When its newest checkpoint was stored: a stop would lose the work since then; None:
            there is none.
        is_ending: Its end was requested or has begun: its capacity will be free, and it is not
            chosen as a victim again.
        is_scaling: It waits for nodes to start and has none yet: jobs ahead of it in line may take
            its nodes.

    The other fields are those of `Waiting`.
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
        """The number of GPUs that it uses."""
        return self.shape.nodes * self.shape.gpus


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A target's settings for its queue. None: no limit.

    Attributes:
        jobs: How many jobs may run at a time on the target.
        jobs_per_user: How many of them one user may have.
        gpus_per_user: How many GPUs the jobs of one user may use together.
        aging_s: How many seconds of waiting are worth one level of priority; None: waiting never
            makes up for priority.
        backfill: Whether jobs may pass the first in line if that cannot delay it.
        preemption: Whether running preemptible jobs may be preempted for jobs of higher priority.
    """

    jobs: int | None = None
    jobs_per_user: int | None = None
    gpus_per_user: float | None = None
    aging_s: float | None = AGING_S
    backfill: bool = True
    preemption: bool = True


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """The reservation for the first in line. Pass it to the next decision.

    Attributes:
        key: The job's key.
        nodes: Node id of each bundle that is reserved for it.
        at_s: No job that passes it uses any of its capacity after this time; None: the time is
            unknown, so no job that passes it gets any of its capacity.
        by_preemption: Running jobs were preempted for it: it stays first until it starts.
        shape: The job's shape at that time; None: the same as now. A job whose shape has changed
            gets a new reservation.
    """

    key: str
    nodes: tuple[str, ...]
    at_s: float | None
    by_preemption: bool = False
    shape: Shape | None = None


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The complete input of a decision.

    Attributes:
        capacities: Every living node with its free capacity; then nodes that may start
            (`NodeCapacity.is_up` is false).
        may_start: How many of those may start together; None: all.
        reservation: The last decision's reservation for the first in line.
    """

    waiting: Sequence[Waiting]
    running: Sequence[Running] = ()
    capacities: Sequence[NodeCapacity] = ()
    limits: Limits = field(default_factory=Limits)
    now_s: float = 0.0
    reservation: Reservation | None = None
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
    """Preempt this running job so that another, `by`, can use its capacity."""

    key: str
    by: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision about one waiting job, and why.

    Attributes:
        rule: The rule that decided.
        reason: The same in one sentence for users.
        position: Position in line from 1; 0 if it is not in line.
        ahead: Keys of at most `AHEAD` jobs before it in line, nearest first.
        free: The free capacity of each node.
        nearest: The node that comes closest to fitting it, and what it lacks; empty if that does
            not help.
        estimate_s: Seconds until it probably starts; None: unknown.
        basis: The basis of the estimate: ``history``, ``script`` (as `Waiting.expected_basis`),
            ``limit`` (the jobs' own time limits), ``elapsed`` (a job is assumed to run as long
            again as it has), ``outrun`` (a running job has taken longer than all the runs it was
            judged by), ``unknown`` (there is no duration history for the jobs ahead); empty:
            the estimate depends on no duration.
        source: Which runs a basis of ``history`` or ``script`` refers to, or which job has outrun
            which runs, for people.
        latest_s: Seconds until its latest start, if every job uses its whole time limit; only for
            the first in line; None if a running job has no limit.
        remedy: A change that would start it now or sooner; empty: none is known.
        change: The same as fields: ``max_duration_s``, ``priority`` or ``nodes``; empty if the
            change is not in one field of the job.
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
        """Whether no earlier run that took as long supports the estimate."""
        return self.basis in GUESSES

    @property
    def start(self) -> bool:
        """Whether it starts now."""
        return self.rule is Rule.START

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as plain data for `--json` and the target's socket."""
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

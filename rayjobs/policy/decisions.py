"""The result of a decision: which jobs start or are preempted, and why each other job waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.policy.records import Preempt, Reservation, Rule, Running, Situation, Start, Waiting
from rayjobs.policy.reserving import Kept
from rayjobs.policy.shapes import NodeCapacity

# A job that these rules refuse does not use a turn of its array.
_NO_TURN = (Rule.ARRAY_LIMIT, Rule.DEPENDENCY, Rule.HELD, Rule.PAUSE)


@dataclass
class Decisions:
    """What to do now and why every other job waits.

    Attributes:
        situation: The input of the decision.
        starts: Start these, in this order.
        preempts: Preempt these; pass `reservation` on to keep their capacity reserved.
        reservation: The reservation for the first in line; None if no job waits for capacity.
        line: Keys of all jobs in line, including those that start.
        refused: Why the other jobs are not in line.
        head: The first waiting job in line; None if none waits.
        head_rule: Why it waits.
        kept: What is reserved for it.
        capacities: The free capacity after the starts.
        by_key: Every waiting job.
    """

    situation: Situation
    by_key: Mapping[str, Waiting]
    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    reservation: Reservation | None = None
    line: tuple[str, ...] = ()
    refused: Mapping[str, Rule] = field(default_factory=dict)
    head: str | None = None
    head_rule: Rule = Rule.CAPACITY
    kept: Kept | None = None
    capacities: Sequence[NodeCapacity] = ()
    # What `rayjobs.policy.estimating` has estimated so far; `sources` as in `Decision.source`.
    estimated: dict[str, tuple[float, str]] | None = field(default=None, compare=False)
    sources: dict[str, str] = field(default_factory=dict, compare=False)

    @cached_property
    def started(self) -> Mapping[str, Start]:
        """The starts by key."""
        return {one.key: one for one in self.starts}

    @cached_property
    def holding(self) -> Sequence[Running | Waiting]:
        """The jobs with an allocation after the decisions are carried out."""
        return [*self.situation.running, *(self.by_key[one.key] for one in self.starts)]

    @cached_property
    def groups(self) -> tuple[Counter[str | None], Counter[str | None]]:
        """How many jobs of each group have an allocation, and how many are next in turn.

        The latter may wait for capacity or for a limit of their user.
        """
        turns = Counter(
            job.group
            for key, job in self.by_key.items()
            if key not in self.started and self.refused.get(key) not in _NO_TURN
        )
        return Counter(one.group for one in self.holding), turns

    @cached_property
    def queue(self) -> tuple[str, ...]:
        """Keys of the waiting jobs in line, in order."""
        started = self.started
        return tuple(key for key in self.line if key not in started)

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Position of each waiting job in line, from 1."""
        return {key: position for position, key in enumerate(self.queue, start=1)}

    def rule(self, key: str) -> Rule:
        """Return the rule that decided about a waiting job. Raises KeyError if it is unknown."""
        self.by_key[key]
        if key in self.started:
            return Rule.START
        if key == self.head:
            return self.head_rule
        return self.refused.get(key, Rule.LINE)

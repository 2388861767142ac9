"""What a decision says: which jobs start or are stopped, and what each other job waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rayjobs.policy.records import Preempt, Promise, Rule, Running, Situation, Start, Waiting
from rayjobs.policy.reserving import Kept
from rayjobs.policy.shapes import NodeCapacity

# Who is refused by these takes none of the turns of its array.
_NO_TURN = (Rule.ARRAY_LIMIT, Rule.DEPENDENCY, Rule.HELD, Rule.PAUSE)


@dataclass
class Decisions:
    """What to do now, and why every other job waits.

    Attributes:
        situation: What it was decided on.
        starts: Start these, in this order.
        preempts: Stop these; hand `promise` on, so that their capacity is kept.
        promise: What is reserved for the first in line; None if no job waits for capacity.
        line: Keys of all who stand in the line, those that start among them.
        refused: Why the others are not in it.
        head: The job that waits first in line; None if none does.
        head_rule: Why it waits.
        kept: What is kept for it.
        capacities: What is free once the starts hold their allocations.
        by_key: Every waiting job.
    """

    situation: Situation
    by_key: Mapping[str, Waiting]
    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    promise: Promise | None = None
    line: tuple[str, ...] = ()
    refused: Mapping[str, Rule] = field(default_factory=dict)
    head: str | None = None
    head_rule: Rule = Rule.CAPACITY
    kept: Kept | None = None
    capacities: Sequence[NodeCapacity] = ()
    # What `rayjobs.policy.estimating` has worked out for them, with the sources of `Decision`.
    estimated: dict[str, tuple[float, str]] | None = field(default=None, compare=False)
    sources: dict[str, str] = field(default_factory=dict, compare=False)

    @cached_property
    def started(self) -> Mapping[str, Start]:
        """The starts by key."""
        return {one.key: one for one in self.starts}

    @cached_property
    def holding(self) -> Sequence[Running | Waiting]:
        """The jobs that hold an allocation once the decisions are carried out."""
        return [*self.situation.running, *(self.by_key[one.key] for one in self.starts)]

    @cached_property
    def groups(self) -> tuple[Counter[str | None], Counter[str | None]]:
        """How many jobs of each group hold an allocation, and how many have their turn first.

        Those may wait for capacity, or for a limit of their user.
        """
        turns = Counter(
            job.group
            for key, job in self.by_key.items()
            if key not in self.started and self.refused.get(key) not in _NO_TURN
        )
        return Counter(one.group for one in self.holding), turns

    @cached_property
    def queue(self) -> tuple[str, ...]:
        """Keys of the jobs that wait in the line, in order."""
        started = self.started
        return tuple(key for key in self.line if key not in started)

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Position of each job that waits in the line, from 1."""
        return {key: place for place, key in enumerate(self.queue, start=1)}

    def rule(self, key: str) -> Rule:
        """Return what decided about a waiting job. Raises KeyError: it was not there."""
        self.by_key[key]
        if key in self.started:
            return Rule.START
        if key == self.head:
            return self.head_rule
        return self.refused.get(key, Rule.LINE)

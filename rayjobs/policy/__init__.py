"""Which queued jobs start now, which are preempted, and why the others wait: pure functions.

`deciding` starts jobs, `preempting` chooses those to preempt, `reserving` keeps nodes for the
head of the queue, `explaining` says why a job waits. `decide` turns a `Situation` into `Decisions`.
Nothing here reads a clock, a file or a cluster, so the target's engine, `rayjobs simulate` and the
tests run the same code.
"""

from __future__ import annotations

from rayjobs.policy.deciding import decide
from rayjobs.policy.decisions import Decisions
from rayjobs.policy.explaining import explain, summary
from rayjobs.policy.records import (
    Decision,
    Limits,
    Preempt,
    Reservation,
    Rule,
    Running,
    Situation,
    Start,
    Waiting,
)
from rayjobs.policy.shapes import NodeCapacity, Shape, describe_free, move, take

__all__ = [
    "Decision",
    "Decisions",
    "Limits",
    "NodeCapacity",
    "Preempt",
    "Reservation",
    "Rule",
    "Running",
    "Shape",
    "Situation",
    "Start",
    "Waiting",
    "decide",
    "describe_free",
    "explain",
    "move",
    "summary",
    "take",
]

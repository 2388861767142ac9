"""Simulates the queue's policy on a trace of jobs: `rayjobs simulate`."""

from __future__ import annotations

from rayjobs.policy.simulate.play import POLICIES, Figures, Outcome, Pool, figures, play
from rayjobs.policy.simulate.trace import TraceJob, read_trace, shipped

__all__ = [
    "POLICIES",
    "Figures",
    "Outcome",
    "Pool",
    "TraceJob",
    "figures",
    "play",
    "read_trace",
    "shipped",
]

"""Early termination policies: settings, their exact meaning, and what a scheduler promises."""

from __future__ import annotations

from tuning.policies.asha import AshaPolicy
from tuning.policies.bandit import BanditPolicy
from tuning.policies.base import History, Policy, Scheduler, Stop, Verdict, parse_policy
from tuning.policies.median import MedianStoppingPolicy
from tuning.policies.none import NoTerminationPolicy
from tuning.policies.truncation import TruncationSelectionPolicy

__all__ = [
    "AshaPolicy",
    "BanditPolicy",
    "History",
    "MedianStoppingPolicy",
    "NoTerminationPolicy",
    "Policy",
    "Scheduler",
    "Stop",
    "TruncationSelectionPolicy",
    "Verdict",
    "parse_policy",
]

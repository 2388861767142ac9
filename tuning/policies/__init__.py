"""Early termination policies: settings, their exact meaning, and the contract of a scheduler."""

from __future__ import annotations

from rayjobs.tuning.policies.asha import AshaPolicy
from rayjobs.tuning.policies.bandit import BanditPolicy
from rayjobs.tuning.policies.base import History, Policy, Scheduler, Stop, Verdict
from rayjobs.tuning.policies.median import MedianStoppingPolicy
from rayjobs.tuning.policies.none import NoTerminationPolicy
from rayjobs.tuning.policies.parsing import parse_policy
from rayjobs.tuning.policies.truncation import TruncationSelectionPolicy

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

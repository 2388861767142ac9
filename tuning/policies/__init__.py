"""Early termination policies: pure functions over what the trials have reported."""

from __future__ import annotations

from tuning.policies.asha import AshaPolicy
from tuning.policies.bandit import BanditPolicy
from tuning.policies.base import History, Policy, Stop, parse_policy
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
    "Stop",
    "TruncationSelectionPolicy",
    "parse_policy",
]

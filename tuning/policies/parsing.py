"""Parses policies from plain data."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping

from rayjobs.core.errors import Problem
from rayjobs.tuning.errors import SweepError, problem
from rayjobs.tuning.policies.asha import AshaPolicy
from rayjobs.tuning.policies.bandit import BanditPolicy
from rayjobs.tuning.policies.base import Policy
from rayjobs.tuning.policies.median import MedianStoppingPolicy
from rayjobs.tuning.policies.none import NoTerminationPolicy
from rayjobs.tuning.policies.truncation import TruncationSelectionPolicy


def parse_policy(given: object) -> Policy:
    """Return the policy in `given`: itself, None for no policy, a name, or `to_dict`'s data.

    Raises:
        SweepError: lists everything wrong with it.
    """
    if isinstance(given, Policy):
        return given
    kinds: dict[str, type[Policy]] = {
        kind.kind: kind
        for kind in (
            BanditPolicy,
            MedianStoppingPolicy,
            TruncationSelectionPolicy,
            NoTerminationPolicy,
            AshaPolicy,
        )
    }
    if given is None:
        return NoTerminationPolicy()
    if isinstance(given, str):
        given = {"type": given}
    if not isinstance(given, Mapping):
        raise problem(
            "",
            f"a policy is a mapping, but {given!r} is not.",
            "Write e.g. {type: bandit, slack_factor: 0.1}.",
        )
    name = given.get("type")
    if name not in kinds:
        near = difflib.get_close_matches(str(name), kinds, n=1)
        raise problem(
            "type",
            f"there is no policy {name!r}.",
            f"Did you mean {near[0]!r}?" if near else f"Use one of {', '.join(kinds)}.",
        )
    settings = {str(key): value for key, value in given.items() if key != "type"}
    takes = inspect.signature(kinds[name]).parameters
    problems = [
        Problem(key, f"{name} has no setting {key!r}.", f"It takes {', '.join(takes) or 'none'}.")
        for key in settings
        if key not in takes
    ]
    problems += [
        Problem(key, f"{name} needs {key}.", f"Add e.g. {key}: 20.")
        for key, parameter in takes.items()
        if parameter.default is inspect.Parameter.empty and key not in settings
    ]
    if problems:
        raise SweepError(problems=problems)
    return kinds[name](**settings)

"""Parses samplings from plain data."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from rayjobs.core.errors import Problem
from rayjobs.tuning.errors import SweepError, joined, problem
from rayjobs.tuning.samplers.base import Sampling
from rayjobs.tuning.samplers.bayesian import BayesianParameterSampling
from rayjobs.tuning.samplers.grid import GridParameterSampling
from rayjobs.tuning.samplers.random_search import RandomParameterSampling
from rayjobs.tuning.space import parse_space


def parse_sampling(given: object) -> Sampling:
    """Return the sampling in `given`: a sampling itself, or the data of `to_dict`.

    Raises:
        SweepError: lists everything wrong with it.
    """
    if isinstance(given, Sampling):
        return given
    kinds: dict[str, type[Sampling]] = {
        kind.kind: kind
        for kind in (RandomParameterSampling, GridParameterSampling, BayesianParameterSampling)
    }
    if not isinstance(given, Mapping):
        raise problem(
            "",
            f"a sampling is a mapping, but {given!r} is not.",
            "Write e.g. {type: random, seed: 7, parameters: {--lr: [loguniform, [-9, -2]]}}.",
        )
    name = given.get("type", "random")
    if name not in kinds:
        near = difflib.get_close_matches(str(name), kinds, n=1)
        problems = [
            Problem(
                "type",
                f"there is no sampling {name!r}.",
                f"Did you mean {near[0]!r}?" if near else f"Use one of {', '.join(kinds)}.",
            )
        ]
        # Whatever the kind, the parameters themselves can be wrong: report all mistakes at once.
        try:
            parse_space(given.get("parameters", {}))
        except SweepError as found:
            problems += joined("parameters", found)
        raise SweepError(problems=problems)
    settings = {key: value for key, value in given.items() if key not in {"type", "parameters"}}
    try:
        return kinds[name](given.get("parameters", {}), settings)
    except SweepError as found:
        # In a file the properties are next to `parameters`.
        raise SweepError(
            problems=[
                Problem(one.path.removeprefix("properties."), one.message, one.remedy)
                for one in found.problems
            ]
        ) from None

"""Samplers: they choose the parameters of the next trial.

A *sampling* (`RandomParameterSampling` …) is an immutable description; its `sampler` is the object
that a driver asks for parameters and informs of results.
"""

from __future__ import annotations

from rayjobs.tuning.samplers.base import Sampler, Sampling
from rayjobs.tuning.samplers.bayesian import BayesianParameterSampling
from rayjobs.tuning.samplers.grid import GridParameterSampling
from rayjobs.tuning.samplers.parsing import parse_sampling
from rayjobs.tuning.samplers.random_search import RandomParameterSampling

__all__ = [
    "BayesianParameterSampling",
    "GridParameterSampling",
    "RandomParameterSampling",
    "Sampler",
    "Sampling",
    "parse_sampling",
]

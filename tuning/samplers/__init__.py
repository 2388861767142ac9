"""Samplers: which parameters the next trial gets.

A *sampling* (`RandomParameterSampling` …) is an immutable description; its `sampler` is the
small object that a driver asks and tells.
"""

from __future__ import annotations

from tuning.samplers.base import Sampler, Sampling, parse_sampling
from tuning.samplers.bayesian import BayesianParameterSampling
from tuning.samplers.grid import GridParameterSampling
from tuning.samplers.random_search import RandomParameterSampling

__all__ = [
    "BayesianParameterSampling",
    "GridParameterSampling",
    "RandomParameterSampling",
    "Sampler",
    "Sampling",
    "parse_sampling",
]

"""The only package that imports Ray Tune: searchers choose trials, schedulers end them early.

Everything here is a Tune searcher or a Tune scheduler, driven directly: no Tune cluster, no Tune
trial, no Tune checkpoint. Replaying the trial table rebuilds their state. The rest of `tuning` uses
them through the protocols `tuning.samplers.Sampler` and `tuning.policies.Scheduler`.

Importing it imports Ray (about a second), so only code that drives a sweep imports it, never an
everyday command.
"""

from __future__ import annotations

from rayjobs.tuning.tune.scheduling import TuneScheduler
from rayjobs.tuning.tune.searching import TuneSampler

__all__ = ["TuneSampler", "TuneScheduler"]

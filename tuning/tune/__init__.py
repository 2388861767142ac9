"""The only package that imports Ray Tune: its searchers choose, its schedulers end trials early.

Everything here is a Tune searcher or a Tune scheduler, driven directly: no Tune cluster, no Tune
trial, no Tune checkpoint. What they know is rebuilt from the trial table by replaying it. The rest
of `tuning` meets them as the protocols `tuning.samplers.Sampler` and `tuning.policies.Scheduler`.

Importing it imports Ray (about a second), so it is imported where a sweep is driven, and never by
an everyday command.
"""

from __future__ import annotations

from rayjobs.tuning.tune.scheduling import TuneScheduler
from rayjobs.tuning.tune.searching import TuneSampler

__all__ = ["TuneSampler", "TuneScheduler"]

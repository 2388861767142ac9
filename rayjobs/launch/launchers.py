"""Launchers: from a spec and an attempt's nodes to the plans that attempt hosts execute."""

from __future__ import annotations

from typing import Protocol

from rayjobs.injob.plan import LaunchPlan
from rayjobs.launch.horovod_gloo import HorovodGlooLauncher
from rayjobs.launch.mpi import MpiLauncher
from rayjobs.launch.plan import TORCH_BACKENDS, AttemptContext, host_plan
from rayjobs.launch.torch_env import TorchLauncher
from rayjobs.spec.model import JobSpec


class Launcher(Protocol):
    """Plans one way to start ranks. Without side effects: `--dry-run` prints the same plan."""

    def plans(self, context: AttemptContext) -> list[LaunchPlan]:
        """Return one host plan per node."""
        ...


class SingleLauncher:
    """One process on one node."""

    def plans(self, context: AttemptContext) -> list[LaunchPlan]:
        """Return the plan of the one host."""
        return [host_plan(context, node, [{}]) for node in context.nodes[:1]]


def launcher_for(spec: JobSpec) -> Launcher:
    """Return the launcher for a spec."""
    backend = spec.distribution.backend
    if backend in TORCH_BACKENDS:
        return TorchLauncher()
    if backend == "mpi":
        return MpiLauncher()
    if backend == "horovod-gloo":
        return HorovodGlooLauncher()
    return SingleLauncher()

"""Finds out which containment works on a node."""

from __future__ import annotations

import logging

from rayjobs.injob import namespace
from rayjobs.injob.tree import CGROUP, NAMESPACE, SCAN
from rayjobs.node import probe
from rayjobs.target.node_settings import AUTO

log = logging.getLogger(__name__)


class NodeContainment:
    """The containment levels of one node, the best first. Thread-safe."""

    def __init__(self, setting: str) -> None:
        """Use the containment that `NodeSettings.containment` sets."""
        self._setting = setting
        self._levels = probe.ProbeResult(_levels, failed=lambda _: (CGROUP, SCAN))

    def levels(self) -> tuple[str, ...]:
        """Return the value of a plan's `containment`. Blocks briefly at its first use."""
        return self._levels.get() if self._setting == AUTO else (self._setting,)


def _levels() -> tuple[str, ...]:
    refused = why_no_namespace()
    if refused:
        log.info("attempts run without a PID namespace: %s", refused)
    return (CGROUP, SCAN) if refused else (CGROUP, NAMESPACE, SCAN)


def why_no_namespace() -> str:
    """Return why an attempt cannot have a PID namespace here; empty if it can. Blocks.

    Raises:
        ProbeError: see `probe.run`.
    """
    return probe.run(namespace, namespace.NamespaceProbe).why

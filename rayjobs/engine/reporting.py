"""Writes what a target's actor reports to its keeper and to clients: its activity and its nodes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from rayjobs.core.paths import TargetPaths
from rayjobs.protocol.agent import NodeInfo
from rayjobs.target.answers import NodeStatus
from rayjobs.target.reports import Activity, CapacityReport

log = logging.getLogger(__name__)
ACTIVITY_EVERY_S = 5.0


def status_of(node: NodeInfo) -> NodeStatus:
    """Return the message about a node of the cluster."""
    return NodeStatus(
        node_id=node.node_id,
        address=node.address,
        cpus=node.cpus,
        gpus=node.gpus,
        memory=node.memory,
        free_cpus=node.free_cpus,
        free_gpus=node.free_gpus,
        free_memory=node.free_memory,
        node_type=node.node_type,
    )


class Reporting:
    """Writes each report when it has changed, and the activity also every few seconds."""

    def __init__(self, paths: TargetPaths) -> None:
        self._paths = paths
        self._activity: Activity | None = None
        self._capacity: list[tuple[str, float, float, float]] = []

    def report(self, *, is_busy: bool, nodes: Sequence[NodeInfo]) -> None:
        """Report the activity to the keeper, and the nodes to clients unless there are none."""
        # What is free changes all the time, and is not needed.
        capacity = [(node.node_id, node.cpus, node.gpus, node.memory) for node in nodes]
        if nodes and capacity != self._capacity:
            self._capacity = capacity
            self._write(CapacityReport(tuple(status_of(node) for node in nodes)))
        known = self._activity
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        if known is None or known.busy != is_busy or now_s - known.at > ACTIVITY_EVERY_S:
            self._activity = Activity(is_busy, now_s, os.getpid())
            self._write(self._activity)

    def _write(self, report: Activity | CapacityReport) -> None:
        """Write a report; log a full disk without failing."""
        try:
            report.write(self._paths)
        except OSError as error:
            log.warning("a report was not written: %s", error)

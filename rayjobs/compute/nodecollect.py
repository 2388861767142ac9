"""What an attempt says and writes, brought from its node into the workspace: metrics, files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rayjobs import modelrequests
from rayjobs.collect import MetricFollower, Publisher, deliver, log_tails
from rayjobs.collectcheckpoints import CheckpointPublisher
from rayjobs.compute.nodedata import NodeData
from rayjobs.compute.nodehosts import record_of
from rayjobs.compute.nodeworkspaces import Workspaces
from rayjobs.errors import RayjobsError, StoreError

log = logging.getLogger(__name__)

# How often metrics and files are read while an attempt runs.
METRICS_EVERY_S = 0.25
FILES_EVERY_S = 2.0


class Collecting:
    """Brings what the attempts of one node leave into their workspaces."""

    def __init__(self, data: NodeData, workspaces: Workspaces) -> None:
        self._data = data
        self._workspaces = workspaces
        self._publishers: dict[str, Publisher] = {}
        self._metrics: dict[str, MetricFollower] = {}

    async def watch(self, order: Mapping[str, Any]) -> None:
        """Bring metrics and whole files into the workspace while the attempt runs."""
        turns_per_files = max(1, round(FILES_EVERY_S / METRICS_EVERY_S))
        turn = 0
        while True:
            await asyncio.sleep(METRICS_EVERY_S)
            turn += 1
            try:
                await asyncio.to_thread(self._bring_metrics, order)
                if turn % turns_per_files == 0:
                    await asyncio.to_thread(self._publisher(order).step)
            except RayjobsError as error:
                log.info("%s: %s", order["plan"]["job"], error)
            except OSError as error:
                log.warning("%s: %s", order["plan"]["job"], error)

    def collect(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Store the last metrics and every file; say what could not be. Blocks."""
        plan = order["plan"]
        root = Path(plan["root"])
        problems: list[str] = []
        try:
            self._bring_metrics(order)
        except StoreError as error:
            problems.append(f"metrics: {error}.")
        publisher = self._publisher(order)
        problems += publisher.finish()
        record = record_of(str(root))
        if record is not None and record["outcome"] == "completed" and self._is_current(order):
            note = partial(self._workspaces.note, order)
            problems += self._data.store_outputs(root, self._workspaces.of(order), note=note)
        requests: list[dict[str, Any]] = []
        try:
            requests = modelrequests.read(root, plan)
        except OSError as error:
            problems.append(f"models that the script registers: {error.strerror or error}.")
        for sentence in publisher.left_out:
            self._workspaces.note(order, "left_out", sentence)
        if not problems:
            self._publishers.pop(_key(order), None)
            self._metrics.pop(_key(order), None)
        return {
            "tails": log_tails(root, plan),
            "problems": problems,
            "data": self._data.facts(root),
            "models": requests,
        }

    def _is_current(self, order: Mapping[str, Any]) -> bool:
        """Whether what this attempt wrote may be stored: no newer one owns the job."""
        job = self._workspaces.of(order).store.job(order["plan"]["job"])
        return not job.state.is_final and job.attempt == int(order["plan"]["attempt"])

    def _bring_metrics(self, order: Mapping[str, Any]) -> None:
        key = _key(order)
        follower = self._metrics.get(key)
        attempt = int(order["plan"]["attempt"])
        if follower is None:
            follower = MetricFollower(Path(order["plan"]["root"]), attempt=attempt)
            self._metrics[key] = follower
        for batch in follower.batches():
            deliver(self._workspaces.of(order).store, order["plan"]["job"], batch, attempt=attempt)
            follower.confirm(batch)

    def _publisher(self, order: Mapping[str, Any]) -> Publisher:
        key = _key(order)
        publisher = self._publishers.get(key)
        if publisher is None:
            workspace = self._workspaces.of(order)
            job, attempt = order["plan"]["job"], int(order["plan"]["attempt"])
            publisher = CheckpointPublisher(
                Path(order["plan"]["root"]),
                order["plan"],
                blobs=workspace.blobs,
                publish=lambda files: workspace.store.publish_files(
                    job, attempt=attempt, files=files
                ),
                drop=lambda names: workspace.store.drop_files(job, attempt=attempt, names=names),
            )
            self._publishers[key] = publisher
        return publisher


def _key(order: Mapping[str, Any]) -> str:
    return str(order["plan"]["marker"])

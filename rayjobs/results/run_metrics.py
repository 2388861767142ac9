"""The metrics of a run, as programs outside it read and log them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rayjobs.core.clock import SystemClock
from rayjobs.injob.metrics_file import METRIC_KINDS, stored_value
from rayjobs.jobs.records import INTERACTIVE, Job, MetricPoint
from rayjobs.results import metrics

if TYPE_CHECKING:
    from rayjobs.results.run_files import RunFiles
    from rayjobs.store.base import Store

# The rank of values logged from outside the job, so that they sort after those of all ranks.
OUTSIDE_RANK = 1_000_000


def values(
    store: Store, files: RunFiles, run_id: str, *, name: str | None, populate: bool
) -> dict[str, Any]:
    """Return the metrics of a run by name, as ``Run.get_metrics`` does.

    Args:
        files: The files of the run, which contain its images.
        name: Return only this metric.
        populate: Return images as bytes instead of file names.
    """
    points = store.metrics(run_id, name=name)
    found = metrics.values_by_name(points)
    if populate:
        for one in {point.name for point in points if _is_image(point)}:
            images = found[one] if isinstance(found[one], list) else [found[one]]
            read = [files.read(image) for image in images]
            found[one] = read if len(read) > 1 else read[0]
    return found


def add(store: Store, job: Job, kind: str, name: str, value: Any, step: int | None) -> None:
    """Log a value of a run; a kind that is not one of metrics is ignored."""
    if kind not in METRIC_KINDS:
        return
    sequence = 0
    while True:
        sequence = max(sequence + 1, time.time_ns())
        point = MetricPoint(
            attempt=max(1, job.attempt),
            # Everything in an interactive run is logged from outside and forms one curve.
            rank=0 if job.kind == INTERACTIVE else OUTSIDE_RANK,
            sequence=sequence,
            name=name,
            value=stored_value(kind, value),
            step=step,
            at=SystemClock().now(),
        )
        if store.add_metrics(job.id, [point]):
            return
        # Another thread or process logged a value in the same nanosecond.


def _is_image(point: MetricPoint) -> bool:
    return isinstance(point.value, Mapping) and point.value.get("kind") == "image"

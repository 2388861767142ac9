"""The target's figures in Ray's metrics, for Prometheus and the Ray dashboard."""

from __future__ import annotations

from collections.abc import Mapping


class Gauges:
    """Counters and gauges named ``ray_rayjobs_…`` at Ray's metrics port."""

    def __init__(self, target: str) -> None:
        from ray.util.metrics import Counter, Gauge, Histogram

        tags = ("target",)
        self._tags = {"target": target}
        self._ended = Counter(
            "rayjobs_jobs_ended", "Jobs that reached a final state.", tag_keys=("target", "state")
        )
        self._launches = Counter("rayjobs_launches", "Attempts started.", tag_keys=tags)
        self._queue = Gauge("rayjobs_queue_length", "Jobs that wait.", tag_keys=tags)
        self._live = Gauge("rayjobs_jobs_live", "Jobs that hold an allocation.", tag_keys=tags)
        self._waited = Histogram(
            "rayjobs_wait_seconds",
            "Seconds from submit to start.",
            boundaries=[0.1, 1, 10, 60, 600, 3600, 36000],
            tag_keys=tags,
        )

    def count(self, name: str) -> None:
        """Count one launch, or one end by its state's name."""
        if name == "launches":
            self._launches.inc(tags=self._tags)
        else:
            self._ended.inc(tags={**self._tags, "state": name})

    def waited(self, seconds: float) -> None:
        """Record how long a job waited, in seconds."""
        self._waited.observe(max(0.0, seconds), tags=self._tags)

    def levels(self, levels: Mapping[str, int]) -> None:
        """Set how many jobs wait and how many hold an allocation."""
        self._queue.set(levels["waiting"], tags=self._tags)
        self._live.set(levels["live"], tags=self._tags)

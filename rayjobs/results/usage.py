"""Reads attempts' resource use from exit records; for a running attempt, from its host's file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rayjobs.injob import usage
from rayjobs.injob.exit_record import UsageRecord
from rayjobs.jobs.records import Attempt, MetricPoint


def records_of(attempt: Attempt) -> Iterator[tuple[int, UsageRecord]]:
    """Yield (node, record) for each node of an attempt with a record.

    The record of a node that has not ended can be read only on that machine.
    """
    ended = set()
    for one in attempt.exits:
        if one.usage is not None:
            ended.add(one.node)
            yield one.node, one.usage
    for host in attempt.hosts:
        if host.node not in ended and attempt.ended_at is None:
            found = usage.read(host.root)
            if found is not None:
                yield host.node, found


def peak_bytes(attempt: Attempt) -> int | None:
    """Return the peak memory of an attempt on one node, in bytes; None: unknown.

    This is the highest of the figures that any node recorded: those of its samples, its cgroup and
    its ranks.
    """
    peaks = [found.peak_bytes or 0 for _, found in records_of(attempt)]
    for one in attempt.exits:
        peaks.append(one.memory.peak_bytes or 0)
        peaks += [rank.max_rss_bytes or 0 for rank in one.ranks]
    return max(peaks, default=0) or None


def system_points(attempts: Sequence[Attempt], *, all_attempts: bool = False) -> list[MetricPoint]:
    """Return the samples as metrics: ``cpu_cores``, ``memory_gib``, ``gpu0_percent``, ….

    With several nodes, names begin with the node: ``node1/cpu_cores``. The step is the second of
    the attempt.
    """
    found: list[MetricPoint] = []
    for attempt in attempts if all_attempts else attempts[-1:]:
        for node, record in records_of(attempt):
            prefix = f"node{node}/" if len(attempt.hosts) > 1 else ""
            columns: dict[str, tuple[Sequence[float | None], float]] = {
                "cpu_cores": (record.cpu, 1.0),
                "memory_gib": (record.memory, 2.0**30),
            }
            for name, gpu in sorted(record.gpus.items()):
                columns[f"gpu{name}_percent"] = (gpu.use, 1.0)
                columns[f"gpu{name}_memory_gib"] = (gpu.memory, 2.0**30)
            for name, (values, unit) in columns.items():
                for number, (second, value) in enumerate(zip(record.t, values, strict=False)):
                    if value is None:
                        continue
                    found.append(
                        MetricPoint(
                            attempt=attempt.number,
                            rank=0,
                            sequence=number,
                            name=prefix + name,
                            value=value / unit,
                            step=int(second),
                            at=datetime.fromtimestamp(record.began_at + second, UTC),
                        )
                    )
    return found

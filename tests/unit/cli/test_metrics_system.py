"""`metrics --system` and `show`: the resources that a job used on its node."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rayjobs.injob.exit_record import ExitRecord, MemoryUse, RankExit, UsageRecord
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.hosts import HostRecord
from rayjobs.jobs.records import Attempt
from rayjobs.jobs.states import JobState
from rayjobs.results.usage import peak_bytes, records_of, system_points
from tests.unit.cli.conftest import Queue, Terminal

USED: dict[str, object] = {
    "began_at": 1_000.0,
    "every_s": 1.0,
    "peak_bytes": 3 * 2**30,
    "cpu_s": 5.0,
    "t": [1.0, 2.0],
    "cpu": [0.5, 1.5],
    "memory": [2**30, 3 * 2**30],
    "gpus": {"0": {"use": [None, 80.0], "memory": [None, 2**31]}},
}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def attempt(**values: object) -> Attempt:
    return Attempt(job="j", number=1, allocation=None, created_at=NOW, **values)  # type: ignore[arg-type]


def exit_of(node: int, **values: Any) -> ExitRecord:
    """Return the exit record of a node, with samples of its use."""
    return ExitRecord(
        "j", 1, node, "m", Outcome.COMPLETED, **{"usage": UsageRecord.from_json(USED), **values}
    )


def test_samples_are_metrics_by_name_with_seconds_as_steps() -> None:
    ended = attempt(ended_at=NOW, hosts=(HostRecord(0),), exits=(exit_of(0),))
    points = system_points([ended])
    assert [(one.name, one.step, one.value) for one in points] == [
        ("cpu_cores", 1, 0.5),
        ("cpu_cores", 2, 1.5),
        ("memory_gib", 1, 1.0),
        ("memory_gib", 2, 3.0),
        ("gpu0_percent", 2, 80.0),
        ("gpu0_memory_gib", 2, 2.0),
    ]
    assert points[0].at == datetime.fromtimestamp(1_001.0, UTC)


def test_nodes_are_distinguished() -> None:
    hosts = (HostRecord(0), HostRecord(1))
    exits = tuple(exit_of(node) for node in (0, 1))
    names = {one.name for one in system_points([attempt(hosts=hosts, exits=exits, ended_at=NOW)])}
    assert {"node0/cpu_cores", "node1/memory_gib"} <= names


def test_samples_of_a_running_job_are_read_from_its_host_file(tmp_path: Path) -> None:
    (tmp_path / "usage.json").write_text(json.dumps(USED))
    hosts = (HostRecord(root=str(tmp_path)),)
    assert [found for _, found in records_of(attempt(hosts=hosts))] == [UsageRecord.from_json(USED)]
    assert list(records_of(attempt(hosts=hosts, ended_at=NOW))) == []


def test_peak_is_the_largest_recorded_value() -> None:
    memory, ranks = MemoryUse(peak_bytes=4 * 2**30), (RankExit(0, max_rss_bytes=7),)
    exits = (exit_of(0, memory=memory, ranks=ranks),)
    assert peak_bytes(attempt(exits=exits)) == 4 * 2**30
    assert peak_bytes(attempt(exits=(exit_of(0, usage=None, ranks=ranks),))) == 7
    assert peak_bytes(attempt()) is None


@pytest.mark.parametrize(
    ("cold", "text"),
    [(False, "512 MiB (all processes, with the preloaded packages)"), (True, "512 MiB (all ")],
)
def test_show_has_one_figure_of_memory(
    queue: Queue, terminal: Terminal, cold: bool, text: str
) -> None:
    job = queue.start(queue.submit(cold=cold), until=JobState.FINALIZING)
    used = UsageRecord.from_json({**USED, "peak_bytes": 2**29})
    exits = [exit_of(0, usage=used, ranks=(RankExit(0, max_rss_bytes=9),))]
    assert queue.workspace.store.record_exit(job.id, attempt=1, exits=exits)
    queue.finish(job)
    shown = terminal.type("show", "-v", job.id).out
    assert f"Peak memory  {text}" in " ".join(shown.split("\n")), shown
    assert "peak memory 512 MiB, 5s of CPU time" in shown
    assert ("preloaded" in shown) is not cold

"""Faults of parallel runs with several processes, without a target."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs.injob.parallel_settings import VARIABLE
from rayjobs.spec.model import ParallelRun
from rayjobs.target.local_head import free_port

SCRIPT = """
import os, time
def init():
    if os.environ["RANK"] == "1":
        raise RuntimeError("no GPU on this node")
def run(mini_batch):
    return list(mini_batch)
"""
LIMIT_S = 60  # a rank that waits forever


@pytest.mark.parametrize("count", [0, 300])
def test_a_run_ends_when_init_fails_on_one_rank_alone(tmp_path: Path, count: int) -> None:
    (tmp_path / "entry.py").write_text(SCRIPT)
    data = tmp_path / "data"
    data.mkdir()
    for number in range(count):
        (data / f"{number:03}").touch()
    spec = ParallelRun(inputs=("data",), output="made", mini_batch_size=1)
    port = free_port()
    ranks = []
    for rank in range(2):
        scratch = tmp_path / f"scratch-{rank}"
        scratch.mkdir()
        variables = {
            VARIABLE: spec.model_dump_json(),
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TMPDIR": str(scratch),
            "AZUREML_DATAREFERENCE_data": str(data),
            "AZUREML_DATAREFERENCE_made": str(tmp_path / "made"),
        }
        code = (
            "import sys; from rayjobs.injob import parallel_run; "
            f"sys.exit(parallel_run.main({str(tmp_path / 'entry.py')!r}, []))"
        )
        with (tmp_path / f"log-{rank}").open("w") as log:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-c", code], env={**os.environ, **variables}, stderr=log
                )
            )
    try:
        for one in ranks:
            one.wait(timeout=LIMIT_S)
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    ends = [(tmp_path / f"log-{rank}").read_text() for rank in range(2)]
    assert "the entry script does not start: RuntimeError: no GPU on this node" in ends[1]
    assert ranks[1].returncode == 0, "rank 0 decides how the job ends"
    assert "no GPU on this node" in ends[0]
    made = tmp_path / "made" / "parallel_run_step.txt"
    if ranks[0].returncode == 0:  # the other was so late that all mini-batches were done
        assert len(made.read_text().splitlines()) == count
    else:
        assert not made.exists()

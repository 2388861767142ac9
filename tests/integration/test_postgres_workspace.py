"""A job whose workspace keeps its records in PostgreSQL, from submit to its stored files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayjobs.cli.main import run
from rayjobs.workspace.shared import create_in
from tests.storage.postgres import Postgres, server
from tests.support.jobs import leaving
from tests.support.local_target import LocalTarget

__all__ = ["server"]
pytestmark = pytest.mark.ray

SCRIPT = """
from pathlib import Path

import rayjobs.injob.run as run

for step in range(5):
    run.Run.get_context().log("loss", 1 / (step + 1), step=step)
Path("outputs").mkdir(exist_ok=True)
Path("outputs/model.txt").write_text("weights")
print("trained")
"""


def test_a_job_runs_with_its_records_in_postgres(
    local_target: LocalTarget,
    server: Postgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    create_in(tmp_path / "w", server.url).store.close()
    with leaving(tmp_path / "w"):
        monkeypatch.setenv("RAYJOBS_WORKSPACE", str(tmp_path / "w"))
        script = tmp_path / "code" / "train.py"
        script.parent.mkdir()
        script.write_text(SCRIPT)
        assert run(["submit", "--attach", "--retries", "1", str(script)]) == 0
        assert "trained" in capfd.readouterr().out
        # The server is restarted between two jobs: the target continues with new connections.
        server.kill()
        server.start()
        assert run(["submit", "--attach", str(script)]) == 0
        capfd.readouterr()
        assert run(["ls", "--json", "-a"]) == 0
        jobs = json.loads(capfd.readouterr().out)
        assert [job["state"] for job in jobs] == ["Completed", "Completed"]
        assert run(["metrics", "train-1", "--json"]) == 0
        assert len(json.loads(capfd.readouterr().out)["metrics"]["loss"]) == 5
        assert run(["download", "train-1", "outputs/model.txt", "-o", "-"]) == 0
        assert capfd.readouterr().out == "weights"
        assert run(["workspace", "check"]) == 0
        assert "2 jobs" in capfd.readouterr().out
        assert run(["db", "check"]) == 2
        assert "is in PostgreSQL" in capfd.readouterr().err
        assert not (tmp_path / "w" / "store.db").exists()

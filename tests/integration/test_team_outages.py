"""A job ends while the bucket or the database of its workspace is unavailable: nothing is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rayjobs.cli.main import run
from rayjobs.workspace import shared
from tests.storage.blobs import address_in, given_keys, target
from tests.storage.postgres import Postgres, server
from tests.storage.proxy import Proxy
from tests.storage.server import S3Server, s3_server
from tests.support.jobs import leaving
from tests.support.local_target import LocalTarget

__all__ = ["given_keys", "s3_server", "server", "target"]

pytestmark = pytest.mark.ray

SCRIPT = """
import sys
import time
from pathlib import Path

while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
Path("outputs").mkdir(exist_ok=True)
Path("outputs/model.txt").write_text("weights")
print("trained")
"""
LIMIT_S = 120.0


@pytest.mark.parametrize("unavailable", ["S3", "PostgreSQL"])
def test_job_ending_during_a_server_outage_loses_nothing(
    target: LocalTarget,
    server: Postgres,
    s3_server: S3Server,
    given_keys: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    unavailable: str,
) -> None:
    with Proxy(s3_server.port) as proxy:
        address = address_in(s3_server, endpoint=proxy.endpoint)
        with shared.create(tmp_path / "w", server.url, blobs=address).workspace:
            pass
        with leaving(tmp_path / "w"):
            monkeypatch.setenv("RAYJOBS_WORKSPACE", str(tmp_path / "w"))
            script, go = tmp_path / "train.py", tmp_path / "go"
            script.write_text(SCRIPT)
            assert run(["submit", "-d", str(script), "--", str(go)]) == 0

            def shown() -> dict[str, str]:
                capfd.readouterr()
                assert run(["show", "train-1", "--json"]) == 0
                return dict(json.loads(capfd.readouterr().out))

            until(lambda: shown()["state"] == "Running")
            if unavailable == "S3":
                proxy.lose()
                go.touch()
                until(lambda: "waits for a storage" in shown()["reason"])
                proxy.come_back()
            else:
                server.kill()
                go.touch()
                time.sleep(12)  # longer than a collection is retried
                server.start()
            assert run(["wait", "train-1"]) == 0
            capfd.readouterr()
            assert run(["download", "train-1", "outputs/model.txt", "-o", "-"]) == 0
            assert capfd.readouterr().out == "weights"
            assert run(["logs", "train-1"]) == 0
            assert capfd.readouterr().out == "trained\n"


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.2)

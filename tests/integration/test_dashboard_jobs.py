"""Ray's own dashboard and tools list the jobs of a target."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from rayjobs.jobs.states import JobState
from tests.support.jobs import Jobs, until
from tests.support.local_target import LocalTarget

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def get(target: LocalTarget, path: str) -> Any:
    """Return the response of Ray's dashboard; empty if it does not know the path."""
    request = urllib.request.Request(
        f"{target.head.dashboard_url}/api/jobs/{path}",
        headers={"Authorization": f"Bearer {target.token}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return {}
        raise


def test_ray_lists_a_job_with_its_state_its_end_and_its_live_log(
    jobs: Jobs, local_target: LocalTarget
) -> None:
    """Off switch: give the engine no `shown`, and the agent no `ServedLogs`."""
    gate = jobs.folder / "gate"
    job = jobs.submit(
        f"""
        import pathlib, time
        print("the first line", flush=True)
        while not pathlib.Path({str(gate)!r}).exists():
            time.sleep(0.05)
        raise ValueError("eleven classes")
        """,
        arguments=("--lr", "0.1"),
    )
    jobs.wait(job, JobState.RUNNING)
    running = until(
        lambda: (found := get(local_target, job.id)).get("status") == "RUNNING" and found,
        "the job is listed as running",
    )
    assert running["submission_id"] == job.id
    assert running["entrypoint"] == "train.py --lr 0.1"
    assert running["metadata"]["experiment"] == "test"
    until(
        lambda: "the first line" in get(local_target, f"{job.id}/logs").get("logs", ""),
        "its log is served while it runs",
    )
    # The request for the log has started Ray's job manager, which looks for a supervisor.
    assert get(local_target, job.id)["status"] == "RUNNING"
    gate.touch()
    jobs.wait(job, JobState.FAILED)
    ended = until(
        lambda: (found := get(local_target, job.id)).get("status") == "FAILED" and found,
        "the job is listed as failed",
    )
    assert "eleven classes" in ended["message"]
    assert ended["driver_exit_code"] == 1
    assert ended["end_time"] >= ended["start_time"]
    until(
        lambda: "eleven classes" in get(local_target, f"{job.id}/logs")["logs"],
        "its whole log is served after its end",
    )


def test_record_marked_failed_by_ray_is_corrected(jobs: Jobs, local_target: LocalTarget) -> None:
    gate = jobs.folder / "gate"
    job = jobs.submit(
        f"""
        import pathlib, time
        while not pathlib.Path({str(gate)!r}).exists():
            time.sleep(0.05)
        """
    )
    until(lambda: get(local_target, job.id).get("status") == "RUNNING", "the job is listed")
    call_failed(local_target, job.id)
    until(lambda: get(local_target, job.id)["status"] == "RUNNING", "it is listed as running")
    gate.touch()
    jobs.wait(job, JobState.COMPLETED)
    until(lambda: get(local_target, job.id)["status"] == "SUCCEEDED", "it is listed as ended")


def call_failed(target: LocalTarget, job: str) -> None:
    """Write what Ray's job manager writes for an unfinished job that has no supervisor."""
    import os
    import subprocess
    import sys

    script = """
import asyncio, sys
import ray
from ray._private import worker
from ray.dashboard.modules.job.common import JobInfoStorageClient, JobStatus
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
client = JobInfoStorageClient(worker.global_worker.gcs_client)
asyncio.run(client.put_status(sys.argv[2], JobStatus.FAILED, message="no supervisor"))
"""
    subprocess.run(
        [sys.executable, "-c", script, target.head.gcs_address, job],
        env={
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(target.paths.token),
        },
        check=True,
        timeout=120,
    )

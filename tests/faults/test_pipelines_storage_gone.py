"""The storage of a pipeline's data is killed between steps, and while an output is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.failures import FailureClass
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.pipelines.pipeline_file import pipeline_of
from rayjobs.pipelines.submitter import resume_pipeline, submit_pipeline
from tests.storage.photos import register_photos
from tests.storage.profile import aws_profile  # noqa: F401
from tests.storage.server import S3Server, start_server
from tests.support.jobs import Jobs, until

pytestmark = [pytest.mark.ray, pytest.mark.storage]

# Reads the output of the previous step, records its start, waits for its turn, adds its name.
# No node has the bytes already: they differ for each run.
STEP = """
import os, pathlib, sys, time
name, folder, *places = sys.argv[1:]
read = "".join(pathlib.Path(one, "names").read_text() for one in places[1:])
with open(os.path.join(folder, "ledger"), "a") as ledger:
    ledger.write(name + "\\n")
while not os.path.exists(os.path.join(folder, name)):
    time.sleep(0.02)
if places:
    pathlib.Path(places[0], "names").write_text(f"{read} {name}-{os.urandom(8).hex()}")
"""
OUT, IN = "$AZUREML_DATAREFERENCE_made", "$AZUREML_DATAREFERENCE_read"


class Chain:
    """The steps first → pause → use → last; all but `pause` have their data in the storage."""

    def __init__(self, jobs: Jobs, server: S3Server, profile: str, folder: Path) -> None:
        self.jobs, self.server, self.turns = jobs, server, folder / "turns"
        self.turns.mkdir()
        (folder / "source").mkdir()
        (folder / "source" / "step.py").write_text(STEP)
        self.photos = register_photos(
            jobs.workspace, server, profile, connect_timeout_s=2, attempts=1
        )
        made = {"outputs": {"made": {"destination": "photos/{run-id}/made"}}}
        steps: dict[str, dict[str, Any]] = {
            "first": {"arguments": ["first", self.turns, OUT], **made},
            "pause": {"arguments": ["pause", self.turns], "after": ["first"]},
            "use": {
                "arguments": ["use", self.turns, OUT, IN],
                "inputs": {"read": {"source": "step:first/made", "mode": "mount"}},
                "after": ["pause"],
                **made,
            },
            "last": {
                "arguments": ["last", self.turns, OUT, IN],
                "inputs": {"read": {"source": "step:use/made", "mode": "download"}},
                **made,
            },
        }
        for one in steps.values():
            one |= {"script": "step.py", "grace_s": 2.0}
            one["arguments"] = [str(word) for word in one["arguments"]]
        self.steps, self.source = steps, folder / "source"

    def submit(self) -> None:
        """Submit the pipeline."""
        spec = pipeline_of({"name": "chain", "steps": self.steps}, folder=self.source)
        self.run = submit_pipeline(self.jobs.workspace, spec).pipeline.job

    def step(self, name: str) -> Job:
        """Return the job of a step."""
        (row,) = [one for one in self.jobs.store.steps(self.run.id) if one.name == name]
        return self.jobs.store.job(row.job)

    def may_end(self, *names: str) -> None:
        """Let steps end."""
        for name in names:
            (self.turns / name).touch()

    def wait_for_event(self, name: str, text: str) -> None:
        """Wait until a step's history has `text`."""
        events = self.jobs.store.events
        until(
            lambda: any(text in one.message for one in events(self.step(name).id)),
            f"{name} reports {text!r}",
        )

    def check(self, destination: Path) -> None:
        """Wait for the end; check that no work was repeated or lost, and which data was read."""
        self.jobs.wait(self.run, JobState.COMPLETED)
        ledger = (self.turns / "ledger").read_text().split()
        assert Counter(ledger) == dict.fromkeys(self.steps, 1)
        self.photos.download(destination, f"{self.step('last').id}/made", show_progress=False)
        (names,) = destination.rglob("names")
        assert [one.partition("-")[0] for one in names.read_text().split()] == [
            "first",
            "use",
            "last",
        ]


@pytest.fixture(scope="module")
def server(session_root: Path) -> Iterator[S3Server]:
    """A separate server, which these tests kill."""
    server = start_server(session_root)
    yield server
    server.kill()


@pytest.fixture
def chain(
    jobs: Jobs,
    server: S3Server,
    aws_profile: str,  # noqa: F811
    tmp_path: Path,
) -> Chain:
    return Chain(jobs, server, aws_profile, tmp_path)


def test_killed_storage_that_returns_only_delays_a_pipeline(chain: Chain, tmp_path: Path) -> None:
    chain.submit()
    chain.jobs.wait(chain.step("first"), JobState.RUNNING)
    chain.server.kill()
    chain.may_end("first")
    chain.wait_for_event("first", "waits for a storage: output made")
    first = chain.step("first")
    assert first.state is JobState.FINALIZING
    assert chain.server.endpoint in first.reason
    chain.server.restart()
    chain.jobs.wait(chain.step("pause"), JobState.RUNNING)
    assert chain.step("first").attempt == 1

    chain.server.kill()
    chain.may_end("pause", "use", "last")
    chain.wait_for_event("use", "because a storage does not answer")
    failure = chain.jobs.store.attempts(chain.step("use").id)[0].failure
    assert failure is not None
    assert failure.failure_class is FailureClass.DATA
    assert "'read'" in failure.message and chain.server.endpoint in failure.message
    chain.server.restart()
    chain.check(tmp_path / "got")
    assert chain.step("use").attempt > 1


def test_a_pipeline_that_failed_for_its_storage_is_resumed_at_the_failed_step(
    chain: Chain, tmp_path: Path
) -> None:
    chain.steps["use"]["retries"] = {"data": 0}
    chain.submit()
    chain.may_end("first")
    chain.jobs.wait(chain.step("pause"), JobState.RUNNING)
    chain.server.kill()
    chain.may_end("pause", "use", "last")
    failed = chain.jobs.wait(chain.run, JobState.FAILED)
    assert failed.failure is not None
    assert failed.failure.failure_class is FailureClass.DATA
    assert "step 'use' failed: " in failed.failure.message
    assert chain.server.endpoint in failed.failure.message
    assert chain.step("last").state is JobState.CANCELED
    chain.server.restart()
    resumed = resume_pipeline(chain.jobs.workspace, chain.run.id)
    assert sorted(one.name for one in resumed.run.reused) == ["first", "pause"]
    chain.run = resumed.pipeline.job
    chain.check(tmp_path / "got")

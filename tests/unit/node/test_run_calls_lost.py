"""An agent that dies after it has carried out a script's call and before it answers."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rayjobs.api.attempt_workspace import ChannelStore, _asking
from rayjobs.core.errors import StoreError
from rayjobs.datastore.catalogue import DatasetRecord
from rayjobs.injob import control, run_calls
from rayjobs.jobs.records import ModelDraft
from rayjobs.jobs.writers import AttemptWriter
from rayjobs.node.run_calls import RunCalls, token_of
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobFilter, NewJob, NewRun
from tests.support.run_calls import Scene, scene

__all__ = ["scene"]


class LosingAgent:
    """Carries out every call; loses the answer to the first call after `lose` was set."""

    def __init__(self, scene: Scene) -> None:
        token_of(scene.root)
        self._calls = RunCalls(scene.on, lambda: scene.opened)
        self.lines: list[bytes] = []
        self.lose = False
        folder = os.open(scene.root, os.O_PATH | os.O_DIRECTORY)
        self._listener = control.listen(f"/proc/self/fd/{folder}/{run_calls.SOCKET}")
        os.close(folder)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return  # closed
            with stream, stream.makefile("rb") as lines:
                for line in lines:
                    self.lines.append(line)
                    answer = self._calls.answer(line)
                    if self.lose:
                        self.lose = False
                        break
                    stream.sendall(json.dumps(answer.to_json()).encode() + b"\n")

    def close(self) -> None:
        self._listener.shutdown(2)
        self._listener.close()
        self._thread.join(60)


@pytest.fixture
def losing(scene: Scene) -> Iterator[LosingAgent]:
    made = LosingAgent(scene)
    yield made
    for channel in scene.channels:
        channel.close()
    made.close()


def store_of(scene: Scene) -> ChannelStore:
    return ChannelStore(_asking(scene.channel(patience_s=60)))


@pytest.mark.long
def test_a_child_job_is_queued_once(scene: Scene, losing: LosingAgent) -> None:
    spec = JobSpec(script="a.py", name="a")
    new = NewJob(spec=spec, experiment="mnist", snapshot=None, user="ada", parent=scene.job)
    store = store_of(scene)
    losing.lose = True
    job, _ = store.submit(new)
    assert len(losing.lines) == 2
    assert [one.id for one in scene.opened.store.jobs(JobFilter(parent=scene.job))] == [job.id]
    other, is_new = store.submit(new)  # another call is another job
    assert is_new and other.id != job.id


@pytest.mark.long
def test_a_child_run_is_started_once(scene: Scene, losing: LosingAgent) -> None:
    writer = AttemptWriter(job=scene.job, attempt=scene.attempt).to_json()
    new = NewRun(experiment="mnist", name="", user="ada", writer=writer, parent=scene.job)
    losing.lose = True
    run, _ = store_of(scene).start_run(new)
    assert len(losing.lines) == 2
    assert [one.id for one in scene.opened.store.jobs(JobFilter(parent=scene.job))] == [run.id]


def test_repeated_registration_creates_one_version(scene: Scene, losing: LosingAgent) -> None:
    store = store_of(scene)
    opened = scene.opened
    record = DatasetRecord(
        name="d",
        id="0" * 8,
        kind="file",
        definition="{}",
        manifest="",
    )

    draft = ModelDraft(
        name="m", path="", digest="sha256:" + "0" * 64, files=(), sources=(), lineage={}
    )

    def add_dataset() -> Any:
        return store.catalogue.add_dataset(record, create_new_version=True)

    calls: tuple[Callable[[], object], ...] = (
        lambda: store.put_model(None, draft),
        lambda: store.put_environment("e", "{}", user="ada"),
        add_dataset,
    )
    for call in calls:
        losing.lose = True
        before = len(losing.lines)
        with pytest.raises(StoreError, match="may have been carried out"):
            call()
        assert len(losing.lines) == before + 1
    assert [len(opened.store.models()), len(opened.store.environments())] == [1, 1]
    assert len(opened.catalogue.dataset_versions("d")) == 1
    # A connection that broke before a call is not a reason to refuse the call.
    assert store.put_environment("e", "{}", user="ada").version == 1

"""No more files can be opened: jobs wait, and lose neither an attempt nor their state."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.engine.attempt import ending
from rayjobs.injob import open_files
from rayjobs.jobs.states import JobState
from rayjobs.launch import hostclient
from rayjobs.node import hosts as nodehosts
from rayjobs.node.linger import Linger
from rayjobs.node.service import NodeService
from rayjobs.snapshots import NodeSnapshots
from tests.conformance.hosts import Attempt, warm
from tests.fakes.world import World, play

__all__ = ["warm"]

pytestmark = pytest.mark.timeout(600)

LIMITS = "import resource; print('limits', *resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)"
# Raises its limit like a rayjobs process, and gives a child the limit of a rank.
RAISES = """
import json, os, resource
from rayjobs.injob import open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300))
open_files.raise_limit()
raised = resource.getrlimit(resource.RLIMIT_NOFILE)
open_files.raise_limit()
open_files.give_back(open_files.original())
print(json.dumps([raised, resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""
# Opens as many files as allowed, and closes one a little later.
FULL = """
import os, resource, sys, threading
from rayjobs.injob import open_files
from rayjobs.injob.identity import is_alive, own_identity
own = own_identity()
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
if sys.argv[1] == "frees":
    threading.Timer(0.3, os.close, held[:1]).start()
else:
    open_files.patiently.__defaults__ = (0.2,)
try:
    print("alive" if is_alive(own) else "dead", flush=True)
except OSError as error:
    print("unknown", open_files.is_exhausted(error), flush=True)
"""


def _run(code: str, *arguments: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name != open_files.SOFT_VARIABLE
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_rayjobs_processes_have_the_hard_limit_and_ranks_the_users_limit() -> None:
    assert json.loads(_run(RAISES)) == [[300, 300], [64, 300]]


@pytest.mark.parametrize("is_warm", [True, False])
def test_a_rank_starts_with_the_soft_limit_of_its_user(
    short_path: Path, warm: str, is_warm: bool
) -> None:
    attempt = Attempt.make(short_path, LIMITS, soft_files=200)
    attempt = attempt.start(warm) if is_warm else attempt.start_cold()
    assert attempt.wait()["outcome"] == "completed"
    assert attempt.log().split()[:2] == [b"limits", b"200"]


@pytest.mark.parametrize(("how", "answer"), [("frees", "alive"), ("stays", "unknown True")])
def test_process_is_not_considered_dead_without_open_files(how: str, answer: str) -> None:
    assert _run(FULL, how) == answer


def _cannot_open(*_arguments: object, **_more: object) -> object:
    raise OSError(24, os.strerror(24))


def test_snapshot_is_not_considered_missing_without_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = NodeSnapshots(tmp_path)
    key = "0" * 64
    (tmp_path / key).mkdir()
    shared._note(key)
    monkeypatch.setattr(Path, "read_bytes", _cannot_open)
    with pytest.raises(OSError, match="Too many open files"):
        shared._is_whole(key)


def test_attempt_is_not_considered_ended_without_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files.patiently, "__defaults__", (0.0,))
    monkeypatch.setattr(hostclient, "read_exit_record", _cannot_open)
    monkeypatch.setattr(hostclient.HostConnection, "of", _cannot_open)
    for look in (nodehosts.record_of, nodehosts.host_of):
        with pytest.raises(OSError, match="Too many open files"):
            look(str(tmp_path))


def test_a_start_without_open_files_is_tried_again_and_costs_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "OUT_OF_FILES_PAUSE_S", 0.01)

    async def scene(here: World) -> None:
        here.agent.prepare_error = PrepareError(
            "/n/a1 cannot be made: Too many open files",
            failure_class=FailureClass.STORAGE,
            is_out_of_files=True,
        )
        none = {"system": 0, "storage": 0, "environment": 0}
        job = here.submit(retries=none)
        await here.until(
            lambda: len(here.store.attempts(job.id)) >= 4, "more attempts than its budget"
        )
        await here.until(
            lambda: "Too many open files" in here.store.job(job.id).reason, "its reason names it"
        )
        here.agent.prepare_error = None
        await here.until(
            lambda: here.store.job(job.id).state is JobState.RUNNING, "files can be opened again"
        )
        ended = here.store.attempts(job.id)[:-1]
        assert {(one.outcome, one.failure) for one in ended} == {("out_of_files", None)}

    play(scene, tmp_path)


def test_files_that_cannot_be_collected_now_are_collected_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "OUT_OF_FILES_PAUSE_S", 0.01)

    async def scene(here: World) -> None:
        job = here.submit()
        await here.launched(job)
        here.agent.collect_problems = ["outputs/a was not stored: Too many open files."]
        here.agent.lacks_files = True
        here.agent.end(job.id, 1, exit_code=0)
        await here.until(
            lambda: here.agent.calls.count(("collect", job.id, 1)) > 2 * ending.COLLECT_TRIES,
            "it is tried more often than for other problems",
        )
        here.agent.collect_problems = []
        here.agent.lacks_files = False
        await here.state(job, JobState.COMPLETED)

    play(scene, tmp_path)


def test_only_our_own_lack_of_files_costs_no_attempt(tmp_path: Path) -> None:
    """A sentence may quote a script's error, which says nothing about processes of rayjobs."""

    async def scene(here: World) -> None:
        here.agent.prepare_error = PrepareError(
            "the job's program said: Too many open files", failure_class=FailureClass.STORAGE
        )
        job = here.submit(retries={"storage": 0})
        await here.state(job, JobState.FAILED)
        (attempt,) = here.store.attempts(job.id)
        assert attempt.outcome == "not_prepared"

    play(scene, tmp_path)


def test_an_error_keeps_the_lack_of_files_that_caused_it() -> None:
    for number, lacks in ((errno.EMFILE, True), (errno.ENFILE, True), (errno.ENOSPC, False)):
        try:
            try:
                raise OSError(number, "cannot open")
            except OSError as cause:
                raise PrepareError("cannot prepare") from cause
        except PrepareError as error:
            assert open_files.is_exhausted(error) is lacks
    assert not open_files.is_exhausted(ValueError("Too many open files"))


@pytest.mark.parametrize("method", ["prepare", "launch"])
def test_the_agent_names_its_lack_of_files_to_the_engine(method: str) -> None:
    """Ray carries an error to the engine without the errors that caused it."""

    async def work(_message: object) -> dict[str, Any]:
        try:
            _cannot_open()
        except OSError as error:
            raise PrepareError(
                "an input cannot be read", failure_class=FailureClass.DATA
            ) from error
        return {}

    service = NodeService.__new__(NodeService)  # without a node
    service.linger = Linger(1.0, lambda: 0.0)
    service._methods = {method: work}
    with pytest.raises(PrepareError) as caught:
        asyncio.run(service.call(method, {}))
    arrived = pickle.loads(pickle.dumps(caught.value))
    assert arrived.is_out_of_files
    assert (arrived.failure_class, str(arrived)) == ("data", "an input cannot be read")

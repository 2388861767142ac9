"""Storage refuses the outputs of a job: storing is retried, and the bytes stay on the node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError, StoreBusyError
from rayjobs.core.failures import FailureClass
from rayjobs.engine.attempt import ending, record
from rayjobs.jobs import retry
from rayjobs.jobs.data_facts import DataFacts
from rayjobs.jobs.states import JobState
from rayjobs.node.data import NodeData
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.protocol.collected import Collected
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.fakes.world import World, play
from tests.storage.proxy import Proxy
from tests.storage.server import S3Server, s3_server  # noqa: F401
from tests.support.attempts import data_request


@pytest.fixture
def workspace(short_path: Path) -> Iterator[OpenWorkspace]:
    with open_workspace(short_path / "w") as opened:
        yield opened


@pytest.mark.storage
@pytest.mark.parametrize("harm", ["503", "cut_request"])
def test_refused_outputs_stay_on_the_node_until_they_are_stored(
    s3_server: S3Server,  # noqa: F811
    workspace: OpenWorkspace,
    tmp_path: Path,
    harm: str,
) -> None:
    root = tmp_path / "attempt"
    root.mkdir()
    written = {
        "destination": "photos/made",
        "overwrite": False,
        "source_globs": (),
        "path_on_compute": None,
        "register_as": None,
    }
    request = data_request(root, outputs={"y": written})
    notes: list[str] = []

    def note(kind: str, _text: str, _data: object) -> None:
        notes.append(kind)

    node = NodeData(tmp_path / "cache")
    with Proxy(s3_server.port) as proxy:
        record = s3_server.record("photos", endpoint=proxy.endpoint, attempts="1")
        workspace.catalogue.add_datastore(record)
        folder = Path(node.bring(request, workspace, note=note)["AZUREML_DATAREFERENCE_y"])
        (folder / "model.bin").write_bytes(b"weights" * 1000)
        proxy.mode, proxy.cut_after = harm, 1000
        for _ in range(2):
            (problem,) = node.store_outputs(root, workspace, note=note)
            assert problem.is_outage
            assert problem.sentence.startswith("output y: ")
            assert proxy.endpoint in problem.sentence
            assert (folder / "model.bin").read_bytes() == b"weights" * 1000
        proxy.mode = "pass"
        assert node.store_outputs(root, workspace, note=note) == []
        assert node.store_outputs(root, workspace, note=note) == []
        assert notes == ["output"]
    from rayjobs.datastore import Datastore

    brought = tmp_path / "brought"
    direct = {**s3_server.record("direct").settings, "prefix": record.settings["prefix"]}
    again = Datastore.from_record(type(record)("direct", "s3", direct))
    again.download(brought, "made", show_progress=False)
    (model,) = brought.rglob("model.bin")
    assert model.read_bytes() == b"weights" * 1000
    node.pool.shutdown()


@pytest.mark.parametrize("refusals", [2, 1000])
def test_successful_job_fails_as_storage_only_on_a_permanent_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    monkeypatch.setattr(record, "STORE_PAUSE_S", 0.001)

    async def scene(here: World) -> None:
        collections = 0

        async def collect(_: AttemptOnNode) -> Collected:
            nonlocal collections
            collections += 1
            problems = ("output y: photos answers 503.",) if collections <= refusals else ()
            return Collected(tails={0: b""}, problems=problems)

        here.agent.collect = collect  # type: ignore[assignment,method-assign]
        here.agent.instant = 0
        job = here.submit(retries={"storage": 3})
        if refusals == 2:
            await here.state(job, JobState.COMPLETED)
            await here.until(lambda: ("clean", job.id, 1) in here.agent.calls)
            return
        failed = await here.state(job, JobState.FAILED)
        assert failed.failure is not None
        assert failed.failure.failure_class is FailureClass.STORAGE
        assert "photos answers 503" in failed.failure.message
        assert "still in" in failed.failure.message
        assert failed.attempt == 1  # the training is complete and does not run again
        after = here.submit()
        await here.state(after, JobState.FAILED)  # it follows the clean-up of the first one
        assert ("clean", job.id, 1) not in here.agent.calls  # its files are kept

    play(scene, tmp_path)


@pytest.mark.parametrize("ends_by", ["answer", "cancel", "time"])
def test_job_waits_for_unresponsive_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    monkeypatch.setattr(record, "STORE_PAUSE_S", 0.001)
    monkeypatch.setattr(ending, "OUTAGE_LONGEST_PAUSE_S", 0.001)
    problem = "output y: http://photos refused."

    async def scene(here: World) -> None:
        collections, is_down = 0, True

        async def collect(_: AttemptOnNode) -> Collected:
            nonlocal collections
            collections += 1
            down = problem if is_down else None
            return Collected(tails={0: b""}, problems=(problem,) if is_down else (), outage=down)

        here.agent.collect = collect  # type: ignore[assignment,method-assign]
        here.agent.instant = 0
        job = here.submit(retries={"storage": 0})
        await here.until(lambda: collections > 2 * ending.COLLECT_TRIES)
        waiting = here.store.job(job.id)
        assert waiting.state is JobState.FINALIZING
        assert waiting.reason.startswith("waits for a storage: output y: http://photos refused; ")
        kinds = [one.kind for one in here.store.events(job.id)]
        assert kinds.count("collecting") == 1
        if ends_by == "answer":
            is_down = False
            done = await here.state(job, JobState.COMPLETED)
            await here.until(lambda: ("clean", job.id, 1) in here.agent.calls)
            return
        if ends_by == "cancel":
            here.store.request_cancel(job.id)
            here.engine.wake()
            done = await here.state(job, JobState.CANCELED)
            text = done.reason
        else:
            monkeypatch.setattr(ending, "OUTAGE_S", 0.0)
            done = await here.state(job, JobState.FAILED)
            assert done.failure is not None
            assert done.failure.failure_class is FailureClass.STORAGE
            text = done.failure.message
        assert "photos refused" in text and "still in" in text
        await here.until(lambda: not here.engine.attempts)
        assert ("clean", job.id, 1) not in here.agent.calls, "its files are kept"

    play(scene, tmp_path)


def test_a_job_whose_outputs_would_replace_others_fails_once_and_keeps_them(
    tmp_path: Path,
) -> None:
    problem = "output y: datastore 'st' already has 1 file with other bytes: made/res.txt."

    async def scene(here: World) -> None:
        async def collect(_: AttemptOnNode) -> Collected:
            return Collected(tails={0: b""}, data=DataFacts(refused=(problem,)))

        here.agent.collect = collect  # type: ignore[assignment,method-assign]
        here.agent.instant = 0
        job = here.submit(retries={"data": 3})
        failed = await here.state(job, JobState.FAILED)
        assert failed.failure is not None
        assert failed.failure.failure_class is FailureClass.DATA
        assert problem in failed.failure.message
        assert "/written" in failed.failure.message
        assert failed.attempt == 1
        await here.state(here.submit(), JobState.FAILED)  # after the first one's clean-up
        assert ("clean", job.id, 1) not in here.agent.calls

    play(scene, tmp_path)


def test_restarted_storage_only_delays_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "OUTAGE_FIRST_PAUSE_S", 0.001)

    async def scene(here: World) -> None:
        outage = PrepareError("photos refused", failure_class=FailureClass.DATA, is_outage=True)
        here.agent.prepare_error = outage
        here.agent.instant = 0
        job = here.submit()
        await here.until(lambda: here.store.job(job.id).attempt > 2)
        here.agent.prepare_error = None
        done = await here.state(job, JobState.COMPLETED)
        assert done.attempt > 2  # more than the budget of the class
        failure = here.store.attempts(job.id)[0].failure
        assert failure is not None
        assert failure.is_outage
        reasons = [event.message for event in here.store.events(job.id)]
        assert any(
            "tries again (2 of 8) because a storage does not answer" in one for one in reasons
        )

    play(scene, tmp_path)


def test_failed_pin_is_written_again(workspace: OpenWorkspace, tmp_path: Path) -> None:
    """Other jobs read the files of the pin: an output without one counts as not stored."""
    root = tmp_path / "attempt"
    root.mkdir()
    request = data_request(root, outputs={"y": {"destination": "workspaceblobstore/made"}})
    node = NodeData(tmp_path / "cache")
    notes: list[dict[str, Any]] = []

    def note(_kind: str, _text: str, data: Any) -> None:
        notes.append(dict(data))

    def locked(_kind: str, _text: str, _data: Any) -> None:
        raise StoreBusyError("another process holds the lock")

    folder = Path(node.bring(request, workspace, note=note)["AZUREML_DATAREFERENCE_y"])
    (folder / "model.bin").write_bytes(b"weights")
    (problem,) = node.store_outputs(root, workspace, note=locked)
    assert problem.sentence == "output y: another process holds the lock"
    assert node.store_outputs(root, workspace, note=note) == []
    assert [one["files"] for one in notes] == [1]
    assert "pin" in notes[0]

"""A workspace is moved or copied while its jobs are unfinished: each job runs once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rayjobs.core.paths import TargetPaths
from rayjobs.data import pins
from rayjobs.data.arguments import SAVED
from rayjobs.datastore import Dataset, Datastore
from rayjobs.datastore.abstract_dataset import registered_dataset
from rayjobs.datastore.data_input import DataInput
from rayjobs.engine import board as boards
from rayjobs.jobs.states import JobState
from rayjobs.jobs.writers import ProcessWriter
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.protocol.settled import Found, Settled
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob, NewRun
from rayjobs.store.sql import SqlStore
from rayjobs.submit import copies
from rayjobs.workspace import registrations
from rayjobs.workspace.folder import id_of, open_workspace, original_of
from tests.fakes.world import World, play

OLD, NEW = "old/.rayjobs", "new/.rayjobs"


def renamed(old: Path, new: Path) -> None:
    """`mv` on one file system."""
    new.parent.mkdir(exist_ok=True)
    old.rename(new)


def copied_and_removed(old: Path, new: Path) -> None:
    """`mv` to another file system: a copy, then a removal."""
    shutil.copytree(old, new)
    shutil.rmtree(old)


async def settle_in(here: World, top: Path) -> None:
    """Let the world's target serve a workspace on the disk, instead of the world's own store."""
    await here.crash()
    here.store.close()
    here.folder = top / OLD
    here.registrations = top / "registered"
    open_workspace(here.folder).close()
    look_at(here, here.folder)
    here.open_at = opened
    registrations.register(here.registrations, here.folder)
    here.agent.settled = Settled(Found.RUNNING)  # the state of a running host
    await here.restart()


def opened(path: str) -> SqlStore:
    store = open_workspace(path, create=False).store
    assert isinstance(store, SqlStore)
    return store


def look_at(here: World, folder: Path) -> None:
    here.folder = folder
    here.store = opened(str(folder))


async def served_at(here: World, path: Path) -> None:
    await here.until(
        lambda: [one.path for one in here.engine.board.served if one.path == str(path)],
        f"{path} is served",
    )


def ended_early(here: World) -> list[tuple[str, str, int]]:
    return [call for call in here.agent.calls if call[0] in ("stop", "settle-end")]


@pytest.mark.parametrize("moved", [renamed, copied_and_removed])
def test_job_continues_exactly_once_while_its_workspace_is_moved(
    tmp_path: Path, moved: Callable[[Path, Path], None]
) -> None:
    async def scene(here: World) -> None:
        await settle_in(here, tmp_path)
        runs = here.submit()
        await here.launched(runs)
        here.store.close()
        moved(here.folder, tmp_path / NEW)
        if moved is copied_and_removed:  # any command there registers it
            registrations.register(here.registrations, tmp_path / NEW)
        here.engine.wake()
        await served_at(here, tmp_path / NEW)
        look_at(here, tmp_path / NEW)
        waits = here.submit()  # and later jobs are served there
        await here.launched(waits)
        for job in (runs, waits):
            here.agent.end(job.id, 1, exit_code=0)
            assert (await here.state(job, JobState.COMPLETED)).attempt == 1
        assert ended_early(here) == []
        assert not (tmp_path / OLD).exists(), "nothing may create the old folder again"
        assert registrations.registered(here.registrations) == [str(tmp_path / NEW)]

    play(scene, tmp_path)


def test_a_job_whose_workspace_is_moved_while_its_files_are_collected_ends_once(
    tmp_path: Path,
) -> None:
    async def scene(here: World) -> None:
        await settle_in(here, tmp_path)
        job = here.submit()
        await here.launched(job)
        here.agent.collect_problems = ["the folder of the workspace cannot be seen."]
        here.agent.end(job.id, 1, exit_code=0)
        await here.until(lambda: ("collect", job.id, 1) in here.agent.calls, "it is collected")
        here.store.close()
        renamed(here.folder, tmp_path / NEW)
        here.engine.wake()
        await served_at(here, tmp_path / NEW)
        here.agent.collect_problems = []
        look_at(here, tmp_path / NEW)
        assert (await here.state(job, JobState.COMPLETED)).attempt == 1
        assert [call for call in here.agent.calls if call[0] == "launch"] == [("launch", job.id, 1)]

    play(scene, tmp_path)


@pytest.mark.parametrize("moved", [renamed, copied_and_removed])
def test_new_workspace_at_the_old_path_is_different(
    tmp_path: Path, moved: Callable[[Path, Path], None]
) -> None:
    async def scene(here: World) -> None:
        await settle_in(here, tmp_path)
        runs = here.submit()
        await here.launched(runs)
        here.store.close()
        moved(here.folder, tmp_path / NEW)
        open_workspace(tmp_path / OLD).close()
        await here.engine.board.add(str(tmp_path / OLD))
        look_at(here, tmp_path / OLD)
        other = here.submit()
        await here.launched(other)
        # The target knows a copy only after a command there has registered it.
        registrations.register(here.registrations, tmp_path / NEW)
        here.engine.wake()
        await served_at(here, tmp_path / NEW)
        await here.until(lambda: runs.id in str([*here.engine.attempts]), "it is supervised")
        here.agent.end(other.id, 1, exit_code=0)
        await here.state(other, JobState.COMPLETED)
        here.store.close()
        look_at(here, tmp_path / NEW)
        here.agent.end(runs.id, 1, exit_code=0)
        assert (await here.state(runs, JobState.COMPLETED)).attempt == 1
        assert ended_early(here) == []

    play(scene, tmp_path)


def test_actor_started_after_a_move_serves_the_new_path(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        await settle_in(here, tmp_path)
        job = here.submit()
        await here.launched(job)
        await here.crash()
        here.store.close()
        renamed(here.folder, tmp_path / NEW)
        here.folder = tmp_path / NEW
        registrations.register(here.registrations, tmp_path / NEW)
        await here.restart()
        look_at(here, tmp_path / NEW)
        await here.until(lambda: [*here.engine.attempts], "it is supervised")
        here.agent.end(job.id, 1, exit_code=0)
        assert (await here.state(job, JobState.COMPLETED)).attempt == 1
        assert ended_early(here) == []

    play(scene, tmp_path)


def test_a_folder_with_a_new_id_is_the_same_workspace(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        await settle_in(here, tmp_path)
        job = here.submit()
        await here.launched(job)
        before = id_of(here.folder)
        (here.folder / "workspace.json").unlink()
        open_workspace(here.folder).close()
        assert id_of(here.folder) != before
        here.engine.wake()
        await here.until(
            lambda: here.agent.calls.count(("follow", job.id, 1)) == 2, "it is followed again"
        )
        here.agent.end(job.id, 1, exit_code=0)
        assert (await here.state(job, JobState.COMPLETED)).attempt == 1
        assert ended_early(here) == []

    play(scene, tmp_path)


def submit_to(path: Path, **more: object) -> str:
    with open_workspace(path) as workspace:
        spec = JobSpec.model_validate({"script": "train.py", "name": "t"} | more)
        job, _ = workspace.store.submit(NewJob(spec=spec, experiment="t", snapshot=None, user="u"))
        return job.id


def start_in(path: Path) -> str:
    """Start an interactive run that this process logs into; return its id."""
    with open_workspace(path) as workspace:
        writer = ProcessWriter.own().to_json()
        new = NewRun(experiment="t", name="", user="u", writer=writer)
        return workspace.store.start_run(new)[0].id


def test_a_copy_is_distinguished_from_a_moved_workspace(tmp_path: Path) -> None:
    original, copy = tmp_path / OLD, tmp_path / NEW
    with open_workspace(original) as workspace:
        _ = workspace.catalogue  # its default datastore is a folder inside it
    shutil.copytree(original, copy)
    assert original_of(copy) == original
    assert original_of(original) is None
    shutil.rmtree(original)
    with open_workspace(copy) as workspace:  # nothing else has its id: it was moved
        assert workspace.original is None
        root = workspace.catalogue.datastore("workspaceblobstore").settings["root"]
    assert root == str(copy / "datastores" / "workspaceblobstore")
    shutil.copytree(copy, original)
    assert original_of(original) == copy


def kept_data(root: Path, text: str) -> str:
    """Store a file, a dataset version and a job's dataset; return the source of the last one."""
    with open_workspace(root) as workspace:
        default = Datastore.get_default(workspace)
        (root / "datastores" / "workspaceblobstore" / "dat").mkdir(parents=True)
        (root / "datastores" / "workspaceblobstore" / "dat" / "a.txt").write_text(text)
        dataset = Dataset.File.from_files((default, "dat"))
        dataset = dataset.register(workspace, "dat")
        whole = DataInput(
            name="dat",
            mode="mount",
            records=tuple(dataset.records.values()),
            manifest=dataset.manifest,
            definition=dataset.definition(),
        )
        text = json.dumps(whole.to_json(), sort_keys=True)
        return SAVED + workspace.catalogue.put_manifest(text.encode())


def texts_of(root: Path, saved: str) -> list[str]:
    """Return the content of both, read through the workspace in a folder."""
    with open_workspace(root) as workspace:
        found = []
        for source in ("dataset:dat:1", saved):
            one = pins.resolve(workspace, "dat", source=source, mode="download")
            (record,) = one.records
            assert pins.datastores_of_dataset(workspace, source) == (record,)
            found.append(Path(record.settings["root"], "dat", "a.txt").read_text())
        assert workspace.catalogue.datastore("workspaceblobstore") == record
        assert registered_dataset(workspace, "dat").records == {record.name: record}
        return found


def test_dataset_versions_move_with_the_workspace_and_back(tmp_path: Path) -> None:
    original, second, third = tmp_path / OLD, tmp_path / NEW, tmp_path / "third"
    saved = kept_data(original, "mine")
    for old, new in ((original, second), (second, third), (third, original), (original, third)):
        renamed(old, new)
        assert texts_of(new, saved) == ["mine", "mine"]


def test_the_folders_of_datastores_are_recorded_where_they_are(tmp_path: Path) -> None:
    """They are correct even if no record of the old path is left."""
    original, moved = tmp_path / OLD, tmp_path / NEW
    kept_data(original, "mine")
    renamed(original, moved)
    open_workspace(moved).close()
    record = moved / "workspace.json"
    values = json.loads(record.read_text())
    record.write_text(json.dumps({**values, "formerly": [], "earlier": []}))
    with open_workspace(moved) as workspace:
        root = workspace.catalogue.datastore("workspaceblobstore").settings["root"]
    assert root == str(moved / "datastores" / "workspaceblobstore")


def test_copy_reads_its_own_files_before_and_after_it_gets_its_own_id(
    tmp_path: Path,
) -> None:
    original, copy = tmp_path / OLD, tmp_path / NEW
    saved = kept_data(original, "original")
    shutil.copytree(original, copy)
    (copy / "datastores" / "workspaceblobstore" / "dat" / "a.txt").write_text("the copy's")
    assert texts_of(copy, saved) == ["the copy's"] * 2
    with open_workspace(copy) as workspace:
        copies.become_own(workspace)
    assert texts_of(copy, saved) == ["the copy's"] * 2
    assert texts_of(original, saved) == ["original"] * 2


def test_a_copy_of_a_workspace_that_was_moved_away_is_a_copy(
    own_home: Path, tmp_path: Path
) -> None:
    original, moved, copy = tmp_path / OLD, tmp_path / NEW, tmp_path / "copy"
    open_workspace(original).close()
    shutil.copytree(original, copy)
    renamed(original, moved)
    registrations.register(TargetPaths.of("local").workspaces, moved)
    assert original_of(copy) == moved


def test_copy_becomes_its_own_workspace_and_ends_no_job_of_the_original(
    tmp_path: Path,
) -> None:
    original, copy = tmp_path / OLD, tmp_path / NEW
    job = submit_to(original)
    array = submit_to(original)
    with open_workspace(original) as workspace:
        workspace.store.add_allocation("rj-local-1", target="local", shape={"cpus": 1.0})
        _ = workspace.catalogue
    shutil.copytree(original, copy)
    with open_workspace(copy) as workspace:
        notes = copies.become_own(workspace)
        assert len(notes) == 1
        assert f"{copy} is a copy of {original}" in notes[0]
        assert "2 jobs" in notes[0]
        for one in (job, array):
            found = workspace.store.job(one)
            assert found.state is JobState.CANCELED
            assert str(original) in found.reason
        # A target that served it would remove the original's allocation.
        assert workspace.store.allocations("local") == []
        root = workspace.catalogue.datastore("workspaceblobstore").settings["root"]
        assert root.startswith(str(copy)), "the copy's data went to the original's folder"
        assert copies.become_own(workspace) == []
    assert id_of(copy) != id_of(original)
    assert original_of(copy) is None
    with open_workspace(original) as workspace:
        assert workspace.store.job(job).state is JobState.QUEUED


def test_jobs_started_in_a_copy_continue_there(tmp_path: Path) -> None:
    original, copy = tmp_path / OLD, tmp_path / NEW
    job, run = submit_to(original), start_in(original)
    shutil.copytree(original, copy)
    own_job, own_run = submit_to(copy), start_in(copy)
    with open_workspace(copy) as workspace:
        (note,) = copies.become_own(workspace)
        assert "2 jobs" in note
        states = workspace.store.job_states([job, run, own_job, own_run])
        assert states == {
            job: JobState.CANCELED,
            run: JobState.CANCELED,
            own_job: JobState.QUEUED,
            own_run: JobState.RUNNING,
        }
        assert [found for found, _writer in workspace.store.run_writers()] == [own_run]
    with open_workspace(original) as workspace:
        assert workspace.store.job(run).state is JobState.RUNNING


def test_a_job_that_the_original_has_pruned_does_not_run_in_the_copy(tmp_path: Path) -> None:
    original, copy = tmp_path / OLD, tmp_path / NEW
    job = submit_to(original)
    shutil.copytree(original, copy)
    with open_workspace(original) as workspace:
        workspace.store.request_cancel(job)
        assert workspace.store.prune_records([job])
    with open_workspace(copy) as workspace:
        copies.become_own(workspace)
        assert workspace.store.job(job).state is JobState.CANCELED


def test_target_refuses_a_copy_of_an_unknown_original(tmp_path: Path) -> None:
    original, copy = tmp_path / OLD, tmp_path / NEW
    submit_to(original)
    shutil.copytree(original, copy)

    async def scene(here: World) -> None:
        await here.crash()
        here.folder, here.registrations = copy, tmp_path / "registered"
        here.open_at = opened
        await here.restart()
        assert here.engine.board.served == []
        assert f"a copy of the workspace {original}" in here.engine.board.refused[str(copy)]

    play(scene, tmp_path)


def test_inputs_that_were_moved_with_their_workspace_did_not_change(tmp_path: Path) -> None:
    old, new = tmp_path / OLD, tmp_path / NEW
    open_workspace(old).close()
    (old.parent / "digits").mkdir()
    (new.parent).mkdir()
    renamed(old, new)
    (old.parent / "digits").rename(new.parent / "digits")
    open_workspace(new).close()
    on = AttemptOnNode(str(new), "local", "j", 1, 0, "m", "/r", "/s")
    workspaces = Workspaces()
    assert workspaces.where_now(on, str(old / "blobs")) == str(new / "blobs")
    assert workspaces.where_now(on, str(old.parent / "digits")) == str(new.parent / "digits")
    assert workspaces.where_now(on, "/nowhere/at/all") == "/nowhere/at/all"


def test_workspace_missing_for_a_minute_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "GONE_S", 0.0)

    async def scene(here: World) -> None:
        await settle_in(here, tmp_path)
        job = here.submit()
        await here.launched(job)
        here.agent.settled = Settled(Found.GONE, proven=True)
        here.store.close()
        shutil.rmtree(here.folder)
        open_workspace(here.folder).close()
        here.engine.wake()
        await here.until(lambda: not here.engine.attempts, "the attempt ends")
        assert ("stop", job.id, 1) in here.agent.calls

    play(scene, tmp_path)

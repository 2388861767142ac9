"""A node's side of outputs: lost bytes register nothing, and a later attempt takes over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.datastore import Dataset, Datastore
from rayjobs.datastore.errors import DatasetNotFound
from rayjobs.datastore.protection import Protection
from rayjobs.node.data import NodeData
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.support.attempts import data_request


@pytest.fixture
def workspace(short_path: Path) -> Iterator[OpenWorkspace]:
    with open_workspace(short_path / "w") as opened:
        Datastore.register_folder(opened, "st", short_path / "st", create_if_not_exists=True)
        yield opened


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeData]:
    data = NodeData(tmp_path / "cache")
    yield data
    data.pool.shutdown()


class Attempt:
    """One attempt of a job with one output, on one node."""

    def __init__(
        self, node: NodeData, workspace: OpenWorkspace, top: Path, job: str, number: int = 1
    ) -> None:
        self.node, self.workspace = node, workspace
        self.job, self.number = job, number
        self.root = top / job / f"a{number}"
        self.root.mkdir(parents=True)
        self.notes: list[str] = []

    def note(self, _kind: str, text: str, _data: object) -> None:
        self.notes.append(text)

    def bring(self, destination: str = "st/features", **more: Any) -> Path:
        output = {
            "destination": destination,
            "overwrite": False,
            "source_globs": (),
            "path_on_compute": None,
            "register_as": {"name": "features", "description": "", "tags": {}},
        } | more
        request = data_request(
            self.root,
            outputs={"feat": output},
            marker=f"{self.job}-{self.number}",
            job=self.job,
            attempt=self.number,
        )
        variables = self.node.bring(request, self.workspace, note=self.note)
        return Path(variables["AZUREML_DATAREFERENCE_feat"])

    def store(self) -> list[str]:
        assert self.node.store_outputs(self.root, self.workspace, note=self.note) == []
        return list(self.node.facts(self.root).refused)


def test_lost_bytes_are_reported_and_no_partial_version_is_registered(
    node: NodeData, workspace: OpenWorkspace, tmp_path: Path
) -> None:
    first = Attempt(node, workspace, tmp_path, "one")
    (first.bring() / "res.txt").write_text("one")
    assert first.store() == []
    assert "registered as features:1" in first.notes[0]
    second = Attempt(node, workspace, tmp_path, "two")
    folder = second.bring()
    (folder / "res.txt").write_text("two")
    (refused,) = second.store()
    assert second.store() == [refused]  # without a second request to the storage
    assert "output feat" in refused
    assert "features/res.txt" in refused
    assert second.notes == []
    assert (folder / "res.txt").read_text() == "two"
    assert Dataset.get_by_name(workspace, "features").version == 1
    with pytest.raises(DatasetNotFound):
        Dataset.get_by_name(workspace, "features", version=2)
    third = Attempt(node, workspace, tmp_path, "three")
    (third.bring(overwrite=True) / "res.txt").write_text("three")
    assert third.store() == []
    assert "registered as features:2" in third.notes[0]


def test_partial_outputs_of_an_earlier_attempt_belong_to_the_job(
    node: NodeData, workspace: OpenWorkspace, tmp_path: Path
) -> None:
    for number in (1, 2):
        attempt = Attempt(node, workspace, tmp_path, "one", number)
        (attempt.bring("st/made/{run-id}") / "res.txt").write_text(str(number))
        assert attempt.store() == []
    root = Path(workspace.catalogue.datastore("st").settings["root"])
    assert (root / "made" / "one" / "res.txt").read_text() == "2"


def test_output_link_is_taken_over_from_an_earlier_attempt_or_ended_job(
    node: NodeData, workspace: OpenWorkspace, tmp_path: Path
) -> None:
    place = tmp_path / "compute" / "out"
    killed = Attempt(node, workspace, tmp_path, "one")
    assert killed.bring(path_on_compute=str(place)) == place
    record = json.loads((killed.root / "data.json").read_text())
    assert record["outputs"]["feat"]["path"] == str(place)  # the value of `run.output_datasets`
    (place / "res.txt").write_text("half")
    other = Attempt(node, workspace, tmp_path, "other")
    with pytest.raises(PrepareError, match="in use") as refused:
        other.bring(path_on_compute=str(place))
    assert refused.value.failure_class == "data"
    again = Attempt(node, workspace, tmp_path, "one", 2)
    assert again.bring(path_on_compute=str(place)) == place
    assert list(place.iterdir()) == []
    node.release(killed.root)
    (place / "res.txt").write_text("whole")
    assert again.store() == []
    root = Path(workspace.catalogue.datastore("st").settings["root"])
    assert (root / "features" / "res.txt").read_text() == "whole"
    # The attempt has ended, although its files are still here, for example because a store failed.
    (again.root / "exit.json").write_text("{}")
    late = Attempt(node, workspace, tmp_path, "late")
    assert late.bring(path_on_compute=str(place)) == place
    node.release(again.root)
    assert place.is_symlink()
    node.release(late.root)
    assert not place.is_symlink()
    assert Attempt(node, workspace, tmp_path, "last").bring(path_on_compute=str(place)) == place


MOUNTED: dict[str, Any] = {"mode": "mount", "overwrite": False, "register_as": None}


def test_a_mounted_output_is_the_folder_of_the_datastore(
    node: NodeData, workspace: OpenWorkspace, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    first = Attempt(node, workspace, tmp_path, "one")
    Datastore.register_folder(workspace, "here", there, create_if_not_exists=True)
    folder = first.bring("here/models/{output-name}", **MOUNTED)
    assert folder == there / "models" / "feat"
    (folder / "checkpoint.pt").write_text("1")
    node.release(first.root)  # it failed, or was preempted: nothing was stored at its end
    second = Attempt(node, workspace, tmp_path, "one", 2)
    folder = second.bring("here/models/{output-name}", **MOUNTED)
    assert (folder / "checkpoint.pt").read_text() == "1"
    (folder / "checkpoint.pt").write_text("2")
    assert second.store() == []
    assert second.notes[-1] == "output feat: written in here/models/feat"
    assert (there / "models" / "feat" / "checkpoint.pt").read_text() == "2"


def test_a_mounted_output_is_registered_with_what_its_destination_holds(
    node: NodeData, workspace: OpenWorkspace, tmp_path: Path
) -> None:
    first = Attempt(node, workspace, tmp_path, "one")
    (first.bring(mode="mount") / "a.txt").write_text("a")
    assert first.store() == []
    assert first.notes[-1].endswith("registered as features:1")
    second = Attempt(node, workspace, tmp_path, "two")
    (second.bring(mode="mount") / "b.txt").write_text("b")
    second.store()
    assert len(Dataset.get_by_name(workspace, "features", 2).manifest) == 2


def test_a_mounted_output_appears_by_a_link_where_the_job_wants_it(
    node: NodeData, workspace: OpenWorkspace, tmp_path: Path
) -> None:
    first = Attempt(node, workspace, tmp_path, "one")
    wanted = tmp_path / "wanted"
    shown = first.bring(path_on_compute=str(wanted), **MOUNTED)
    assert shown == wanted and wanted.is_symlink()
    (shown / "a.txt").write_text("a")
    node.release(first.root)
    assert not wanted.exists()
    assert [one.path for one in Datastore(workspace, "st").files("features")] == ["features/a.txt"]


def shown(attempt: Attempt) -> dict[str, bool]:
    """Return the paths of the attempt's data in a container, and whether each is read-only."""
    request = data_request(attempt.root, marker="shown", job=attempt.job, attempt=attempt.number)
    binds = attempt.node.shown_in_containers(request.on)
    assert all(bind.source == bind.target for bind in binds)
    return {bind.target: bind.read_only for bind in binds}


def test_a_container_can_write_to_outputs_outside_of_the_attempts_folder(
    node: NodeData, workspace: OpenWorkspace, short_path: Path
) -> None:
    uploaded = Attempt(node, workspace, short_path, "uploaded")
    uploaded.bring()
    assert shown(uploaded) == {}
    mounted = Attempt(node, workspace, short_path, "mounted")
    folder = mounted.bring("st/there", mode="mount")
    assert shown(mounted) == {str(folder): False}
    file = Attempt(node, workspace, short_path, "file")
    path = file.bring("st/files/one.txt", mode="mount", is_folder=False)
    path.write_text("of an earlier job")
    assert shown(file) == {str(path.parent): False}
    linked = Attempt(node, workspace, short_path, "linked")
    place = short_path / "compute" / "out"
    linked.bring("st/linked", mode="mount", path_on_compute=str(place))
    assert shown(linked) == {str(place): False, str(place.resolve()): False}
    upload = Attempt(node, workspace, short_path, "upload-link")
    place = short_path / "compute" / "other"
    upload.bring("st/other", path_on_compute=str(place))
    assert shown(upload) == {str(place): False}


def test_a_container_sees_an_output_inside_a_read_only_input_as_writable(
    node: NodeData, workspace: OpenWorkspace, short_path: Path
) -> None:
    """The kernel mounts in list order, so the parent folder must come first."""
    attempt = Attempt(node, workspace, short_path, "one")
    folder = attempt.bring("st/all/new", mode="mount")
    path = attempt.root / "data.json"
    record = json.loads(path.read_text())
    record["inputs"] = {
        name: {"path": str(place), "mode": "mount", "how": "in place", "definition": None}
        for name, place in (("same", folder), ("above", folder.parent))
    }
    path.write_text(json.dumps(record))
    assert [*shown(attempt).items()] == [(str(folder.parent), True), (str(folder), False)]


def test_an_input_that_makes_the_folder_of_an_output_read_only_is_refused(
    workspace: OpenWorkspace, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    node = NodeData(tmp_path / "cache", lambda: Protection(read_only=True))
    root = tmp_path / "one" / "a1"
    root.mkdir(parents=True)
    Datastore(workspace, "st").backend.root.joinpath("both").mkdir()  # type: ignore[attr-defined]
    output = {"destination": "st/both", "source_globs": (), "path_on_compute": None, **MOUNTED}
    fields = {"source": "st/both", "mode": "mount", "path_on_compute": None}
    request = data_request(root, outputs={"feat": output}, inputs={"x": fields})
    with pytest.raises(PrepareError, match="written to the same folder"):
        node.bring(request, workspace, note=lambda *_: None)
    node.pool.shutdown()

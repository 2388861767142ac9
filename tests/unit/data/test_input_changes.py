"""Input files that change while a job runs are named, with what is known about the cause."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rayjobs import Workspace
from rayjobs.data.events import InputChanged
from rayjobs.datastore import Dataset, Datastore
from rayjobs.datastore.looks import look_at
from rayjobs.datastore.protection import Protection
from rayjobs.jobs.data_facts import DataFacts
from rayjobs.jobs.records import Event
from rayjobs.jobs.rootcause import diagnose
from rayjobs.node.data import NodeData
from rayjobs.node.input_changes import InputChanges
from rayjobs.protocol.attempts import AttemptOnNode
from tests.support.attempts import data_request, on_node
from tests.unit.jobs.test_rootcause import rank_record, record

PROTECTED = Protection(read_only=True, overlay=True, why="")
OPEN = Protection(why="no namespaces here", why_no_overlay="no namespaces here")


class Node:
    """A node's data for one attempt, and its notes."""

    def __init__(self, folder: Path, workspace: Workspace, protection: Protection) -> None:
        self.root = folder / "attempts" / "job" / "a1"
        self.root.mkdir(parents=True)
        self.notes: list[tuple[str, str, Mapping[str, Any]]] = []
        self.data = NodeData(folder / "data", lambda: protection)
        self._workspace = workspace
        self.facts: dict[str, Any] = {
            "workspace": str(workspace.opened.path),
            "socket": str(folder / "h.sock"),
            "job": "job",
        }

    @property
    def on(self) -> AttemptOnNode:
        return on_node(self.root, **self.facts)

    def note(self, kind: str, text: str, data: Mapping[str, Any]) -> None:
        self.notes.append((kind, text, data))

    def bring(self, source: str, mode: str) -> Path:
        fields = {"source": source, "mode": mode, "path_on_compute": None}
        request = data_request(self.root, inputs={"digits": fields}, **self.facts)
        found = self.data.bring(request, self._workspace.opened, note=self.note)
        self.notes.clear()
        return Path(found["digits"])

    def events_of_bringing(self, source: str, mode: str) -> list[Event]:
        fields = {"source": source, "mode": mode, "path_on_compute": None}
        request = data_request(self.root, inputs={"digits": fields}, **self.facts)
        self.data.bring(request, self._workspace.opened, note=self.note)
        now = datetime.now(UTC)
        return [
            Event(serial=serial, job="job", at=now, kind=kind, message=text, attempt=1, data=data)
            for serial, (kind, text, data) in enumerate(self.notes, 1)
        ]

    def changes(self) -> list[tuple[str, Mapping[str, Any]]]:
        self.data.report_changes(self.root, note=self.note)
        found = [(text, data) for kind, text, data in self.notes if kind == InputChanged.KIND]
        self.notes.clear()
        return found


@pytest.fixture
def make(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Protection], Node]:
    monkeypatch.setenv("DATASTORE_NO_FUSE", "1")
    return lambda protection: Node(tmp_path / "node", workspace, protection)


@pytest.fixture
def stored(workspace: Workspace, store: Datastore) -> Path:
    Dataset.File.from_files((store, "digits")).register(workspace, "digits")
    return Path(store.record.settings["root"]) / "digits"


@pytest.mark.parametrize("mode", ["mount", "download"])
@pytest.mark.parametrize("source", ["dataset:digits:1", "workspaceblobstore/digits"])
def test_change_is_named_once_and_not_blamed_on_a_job_without_write_access(
    make: Callable[[Protection], Node],
    stored: Path,
    source: str,
    mode: str,
) -> None:
    node = make(PROTECTED)
    node.bring(source, mode)
    assert node.data.views(node.on) is not None
    (stored / "train" / "a.txt").write_text("changed")
    (stored / "new.txt").write_text("new")
    ((text, facts),) = node.changes()
    assert str(stored / "train" / "a.txt") in text and "Something else changed them" in text
    assert "7 bytes" in text and "1 byte" in text
    assert (facts["by_job"], facts["count"], facts["name"]) == (False, 1, "digits")
    assert ("is damaged" in text) == source.startswith("dataset:")
    assert node.changes() == []


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_job_could_have_renamed_a_folder_above_read_only_files(
    make: Callable[[Protection], Node],
    stored: Path,
    is_replaced: bool,
) -> None:
    node = make(PROTECTED)
    node.bring("dataset:digits:1", "download")
    (stored / "train").rename(stored / "renamed")
    if is_replaced:
        (stored / "train").mkdir()
        for path in (stored / "renamed").iterdir():
            (stored / "train" / path.name).write_text("another")
    ((text, facts),) = node.changes()
    assert "a folder above them may have been renamed or removed, by the job" in text
    assert "Something else changed them" not in text
    assert facts["by_job"] is None


@pytest.mark.parametrize("changes", [False, True])
def test_uninspectable_file_is_not_reported_as_a_change(
    make: Callable[[Protection], Node], stored: Path, changes: bool
) -> None:
    node = make(PROTECTED)
    node.bring("dataset:digits:1", "mount")
    (stored / "train" / "a.txt").unlink()
    (stored / "train" / "a.txt").symlink_to("a.txt")
    if changes:
        (stored / "train" / "b.txt").write_text("changed")
    node.data.report_changes(node.root, note=node.note)
    ((kind, text, facts),) = node.notes
    assert "1 file cannot be compared" in text and "Too many levels" in text
    for words in ("1 file changed", "is damaged", "changed them"):
        assert (words in text) == changes
    assert (kind == InputChanged.KIND) == changes
    assert (facts["count"], facts["unknown_count"]) == (int(changes), 1)


def test_change_possible_by_another_path_is_blamed_on_nothing(
    make: Callable[[Protection], Node], stored: Path
) -> None:
    node = make(OPEN)
    shown = node.bring("dataset:digits:1", "download")
    assert node.data.views(node.on) is None
    (shown / "train" / "a.txt").write_text("a job's own")
    assert (stored / "train" / "a.txt").read_text() == "a"
    (stored / "train" / "b.txt").unlink()
    ((text, facts),) = node.changes()
    assert facts["by_job"] is None and facts["count"] == 1
    assert "is gone" in text and "the writer is unknown" in text and "no namespaces here" in text


@pytest.mark.parametrize(
    ("protections", "reason"),
    [
        ({1: PROTECTED, 2: PROTECTED}, ""),
        ({1: PROTECTED, 2: OPEN}, "node 2: no namespaces here"),
        ({2: PROTECTED}, "node 1: it did not report how it protects its inputs"),
    ],
    ids=["all", "not on one", "one said nothing"],
)
def test_change_possible_on_another_node_is_not_called_impossible(
    workspace: Workspace,
    stored: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    protections: dict[int, Protection],
    reason: str,
) -> None:
    monkeypatch.setenv("DATASTORE_NO_FUSE", "1")
    history: list[Event] = []
    first = Node(tmp_path / "node0", workspace, PROTECTED)
    first.facts["node_count"] = 3
    first.bring("dataset:digits:1", "mount")
    for number, protection in protections.items():
        other = Node(tmp_path / f"node{number}", workspace, protection)
        other.facts |= {"node": number, "node_count": 3}
        history += other.events_of_bringing("dataset:digits:1", "mount")
    (stored / "train" / "a.txt").write_text("changed")
    first.data.learn_protection(first.on, lambda: history)
    ((text, facts),) = first.changes()
    assert facts["by_job"] is (None if reason else False)
    assert reason in text and ("Something else changed them" in text) == (not reason)


def test_a_touched_file_of_a_version_has_not_changed(
    make: Callable[[Protection], Node], stored: Path
) -> None:
    node = make(PROTECTED)
    node.bring("dataset:digits:1", "mount")
    os.utime(stored / "train" / "a.txt", ns=(1, 1))
    assert node.changes() == []


def test_comparison_records_are_removed_with_the_attempt(
    make: Callable[[Protection], Node], stored: Path
) -> None:
    node = make(PROTECTED)
    node.bring("dataset:digits:1", "mount")
    kept = node.data.folder / "seen"
    assert len(list(kept.iterdir())) == 1
    node.data.release(node.root)
    assert list(kept.iterdir()) == []
    (kept / "job@a1.json").write_text("{}")
    (kept / "gone@a1.json").write_text("{}")
    NodeData(node.data.folder)._start()
    assert [path.name for path in kept.iterdir()] == ["job@a1.json"]


@pytest.mark.parametrize("more", [{}, {"colour": "red"}])
def test_comparison_records_of_other_versions_are_read(
    tmp_path: Path, more: dict[str, str]
) -> None:
    file = tmp_path / "in" / "a.txt"
    file.parent.mkdir()
    file.write_text("before")
    look = list(look_at(file))
    # As version 0.1.0 wrote it; an input may have any name.
    old = {"seen": [[str(file.parent), {"a.txt": look}, {}]], "version": "", "why_open": "", **more}
    changes, root = InputChanges(tmp_path / "seen"), tmp_path / "job" / "a1"
    changes.keep(root, {})
    (kept,) = (tmp_path / "seen").iterdir()
    kept.write_text(json.dumps({"seen": old, "version": old}))
    assert changes.compare(root) == []
    changes.learn(root, {}, node_count=2)
    file.write_text("after")
    reports = changes.compare(root)
    assert [facts.name for _, facts in reports] == ["seen", "version"]
    assert all("node 1: it did not report" in text for text, _ in reports)


@pytest.mark.parametrize("text", ["", "[]", '{"x": 3}', '{"x": {}}', '{"x": {"seen": [["/r"]]}}'])
def test_damaged_comparison_record_is_refused(tmp_path: Path, text: str) -> None:
    changes, root = InputChanges(tmp_path), tmp_path / "job" / "a1"
    changes.keep(root, {})
    (tmp_path / "job@a1.json").write_text(text)
    with pytest.raises(ValueError):
        changes.compare(root)


def test_the_attempts_own_folders_stay_writable(
    make: Callable[[Protection], Node], stored: Path, workspace: Workspace
) -> None:
    node = make(PROTECTED)
    node.bring("dataset:digits:1", "mount")
    views = node.data.views(node.on)
    assert views is not None
    assert views.read_only == (str(stored),)
    assert {str(node.root), str(workspace.opened.path)} <= set(views.writable)


def test_script_failing_to_write_an_input_gets_a_remedy() -> None:
    log = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 4, in <module>\n    open("/in/pets/1.jpg", "wb")\n'
        "OSError: [Errno 30] Read-only file system: '/in/pets/1.jpg'\n"
    )
    facts = DataFacts(read_only={"pets": ("/in/pets",)})
    failed = record("failed", rank_record(exit_code=1))
    _, failure = diagnose([failed], {0: log.encode()}, data=[facts])
    assert failure is not None
    assert (
        "files of input 'pets' are read-only" in failure.message and "download" in failure.message
    )
    other = DataFacts(read_only={"pets": ("/elsewhere",)})
    _, failure = diagnose([failed], {0: log.encode()}, data=[other])
    assert failure is not None and "are read-only for the job" not in failure.message

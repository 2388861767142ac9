"""Outputs that are stored during the run, during a storage outage, and after a failure.

Off switches: the retry of `Outputs.sync`, the note that an output is late, the final
`Outputs.flush` of an attempt that failed, the check for an attempt that is no longer current,
and the code that prevents a late sync from removing files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rayjobs.datastore import Datastore
from rayjobs.datastore.write_through import WriteThrough
from rayjobs.node import outputs
from rayjobs.node.data import NodeData
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.storage.proxy import Proxy
from tests.storage.server import S3Server, s3_server
from tests.support.attempts import data_request

__all__ = ["s3_server"]

pytestmark = pytest.mark.storage


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with Proxy(s3_server.port) as proxy:
        yield proxy


class Written:
    """An attempt with one output in a bucket behind the proxy."""

    def __init__(self, workspace: OpenWorkspace, top: Path) -> None:
        self.node, self.workspace, self.top = NodeData(top / "cache"), workspace, top
        self.number = 0
        self.notes: list[str] = []

    def note(self, _kind: str, text: str, _data: Mapping[str, Any]) -> None:
        self.notes.append(text)

    def attempt(self) -> Path:
        """Begin the next attempt; return the folder that its script writes to."""
        self.number += 1
        self.root = self.top / f"a{self.number}"
        self.root.mkdir()
        output = {"destination": "photos/models", "mode": "mount"}
        request = data_request(self.root, outputs={"out": output}, attempt=self.number)
        variables = self.node.bring(request, self.workspace, note=self.note)
        return Path(variables["AZUREML_DATAREFERENCE_out"])

    def sync(self) -> None:
        self.node.sync_outputs(self.root, note=self.note)


@pytest.fixture
def written(s3_server: S3Server, proxy: Proxy, short_path: Path) -> Iterator[Written]:
    with open_workspace(short_path / "w") as workspace:
        record = s3_server.record("photos", endpoint=proxy.endpoint, attempts="1")
        workspace.catalogue.add_datastore(record)
        made = Written(workspace, short_path)
        yield made
        made.node.pool.shutdown()


def old(path: Path, text: str) -> None:
    """Write a file that looks complete."""
    path.write_text(text)
    when = path.stat().st_mtime - 60
    os.utime(path, (when, when))


def stored(written: Written) -> dict[str, int]:
    files = Datastore(written.workspace, "photos").files("models")
    return {file.path.removeprefix("models/"): file.size for file in files}


def test_files_are_stored_during_the_run_and_visible_to_the_next_attempt(
    written: Written,
) -> None:
    folder = written.attempt()
    old(folder / "step-1.pt", "one")
    written.sync()
    assert stored(written) == {"step-1.pt": 3}
    # The node is lost here: nothing more of the attempt is stored.
    folder = written.attempt()
    assert (folder / "step-1.pt").read_text() == "one"
    (folder / "step-1.pt").unlink()
    old(folder / "step-2.pt", "three")
    written.sync()
    assert stored(written) == {"step-2.pt": 5}


def test_storage_outage_is_noted_once_and_everything_is_stored_later(
    written: Written, proxy: Proxy
) -> None:
    folder = written.attempt()
    proxy.mode = "503"
    old(folder / "a.pt", "one")
    written.sync()
    written.sync()
    late = [note for note in written.notes if "not stored for the moment" in note]
    assert len(late) == 1 and "The job continues" in late[0]
    old(folder / "b.pt", "two")
    proxy.mode = "pass"
    written.sync()
    assert written.notes[-1] == "output out is stored again"
    assert stored(written) == {"a.pt": 3, "b.pt": 3}


def test_an_attempt_that_failed_has_its_last_files_stored(written: Written) -> None:
    folder = written.attempt()
    (folder / "last.pt").write_text("last")  # too new for a sync
    written.sync()
    assert stored(written) == {}
    assert written.node.flush_outputs(written.root, note=written.note) == []
    assert stored(written) == {"last.pt": 4}


def test_files_that_a_failed_attempt_could_not_store_are_named_and_kept(
    written: Written, proxy: Proxy
) -> None:
    folder = written.attempt()
    (folder / "last.pt").write_text("last")
    proxy.mode = "503"
    (problem,) = written.node.flush_outputs(written.root, note=written.note)
    assert problem.sentence.startswith("output out: ")
    assert f"the last files of output out are only in {folder}" in written.notes[-1]
    assert (folder / "last.pt").read_text() == "last"


def test_sync_overtaken_by_the_end_of_its_attempt_removes_nothing(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written.attempt()
    old(folder / "a.pt", "one")
    written.sync()
    (folder / "a.pt").unlink()
    is_gone = WriteThrough._is_gone

    def overtaken(self: WriteThrough, path: str) -> bool:
        written.node.release(written.root)
        return is_gone(self, path)

    monkeypatch.setattr(WriteThrough, "_is_gone", overtaken)
    monkeypatch.setattr(outputs, "RELEASE_WAIT_S", 0.0)  # this thread holds the lock
    written.sync()
    assert stored(written) == {"a.pt": 3}


def test_end_of_an_attempt_waits_for_a_sync_and_prevents_later_ones(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written.attempt()
    old(folder / "a.pt", "one")
    looks = WriteThrough._looks
    began, go_on, released = threading.Event(), threading.Event(), threading.Event()

    def slow(self: WriteThrough) -> Sequence[tuple[str, tuple[int, int]]]:
        began.set()
        assert go_on.wait(60)
        return looks(self)

    def release() -> None:
        written.node.release(written.root)
        released.set()

    monkeypatch.setattr(WriteThrough, "_looks", slow)
    threads = [threading.Thread(target=written.sync), threading.Thread(target=release)]
    threads[0].start()
    assert began.wait(60)
    threads[1].start()
    assert not released.wait(0.5)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert released.is_set() and stored(written) == {"a.pt": 3}
    old(folder / "b.pt", "late")
    written.sync()
    assert stored(written) == {"a.pt": 3}


def test_successful_end_stores_the_rest_and_reports_the_destination(written: Written) -> None:
    folder = written.attempt()
    (folder / "last.pt").write_text("last")
    assert written.node.store_outputs(written.root, written.workspace, note=written.note) == []
    assert written.notes[-1] == "output out: 1 file stored at the end, all in photos/models"
    assert stored(written) == {"last.pt": 4}

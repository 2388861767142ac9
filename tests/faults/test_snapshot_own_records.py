"""Fault 80: a workspace, a home, a store or a token in the source directory is packed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rayjobs.snapshots import Snapshot, pack, survey
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore
from rayjobs.workspace.blobs import FolderBlobs
from rayjobs.workspace.folder import open_workspace

TOKEN = "5b" * 32


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "pkg" / "model.py").write_text("x = 1\n")
    return folder


@pytest.fixture
def packed(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "blobs")


def names(snapshot: Snapshot) -> set[str]:
    return {one.path for one in snapshot.manifest if one.kind == "file"}


def packed_files(source: Path, blobs: FolderBlobs) -> set[str]:
    return names(pack(source, blobs_put=blobs.put_file, blobs_has=blobs.exists))


def make_workspace(folder: Path) -> None:
    with open_workspace(folder) as workspace:
        workspace.store.submit(
            NewJob(
                spec=JobSpec(name="a", script="train.py"), experiment="a", snapshot=None, user="ada"
            )
        )
    (folder / "blobs" / "secret.bin").parent.mkdir(parents=True, exist_ok=True)
    (folder / "blobs" / "secret.bin").write_text("of a former snapshot")


def make_home(folder: Path) -> None:
    target = folder / "targets" / "local"
    target.mkdir(parents=True)
    (target / "head.json").write_text("{}")
    (target / "token").write_text(TOKEN)
    (folder / "node" / "attempts" / "job" / "a1").mkdir(parents=True)
    (folder / "node" / "attempts" / "job" / "a1" / "plan.json").write_text("{}")


CODE = {"train.py", "pkg/model.py"}


@pytest.mark.parametrize("name", ["ws", "pkg/deep/records of mine", ".rayjobs"])
def test_workspace_is_excluded_by_its_content(source: Path, packed: FolderBlobs, name: str) -> None:
    make_workspace(source / name)
    assert packed_files(source, packed) == CODE


def test_no_ignore_line_includes_a_workspace(source: Path, packed: FolderBlobs) -> None:
    make_workspace(source / "ws")
    (source / ".rayjobsignore").write_text("!ws/\n!ws/store.db\n!/ws/**\n")
    assert packed_files(source, packed) == {*CODE, ".rayjobsignore"}


def test_home_is_excluded_by_its_content(source: Path, packed: FolderBlobs) -> None:
    make_home(source / "pkg" / "cluster")
    assert packed_files(source, packed) == CODE


def test_the_home_in_use_is_left_out_before_it_has_a_target(
    source: Path, packed: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_HOME", str(source / "home"))
    (source / "home").mkdir()
    (source / "home" / "notes.json").write_text("{}")
    assert packed_files(source, packed) == CODE


def test_a_store_and_its_backup_are_left_out_under_any_name(
    source: Path, packed: FolderBlobs, tmp_path: Path
) -> None:
    SqlStore(tmp_path / "store.db").close()
    shutil.copy(tmp_path / "store.db", source / "pkg" / "backup-monday.sqlite3")
    shutil.copy(tmp_path / "store.db", source / "store.db.bak")
    assert packed_files(source, packed) == CODE


def test_a_store_that_is_open_is_left_out_with_its_log(source: Path, packed: FolderBlobs) -> None:
    store = SqlStore(source / "pkg" / "queue.db")
    store.submit(
        NewJob(spec=JobSpec(name="a", script="train.py"), experiment="a", snapshot=None, user="ada")
    )
    assert packed_files(source, packed) == CODE
    store.close()


@pytest.mark.parametrize("name", ["cluster.txt", "pkg/x"])
def test_the_token_of_a_target_is_left_out_wherever_it_was_copied(
    source: Path, packed: FolderBlobs, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(tmp_path / "home")
    monkeypatch.setenv("RAYJOBS_HOME", str(tmp_path / "home"))
    (source / name).write_text(TOKEN + "\n")
    assert packed_files(source, packed) == CODE


def test_file_named_and_formatted_as_a_token_is_excluded(source: Path, packed: FolderBlobs) -> None:
    (source / "auth_token").write_text("ab12" * 16)
    assert packed_files(source, packed) == CODE


def test_files_that_only_look_like_records_are_packed(source: Path, packed: FolderBlobs) -> None:
    (source / "editor").mkdir()
    (source / "editor" / "workspace.json").write_text('{"folders": []}')
    (source / "targets" / "labels").mkdir(parents=True)
    (source / "targets" / "labels" / "train.csv").write_text("1")
    (source / "snapshots").mkdir()
    (source / "snapshots" / "expected.json").write_text("{}")
    (source / "movies.db").write_bytes(b"SQLite format 3\0" + b"\0" * 84)
    (source / "model.sha256").write_text("c4" * 32)
    (source / "special_token").write_text("the tokens <s> and </s> of the tokenizer, in words\n")
    assert packed_files(source, packed) == CODE | {
        "editor/workspace.json",
        "targets/labels/train.csv",
        "snapshots/expected.json",
        "movies.db",
        "model.sha256",
        "special_token",
    }


def test_a_source_that_is_a_workspace_itself_packs_the_code_alone(
    source: Path, packed: FolderBlobs
) -> None:
    make_workspace(source)
    assert packed_files(source, packed) == CODE


def test_a_source_that_is_a_home_itself_packs_the_code_alone(
    source: Path, packed: FolderBlobs
) -> None:
    make_home(source)
    assert packed_files(source, packed) == CODE


def test_exclusions_are_named_with_their_kind(source: Path) -> None:
    make_workspace(source / "ws")
    make_home(source / "home")
    (warning,) = survey(source).warnings
    assert "ws/ (a workspace)" in warning
    assert "home/ (a RAYJOBS_HOME)" in warning


def test_survey_matches_a_pack_and_writes_nothing(
    source: Path, packed: FolderBlobs, tmp_path: Path
) -> None:
    make_workspace(source / "ws")
    (source / "keys.txt").write_text("-----BEGIN PRIVATE KEY-----\n")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    found = survey(source, entry="train.py")
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    done = pack(source, blobs_put=packed.put_file, blobs_has=packed.exists)
    assert (found.size, found.files, found.manifest) == (done.size, done.files, done.manifest)
    assert found.warnings == done.warnings
    assert any("keys.txt" in one for one in found.warnings)


def test_a_damaged_record_does_not_stop_a_pack(source: Path, packed: FolderBlobs) -> None:
    (source / "workspace.json").write_text("[" * 100_000)
    (source / "x.db").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 20)
    assert packed_files(source, packed) == {*CODE, "workspace.json", "x.db"}
    (source / "workspace.json").write_text(json.dumps({"version": 1, "id": "a", "name": "b"}))
    assert packed_files(source, packed) == {*CODE, "x.db"}

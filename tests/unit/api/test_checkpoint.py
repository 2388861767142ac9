"""A checkpoint is complete, or it does not exist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rayjobs import checkpoint
from rayjobs.injob.checkpoint import CheckpointError
from tests.unit.api.conftest import InJob


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def test_newest_checkpoint_is_found_with_its_files(in_job: InJob, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a b")
    for step in (1, 2):
        checkpoint.save(
            step,
            {
                "model.pt": lambda path, step=step: Path(path).write_bytes(b"w%d" % step),
                "optimizer/state.bin": b"s",
                "vocab.txt": tmp_path / "vocab.txt",
            },
            metadata={"epoch": step},
        )
    found = checkpoint.latest()
    assert found is not None
    assert (found.step, found.metadata) == (2, {"epoch": 2})
    assert Path(found.file("model.pt")).read_bytes() == b"w2"
    assert found.names == ["model.pt", "optimizer/state.bin", "vocab.txt"]
    assert Path(found.path).parent == in_job.outputs / "checkpoints"
    with pytest.raises(FileNotFoundError, match=r"model\.pt"):
        found.file("other")


def test_only_the_last_checkpoints_are_kept(in_job: InJob) -> None:
    for step in range(6):
        checkpoint.save(step, {"a": b"x"}, keep=2)
    assert steps(in_job.outputs / "checkpoints") == [4, 5]


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "no manifest", "bad json"])
def test_torn_checkpoint_is_skipped(in_job: InJob, damage: str) -> None:
    checkpoint.save(1, {"a": b"first"})
    torn = Path(checkpoint.save(2, {"a": b"second"}).path)
    if damage == "truncated":
        (torn / "a").write_bytes(b"sec")
    elif damage == "changed":
        (torn / "a").write_bytes(b"sEcond")
    elif damage == "missing":
        (torn / "a").unlink()
    elif damage == "no manifest":
        (torn / "manifest.json").unlink()
    else:
        (torn / "manifest.json").write_text("{")
    found = checkpoint.latest()
    assert found is not None
    assert found.step == 1
    assert not checkpoint.is_whole(str(torn))


@pytest.mark.parametrize("inside", [".", "checkpoints", "outputs/checkpoints"])
def test_checkpoint_left_under_its_temporary_name_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    saved = checkpoint.save(5, {"a": b"x"}, directory=str(tmp_path / "run" / inside))
    Path(saved.path).rename(Path(saved.path).with_name(".part-killed"))
    monkeypatch.setenv("RAYJOBS_RESUME_FROM", str(tmp_path / "run"))
    found = checkpoint.latest()
    assert found is not None
    assert (found.step, Path(found.path).name) == (5, ".part-killed")


def test_failing_writer_leaves_the_previous_checkpoint(in_job: InJob) -> None:
    checkpoint.save(1, {"a": b"first"})

    def full(path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="untouched"):
        checkpoint.save(2, {"a": full})
    with pytest.raises(CheckpointError, match="wrote no file"):
        checkpoint.save(2, {"a": lambda path: None})
    found = checkpoint.latest()
    assert found is not None
    assert found.step == 1
    assert [path.name for path in (in_job.outputs / "checkpoints").iterdir()] == [
        "step-000000000001"
    ]


@pytest.mark.long
def test_partially_saved_checkpoint_is_never_used(in_job: InJob) -> None:
    code = (
        "import os, signal\n"
        "from rayjobs import checkpoint\n"
        "checkpoint.save(1, {'a': b'whole'})\n"
        "def die(path):\n"
        "    open(path, 'wb').write(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoint.save(2, {'a': die})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=180, check=False)
    assert done.returncode == -9
    found = checkpoint.latest()
    assert found is not None
    assert found.step == 1


def test_saving_the_same_step_replaces_it(in_job: InJob) -> None:
    checkpoint.save(1, {"a": b"old"})
    checkpoint.save(1, {"a": b"new"})
    found = checkpoint.latest()
    assert found is not None
    assert Path(found.file("a")).read_bytes() == b"new"


def test_attempt_without_own_checkpoint_uses_the_resume_folder(
    in_job: InJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checkpoint.latest() is None
    assert checkpoint.resume_dir() is None
    old = tmp_path / "old"
    checkpoint.save(7, {"a": b"x"}, directory=str(old / "checkpoints"))
    monkeypatch.setenv("RAYJOBS_RESUME_FROM", str(old))
    found = checkpoint.latest()
    assert found is not None
    assert found.step == 7
    monkeypatch.setenv("RAYJOBS_RESUME_FROM", found.path)
    again = checkpoint.latest()
    assert again is not None
    assert again.step == 7
    checkpoint.save(1, {"a": b"y"})
    own = checkpoint.latest()
    assert own is not None
    assert own.step == 1


@pytest.mark.parametrize("name", ["../x", "/x", "", "manifest.json", "a//b"])
def test_names_that_lead_outside_are_refused(in_job: InJob, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        checkpoint.save(1, {name: b"x"})


def test_manifest_that_leads_outside_is_torn(in_job: InJob, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    path = Path(checkpoint.save(1, {"a": b"x"}).path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"] = {os.path.relpath(tmp_path / "secret", path): manifest["files"]["a"]}
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert checkpoint.latest() is None


def test_wrong_arguments_are_reported(in_job: InJob) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: checkpoint.save(-1, {"a": b""}),
        lambda: checkpoint.save(1.5, {"a": b""}),
        lambda: checkpoint.save(1, {}),
        lambda: checkpoint.save(1, {"a": b""}, keep=0),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"\w"):
            call()

"""A truncated checkpoint is never resumed from; the previous one is.

Off switches: let `_load` trust a manifest without checking the files, or drop the comparison of
rows in `checkpoints._of_manifest`. Both then return the torn checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs import checkpoint
from rayjobs.injob.checkpoint import MANIFEST
from rayjobs.results import checkpoints
from tests.faults.checkpoint_scripts import killed_saving
from tests.unit.results.conftest import Trainer
from tests.unit.results.conftest import trainer as trainer  # the fixture


@pytest.mark.parametrize("step", [2, 1], ids=["the next step", "the same step again"])
def test_checkpoint_save_killed_at_each_step(tmp_path: Path, step: int) -> None:
    done = subprocess.run(
        [sys.executable, killed_saving.__file__, str(tmp_path), str(step)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(checkpoint.__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(seen) > 15
    assert [one["died"] for one in seen] == [True] * (len(seen) - 1) + [False]
    # Always one of the two, whole: first the old one, and from some point on the new one.
    kinds = [one["data"] for one in seen]
    turn = kinds.index("second")
    assert kinds == ["first"] * turn + ["second"] * (len(kinds) - turn)
    assert [one["found"] for one in seen] == [1] * turn + [step] * (len(kinds) - turn)
    assert seen[-1]["data"] == "second"


def test_checkpoint_cut_after_each_part(tmp_path: Path) -> None:
    """The state that a lost disk cache, or an interrupted copy, leaves under the right name."""
    checkpoint.save(1, {"a": b"first"}, directory=str(tmp_path))
    whole = Path(checkpoint.save(2, {"a": b"second", "b/c": b"more"}, directory=str(tmp_path)).path)
    kept = tmp_path / "kept"
    shutil.copytree(whole, kept)
    cuts = 0
    for name in ("a", "b/c", MANIFEST):
        data = (kept / name).read_bytes()
        for size in range(0, len(data), 1 if len(data) < 20 else 7):
            (whole / name).write_bytes(data[:size])
            found = checkpoint.latest(str(tmp_path))
            assert found is not None
            assert found.step == 1, (name, size)
            cuts += 1
        (whole / name).write_bytes(data)
    assert cuts > 20
    found = checkpoint.latest(str(tmp_path))
    assert found is not None
    assert found.step == 2


def test_checkpoint_published_up_to_each_file(trainer: Trainer, tmp_path: Path) -> None:
    """The node, or the link to the storage, is lost while a checkpoint is being stored."""
    store, blobs = trainer.workspace.store, trainer.workspace.blobs
    job = trainer.submit()
    paths = trainer.start(job)
    trainer.save(paths, 1)
    before = trainer.publish(job, paths)
    trainer.save(paths, 2)
    shutil.rmtree(paths.work / "outputs" / "checkpoints" / "step-000000000001")
    total = before
    for count in range(total):
        trainer.publish(job, paths, only=count)
        target = tmp_path / f"resume-{count}"
        found = checkpoints.bring_newest(store, blobs, job.id, target)
        assert found is not None
        assert found.step == 1, count
        assert (target / "model.pt").read_bytes() == b"weights 1"
    trainer.publish(job, paths)
    found = checkpoints.bring_newest(store, blobs, job.id, tmp_path / "resume")
    assert found is not None
    assert found.step == 2

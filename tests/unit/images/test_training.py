"""The training loop: reproducible, resumable, and equal whatever the number of processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from rayjobs.images.component.imagemodels import networks
from rayjobs.images.component.imagemodels.errors import (
    DivergedError,
    ImageModelError,
    InvalidDatasetError,
)
from rayjobs.images.component.imagemodels.ranks import Ranks
from rayjobs.images.component.imagemodels.schedule import (
    Schedule,
    batches_of_epoch,
    best_epoch,
    is_stopped,
)
from rayjobs.images.component.imagemodels.training import (
    Progress,
    Training,
    set_up_determinism,
)
from tests.unit.images.conftest import DEEP, InDouble, save_images, tiny

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
Make = Callable[..., Training]


def curve(progress: Progress) -> tuple[list[float], ...]:
    return progress.training_losses, progress.losses, progress.top1, progress.top5


def is_same(first: Progress, second: Progress) -> bool:
    return curve(first) == curve(second) and all(
        torch.equal(first.best[name], second.best[name]) for name in first.best
    )


def test_training_learns_and_keeps_the_best_epoch(training: Make) -> None:
    work = training(epochs=4)
    progress = work.run()
    assert progress.training_losses[-1] < progress.training_losses[0]
    assert progress.top1[-1] > 0.9
    assert progress.top5[-1] == 1.0  # always, with three classes
    for name, value in work.module.state_dict().items():
        assert torch.equal(value, progress.best[name])


def test_two_trainings_with_one_seed_are_bitwise_equal(training: Make) -> None:
    first = training().run()
    shutil.rmtree("outputs")
    assert is_same(first, training(threads=1, cache="none").run())
    shutil.rmtree("outputs")
    assert not is_same(first, training(random_seed=2).run())


def test_new_tensors_are_not_filled_for_determinism(training: Make) -> None:
    training()
    assert torch.are_deterministic_algorithms_enabled()
    # Filling would only cost time: no operation reads a new tensor before it is written.
    assert not torch.utils.deterministic.fill_uninitialized_memory


class KilledError(Exception):
    """Stands for a kill between two batches."""


@pytest.mark.parametrize("moment", [(0, 1), (0, 3), (0, 5), (1, 0), (1, 2), (2, 0)])
def test_resumed_training_matches_the_undisturbed_curve(
    training: Make, moment: tuple[int, int]
) -> None:
    undisturbed = training(checkpoint_every=2).run()
    shutil.rmtree("outputs")

    def kill(*now: int) -> None:
        if now == moment:
            raise KilledError

    with pytest.raises(KilledError):
        training(checkpoint_every=2).run(kill)
    assert is_same(undisturbed, training(checkpoint_every=2).run())


def test_a_checkpoint_of_another_training_is_refused(training: Make) -> None:
    training(epochs=1).run()
    with pytest.raises(InvalidDatasetError, match="batch_size differ"):
        training(batch_size=4).run()


def test_sigterm_saves_a_checkpoint_and_ends(training: Make) -> None:
    undisturbed = training().run()
    shutil.rmtree("outputs")

    def end(*now: int) -> None:
        if now == (0, 2):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        training(print_frequency=1).run(end)
    assert ended.value.code == 143
    assert is_same(undisturbed, training().run())


def test_a_loss_that_is_not_a_number_ends_with_advice(training: Make) -> None:
    with pytest.raises(DivergedError, match=r"lower it, e\.g\. --learning-rate 1e\+29"):
        training(learning_rate=1e30, epochs=3).run()


def test_too_few_images_are_refused(tmp_path: Path, training: Make) -> None:
    save_images(tmp_path / "val", 1)
    (tmp_path / "train" / "red").mkdir(parents=True)
    shutil.copy(tmp_path / "val" / "red" / "0.png", tmp_path / "train" / "red" / "0.png")
    with pytest.raises(InvalidDatasetError, match="at least 2"):
        training(tmp_path)


def test_an_image_that_is_removed_during_a_training_is_named(
    tmp_path: Path, training: Make
) -> None:
    save_images(tmp_path / "train", 30)
    save_images(tmp_path / "val", 2)
    work = training(tmp_path)
    (tmp_path / "train" / "red" / "11.png").unlink()
    with pytest.raises(InvalidDatasetError, match=r"red/11\.png.*has been removed"):
        work.run()


def test_a_truncated_image_is_named(tmp_path: Path, training: Make) -> None:
    save_images(tmp_path / "train", 30, suffix=".jpg")
    save_images(tmp_path / "val", 2)
    broken = tmp_path / "train" / "red" / "11.jpg"
    broken.write_bytes(broken.read_bytes()[:-100])
    with pytest.raises(InvalidDatasetError, match=r"red/11\.jpg cannot be decoded"):
        training(tmp_path).run()


def test_nccl_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ImageModelError, match="sees no GPU"):
        Ranks("nccl")


# -- the schedule ------------------------------------------------------------------------------


def test_the_rate_rises_and_falls() -> None:
    schedule = Schedule(base=0.8, epochs=4, warmup_epochs=1, batches=10)
    rates = [schedule.rate(step) for step in range(40)]
    assert rates[0] == pytest.approx(0.08)
    assert rates[9] == rates[10] == pytest.approx(0.8)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.05


def test_processes_share_out_the_global_batches() -> None:
    whole = batches_of_epoch(37, batch_size=8, world=1, rank=0, seed=1, epoch=2)
    parts = [batches_of_epoch(37, batch_size=4, world=2, rank=r, seed=1, epoch=2) for r in (0, 1)]
    for number, batch in enumerate(whole):
        assert sorted(batch) == sorted(parts[0][number] + parts[1][number])
    assert sorted(one for batch in whole for one in batch) == list(range(37))
    assert whole != batches_of_epoch(37, batch_size=8, world=1, rank=0, seed=1, epoch=3)


def test_a_last_batch_of_one_image_is_left_out() -> None:
    found = batches_of_epoch(9, batch_size=4, world=1, rank=0, seed=1, epoch=0)
    assert [len(batch) for batch in found] == [4, 4]


def test_patience() -> None:
    assert not is_stopped([], 1)
    assert not is_stopped([3.0, 2.0, 2.5], 2)
    assert is_stopped([3.0, 2.0, 2.5, 2.0], 2)
    assert best_epoch([3.0, 2.0, 2.0]) == 1


# -- two processes -----------------------------------------------------------------------------


def test_two_processes_match_the_curve_of_one(training: Make, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    own = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    own |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    own |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.unit.images.one_rank", str(data)],
            env={**os.environ, **own, "RANK": str(number), "LOCAL_RANK": str(number)},
            cwd=folder,
        )
        for number in range(2)
    ]
    assert [one.wait(200) for one in ranks] == [0, 0]
    # In float64, rounding is too small to hide a defect. In a deep network, one different bit
    # shows within three epochs.
    cases: tuple[tuple[str, Callable[[], nn.Module], float, dict[str, Any]], ...] = (
        ("float32", tiny, 1e-4, {}),
        ("float64", lambda: InDouble(tiny()), 1e-11, {}),
        (
            "resnet18",
            lambda: networks.build("resnet18", 3),
            1e-5,
            {"gradient_parts": 2, "how": DEEP, "learning_rate": 0.002},
        ),
    )
    for kind, made, most, changes in cases:
        shutil.rmtree("outputs", ignore_errors=True)
        set_up_determinism(1)
        given = {"epochs": 3, "batch_size": 8, "learning_rate": 0.1, "threads": 1, **changes}
        alone = training(module=made(), **given).run()
        together = json.loads((folder / kind / "curve.json").read_text())
        for mine, theirs in zip(curve(alone), together, strict=True):
            assert theirs == pytest.approx(mine, abs=most)


def test_a_photo_of_any_kind_can_be_in_a_training(tmp_path: Path, training: Make) -> None:
    save_images(tmp_path / "train", 4)
    save_images(tmp_path / "val", 2)
    Image.new("P", (9, 9)).save(tmp_path / "train" / "red" / "palette.png")
    Image.new("I;16", (9, 9), 30_000).save(tmp_path / "train" / "red" / "deep.png")
    assert len(training(tmp_path, epochs=1).run().losses) == 1

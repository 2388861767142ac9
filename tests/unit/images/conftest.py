"""Small images of three colors, and networks that train in a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from rayjobs.images.component.imagemodels.decoding import Preprocessing
from rayjobs.images.component.imagemodels.directory import open_labeled
from rayjobs.images.component.imagemodels.ranks import Ranks
from rayjobs.images.component.imagemodels.training import (
    Settings,
    Training,
    set_up_determinism,
)

COLORS = ("blue", "green", "red")
HOW = Preprocessing(image_size=12, augmentation="crop-flip")
DEEP = Preprocessing(image_size=40, augmentation="crop-flip")
"""Large enough that the last layers of resnet18 have more than one value for each image."""


def save_images(root: Path, count: int, *, seed: int = 0, suffix: str = ".png") -> Path:
    """Write `count` noisy images for each color; return the folder."""
    chance = np.random.default_rng(seed)
    for place, name in enumerate(reversed(COLORS)):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = chance.integers(0, 150, (16, 20, 3), dtype=np.uint8)
            pixels[..., place] += 90
            Image.fromarray(pixels).save(root / name / f"{number}{suffix}")
    return root


def tiny(classes: int = 3) -> nn.Module:
    """Return a network with batch normalization."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, classes),
    )


class InDouble(nn.Module):
    """A network that computes in float64, with the initial weights of `inner`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.double()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the inner network's outputs."""
        result: torch.Tensor = self.inner(images.double())
        return result


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `train` (12 of each color) and `val` (5)."""
    root = tmp_path_factory.mktemp("images")
    save_images(root / "train", 12, seed=1)
    save_images(root / "val", 5, seed=2)
    return root


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch computes with one thread: tests share two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> Callable[..., Training]:
    """Return a maker of trainings; their checkpoints are in the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def make(
        root: Path = data,
        *,
        module: nn.Module | None = None,
        how: Preprocessing = HOW,
        **changes: object,
    ) -> Training:
        values = {"epochs": 2, "batch_size": 8, "learning_rate": 0.1, "threads": 2, **changes}
        set_up_determinism(1)
        return Training(
            module or tiny(),
            open_labeled(str(root / "train")),
            open_labeled(str(root / "val")),
            how=how,
            settings=Settings(**values),  # type: ignore[arg-type]
            ranks=Ranks(),
        )

    return make

"""Trains ResNet-50 from JPEG files, decoding included, and compares it with data on the device."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench_images import Batch, write_photos
from rayjobs.images.component.imagemodels import networks
from rayjobs.images.component.imagemodels.decoding import Preprocessing
from rayjobs.images.component.imagemodels.directory import ImageDirectory
from rayjobs.images.component.imagemodels.ranks import Ranks
from rayjobs.images.component.imagemodels.training import Settings, Training, set_up_determinism

SEED_IMAGES_PER_S = 3200
"""What Azure ML's page states for 16 V100."""


class OnDevice(Training):
    """A training whose batches are on the device before the clock starts."""

    def _loader(self, part: str, closing: contextlib.ExitStack) -> Any:
        real = super()._loader(part, closing)
        return _Kept(real, self.ranks.device) if part == "training" else real


class _Kept:
    def __init__(self, loader: Any, device: torch.device) -> None:
        self.images, self.wait_s = loader.images, 0.0
        self._loader, self._device = loader, device
        self._batches: list[Batch] = []

    def training(self, batches: Any, **more: Any) -> Iterator[Batch]:
        return self._kept(self._loader.training(batches, **more))

    def validation(self, batches: Any) -> Iterator[Batch]:
        return self._kept(self._loader.validation(batches))

    def _kept(self, found: Iterator[Batch]) -> Iterator[Batch]:
        if not self._batches:
            self._batches = [(one.to(self._device), label) for one, label in found]
        return iter(self._batches)


def measure(network: str, *, images: int, size: int, batch: int, epochs: int) -> dict[str, float]:
    """Return images per second: from files, in the first and in later epochs, and on the device."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        found = write_photos(Path(name) / "photos", images)
        speeds = _epochs(Training, network, found, size, batch, epochs)
        kept = _epochs(OnDevice, network, found, size, batch, epochs)
    return {"first": speeds[0], "later": max(speeds[1:]), "on_device": max(kept[1:])}


def _epochs(
    kind: type[Training], network: str, images: ImageDirectory, size: int, batch: int, epochs: int
) -> list[float]:
    set_up_determinism(1)
    ends: dict[int, list[float]] = {}
    began = time.perf_counter()

    def step(epoch: int, done: int) -> None:
        nonlocal began
        if done == 0:  # the previous epoch has been validated and saved
            began = time.perf_counter()
            return
        if torch.cuda.is_available() and done % 10 == 0:
            torch.cuda.synchronize()
        ends.setdefault(epoch, [began]).append(time.perf_counter())

    few = ImageDirectory(images.root, images.classes, images.files[:batch], images.labels[:batch])
    work = kind(
        networks.build(network, len(images.classes)),
        images,
        few,
        how=Preprocessing(image_size=size),
        settings=Settings(epochs=epochs, batch_size=batch, patience=epochs),
        ranks=Ranks(),
    )
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):  # for its checkpoints
        work.run(step)
    torch.use_deterministic_algorithms(False)
    return [(len(times) - 1) * batch / (times[-1] - times[0]) for _, times in sorted(ends.items())]

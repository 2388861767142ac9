"""The loader: the same pixels from files and caches, and a disk that is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayjobs.images.component.imagemodels import loading
from rayjobs.images.component.imagemodels.cache import ImageCache
from rayjobs.images.component.imagemodels.directory import ImageDirectory, open_labeled
from rayjobs.images.component.imagemodels.loading import Loader, make_plan
from tests.unit.images.conftest import HOW

BATCHES = [list(range(20)), list(range(20, 36))]


@pytest.fixture
def images(data: Path) -> ImageDirectory:
    return open_labeled(str(data / "train"))


def load(images: ImageDirectory, cache: ImageCache | None, threads: int = 2) -> torch.Tensor:
    loader = Loader(images, HOW, make_plan(images, HOW, threads=threads), cache=cache)
    try:
        found = list(loader.training(BATCHES, seed=1, epoch=0))
    finally:
        loader.close()
    assert [len(labels) for _, labels in found] == [20, 16]
    return torch.cat([pixels for pixels, _ in found])


@pytest.mark.parametrize("kind", ["decoded", "encoded"])
def test_a_cache_gives_the_pixels_of_the_files(
    kind: str, images: ImageDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ImageCache(str(tmp_path / "c"), len(images), arena=0, kind=kind)
    plain = load(images, None, threads=1)
    assert torch.equal(plain, load(images, cache))
    other = ImageCache(str(tmp_path / "c"), len(images), arena=1, kind=kind)  # like another process
    plan = make_plan(images, HOW)
    monkeypatch.setattr(ImageDirectory, "read", None)  # no file is read again
    loader = Loader(images, HOW, plan, cache=other)
    found = [pixels for pixels, _ in loader.training(BATCHES, seed=1, epoch=0)]
    loader.close()
    assert torch.equal(plain, torch.cat(found))
    cache.remove()
    assert not (tmp_path / "c").exists()


@pytest.mark.long
def test_full_disk_stops_caching_but_not_the_training(
    images: ImageDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    cache = ImageCache(str(tmp_path / "c"), len(images), arena=0, kind="decoded")
    real, written = os.write, 0

    def write(file: int, parts: Any) -> int:
        nonlocal written
        if written > 5_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(file, b"".join(parts)[:700])  # a partial write, as when a disk fills up
        written += done
        return done

    monkeypatch.setattr(os, "writev", write)
    assert torch.equal(load(images, cache), load(images, None))
    monkeypatch.undo()
    assert "is full: no more images are cached" in capfd.readouterr().err
    assert cache.is_full
    kept = [number for number in range(36) if cache.get(number) is not None]
    assert 0 < len(kept) < 36
    assert torch.equal(load(images, cache), load(images, None))


def test_other_disk_errors_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ImageCache(str(tmp_path / "c"), 3, arena=0, kind="decoded")

    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "writev", fail)
    with pytest.raises(OSError, match="Input/output"):
        cache.put(0, np.zeros((2, 2, 3), dtype=np.uint8))


def test_plan_is_measured_and_explains_itself(images: ImageDirectory) -> None:
    plan = make_plan(images, HOW)
    assert plan.cache == "decoded"
    assert "fit into half of the free disk" in plan.reason
    assert plan.decode_ms > 0
    assert plan.decoded_gib == pytest.approx(36 * 16 * 20 * 3 / 2**30)
    assert make_plan(images, HOW, cache="none").cache == "none"
    assert make_plan(images, HOW, is_fixed=True).cache == "fitted"


@pytest.mark.parametrize(
    ("slow_read", "reason"),
    [
        (0.0, "neither decoded nor encoded images fit into half of the free disk"),
        (1.0, "decoded images do not fit, and files are read about as fast as a cache"),
    ],
)
def test_a_plan_without_a_cache_says_why(
    images: ImageDirectory, monkeypatch: pytest.MonkeyPatch, slow_read: float, reason: str
) -> None:
    monkeypatch.setattr(loading, "DISK_SHARE", 0.0)
    monkeypatch.setattr(loading, "SLOW_READ", slow_read)
    plan = make_plan(images, HOW)
    assert (plan.cache, plan.reason) == ("none", reason)


def test_constant_pixels_are_cached_in_network_format(
    images: ImageDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ImageCache(str(tmp_path / "c"), len(images), arena=0, kind="fitted")
    plan = make_plan(images, HOW)
    plain, kept = Loader(images, HOW, plan), Loader(images, HOW, plan, cache=cache)
    expected = torch.cat([pixels for pixels, _ in plain.validation(BATCHES)])
    assert torch.equal(expected, torch.cat([pixels for pixels, _ in kept.validation(BATCHES)]))
    monkeypatch.setattr(ImageDirectory, "read", None)
    assert torch.equal(expected, torch.cat([pixels for pixels, _ in kept.validation(BATCHES)]))
    plain.close()
    kept.close()

"""Crops and flips of a whole batch: the same as the CPU makes for each image."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image

from rayjobs.images.component.imagemodels.augmenting import crop_and_flip, enlarged, random_parts
from rayjobs.images.component.imagemodels.decoding import Preprocessing, training_pixels
from rayjobs.images.component.imagemodels.training import Training

HOW = Preprocessing(image_size=24)


def test_a_batch_is_cropped_and_mirrored_as_on_the_cpu() -> None:
    side = enlarged(HOW).image_size
    assert side == 36
    x, y = np.meshgrid(np.arange(side), np.arange(side))
    smooth = np.stack([x * 7, y * 7, (x + y) * 3], axis=2).astype(np.uint8)
    keys = [(1, epoch, number) for epoch in range(3) for number in range(10)]
    parts = random_parts(HOW, side, keys)
    assert 0 < int(parts[:, 4].sum()) < len(keys)
    batch = torch.from_numpy(smooth).permute(2, 0, 1)[None].float().expand(len(keys), -1, -1, -1)
    found = crop_and_flip(batch, parts, HOW.image_size)
    for key, image in zip(keys, found, strict=True):
        expected = training_pixels(Image.fromarray(smooth), HOW, key)
        difference = image.permute(1, 2, 0).numpy() - expected
        # PIL rounds, and does not use the pixels around the crop.
        assert np.abs(difference[1:-1, 1:-1]).max() <= 4
        assert np.abs(difference).mean() < 1


def test_full_image_is_unchanged_without_augmentation() -> None:
    images = torch.rand(2, 3, 8, 8)
    parts = torch.tensor([[0.0, 0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0, 1.0]])
    found = crop_and_flip(images, parts, 8)
    assert torch.allclose(found[0], images[0], atol=1e-5)
    assert torch.allclose(found[1], images[1].flip(2), atol=1e-5)


@pytest.mark.parametrize("cache", ["none", "auto"])
@pytest.mark.long
def test_a_training_whose_device_augments_learns_and_repeats(
    training: Callable[..., Training], cache: str
) -> None:
    losses = []
    for _ in range(2):
        work = training(epochs=3, cache=cache)
        work._augments = True  # as on a GPU
        losses.append(work.run().training_losses)
        shutil.rmtree("outputs")
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]

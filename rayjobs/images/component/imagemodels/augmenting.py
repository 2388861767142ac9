"""Random crops and flips of a batch on the network's device, so that the CPUs only decode.

The loader yields larger images that are the same in every epoch, and can cache them; one call takes
an epoch's crops from a batch of them. Source: M. Jaderberg et al., arXiv:1506.02025 (sampling with
a grid).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from .decoding import Preprocessing, random_box

ENLARGED = 1.5
"""Side of the images to crop, as a multiple of the side that the network takes."""


def enlarged(how: Preprocessing) -> Preprocessing:
    """Return the preprocessing of the images to crop."""
    return replace(how, image_size=round(how.image_size * ENLARGED))


def random_parts(
    how: Preprocessing, side: int, keys: Sequence[tuple[int, int, int]]
) -> torch.Tensor:
    """Return the part of each image: left, top, right, bottom (0 to 1) and whether it is mirrored.

    Args:
        how: The augmentation.
        side: Height and width of the images, in pixels.
        keys: Seed, epoch and number of each image; only these decide, as on the CPU.
    """
    rows = []
    for key in keys:
        chance = random.Random("/".join(map(str, key)))  # noqa: S311 (not for secrets)
        box = random_box(side, side, chance)
        is_mirrored = how.augmentation == "crop-flip" and chance.random() < 0.5
        rows.append([*(end / side for end in box), float(is_mirrored)])
    return torch.tensor(rows)


def crop_and_flip(images: torch.Tensor, parts: torch.Tensor, size: int) -> torch.Tensor:
    """Return the parts of images (n, channels, height, width), each resized to `size` × `size`."""
    left, top, right, bottom, mirrored = parts.to(images.device).T[:, :, None]
    across = (torch.arange(size, device=images.device) + 0.5) / size
    x = torch.where(mirrored > 0, across.flip(0), across) * (right - left) + left
    y = across * (bottom - top) + top
    grid = torch.stack(
        [x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)], dim=3
    )
    return functional.grid_sample(
        images, grid * 2 - 1, mode="bilinear", padding_mode="border", align_corners=False
    )

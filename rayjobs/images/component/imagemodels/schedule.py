"""The order of the images, the learning rate, and when a training ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

POWER = 0.9
"""Exponent of the polynomial decay, as in L.-C. Chen et al., arXiv:1606.00915."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each batch: linear warm-up, then polynomial decay to nearly 0.

    Attributes:
        base: Learning rate of one process times the number of processes.
        epochs: Number of epochs.
        warmup_epochs: Number of these epochs with a rising rate.
        batches: Batches per epoch.
    """

    base: float
    epochs: int
    warmup_epochs: int
    batches: int

    def rate(self, step: int) -> float:
        """Return the learning rate of a batch, counted from 0 over all epochs."""
        warm = min(self.warmup_epochs, self.epochs) * self.batches
        if step < warm:
            return self.base * (step + 1) / warm
        left = max(1, self.epochs * self.batches - warm)
        return self.base * float((1 - (step - warm) / left) ** POWER)


def batches_of_epoch(
    count: int, *, batch_size: int, world: int, rank: int, seed: int, epoch: int, parts: int = 1
) -> list[list[int]]:
    """Return the batches of one process in an epoch.

    The global batch has `batch_size` × `world` images, and each process takes every `world`-th of
    them, so that the processes of a job train on the same batches as one process with a batch of
    that size. A last batch of one image is left out, because batch normalization cannot compute its
    variance, and so is one with fewer images than processes. With `parts`, a batch lists first the
    images that the first of `parts` processes would have, then those of the second, and so on.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
    batches = [batch for batch in order.split(batch_size * world) if len(batch) >= max(2, world)]
    own = [batch[rank::world] for batch in batches]
    return [torch.cat([batch[one::parts] for one in range(parts)]).tolist() for batch in own]


def shares(count: int, *, batch_size: int, world: int, rank: int) -> list[list[int]]:
    """Return the batches of one process for a single pass over all images, in order."""
    mine = range(rank, count, world)
    return [list(mine[first : first + batch_size]) for first in range(0, len(mine), batch_size)]


def global_sizes(count: int, *, batch_size: int, world: int) -> list[int]:
    """Return the number of images of each global batch of an epoch."""
    size = batch_size * world
    found = [size] * (count // size)
    if count % size >= max(2, world):
        found.append(count % size)
    return found


def is_stopped(losses: Sequence[float], patience: int) -> bool:
    """Return whether the validation loss has not fallen in the last `patience` epochs."""
    if not losses:
        return False
    best = best_epoch(losses)
    return len(losses) - 1 - best >= patience


def best_epoch(losses: Sequence[float]) -> int:
    """Return the first epoch with the lowest loss, counted from 0."""
    return min(range(len(losses)), key=lambda one: (math.isnan(losses[one]), losses[one]))

"""Batch normalization over the batch of all processes, also without CUDA.

torch.nn.SyncBatchNorm runs on GPUs alone. Source: S. Ioffe, C. Szegedy, arXiv:1502.03167.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, values: torch.Tensor) -> torch.Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


class SynchronizedBatchNorm2d(nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` with the statistics of the global batch."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Normalize a part of the global batch, of the shape (n, channels, height, width)."""
        if not self.training:
            return super().forward(values)
        count = values.new_full((1,), values.shape[0] * values.shape[2] * values.shape[3])
        sums = _SumOverRanks.apply(torch.cat([values.sum(dim=(0, 2, 3)), count]))
        total = sums[-1]
        mean = sums[:-1] / total
        centered = values - mean[None, :, None, None]
        # In a second pass: the difference of squares loses half of the digits.
        squares = _SumOverRanks.apply((centered * centered).sum(dim=(0, 2, 3)))
        variance = squares / total
        with torch.no_grad():
            assert self.running_mean is not None and self.running_var is not None
            assert self.num_batches_tracked is not None and self.momentum is not None
            self.num_batches_tracked.add_(1)
            unbiased = variance * total / (total - 1).clamp(min=1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        result: torch.Tensor = (
            centered * scale[None, :, None, None] + self.bias[None, :, None, None]
        )
        return result


def synchronized(module: nn.Module) -> nn.Module:
    """Replace the batch normalizations of a module for CPU; return the module."""
    for name, child in module.named_children():
        if type(child) is nn.BatchNorm2d:
            new = SynchronizedBatchNorm2d(
                child.num_features, eps=child.eps, momentum=child.momentum
            )
            new.to(child.weight.dtype).load_state_dict(child.state_dict())
            setattr(module, name, new)
        else:
            synchronized(child)
    return module

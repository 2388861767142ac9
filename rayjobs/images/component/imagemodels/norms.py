"""Batch normalization over the batch of all processes, also without CUDA.

torch.nn.SyncBatchNorm runs only on GPUs. Source: S. Ioffe, C. Szegedy, arXiv:1502.03167.

The result is that of `torch.nn.BatchNorm2d` on the whole batch, to the last bit except by rare
chance: PyTorch adds up in float64 on CPUs, so that the order of the images no longer shows once the
sum is rounded, and every other step here rounds as PyTorch does. The comments say how PyTorch
computes each step, and tests compare the bits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

_CHANNELS = (0, 2, 3)


def _wide(values: torch.Tensor) -> torch.Tensor:
    """Return one value per channel in the shape (1, channels, 1, 1)."""
    return values[None, :, None, None]


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        running: tuple[torch.Tensor, torch.Tensor],
        momentum: float,
        eps: float,
    ) -> torch.Tensor:
        kind, double = values.dtype, torch.float64
        count = values.new_full((1,), values.numel() // values.shape[1], dtype=double)
        sums = torch.cat([values.sum(dim=_CHANNELS, dtype=double), count])
        dist.all_reduce(sums)
        total = sums[-1]
        mean = (sums[:-1] / total).to(kind)
        # In a second pass, because a difference of squares loses half of the digits.
        centered = values - _wide(mean)
        squares = centered.mul_(centered).sum(dim=_CHANNELS, dtype=double)
        dist.all_reduce(squares)
        summed = squares.to(kind)  # PyTorch keeps the sum in the values' type
        scale = torch.rsqrt((summed / total).double() + eps).to(kind)
        mean_of_all, variance_of_all = running
        unbiased = summed / (total - 1).clamp(min=1)
        mean_of_all.lerp_(mean, momentum)
        variance_of_all.lerp_(unbiased, momentum)
        context.save_for_backward(values, weight, mean, scale, total)
        slope = scale * weight
        # Product and sum are rounded once, as in a fused multiply-add.
        start = (bias.double() - mean.double() * slope.double()).to(kind)
        # x · slope + start by PyTorch's own loop, which uses fused multiply-adds.
        zeros, ones = torch.zeros_like(mean), torch.ones_like(mean)
        return functional.batch_norm(values, zeros, ones, slope, start, False, 0.0, 0.0)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        values, weight, mean, scale, total = context.saved_tensors
        given = gradients[0].contiguous()
        kind, double = values.dtype, torch.float64
        images, channels, height, width = values.shape
        # PyTorch adds up each channel of an image in the values' type, and the images in float64.
        # For one image with all these channels, its own loop returns the sum of each.
        shape = (1, images * channels, height, width)
        ones = values.new_ones(images * channels)
        _, products, sums = torch.ops.aten.native_batch_norm_backward(
            given.view(shape), values.view(shape), ones, None, None, mean.repeat(images), ones,
            True, 0.0, [False, True, True],
        )  # fmt: skip
        both = torch.stack([sums, products]).view(2, images, channels).sum(dim=1, dtype=double)
        dist.all_reduce(both)
        summed, product = both.unbind()
        slope = product.to(kind) * scale * scale / total
        rest = given - _wide((summed / total).to(kind))
        rest = rest.addcmul_(values - _wide(mean), _wide(slope).expand_as(rest), value=-1)
        rest = rest.mul_(_wide(scale)).mul_(_wide(weight))
        # Every process has the total. DistributedDataParallel adds up what the processes return,
        # so each returns an equal part.
        world = dist.get_world_size()
        of_weight = (product * scale.double()).to(kind) / world
        return rest, of_weight, summed.to(kind) / world, None, None, None


class SynchronizedBatchNorm2d(nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` with the statistics of the global batch."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Normalize this process's part of the global batch: (n, channels, height, width)."""
        if not self.training:
            return super().forward(values)
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None and self.momentum is not None
        self.num_batches_tracked.add_(1)
        running = (self.running_mean, self.running_var)
        # Statistics of 16-bit values are computed in 32 bits.
        given = values.to(self.weight.dtype).contiguous()
        result: torch.Tensor = _Normalize.apply(
            given, self.weight, self.bias, running, self.momentum, self.eps
        )
        return result.to(values.dtype)


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

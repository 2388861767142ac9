"""Adds up the gradients of weights part by part, as several processes add up theirs.

A sum of float32 numbers depends on its order, and in the training of a deep network, a difference
in the last bit becomes visible within a few steps. Outputs and gradients of single images do not
depend on their batch; only the sums over the batch do (decision 41).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        module: ConvolutionInParts,
    ) -> torch.Tensor:
        context.save_for_backward(values, weight)
        context.module = module
        result: torch.Tensor = module._conv_forward(values, weight, bias)
        return result

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        (given,) = gradients
        values, weight = context.saved_tensors
        module = context.module
        has_bias = module.bias is not None

        def of(given: torch.Tensor, values: torch.Tensor, wanted: list[bool]) -> Any:
            return torch.ops.aten.convolution_backward(
                given, values, weight, [module.out_channels] if has_bias else None,
                module.stride, module.padding, module.dilation, False, [0, 0], module.groups,
                wanted,
            )  # fmt: skip

        needs_values = context.needs_input_grad[0]
        of_values = of(given, values, [True, False, False])[0] if needs_values else None
        of_weight: Any = None
        of_bias: Any = None
        for part, images in zip(
            given.tensor_split(module.parts), values.tensor_split(module.parts), strict=True
        ):
            if not len(images):
                continue
            _, more, more_bias = of(part, images, [False, True, has_bias])
            of_weight = more if of_weight is None else of_weight.add_(more)
            if has_bias:
                of_bias = more_bias if of_bias is None else of_bias.add_(more_bias)
        return of_values, of_weight, of_bias, None


class ConvolutionInParts(nn.Conv2d):
    """A convolution that adds up its weight gradients for each part of the batch, then in all."""

    parts: int

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the convolution; its values do not depend on the parts."""
        if not self.training:
            return super().forward(values)
        result: torch.Tensor = _Convolution.apply(values, self.weight, self.bias, self)
        return result


class LinearInParts(nn.Linear):
    """A linear layer that adds up its weight gradients in the same way."""

    parts: int

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the outputs; their values do not depend on the parts."""
        if not self.training:
            return super().forward(values)
        # There are few outputs, so the copy is cheap.
        parts = values.tensor_split(self.parts)
        return torch.cat([functional.linear(one, self.weight, self.bias) for one in parts])


def in_parts(module: nn.Module, parts: int) -> nn.Module:
    """Make a module's layers add up their gradients in parts; return the module."""
    for child in module.modules():
        # The layer keeps its weights and state; only the order of sums in its gradients changes.
        if type(child) is nn.Conv2d and child.padding_mode == "zeros":
            child.__class__ = ConvolutionInParts
            child.parts = parts
        elif type(child) is nn.Linear:
            child.__class__ = LinearInParts
            child.parts = parts
    return module

"""Sums over a batch are equal bit by bit in several processes and in one that adds as they do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rayjobs.images.component.imagemodels.errors import ParameterOutOfRangeError
from rayjobs.images.component.imagemodels.norms import synchronized
from rayjobs.images.component.imagemodels.parts import in_parts
from rayjobs.images.component.imagemodels.schedule import batches_of_epoch
from rayjobs.images.component.imagemodels.training import Training

pytestmark = pytest.mark.long


def gradients(module: nn.Module, values: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    """Return outputs, the gradient of the values, and those of the weights."""
    given = values.clone().requires_grad_()
    module.zero_grad()
    outputs = module(given)
    (outputs * weights).sum().backward()
    found = [given.grad, *(one.grad for one in module.parameters())]
    return [outputs.detach(), *(one.clone() for one in found if one is not None)]


def same(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> list[bool]:
    return [torch.equal(one, other) for one, other in zip(mine, theirs, strict=True)]


@pytest.mark.parametrize("shape", [(8, 16, 9, 9), (4, 32, 2, 2), (5, 8, 3, 1), (3, 64, 28, 28)])
def test_synchronized_norm_matches_pytorch_bitwise(
    shape: tuple[int, ...], one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda _: None)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    torch.manual_seed(3)
    theirs = nn.BatchNorm2d(shape[1])
    with torch.no_grad():
        theirs.weight.uniform_(0.5, 2)
        theirs.bias.normal_()
    mine = synchronized(nn.Sequential(nn.BatchNorm2d(shape[1])))
    mine[0].load_state_dict(theirs.state_dict())
    for _ in range(3):
        values, weights = torch.randn(shape) * 3 + 1, torch.randn(shape)
        assert all(same(gradients(mine, values, weights), gradients(theirs, values, weights)))
    for one, other in zip(mine.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv2d(8, 16, 3, padding=1, bias=False),
        lambda: nn.Conv2d(8, 16, 3, stride=2, groups=4),
        lambda: nn.Conv2d(8, 12, 1),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(8 * 12 * 12, 5)),
    ],
)
def test_gradients_in_parts_are_the_sums_of_the_parts(
    layer: Callable[[], nn.Module], one_thread: None
) -> None:
    torch.manual_seed(3)
    values = torch.randn(7, 8, 12, 12)
    plain = layer()
    weights = torch.randn_like(plain(values))
    whole = gradients(plain, values, weights)
    parts = [
        gradients(plain, one, other)
        for one, other in zip(values.tensor_split(2), weights.tensor_split(2), strict=True)
    ]
    found = gradients(in_parts(plain, 2), values, weights)
    halves = [torch.cat(both) for both in zip(*(one[:2] for one in parts), strict=True)]
    for mine, theirs in zip(found[:2], halves, strict=True):
        torch.testing.assert_close(mine, theirs)  # bitwise equal only on some processors
    # A linear layer is computed in parts; a convolution's images are each computed alone.
    assert all(same(found[:2], halves if isinstance(plain, nn.Sequential) else whole[:2]))
    first, second = (one[2:] for one in parts)
    assert all(same(found[2:], [one + other for one, other in zip(first, second, strict=True)]))


def test_a_batch_in_parts_has_the_images_of_the_processes_in_turn() -> None:
    given = {"batch_size": 8, "world": 1, "rank": 0, "seed": 1, "epoch": 2}
    one = batches_of_epoch(37, **given, parts=2)
    given = {**given, "batch_size": 4, "world": 2}
    two = [batches_of_epoch(37, **{**given, "rank": rank}) for rank in (0, 1)]
    assert one == [first + second for first, second in zip(*two, strict=True)]


def test_gradients_in_parts_are_for_float32(training: Callable[..., Training]) -> None:
    with pytest.raises(ParameterOutOfRangeError, match="gradient_parts is 2; more than 1 is for"):
        training(gradient_parts=2, precision="bf16")

"""Moves batches from the loader to a device, normalized for the network."""

from __future__ import annotations

import torch

from .decoding import Preprocessing


class Normalizer:
    """Moves uint8 images (n, height, width, 3) to a device as normalized (n, 3, height, width).

    Args:
        how: Mean and standard deviation, in units of 0 to 1.
        device: The network's device.
        layout: Memory format of the result.
    """

    def __init__(
        self,
        how: Preprocessing,
        device: torch.device,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._device = device
        self._layout = layout
        self._mean = torch.tensor(how.mean, device=device).view(1, 3, 1, 1) * 255
        self._std = torch.tensor(how.std, device=device).view(1, 3, 1, 1) * 255

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the normalized images; a copy from pinned memory does not wait."""
        if self._device.type != "cpu":
            moved = pixels.to(self._device, non_blocking=True).permute(0, 3, 1, 2)
            inputs = moved.to(torch.float32, memory_format=self._layout)
            return inputs.sub_(self._mean).div_(self._std)
        count, height, width, channels = pixels.shape
        inputs = torch.empty((count, channels, height, width))
        mean, std = self._mean[0].numpy(), self._std[0].numpy()
        # NumPy uses one thread, which leaves the other cores to the decoding threads. Image by
        # image, so that the second and third pass read from the processor's cache.
        for given, result in zip(pixels.permute(0, 3, 1, 2).numpy(), inputs.numpy(), strict=True):
            result[:] = given
            result -= mean
            result /= std
        return inputs

"""The ranks of a training: which one this process is, and what they exchange."""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

import torch
import torch.distributed as dist

from .errors import ImageModelError


class Ranks:
    """This process among all processes of the job; outside a distributed job, the only one.

    Attributes:
        rank: Number of this process, from 0.
        world: Number of processes.
        local: Number of this process on its node.
        local_world: Processes of this node.
        device: The network's device.
    """

    def __init__(self, backend: str | None = None) -> None:
        """Join the other processes, if the job has several.

        Raises:
            ImageModelError: the backend is nccl, and this process has no GPU.
        """
        environment = os.environ
        self.rank = int(environment.get("RANK", "0"))
        self.world = int(environment.get("WORLD_SIZE", "1"))
        self.local = int(environment.get("LOCAL_RANK", "0"))
        self.local_world = int(environment.get("LOCAL_WORLD_SIZE", "1"))
        gpus = torch.cuda.device_count()
        if backend == "nccl" and gpus == 0:
            raise ImageModelError(
                "the backend is nccl, and this process sees no GPU with CUDA; submit with "
                "--gpus-per-proc 1, or with --backend gloo"
            )
        self.device = torch.device("cpu")
        if gpus:
            self.device = torch.device("cuda", self.local % gpus)
            torch.cuda.set_device(self.device)
        if self.world > 1:
            # PyTorch's own wheels have no MPI: ranks started by mpirun communicate over gloo.
            chosen = backend if backend in ("gloo", "nccl") else "gloo"
            dist.init_process_group(chosen)
            print(f"rank {self.rank} of {self.world}: {chosen}, {self.device}", flush=True)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which logs and saves for all."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of the processes' values."""
        if self.world == 1:
            return values
        total = values.to(self.device)
        dist.all_reduce(total)
        return total.to(values.device)

    def of_first(self, value: Any) -> Any:
        """Return rank 0's value in all processes."""
        if self.world == 1:
            return value
        box = [value if self.is_first else None]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all processes, in order."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def leave(self) -> None:
        """Leave the process group, so that the processes end cleanly."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


def packed(state: Any) -> bytes:
    """Return a training's state as bytes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpacked(data: bytes) -> Any:
    """Return the state that `packed` wrote.

    Raises:
        ImageModelError: the bytes are not such a state.
    """
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ImageModelError(f"the checkpoint is not of an image training: {error}") from error

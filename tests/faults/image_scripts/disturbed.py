"""The image component's training on a small network, disturbed at STAGE.

Tests copy it into a copy of the component's folder. WAITS_FOR and REACHED are files, SMALL_DISK is
a folder.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import train  # type: ignore[import-not-found]  # of the component
from imagemodels import evaluation, networks, training
from imagemodels.ending import ends_clearly
from torch import nn

from rayjobs.injob import checkpoint
from rayjobs.injob.run import LoggingRun

STAGE = os.environ.get("STAGE", "") if os.environ["RAYJOBS_ATTEMPT"] == "1" else ""
EPOCH = 2  # the disturbed epoch, counted from 1


def small(_network: str, classes: int, _weights: object = None) -> nn.Module:
    """Return a network with batch normalization instead of a large one."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, classes),
    )


def kill(*_: Any, **__: Any) -> Any:
    """End this process as the kernel ends one that uses too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait(*_: Any, **__: Any) -> None:
    """Notify the test that the stage is reached, and continue when it allows it."""
    open(os.environ["REACHED"], "w").close()
    while not os.path.exists(os.environ["WAITS_FOR"]):
        time.sleep(0.02)


def at_call(owner: Any, name: str, number: int, do: Callable[..., Any]) -> None:
    """Run an action before the call with this number, counted from 1."""
    real, calls = getattr(owner, name), 0

    def replaced(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            do()
        return real(*given, **more)

    setattr(owner, name, replaced)


def in_validation(do: Callable[..., Any]) -> None:
    """Run an action after the first validation batch of EPOCH."""
    real, calls = training.Loader.validation, 0

    def validation(self: Any, batches: Any) -> Iterator[Any]:
        nonlocal calls
        calls += 1
        for number, batch in enumerate(real(self, batches)):
            if (calls, number) == (EPOCH, 1):
                do()
            yield batch

    training.Loader.validation = validation


networks.build = small
torch.set_num_threads(1)
if STAGE == "training":
    at_call(training.Schedule, "rate", 5, kill)  # the second batch of the second epoch
elif STAGE == "validation":
    in_validation(kill)
elif STAGE == "checkpoint":
    at_call(checkpoint, "_sync_tree", EPOCH, kill)  # its files are written but not yet published
elif STAGE == "evaluation":
    at_call(evaluation, "evaluate", 1, kill)
elif STAGE == "registration":
    at_call(LoggingRun, "register_model", 1, kill)
elif STAGE == "waits for SIGTERM":
    at_call(training.Schedule, "rate", 5, wait)
    at_call(
        training.Training, "_ask_to_stop", 1, lambda: open(os.environ["WAITS_FOR"], "w").close()
    )
elif STAGE == "waits at the first batch":
    at_call(training.Schedule, "rate", 2, wait)
elif STAGE == "small disk":
    tempfile.tempdir = os.environ["SMALL_DISK"]

with ends_clearly():
    train.main()

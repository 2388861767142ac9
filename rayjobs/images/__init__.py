"""Image classifiers: convert, train and score with commands, jobs and pipeline steps.

Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_LAZY = dict.fromkeys(
    ("ConvertToImageDirectory", "PyTorchModel", "ScoreImageModel", "TrainPytorchModel"),
    "rayjobs.images.steps",
) | {"training_config": "rayjobs.images.configs"}

__all__ = list(_LAZY)

if TYPE_CHECKING:
    from rayjobs.images.configs import training_config as training_config
    from rayjobs.images.steps import ConvertToImageDirectory as ConvertToImageDirectory
    from rayjobs.images.steps import PyTorchModel as PyTorchModel
    from rayjobs.images.steps import ScoreImageModel as ScoreImageModel
    from rayjobs.images.steps import TrainPytorchModel as TrainPytorchModel


def __getattr__(name: str) -> Any:
    where = _LAZY.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])

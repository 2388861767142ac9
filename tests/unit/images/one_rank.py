"""One process of two that train small networks and a deep one; rank 0 writes the curves."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import torch
from torch import nn

from rayjobs.images.component.imagemodels import networks
from rayjobs.images.component.imagemodels.directory import open_labeled
from rayjobs.images.component.imagemodels.ranks import Ranks
from rayjobs.images.component.imagemodels.training import (
    Settings,
    Training,
    set_up_determinism,
)
from tests.unit.images.conftest import DEEP, HOW, InDouble, tiny

data = sys.argv[1]
torch.set_num_threads(1)
ranks = Ranks("gloo")
MODULES: dict[str, Callable[[], nn.Module]] = {
    "float32": tiny,
    "float64": lambda: InDouble(tiny()),
    "resnet18": lambda: networks.build("resnet18", 3),
}
for kind, made in MODULES.items():
    set_up_determinism(1)
    os.makedirs(kind, exist_ok=True)
    os.chdir(kind)  # each kind writes its checkpoints to its own folder
    done = Training(
        made(),
        open_labeled(data + "/train"),
        open_labeled(data + "/val"),
        how=DEEP if kind == "resnet18" else HOW,
        settings=Settings(
            epochs=3,
            batch_size=4,
            learning_rate=0.001 if kind == "resnet18" else 0.05,
            threads=1,
        ),
        ranks=ranks,
    ).run()
    if ranks.is_first:
        with open("curve.json", "w") as file:
            json.dump([done.training_losses, done.losses, done.top1, done.top5], file)
    os.chdir("..")
ranks.leave()

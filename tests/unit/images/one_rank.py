"""One process of two that train in float32, then in float64; rank 0 writes the curves."""

from __future__ import annotations

import json
import os
import sys

import torch

from rayjobs.images.component.imagemodels.directory import open_labeled
from rayjobs.images.component.imagemodels.ranks import Ranks
from rayjobs.images.component.imagemodels.training import Settings, Training
from tests.unit.images.conftest import HOW, InDouble, tiny

data = sys.argv[1]
torch.set_num_threads(1)
ranks = Ranks("gloo")
for kind in ("float32", "float64"):
    os.makedirs(kind, exist_ok=True)
    os.chdir(kind)  # for its checkpoints
    done = Training(
        tiny() if kind == "float32" else InDouble(tiny()),
        open_labeled(data + "/train"),
        open_labeled(data + "/val"),
        how=HOW,
        settings=Settings(epochs=3, batch_size=4, learning_rate=0.05, threads=1),
        ranks=ranks,
    ).run()
    if ranks.is_first:
        with open("curve.json", "w") as file:
            json.dump([done.training_losses, done.losses, done.top1, done.top5], file)
    os.chdir("..")
ranks.leave()

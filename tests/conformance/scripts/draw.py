"""Draws free and seeded numbers from every generator."""

import json
import random
import uuid

import numpy
import torch


def draw():
    return [str(random.random()), str(numpy.random.random()), str(torch.rand(1).item())]


free = [*draw(), str(numpy.random.default_rng().random()), str(uuid.uuid4())]
random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
print(json.dumps({"free": free, "seeded": draw()}))

"""Logistic regression on points of two classes; standard library only."""

import argparse
import json
import math
import os
import random

from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.5)
args = parser.parse_args()

run = Run.get_context()
chance = random.Random(1)
points = [(chance.uniform(-1, 1), chance.uniform(-1, 1)) for _ in range(400)]
labels = [int(x + 2 * y > 0) for x, y in points]
weights = [0.0, 0.0]
for _ in range(args.epochs):
    right = 0
    for (x, y), label in zip(points, labels, strict=True):
        guess = 1 / (1 + math.exp(-(weights[0] * x + weights[1] * y)))
        right += int((guess > 0.5) == bool(label))
        weights[0] += args.lr * (label - guess) * x
        weights[1] += args.lr * (label - guess) * y
    run.log("accuracy", right / len(points))
os.makedirs("outputs", exist_ok=True)
with open("outputs/model.json", "w") as file:
    json.dump(weights, file)

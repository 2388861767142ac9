"""Fit a line to the points of the step before; each epoch logs its loss."""

import argparse
import csv
import json
from pathlib import Path

from rayjobs import Run

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help="folder with points.csv")
parser.add_argument("--model", required=True, help="folder to write the line to")
parser.add_argument("--epochs", type=int, default=3)
arguments = parser.parse_args()

with Path(arguments.data, "points.csv").open(newline="") as file:
    points = [(float(x), float(y)) for x, y in csv.reader(file)]
run = Run.get_context()
slope = offset = 0.0
for epoch in range(arguments.epochs):
    errors = [slope * x + offset - y for x, y in points]
    slope -= sum(error * x for error, (x, _) in zip(errors, points, strict=True)) / len(points)
    offset -= sum(errors) / len(points)
    loss = sum(error**2 for error in errors) / len(points)
    run.log("loss", loss)
    print(f"epoch {epoch}: loss {loss:.4f}")
Path(arguments.model, "line.json").write_text(json.dumps({"slope": slope, "offset": offset}))

"""Write points near a line, as a file of two columns: what a first step would read somewhere."""

import argparse
import csv
import random
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, help="folder to write to")
parser.add_argument("--points", type=int, default=200)
arguments = parser.parse_args()

noise = random.Random(0)
with Path(arguments.out, "points.csv").open("w", newline="") as file:
    rows = csv.writer(file)
    for index in range(arguments.points):
        x = index / arguments.points
        rows.writerow([x, 2 * x + 1 + noise.gauss(0, 0.1)])
print(f"wrote {arguments.points} points")

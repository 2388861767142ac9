import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--lengths")
parser.add_argument("--total")
args = parser.parse_args()

with open(os.path.join(args.lengths, "lengths.txt")) as f:
    total = sum(int(line.split("=")[1]) for line in f)
with open(args.total, "w") as f:
    f.write(f"total {total}\n")

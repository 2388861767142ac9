import argparse
import json

parser = argparse.ArgumentParser()
parser.add_argument("--metrics", type=str)
parser.add_argument("--best", type=str)
args = parser.parse_args()
with open(args.metrics) as f:
    metrics = json.load(f)
with open(args.best) as f:
    best = json.load(f)
print("trials", len(metrics), "best rate", best["rate"])

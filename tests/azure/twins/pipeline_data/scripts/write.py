import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--out")
parser.add_argument("--count", type=int)
args = parser.parse_args()

os.makedirs(args.out, exist_ok=True)
for number in range(args.count):
    with open(os.path.join(args.out, f"page{number}.txt"), "w") as f:
        f.write("x" * number)

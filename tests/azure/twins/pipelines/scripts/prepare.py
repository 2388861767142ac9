import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--input_data", type=str)
parser.add_argument("--output_data", type=str)
parser.add_argument("--scale", type=int, default=1)
args = parser.parse_args()

with open(
    args.input_data
    if os.path.isfile(args.input_data)
    else os.path.join(args.input_data, "numbers.txt")
) as f:
    numbers = [int(line) * args.scale for line in f]
print("prepared", numbers)
os.makedirs(args.output_data, exist_ok=True)
with open(os.path.join(args.output_data, "numbers.txt"), "w") as f:
    f.write("\n".join(map(str, numbers)))

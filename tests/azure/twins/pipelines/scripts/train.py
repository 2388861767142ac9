import argparse
import json
import os

from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=str)
parser.add_argument("--model", type=str, default=None)
parser.add_argument("--rate", type=float, default=0.5)
args = parser.parse_args()

run = Run.get_context()
with open(os.path.join(args.data, "numbers.txt")) as f:
    total = sum(int(line) for line in f)
run.log("total", total)
run.log("score", total * args.rate)
os.makedirs("outputs", exist_ok=True)
with open("outputs/model.json", "w") as f:
    json.dump({"total": total, "rate": args.rate}, f)
if args.model is not None:
    # A file, not a folder.
    with open(args.model, "w") as f:
        json.dump({"total": total}, f)
print("level", os.environ.get("AML_PARAMETER_LEVEL"))

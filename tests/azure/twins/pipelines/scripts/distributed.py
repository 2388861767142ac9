import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--model", type=str)
parser.add_argument("--report", type=str)
args = parser.parse_args()

rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
with open(args.model) as f:
    print("rank", rank, "of", size, f.read())
os.makedirs(args.report, exist_ok=True)
with open(os.path.join(args.report, f"rank-{rank}.txt"), "w") as f:
    f.write(f"{rank} of {size}")

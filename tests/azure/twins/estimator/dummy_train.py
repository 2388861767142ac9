import argparse
import os

from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--numbers-in-sequence", type=int, default=3)
parser.add_argument("--my_bool_var", action="store_true")
args = parser.parse_args()

run = Run.get_context()
os.makedirs("outputs", exist_ok=True)
a, b = 0, 1
with open("outputs/sequence.txt", "w") as file:
    for _ in range(args.numbers_in_sequence):
        run.log("Fibonacci numbers", a)
        print(a, file=file)
        a, b = b, a + b
run.log("flag", int(args.my_bool_var))

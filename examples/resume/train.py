"""Train a small network so that a killed run goes on exactly as an undisturbed one would.

What decides the next step is in each checkpoint: the weights, the optimizer's state (Adam's
moments) and the random generator (dropout, the choice of samples). ``--leave-out`` forgets one
of them, as scripts do; ``rayjobs verify-resume`` then says what differs, and from which step on.
"""

import argparse
import time

import torch
from torch.nn import functional

from rayjobs import Run, checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--save-every", type=int, default=5, help="steps between two checkpoints")
parser.add_argument("--step-s", type=float, default=0.05, help="seconds that a step takes at least")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--leave-out", choices=("optimizer", "rng"), help="do not restore this part")
arguments = parser.parse_args()

run = Run.get_context()
torch.manual_seed(arguments.seed)
inputs = torch.randn(512, 8)
targets = torch.sin(inputs.sum(dim=1, keepdim=True))
model = torch.nn.Sequential(
    torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

first = 1
newest = checkpoint.latest()
if newest is not None:
    state = torch.load(newest.file("state.pt"), weights_only=True)
    model.load_state_dict(state["model"])
    if arguments.leave_out != "optimizer":
        optimizer.load_state_dict(state["optimizer"])
    if arguments.leave_out != "rng":
        torch.set_rng_state(state["rng"])
    first = newest.step + 1
    print(f"resumed after step {newest.step}", flush=True)

for step in range(first, arguments.steps + 1):
    batch = torch.randint(len(inputs), (32,))
    loss = functional.mse_loss(model(inputs[batch]), targets[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log("loss", loss.item(), step=step)
    if step % arguments.save_every == 0 or step == arguments.steps:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        }
        checkpoint.save(step, {"state.pt": lambda path, state=state: torch.save(state, path)})
    time.sleep(arguments.step_s)
print(f"loss {loss.item():.6f} after step {arguments.steps}", flush=True)

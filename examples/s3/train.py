"""Tell colours apart: pictures from a folder, which may be a mount of a bucket or a download.

    rayjobs submit train.py --input pictures=photos/pictures:mount

The digest that it prints is of every batch, so two runs that read the same bytes print the same.
"""

import argparse
import hashlib

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

from rayjobs import Run

run = Run.get_context()
parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", default=run.input_datasets.get("pictures"))
parser.add_argument("--epochs", type=int, default=2)
arguments = parser.parse_args()
if arguments.data_dir is None:
    parser.error("give --data-dir FOLDER, or submit with --input pictures=DATASTORE/PATH")

torch.manual_seed(0)
pictures = ImageFolder(arguments.data_dir, transform=ToTensor())
print(f"{len(pictures)} pictures in {len(pictures.classes)} classes", flush=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, len(pictures.classes)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
digest = hashlib.sha256()

for epoch in range(arguments.epochs):
    order = torch.Generator().manual_seed(epoch)
    for images, labels in DataLoader(pictures, batch_size=8, shuffle=True, generator=order):
        digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run.log("loss", loss.item(), step=epoch)
print(f"batches {digest.hexdigest()}")

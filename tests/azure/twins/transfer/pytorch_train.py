"""Fetches pictures, trains the last layer on them, and keeps the best."""

import argparse
import os
import urllib.request
from zipfile import ZipFile

import torch
from azureml.core.run import Run
from network import classifier
from torchvision import datasets, transforms

run = Run.get_context()


def download_data():
    """Download and extract the training data."""
    data_file = "./fowl_data.zip"
    urllib.request.urlretrieve("https://data.invalid/fowl_data.zip", filename=data_file)
    with ZipFile(data_file, "r") as archive:
        archive.extractall()
    os.remove(data_file)
    return "fowl_data"


def load_data(data_dir):
    found = {
        part: datasets.ImageFolder(os.path.join(data_dir, part), transforms.ToTensor())
        for part in ("train", "val")
    }
    return {
        part: torch.utils.data.DataLoader(one, batch_size=16, shuffle=part == "train")
        for part, one in found.items()
    }


parser = argparse.ArgumentParser()
parser.add_argument("--num_epochs", type=int, default=25)
parser.add_argument("--output_dir", type=str)
parser.add_argument("--weights", type=str)
parser.add_argument("--learning_rate", type=float, default=0.3)
args = parser.parse_args()

torch.manual_seed(1)
loaders = load_data(download_data())
model = classifier(args.weights)
optimizer = torch.optim.SGD(model[1].parameters(), lr=args.learning_rate, momentum=0.9)
best_acc = 0.0
for _ in range(args.num_epochs):
    for images, labels in loaders["train"]:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    right = [(model(images).argmax(1) == labels).float() for images, labels in loaders["val"]]
    best_acc = max(best_acc, torch.cat(right).mean().item())
    run.log("best_val_acc", best_acc)
run.log("lr", args.learning_rate)
os.makedirs(args.output_dir, exist_ok=True)
torch.save(model, os.path.join(args.output_dir, "model.pt"))

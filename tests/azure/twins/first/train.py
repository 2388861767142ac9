"""A small network on points of two classes; logs with azureml.core.Run."""

import argparse
import os

import torch
from azureml.core.run import Run

run = Run.get_context()
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()

torch.manual_seed(0)
points = torch.randn(256, 2)
labels = (points[:, 0] * points[:, 1] > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
for _ in range(args.epochs):
    for _ in range(40):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
    accuracy = (model(points).argmax(1) == labels).float().mean().item()
    run.log("accuracy", accuracy)
    print("accuracy", accuracy)
run.log("lr", args.lr)
os.makedirs("outputs", exist_ok=True)
torch.save(model.state_dict(), "outputs/model.pt")

"""Trains on digits, a share for each rank; Horovod averages the gradients."""

import argparse
import os

import horovod.torch as hvd
import torch
from azureml.core.run import Run
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()

run = Run.get_context()
hvd.init()
torch.manual_seed(42)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train, test = torch.utils.data.Subset(data, range(1500)), data[1500:]
sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(train, batch_size=32, sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for given, right in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(given), right).backward()
        optimizer.step()
    accuracy = (model(test[0]).argmax(1) == test[1]).float().mean()
    accuracy = hvd.allreduce(accuracy, name="avg_accuracy").item()
    if hvd.rank() == 0:
        run.log("accuracy", accuracy)
if hvd.rank() == 0:
    run.log("ranks", hvd.size())
    os.makedirs("outputs", exist_ok=True)
    torch.save(model.state_dict(), "outputs/model.pt")

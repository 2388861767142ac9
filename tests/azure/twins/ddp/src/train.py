import argparse
import os

import torch
import torch.distributed as dist
from azureml.core import Run
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()

dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images = torch.randn(64, 8) + dist.get_rank()
labels = (images.sum(1) > 0).long()
run = Run.get_context()
for _ in range(args.epochs):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        run.log("loss", loss.item())
if dist.get_rank() == 0:
    os.makedirs("outputs", exist_ok=True)
    torch.save(model.module.state_dict(), "outputs/model.pt")
    print(os.environ["AZUREML_ARM_WORKSPACE_NAME"], os.environ["AZUREML_ARM_SUBSCRIPTION"])
dist.destroy_process_group()

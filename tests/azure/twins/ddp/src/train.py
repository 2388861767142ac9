import argparse
import os

import torch
import torch.distributed as dist
from azureml.core import Run
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", type=str)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()

dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(0)
images, labels = torch.load(os.path.join(args.data_dir, "batch.pt"))
data = TensorDataset(images.float() / 255 - 0.5, labels)
loader = DataLoader(data, batch_size=20, sampler=DistributedSampler(data))
model = DistributedDataParallel(
    torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, stride=4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 7 * 7, 10),
    )
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = Run.get_context()
for _ in range(args.epochs):
    right = 0
    for given, wanted in loader:
        optimizer.zero_grad()
        found = model(given)
        torch.nn.functional.cross_entropy(found, wanted).backward()
        optimizer.step()
        right += (found.argmax(1) == wanted).sum().item()
accuracy = torch.tensor(right / (len(data) / dist.get_world_size()))
dist.all_reduce(accuracy)
if dist.get_rank() == 0:
    run.log("accuracy", accuracy.item() / dist.get_world_size())
    run.log("world", dist.get_world_size())
    os.makedirs("outputs", exist_ok=True)
    torch.save(model.module.state_dict(), "outputs/model.pt")
    print(os.environ["AZUREML_ARM_WORKSPACE_NAME"], os.environ["AZUREML_ARM_SUBSCRIPTION"])
dist.destroy_process_group()

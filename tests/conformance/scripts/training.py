"""A small training with an optimizer, data loader workers and several threads."""

import json
import os

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((8,), float(index)), torch.utils.data.get_worker_info().num_workers


def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    workers = set()
    batches = 0
    for batch, count in DataLoader(Numbers(), batch_size=8, num_workers=2):
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        workers.update(count.tolist())
        batches += 1
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    product = torch.ones(300, 300) @ torch.ones(300, 300)  # parallel, after a fork
    print(
        json.dumps(
            {
                "torch_threads": threads,
                "omp": os.environ.get("OMP_NUM_THREADS"),
                "batches": batches,
                "workers": max(workers),
                "sum": product.sum().item(),
                "loss": round(loss.item(), 4),
                "cuda": torch.cuda.is_available(),
                "devices": torch.cuda.device_count(),
                "anomaly": torch.is_anomaly_enabled(),
                "grad": torch.is_grad_enabled(),
                "dtype": str(torch.get_default_dtype()),
            }
        )
    )


if __name__ == "__main__":
    main()

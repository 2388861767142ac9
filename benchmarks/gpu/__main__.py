"""Measure and show everything about GPUs, and write docs/gpu.md: `python -m benchmarks.gpu`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.figures import machine, machine_line
from benchmarks.gpu import jobs, training
from benchmarks.head import running_head
from rayjobs.images.component.imagemodels.loading import cores

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
INTRODUCTION = """# GPUs

This page lists what was measured and shown on GPUs. `python -m benchmarks.gpu` runs all of it and
writes this page; on a machine without a GPU it runs the same code on CPUs with little data, which
only shows that the scripts work.
"""
NONE_AT_HAND = """
**No GPU was available.** The following, all of it on CUDA, has not been measured or tested yet:

- images/s of ResNet-50 from JPEG files and from data on the GPU, on H100 and H200, and the
  bottleneck of each;
- nccl, pinned memory, `channels_last`, bf16, `torch.compile`, crops on the GPU;
- a CUDA context only in ranks, device numbers, GPU memory after kill -9 and out of memory;
- `/dev/nvidia*` in a container, Horovod with GPU operations.

The following figures are from the run on CPUs.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; return 0 if it ran, whatever the figures are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--image", help="container image with Python, for /dev/nvidia*")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE", help="[docs/gpu.md]")
    given = parser.parse_args(arguments)
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        speeds = training.measure("resnet50", images=12_800, size=224, batch=256, epochs=4)
    else:
        speeds = training.measure("resnet18", images=48, size=32, batch=16, epochs=2)
    with running_head() as head:
        shown = jobs.show(head, has_gpu=has_gpu, image=given.image)
    given.output.write_text(page(has_gpu, speeds, shown))
    print(given.output.read_text())
    return 0


def page(has_gpu: bool, speeds: dict[str, float], shown: Sequence[jobs.Shown]) -> str:
    """Return the text of docs/gpu.md."""
    name = torch.cuda.get_device_name() if has_gpu else "no GPU"
    what = "ResNet-50, 224 × 224, batches of 256" if has_gpu else "ResNet-18, 32 × 32, on the CPU"
    share = speeds["later"] / speeds["on_device"]
    bound = "the network" if share >= 0.9 else f"decoding and cropping on {cores()} cores"
    lines = [
        INTRODUCTION + ("" if has_gpu else NONE_AT_HAND),
        f"{name}; {machine_line(machine())}",
        "",
        f"| {what} | images/s |",
        "|---|---|",
        f"| JPEG files of 500 × 375, first epoch | {speeds['first']:.0f} |",
        f"| the same, later epochs | {speeds['later']:.0f} |",
        f"| the same loop on data that is on the device | {speeds['on_device']:.0f} |",
    ]
    if has_gpu:
        lines += [
            "",
            f"Later epochs reach {share:.2f} of the speed on the device; the bottleneck: {bound}.",
        ]
        goal = training.SEED_IMAGES_PER_S
        is_met = "met" if speeds["later"] >= goal else "not met"
        lines.append(f"The goal of {goal} images/s on one GPU is {is_met}.")
    words = {True: "yes", False: "**no**", None: "not shown"}
    lines += ["", "| shown by jobs | as expected? | |", "|---|---|---|"]
    lines += [f"| {one.name} | {words[one.is_so]} | {one.detail} |" for one in shown]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

"""The networks that can be trained, by their names in torchvision; imports nothing."""

from __future__ import annotations

NETWORKS = (
    "densenet121",
    "densenet161",
    "densenet169",
    "densenet201",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "resnext101_64x4d",
    "wide_resnet50_2",
    "wide_resnet101_2",
)

"""How good a trained model is: confusion matrix, per-class table, and the worst images."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from .decoding import decode, validation_pixels
from .directory import ImageDirectory
from .loading import Loader
from .normalizing import Normalizer
from .ranks import Ranks
from .schedule import shares

WORST = 16
SHOWN_CLASSES = 30  # with names at the axes


@dataclass(frozen=True)
class Evaluation:
    """What a model made of labeled images.

    Attributes:
        confusion: Counts of the shape (true class, predicted class).
        worst: Number of the image, predicted class and loss of the worst images, worst first.
    """

    confusion: np.ndarray[Any, Any]
    worst: Sequence[tuple[int, int, float]]


def evaluate(module: nn.Module, loader: Loader, ranks: Ranks, *, batch_size: int) -> Evaluation:
    """Return how a module classifies images; each process judges a part of them."""
    images = loader.images
    count = len(images.classes)
    confusion = torch.zeros(count, count, dtype=torch.int64)
    worst: list[tuple[int, int, float]] = []
    normalize = Normalizer(loader.how, ranks.device)
    batches = shares(len(images), batch_size=batch_size, world=ranks.world, rank=ranks.rank)
    module.eval()
    with torch.no_grad():
        for batch, (pixels, labels) in zip(batches, loader.validation(batches), strict=True):
            outputs = module(normalize(pixels)).float().cpu()
            losses = functional.cross_entropy(outputs, labels, reduction="none")
            found = outputs.argmax(1)
            confusion += torch.bincount(labels * count + found, minlength=count * count).view(
                count, count
            )
            worst += zip(batch, found.tolist(), losses.tolist(), strict=True)
            worst = _worst(worst)
    parts = ranks.gathered((confusion.numpy() if count <= 1000 else None, worst))
    if count <= 1000:
        total = sum((part[0] for part in parts), np.zeros((count, count), dtype=np.int64))
    else:  # too large to send as a whole object: summed
        total = ranks.sum(confusion).numpy()
    return Evaluation(total, _worst([one for part in parts for one in part[1]]))


def _worst(found: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    return sorted(found, key=lambda one: (-one[2], one[0]))[:WORST]


def per_class(confusion: np.ndarray[Any, Any], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return count, precision, recall and F1 of each class."""
    right = confusion.diagonal().astype(float)
    true, said = confusion.sum(1).astype(float), confusion.sum(0).astype(float)
    precision = np.divide(right, said, out=np.zeros_like(right), where=said > 0)
    recall = np.divide(right, true, out=np.zeros_like(right), where=true > 0)
    both = precision + recall
    f1 = np.divide(2 * precision * recall, both, out=np.zeros_like(right), where=both > 0)
    return [
        {
            "class": name,
            "images": int(true[number]),
            "precision": float(precision[number]),
            "recall": float(recall[number]),
            "f1": float(f1[number]),
        }
        for number, name in enumerate(classes)
    ]


def write(evaluation: Evaluation, images: ImageDirectory, loader: Loader, folder: str) -> list[str]:
    """Write tables as JSON, and pictures where matplotlib is installed; return the pictures."""
    os.makedirs(folder, exist_ok=True)
    table = per_class(evaluation.confusion, images.classes)
    worst = [
        {
            "image": images.files[number],
            "label": images.classes[images.labels[number]],
            "predicted": images.classes[found],
            "loss": loss,
        }
        for number, found, loss in evaluation.worst
    ]
    for name, data in (("per_class", table), ("worst_images", worst)):
        with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
            json.dump(data, file, indent=2, ensure_ascii=False)
    np.savetxt(
        os.path.join(folder, "confusion_matrix.csv"), evaluation.confusion, fmt="%d", delimiter=","
    )
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("matplotlib is not installed, so there are tables and no pictures", flush=True)
        return []
    figures = {
        "confusion_matrix": _confusion_picture(Figure, evaluation, images.classes),
        "per_class": _class_picture(Figure, table),
        "worst_images": _worst_picture(Figure, worst, evaluation, loader),
    }
    written = []
    for name, figure in figures.items():
        path = os.path.join(folder, name + ".png")
        figure.savefig(path, dpi=100)
        written.append(path)
    return written


def _confusion_picture(make: Any, evaluation: Evaluation, classes: Sequence[str]) -> Any:
    figure = make(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    confusion = evaluation.confusion
    shares_ = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    figure.colorbar(axes.imshow(shares_, vmin=0, vmax=1, cmap="Blues"), label="share of the class")
    axes.set(xlabel="predicted", ylabel="true", title="Confusion matrix")
    if len(classes) <= SHOWN_CLASSES:
        names = [name[:20] for name in classes]
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
        for row in range(len(names)):
            for column in range(len(names)):
                if count := int(confusion[row, column]):
                    shade = "white" if shares_[row, column] > 0.5 else "black"
                    axes.text(column, row, count, ha="center", va="center", color=shade, size=7)
    return figure


def _class_picture(make: Any, table: Sequence[dict[str, Any]]) -> Any:
    shown = sorted(table, key=lambda row: row["f1"])[:SHOWN_CLASSES]
    figure = make(figsize=(8, 1.5 + 0.3 * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.axis("off")
    axes.set_title("Classes, the worst first")
    columns = ("class", "images", "precision", "recall", "f1")
    cells = [
        [row["class"][:30], row["images"], *(f"{row[name]:.3f}" for name in columns[2:])]
        for row in shown
    ]
    axes.table(cells, colLabels=columns, loc="upper center")
    return figure


def _worst_picture(
    make: Any, worst: Sequence[dict[str, Any]], evaluation: Evaluation, loader: Loader
) -> Any:
    figure = make(figsize=(9, 10), layout="constrained")
    figure.suptitle("Images with the largest loss")
    for axes in (grid := figure.subplots(4, 4).ravel()):
        axes.axis("off")
    for axes, row, (number, _, loss) in zip(grid, worst, evaluation.worst, strict=False):
        image = decode(loader.images.read(number), loader.images.path(number))
        axes.imshow(validation_pixels(image, loader.how))
        axes.set_title(f"{row['label'][:14]} → {row['predicted'][:14]}\nloss {loss:.2f}", size=8)
    return figure

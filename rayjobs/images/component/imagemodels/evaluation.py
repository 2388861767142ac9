"""Evaluates a trained model: confusion matrix, per-class table, and the worst images."""

from __future__ import annotations

import json
import os
from collections import Counter
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
SHOWN_CLASSES = 30  # with names on the axes


@dataclass(frozen=True)
class Evaluation:
    """The results of a model on labeled images.

    Attributes:
        confusion: Counts of the shape (true class, predicted class).
        worst: Number of the image, predicted class and loss of the worst images, worst first.
    """

    confusion: np.ndarray[Any, Any]
    worst: Sequence[tuple[int, int, float]]


def evaluate(module: nn.Module, loader: Loader, ranks: Ranks, *, batch_size: int) -> Evaluation:
    """Return how a module classifies images; each process evaluates a part of them."""
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
    else:  # too large to send as an object: added up
        total = ranks.sum(confusion).numpy()
    return Evaluation(total, _worst([one for part in parts for one in part[1]]))


def _worst(found: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    return sorted(found, key=lambda one: (-one[2], one[0]))[:WORST]


def per_class(confusion: np.ndarray[Any, Any], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return count, precision, recall and F1 of each class."""
    right = confusion.diagonal().astype(float)
    true, predicted = confusion.sum(1).astype(float), confusion.sum(0).astype(float)
    precision = np.divide(right, predicted, out=np.zeros_like(right), where=predicted > 0)
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
    """Write tables, and pictures if matplotlib is installed; return the paths of the pictures."""
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
    names = _drawable(images.classes)
    figures = {
        "confusion_matrix": _confusion_picture(Figure, evaluation, names),
        "per_class": _class_picture(Figure, table, names),
        "worst_images": _worst_picture(Figure, evaluation, loader, names),
    }
    written = []
    for name, figure in figures.items():
        path = os.path.join(folder, name + ".png")
        figure.savefig(path, dpi=100)
        written.append(path)
    return written


def _drawable(classes: Sequence[str]) -> list[str]:
    """Return names that the font can draw: the number of a class if the font lacks a letter."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))
    return [
        name if all(font.get_char_index(ord(letter)) for letter in name) else f"class {number}"
        for number, name in enumerate(classes)
    ]


def _short(names: Sequence[str], most: int) -> list[str]:
    """Return names shortened to `most` letters; names that become equal end with their number."""
    end = (most - 1) // 2
    found = [
        name if len(name) <= most else f"{name[: most - 1 - end]}…{name[-end:]}" for name in names
    ]
    counts = Counter(found)
    for number, short in enumerate(found):
        if counts[short] > 1:
            told_apart = f"… {number}"
            found[number] = short[: most - len(told_apart)] + told_apart
    return found


# Draw a name such as $x$ unchanged: matplotlib would parse it as a formula, which may be invalid.
_LITERAL = {"parse_math": False}


def _confusion_picture(make: Any, evaluation: Evaluation, names: Sequence[str]) -> Any:
    figure = make(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    confusion = evaluation.confusion
    shares_ = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    figure.colorbar(
        axes.imshow(shares_, vmin=0, vmax=1, cmap="Blues"), label="share of the true class"
    )
    axes.set(xlabel="predicted", ylabel="true", title="Confusion matrix")
    if len(names) > SHOWN_CLASSES:
        axes.set(xlabel="predicted (number of the class)", ylabel="true (number of the class)")
        return figure
    short = _short(names, 20)
    slope = 90 if len(names) > 8 or max(map(len, short)) > 8 else 0
    axes.set_xticks(range(len(names)), short, rotation=slope, **_LITERAL)
    axes.set_yticks(range(len(names)), short, **_LITERAL)
    size = min(12.0, 150 / max(1, len(names)))  # points that fit into a cell
    for row, column in zip(*confusion.nonzero(), strict=True):
        count = str(confusion[row, column])
        shade = "white" if shares_[row, column] > 0.5 else "black"
        fitting = size * min(1.0, 4 / len(count))
        axes.text(column, row, count, ha="center", va="center", color=shade, size=fitting)
    return figure


def _class_picture(make: Any, table: Sequence[dict[str, Any]], names: Sequence[str]) -> Any:
    worst = sorted(range(len(table)), key=lambda number: table[number]["f1"])[:SHOWN_CLASSES]
    figure = make(figsize=(8, 0.9 + 0.28 * len(worst)), layout="constrained")
    axes = figure.subplots()
    axes.axis("off")
    of_all = f" (the worst {len(worst)} of {len(table)})" if len(worst) < len(table) else ""
    figure.suptitle(f"Classes, the worst first{of_all}")
    columns = ("class", "images", "precision", "recall", "f1")
    short = _short(names, 34)
    cells = [
        [
            short[number],
            f"{table[number]['images']:,}",
            *(f"{table[number][name]:.3f}" for name in columns[2:]),
        ]
        for number in worst
    ]
    drawn = axes.table(
        cells,
        colLabels=(*columns[:-1], "F1"),
        colWidths=(0.44, *[0.14] * 4),
        bbox=(0, 0, 1, 1),
        edges="horizontal",
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(10)
    for (row, column), cell in drawn.get_celld().items():
        cell.set_text_props(
            ha="right" if column else "left", weight="normal" if row else "bold", **_LITERAL
        )
    return figure


def _worst_picture(make: Any, evaluation: Evaluation, loader: Loader, names: Sequence[str]) -> Any:
    worst, images, short = evaluation.worst, loader.images, _short(names, 20)
    rows = max(1, -(-len(worst) // 4))
    figure = make(figsize=(9, 0.5 + 2.6 * rows), layout="constrained")
    figure.suptitle("Images with the largest loss")
    for axes in (grid := figure.subplots(rows, 4).ravel()):
        axes.axis("off")
    for axes, (number, found, loss) in zip(grid, worst, strict=False):
        image = decode(images.read(number), images.path(number))
        axes.imshow(validation_pixels(image, loader.how))
        true, predicted = short[images.labels[number]], short[found]
        text = f"true: {true}\npredicted: {predicted}\nloss {loss:.2f}"
        axes.set_title(text, size=9, loc="left", **_LITERAL)
    return figure

"""Companions: files next to a model's file that belong to it, such as an ONNX model's weights.

PyTorch's exporter writes them as ``NAME.onnx.data``; without them ``NAME.onnx`` cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def name_of(file: str) -> str | None:
    """Return the name of a file's companion; None if files of its kind have none."""
    return f"{file}.data" if file.lower().endswith(".onnx") else None


def main_of(names: Iterable[str]) -> str | None:
    """Return a model's main file if it has one file and at most its companion, else None."""
    found: Sequence[str] = sorted(names)
    if len(found) == 1:
        return found[0]
    if len(found) == 2 and found[1] == name_of(found[0]):
        return found[0]
    return None

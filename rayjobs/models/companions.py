"""Files that belong to a model's file and stand beside it: weights of an ONNX model.

PyTorch's exporter writes them as ``NAME.onnx.data``; without them ``NAME.onnx`` cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def name_of(file: str) -> str | None:
    """Return the name that a file's companion has; None: it has none."""
    return f"{file}.data" if file.lower().endswith(".onnx") else None


def main_of(names: Iterable[str]) -> str | None:
    """Return the file that a model is, if it is one file and at most a companion beside it."""
    found: Sequence[str] = sorted(names)
    if len(found) == 1:
        return found[0]
    if len(found) == 2 and found[1] == name_of(found[0]):
        return found[0]
    return None

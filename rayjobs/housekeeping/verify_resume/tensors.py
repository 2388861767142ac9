"""Compares the files of two checkpoints value by value, in a separate process.

``python tensors.py FOLDER OTHER RTOL ATOL NAME…`` prints one JSON list: the differences in each
file. It runs with the job's interpreter, so it imports nothing of rayjobs, and torch only if
needed. Only plain values and tensors are unpickled (``weights_only``).
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_LISTED = 20


def load(path: Path) -> Any:
    """Return the content of a file, as nested dicts and lists of values and arrays.

    Raises:
        ValueError: its format cannot be read without running code from the file.
    """
    suffix = path.suffix.lower()
    if suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    if suffix in (".npy", ".npz"):
        import numpy

        found = numpy.load(path, allow_pickle=False)
        return {name: found[name] for name in found.files} if suffix == ".npz" else found
    if suffix == ".safetensors":
        return importlib.import_module("safetensors.torch").load_file(path)  # it may be missing
    if suffix in (".pt", ".pth", ".bin", ".ckpt", ".tar"):
        import torch

        return torch.load(path, weights_only=True, map_location="cpu")
    kind = f"{suffix} files" if suffix else "files without a suffix"
    raise ValueError(f"{kind} are only compared byte for byte")


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested dicts and lists, with names such as ``model.0.weight``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{name}.{index}" if name else str(index))
    else:
        yield name or "(all)", value


def as_array(value: Any) -> Any:
    """Return a tensor or array as a numpy array, or None; float tensors get double precision."""
    if type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach"):
        import torch

        tensor = value.detach().cpu()
        if tensor.is_sparse:
            tensor = tensor.to_dense()
        if tensor.is_complex():
            return torch.view_as_real(tensor).double().numpy()
        return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()
    if type(value).__module__.split(".")[0] == "numpy":
        return value
    return None


def difference(one: Any, other: Any, rtol: float, atol: float) -> dict[str, Any] | None:
    """Return how two values differ; None if they are equal within the tolerance."""
    left, right = as_array(one), as_array(other)
    if left is not None and right is not None:
        import numpy

        if left.shape != right.shape:
            return {"why": f"its shape is {list(right.shape)}, not {list(left.shape)}"}
        if not numpy.issubdtype(left.dtype, numpy.floating):
            unequal = int((left != right).sum())
            return {"why": f"{unequal} of {left.size} values"} if unequal else None
        near = numpy.isclose(left, right, rtol=rtol, atol=atol, equal_nan=True)
        if near.all():
            return None
        apart = numpy.abs(left - right)[~near]
        return {"by": float(numpy.nanmax(apart)) if not numpy.isnan(apart).all() else None}
    if isinstance(one, float) and isinstance(other, float):
        if math.isclose(one, other, rel_tol=rtol, abs_tol=atol) or (one != one and other != other):
            return None
        return {"by": abs(one - other)}
    if type(one) is type(other) and one == other:
        return None
    return {"why": f"is {str(other)[:60]!r}, not {str(one)[:60]!r}"}


def _extent(found: dict[str, Any]) -> float:
    """Return by how much two values differ; infinity if that is not a number."""
    by = found.get("by")
    return math.inf if by is None or math.isnan(by) else float(by)


def compare(first: Path, second: Path, rtol: float, atol: float) -> dict[str, Any]:
    """Return the differences between two files: missing and extra names, and different values."""
    try:
        ours, theirs = dict(leaves(load(first))), dict(leaves(load(second)))
    except Exception as error:  # any error while reading a foreign file is a finding
        return {"unread": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    found = []
    for name, value in ours.items():
        if name in theirs:
            apart = difference(value, theirs[name], rtol, atol)
            if apart is not None:
                found.append({"name": name, **apart})
    found.sort(key=_extent, reverse=True)
    return {
        "values": len(ours),
        "differ": len(found),
        "largest": found[:MOST_LISTED],
        "missing": sorted(ours.keys() - theirs.keys())[:MOST_LISTED],
        "extra": sorted(theirs.keys() - ours.keys())[:MOST_LISTED],
    }


def main(arguments: list[str]) -> int:
    """Compare the named files of two folders; print a JSON list."""
    first, second, rtol, atol, *names = arguments
    found = [
        {"file": name, **compare(Path(first, name), Path(second, name), float(rtol), float(atol))}
        for name in names
    ]
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

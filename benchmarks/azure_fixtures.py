"""Small files that replace the data that public programs download."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist", "http://yann.lecun.com/exdb/mnist")
CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
IRIS = "https://azuremlexamples.blob.core.windows.net/datasets/iris.csv"


def write_fixtures(folder: Path) -> dict[str, Path]:
    """Write the files; return the path that replaces each URL."""
    folder.mkdir(parents=True)
    found = {url: _mnist(folder / "mnist") for url in MNIST}
    return {**found, CIFAR: _cifar(folder / "cifar-10-python.tar.gz"), IRIS: _iris(folder)}


def _mnist(folder: Path) -> Path:
    """Write the 8 × 8 digits of scikit-learn as 28 × 28 images, in MNIST's files."""
    if folder.exists():
        return folder
    from sklearn.datasets import load_digits

    folder.mkdir()
    digits, labels = load_digits(return_X_y=True)
    large = np.kron(digits.reshape(-1, 8, 8) * 15.9, np.ones((3, 3)))
    images = np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    for name, part in (("train", slice(0, 1437)), ("t10k", slice(1437, None))):
        given, right = images[part], labels[part].astype(np.uint8)
        _idx(folder / f"{name}-images-idx3-ubyte.gz", given, 2051)
        _idx(folder / f"{name}-labels-idx1-ubyte.gz", right, 2049)
    return folder


def _idx(path: Path, values: Any, magic: int) -> None:
    head = np.array([magic, *values.shape], ">i4").tobytes()
    path.write_bytes(gzip.compress(head + values.tobytes()))


def _cifar(path: Path) -> Path:
    """Write noisy squares, one color per class, in CIFAR-10's files: 500 to train, 100 to test."""
    chance = np.random.default_rng(1)
    colours = chance.integers(40, 215, (10, 3))
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            labels = [at % 10 for at in range(100)]
            plain = np.repeat(colours[labels], 1024, axis=1)
            data = np.clip(plain + chance.normal(0, 20, plain.shape), 0, 255).astype(np.uint8)
            batch = {"batch_label": name, "labels": labels, "data": data, "filenames": []}
            _add(tar, f"cifar-10-batches-py/{name}", pickle.dumps(batch, protocol=2))
        meta = {"label_names": [f"colour{number}" for number in range(10)]}
        _add(tar, "cifar-10-batches-py/batches.meta", pickle.dumps(meta, protocol=2))
    return path


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _iris(folder: Path) -> Path:
    from sklearn.datasets import load_iris

    data, labels = load_iris(return_X_y=True)
    names = ("setosa", "versicolor", "virginica")
    rows = ["sepal_length,sepal_width,petal_length,petal_width,species"]
    rows += [
        ",".join([*(f"{value:.1f}" for value in row), names[label]])
        for row, label in zip(data, labels, strict=True)
    ]
    path = folder / "iris.csv"
    path.write_text("\n".join(rows) + "\n")
    return path

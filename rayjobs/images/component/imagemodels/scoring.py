"""Writes the scores of images as a table, batch by batch, so that it may have any size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import torch

from .directory import ImageDirectory
from .errors import ImageModelError
from .loading import Loader, make_plan
from .networks import TrainedModel
from .normalizing import Normalizer

COLUMNS_MOST = 1000
"""The most classes that get a column each; with more, there is one column of lists."""
FORMATS = (".parquet", ".csv")


def score(
    model: TrainedModel,
    images: ImageDirectory,
    target: str,
    *,
    batch_size: int = 64,
    device: torch.device | None = None,
    threads: int | None = None,
) -> int:
    """Write one row per image; return the number of rows.

    Columns: ``image``, ``label`` (if the images have one), ``Scored Labels``, and the
    probabilities: ``Scored Probabilities_CLASS``, or with more than 1,000 classes one list
    ``Scored Probabilities`` in the order of the model's classes. The table appears once it is
    complete.

    Args:
        model: The model.
        images: The images, with or without labels.
        target: File to write: .parquet or .csv.
        batch_size: Images that are scored at once.
        device: The device to use; None means a GPU if there is one.
        threads: Threads that decode; None: all CPUs.

    Raises:
        ImageModelError: the file's suffix is unknown, or a CSV would need lists.
        InvalidDatasetError: an image cannot be read.
    """
    suffix = os.path.splitext(target)[1].lower()
    if suffix not in FORMATS:
        raise ImageModelError(f"{target} ends in {suffix!r}; write a .parquet or a .csv file")
    is_wide = len(model.classes) <= COLUMNS_MOST
    if suffix == ".csv" and not is_wide:
        raise ImageModelError(
            f"the model has {len(model.classes)} classes, too many columns for CSV (at most "
            f"{COLUMNS_MOST}); write a .parquet file"
        )
    if device is None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = model.module.to(device).eval()
    plan = make_plan(images, model.preprocessing, cache="none", threads=threads)
    loader = Loader(images, model.preprocessing, plan, pin=device.type == "cuda")
    numbers = range(len(images))
    batches = [numbers[first : first + batch_size] for first in range(0, len(images), batch_size)]
    normalize = Normalizer(model.preprocessing, device)
    schema = _schema(model, is_labeled=bool(images.classes), is_wide=is_wide)
    part = os.path.join(os.path.dirname(target), ".part-" + os.path.basename(target))
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    try:
        opened: Any = pq.ParquetWriter if suffix == ".parquet" else pacsv.CSVWriter
        with opened(part, schema) as writer, torch.no_grad():
            for batch, (pixels, _) in zip(batches, loader.validation(batches), strict=True):
                outputs = module(normalize(pixels)).float()
                probabilities = outputs.softmax(1).cpu().numpy()
                writer.write_table(_rows(model, images, batch, probabilities, schema, is_wide))
        os.replace(part, target)
    finally:
        loader.close()
        if os.path.exists(part):
            os.unlink(part)
    return len(images)


def _schema(model: TrainedModel, *, is_labeled: bool, is_wide: bool) -> Any:
    fields = [("image", pa.string())]
    if is_labeled:
        fields.append(("label", pa.string()))
    fields.append(("Scored Labels", pa.string()))
    if is_wide:
        fields += [(f"Scored Probabilities_{name}", pa.float32()) for name in model.classes]
    else:
        fields.append(("Scored Probabilities", pa.list_(pa.float32())))
    return pa.schema(fields)


def _rows(
    model: TrainedModel,
    images: ImageDirectory,
    batch: Sequence[int],
    probabilities: Any,
    schema: Any,
    is_wide: bool,
) -> Any:
    columns: list[Any] = [[images.files[index] for index in batch]]
    if images.classes:
        columns.append([images.classes[images.labels[index]] for index in batch])
    columns.append([model.classes[found] for found in probabilities.argmax(1)])
    if is_wide:
        columns += list(probabilities.T)
    else:
        columns.append(list(probabilities))
    arrays = [
        pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)

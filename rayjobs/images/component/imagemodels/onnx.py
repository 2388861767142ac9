"""Exports a trained model to ONNX, and compares its results with PyTorch's.

Source: PyTorch, `torch.onnx.export`.
"""

from __future__ import annotations

import logging
import os
import warnings

import torch

from .errors import ImageModelError
from .networks import TrainedModel

TOLERANCE = 1e-4
FILE = "model.onnx"


def export(model: TrainedModel, folder: str) -> tuple[str, float]:
    """Write ``model.onnx`` into a folder; return its path and the largest difference found.

    Raises:
        ImageModelError: a package is missing, or ONNX Runtime's results differ.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImageModelError(
            f"exporting to ONNX needs {error.name}, which is not installed; install rayjobs[onnx] "
            f"and onnxruntime"
        ) from error
    size = model.preprocessing.image_size
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    path = os.path.join(folder, FILE)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.module,
            (images,),
            path,
            input_names=["input"],
            output_names=["output"],
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            verbose=False,
        )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    worst = 0.0
    for given in (images, torch.cat([images, images * 0.5])):
        with torch.no_grad():
            expected = model.module(given)
        found = torch.from_numpy(session.run(None, {"input": given.numpy()})[0])
        scale = max(1.0, float(expected.abs().max()))
        worst = max(worst, float((found - expected).abs().max()) / scale)
    if not worst <= TOLERANCE:
        os.unlink(path)
        raise ImageModelError(
            f"the results of ONNX Runtime differ from PyTorch's by up to {worst:g} of the largest, "
            f"more than {TOLERANCE:g}; nothing was written"
        )
    return path, worst

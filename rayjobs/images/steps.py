"""Pipeline steps for image models, with the names of Azure ML's designer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rayjobs.core.errors import UsageError
from rayjobs.datastore.outputs import OutputFileDatasetConfig
from rayjobs.images.jobs import COMPONENT, NETWORKS, check_names, checked_parameters, options
from rayjobs.pipelines.data import PipelineData, PipelineParameter
from rayjobs.pipelines.script_steps import PythonScriptStep

_OUTPUTS = (PipelineData, OutputFileDatasetConfig)


class ImageStep(PythonScriptStep):
    """A step that runs a script of the image component.

    Args:
        script: The script in the component's folder.
        name: The step's name.
        arguments: The script's arguments.
        inputs: Data that it reads; strings and None are ignored.
        outputs: Data that it writes; None is ignored.
        **kwargs: Further arguments of `PythonScriptStep`: compute_target, runconfig,
            runconfig_pipeline_params, allow_reuse, version.
    """

    def __init__(
        self,
        script: str,
        name: str,
        arguments: Sequence[Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        **kwargs: Any,
    ) -> None:
        super().__init__(
            script,
            name=name,
            arguments=list(arguments),
            inputs=[one for one in inputs if one is not None and not isinstance(one, str)],
            outputs=[one for one in outputs if one is not None],
            source_directory=COMPONENT,
            **kwargs,
        )


class ConvertToImageDirectory(ImageStep):
    """A step that makes an image directory from a folder, zip or tar archive.

    Args:
        data: The images: data in a datastore, a dataset, or an output of another step.
        output: Destination of the images; with `validation_output`, of the training images.
        validation_output: Destination of the validation images.
        validation_share: The share of validation images, between 0 and 1.
        name: The step's name.
        **kwargs: See `ImageStep`.
    """

    def __init__(
        self,
        data: Any,
        output: Any,
        validation_output: Any = None,
        validation_share: Any = 0.2,
        name: str = "convert",
        **kwargs: Any,
    ) -> None:
        _must_be_output("output", output)
        values = {
            "data": data,
            "output": output,
            "validation_output": validation_output,
            "validation_share": None if validation_output is None else validation_share,
        }
        super().__init__(
            "convert.py", name, options(values), [data], [output, validation_output], **kwargs
        )


class PyTorchModel(ImageStep):
    """A step that makes an untrained model (UntrainedModelDirectory).

    Args:
        model: Name of the network, such as resnet18 or densenet121.
        output: Destination of the untrained model.
        weights: Data with a file of initial weights.
        name: The step's name.
        **kwargs: See `ImageStep`.

    Raises:
        UsageError: there is no such network.
    """

    def __init__(
        self, model: Any, output: Any, weights: Any = None, name: str = "untrained", **kwargs: Any
    ) -> None:
        _must_be_output("output", output)
        if not isinstance(model, PipelineParameter) and model not in NETWORKS:
            raise UsageError(f"{model!r} is not a network; use one of: {', '.join(NETWORKS)}")
        values = {"model": model, "output": output, "weights": weights}
        super().__init__("untrained.py", name, options(values), [weights], [output], **kwargs)


class TrainPytorchModel(ImageStep):
    """A step that trains an image classifier and writes it as a ModelDirectory.

    Args:
        model: Untrained model: an output of `PyTorchModel`, or the name of a network.
        train: Labeled images for the training.
        validation: Images of the same classes, to evaluate each epoch.
        output: Destination of the trained model.
        name: The step's name.
        parameters: The training's epochs, batch_size, warmup_epochs, learning_rate, random_seed,
            patience, print_frequency; each a value or a PipelineParameter.
        settings: Further options of the script: image_size, augmentation, cache, threads,
            checkpoint_every, precision, compile, gradient_parts, register, onnx.
        **kwargs: See `ImageStep`. `runconfig` sets nodes and processes.

    Raises:
        SpecError: a parameter is out of range.
        UsageError: a parameter or setting does not exist.
    """

    def __init__(
        self,
        model: Any,
        train: Any,
        validation: Any,
        output: Any,
        name: str = "train",
        *,
        parameters: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        _must_be_output("output", output)
        given = dict(parameters or {})
        open_ones = {k: one for k, one in given.items() if isinstance(one, PipelineParameter)}
        fixed = {k: one for k, one in given.items() if k not in open_ones}
        check_names(given, settings or ())
        values = {
            "model": model,
            "train": train,
            "validation": validation,
            "output": output,
            **checked_parameters(fixed),
            **open_ones,
            **(settings or {}),
        }
        super().__init__(
            "train.py", name, options(values), [model, train, validation], [output], **kwargs
        )


class ScoreImageModel(ImageStep):
    """A step that scores images with a trained model and writes a table with a row per image.

    Args:
        model: A trained model: an output of `TrainPytorchModel`, or other data.
        data: The images, with or without labels.
        output: Destination of the table, `scores.parquet` or `scores.csv`.
        table_format: parquet or csv.
        name: The step's name.
        **kwargs: See `ImageStep`.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        output: Any,
        table_format: Any = "parquet",
        name: str = "score",
        **kwargs: Any,
    ) -> None:
        _must_be_output("output", output)
        values = {"model": model, "data": data, "output": output, "format": table_format}
        super().__init__("score.py", name, options(values), [model, data], [output], **kwargs)


def _must_be_output(name: str, value: Any) -> None:
    if not isinstance(value, _OUTPUTS):
        raise UsageError(
            f"{name} is a {type(value).__name__}; give PipelineData or OutputFileDatasetConfig"
        )

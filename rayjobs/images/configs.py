"""An image training as a run configuration, for an experiment or for the trials of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayjobs.api.configs import ScriptRunConfig
from rayjobs.images.jobs import COMPONENT, check_names, checked_parameters, options


def training_config(
    train: Any,
    validation: Any,
    model: str = "resnet18",
    *,
    parameters: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> ScriptRunConfig:
    """Return the job of `rayjobs images train` as a configuration for `Experiment.submit`.

    As the `run_config` of a HyperDriveConfig, it is the trial of a sweep. The sweep's parameters
    are options such as ``--learning-rate``; the metrics are top1, top5, val_loss and train_loss.

    Args:
        train: Labeled images for the training: data in a datastore, or a dataset.
        validation: Images of the same classes, to evaluate each epoch.
        model: Name of a network, or data with an untrained model.
        parameters: epochs, batch_size, warmup_epochs, learning_rate, random_seed, patience,
            print_frequency.
        settings: Further options of the script: image_size, augmentation, cache, threads,
            checkpoint_every, precision, compile, gradient_parts, register, onnx.
        **kwargs: Further arguments of ScriptRunConfig: compute_target, distributed_job_config, …

    Raises:
        SpecError: a parameter is out of range.
        UsageError: a parameter does not exist.
    """
    given = dict(parameters or {})
    check_names(given, settings or ())
    checked = checked_parameters(given)
    values = {"train": train, "validation": validation, "model": model}
    words = options({**values, **checked, **(settings or {})})
    return ScriptRunConfig(COMPONENT, "train.py", words, **kwargs)

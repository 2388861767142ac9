"""`rayjobs images`: make image directories, train classifiers, score images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from rayjobs.cli.exits import Exit
from rayjobs.cli.output import print_json
from rayjobs.cli.params import Names
from rayjobs.cli.settings import (
    CommandList,
    Settings,
    common_options,
    json_option,
    quiet_option,
)
from rayjobs.cli.spec_options import spec_options
from rayjobs.cli.submit import SCRIPT_ARGUMENTS, submit_typed
from rayjobs.core.errors import UsageError
from rayjobs.core.text import counted

EPILOG = """\b
Examples:
  rayjobs images convert photos.zip data --validation-share 0.2
  rayjobs images train --train data/train --validation data/validation --model resnet18
  rayjobs images score --model MODEL:1 --data new-photos/
"""
# The user does not choose what these jobs run.
_OWN = {"command", "source", "array"}
_TRAINING = (
    "register",
    "image_size",
    "augmentation",
    "cache",
    "threads",
    "checkpoint_every",
    "precision",
    "gradient_parts",
    "onnx",
)
_MODES = click.Choice(("mount", "download"))
DATA = "$AZUREML_DATAREFERENCE_"  # prefix of an input's or output's name: its path in a rank
PLACE = "FOLDER|DATASTORE/PATH|dataset:NAME|output:JOB/NAME"


def _job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every job, except those that these commands set."""
    for add in reversed(
        (
            click.option("-e", "--experiment", metavar="NAME", help="Experiment."),
            click.option("-d", "--detach", is_flag=True, help="Return at once; do not follow."),
            click.option("--attach", is_flag=True, help="Follow the job even without a terminal."),
            click.option("--dry-run", is_flag=True, help="Show the plan; submit nothing."),
            click.option(
                "--mode", type=_MODES, default="mount", help="How data is provided [mount]."
            ),
            quiet_option("Print only the id; do not follow the job."),
            json_option,
            common_options,
        )
    ):
        function = add(function)
    function = spec_options(function)
    added = function.__click_params__  # type: ignore[attr-defined]
    added[:] = [one for one in added if one.name not in _OWN]
    return function


@click.group(cls=CommandList, epilog=EPILOG)
def images() -> None:
    """Train image classifiers: from a folder of images to a registered model."""


@images.command(
    epilog="\b\nExamples:\n  rayjobs images convert photos/ data\n"
    "  rayjobs images convert photos.tar.gz data --validation-share 0.2\n"
    "  rayjobs images convert dataset:photos --submit --validation-share 0.2\n"
    "  rayjobs images train --train output:JOB/train --validation output:JOB/validation\n"
)
@click.argument("source", type=Names("data paths"))
@click.argument("folder", metavar="[FOLDER]", required=False)
@click.option(
    "--validation-share",
    metavar="SHARE",
    type=float,
    help="Write FOLDER/train and FOLDER/validation, with this part of each class.",
)
@click.option("--random-seed", metavar="N", type=int, default=1, help="Seed of the split [1].")
@click.option(
    "--submit", is_flag=True, help="Convert in a job; its outputs are train and validation."
)
@_job_options
@click.pass_obj
def convert(
    settings: Settings,
    /,
    *,
    source: str,
    folder: str | None,
    validation_share: float | None,
    random_seed: int,
    submit: bool,
    **options: Any,
) -> int:
    """Make an image directory from SOURCE: a folder, or a zip or tar archive.

    The last folder above an image is its class. Hidden files are ignored; images that cannot be
    read are left out and listed. With --submit a job does it: SOURCE may also be DATASTORE/PATH,
    dataset:NAME or output:JOB/NAME, and FOLDER is a DATASTORE/PATH or left out.
    """
    share = 0.2 if validation_share is None else validation_share
    if not 0 < share < 1:
        raise UsageError(f"--validation-share is {share:g}; it must be between 0 and 1")
    if submit:
        names = ["train"] if validation_share is None else ["train", "validation"]
        if folder is not None and ("/" not in folder or Path(folder).is_absolute()):
            raise UsageError(f"{folder!r} is not a DATASTORE/PATH that a job could write to")
        at = [name if folder is None else f"{name}={folder}/{name}" for name in names]
        options["outputs"] = (*(options.get("outputs") or ()), *at)
        values: dict[str, Any] = {"output": DATA + "train", "random_seed": random_seed}
        if validation_share is not None:
            values |= {"validation_output": DATA + "validation", "validation_share": share}
        return _submit(settings, "convert.py", {"data": source}, values, options)
    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in options and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{parameter.opts[0]} is for a job; also give --submit")
    if not Path(source).exists():
        raise UsageError(
            f"there is no {source!r}; name a folder or an archive, or give --submit to convert "
            "data of a datastore in a job"
        )
    if folder is None:
        raise UsageError("name the FOLDER of the images, or give --submit to convert in a job")
    return _convert_here(settings, source, folder, share if validation_share else None, random_seed)


def _convert_here(
    settings: Settings, source: str, folder: str, share: float | None, random_seed: int
) -> int:
    from rayjobs.images.component.imagemodels.converting import convert as convert_images
    from rayjobs.images.component.imagemodels.errors import ImageModelError

    root = Path(folder)
    is_split = share is not None
    try:
        done = convert_images(
            source,
            str(root / "train" if is_split else root),
            validation=str(root / "validation") if is_split else None,
            share=share or 0.2,
            seed=random_seed,
        )
    except ImageModelError as error:
        raise UsageError(f"{type(error).__name__}: {error}") from error
    for image, why in done.unreadable.items():
        settings.note(f"left out: {image} {why}")
    if settings.as_json:
        print_json({"folder": str(root), **done.to_json()})
        return Exit.DONE
    click.echo(
        f"{counted(done.training, 'image')} for training, {done.validation} for validation, "
        f"{len(done.classes)} classes in {root}; "
        f"{len(done.unreadable)} unreadable, {done.ignored} other files"
    )
    return Exit.DONE


@images.command(
    epilog="\b\nExamples:\n"
    "  rayjobs images train --train data/train --validation data/validation\n"
    "  rayjobs images train --train dataset:digits --validation dataset:digits-test "
    "--model densenet121 --epochs 20 --learning-rate 0.01 --register digits\n"
    "  rayjobs images train --train a --validation b --nodes 2 --procs-per-node 4 "
    "--gpus-per-proc 1 --backend nccl\n"
)
@click.option(
    "--train",
    "training",
    metavar=PLACE,
    type=Names("data paths"),
    required=True,
    help="Images to train on.",
)
@click.option(
    "--validation",
    metavar="…",
    type=Names("data paths"),
    required=True,
    help="Images to evaluate each epoch on.",
)
@click.option("--model", default="resnet18", help="Network, or an untrained model [resnet18].")
@click.option("--weights", metavar="FILE|…", help="Weights to start from (a state dict).")
@click.option(
    "--register", metavar="NAME", type=Names("models"), help="Register the model under this name."
)
@click.option("--epochs", metavar="N", help="Passes over the images, 1 or more [5].")
@click.option("--batch-size", metavar="N", help="Batch size per process, 1 or more [16].")
@click.option("--warmup-epochs", metavar="N", help="Warm-up epochs, 0 or more [0].")
@click.option("--learning-rate", metavar="X", help="Learning rate of one process, above 0 [0.001].")
@click.option("--random-seed", metavar="N", help="Seed of weights, order and augmentation [1].")
@click.option("--patience", metavar="N", help="Stop after N epochs without a better loss [3].")
@click.option("--print-frequency", metavar="N", help="Batches between two log lines [10].")
@click.option("--image-size", metavar="PIXELS", type=click.IntRange(min=8), help="[224]")
@click.option(
    "--augmentation",
    type=click.Choice(("none", "crop", "crop-flip")),
    help="Augmentation of training images [crop-flip].",
)
@click.option(
    "--cache",
    type=click.Choice(("auto", "none", "encoded", "decoded")),
    help="Cache images on the node's disk [auto: measured].",
)
@click.option(
    "--threads", metavar="N", type=click.IntRange(min=1), help="Threads that decode images."
)
@click.option(
    "--checkpoint-every",
    metavar="N",
    type=click.IntRange(min=0),
    help="Batches between checkpoints inside an epoch [one per epoch].",
)
@click.option(
    "--precision",
    type=click.Choice(("auto", "fp32", "bf16")),
    help="Precision [auto: measured on CUDA].",
)
@click.option(
    "--gradient-parts",
    metavar="N",
    type=click.IntRange(min=1),
    help="Sum gradients over N parts of a batch; 2 reproduces the sums of two processes [1].",
)
@click.option("--compile", "compiles", is_flag=True, help="Use torch.compile.")
@click.option("--onnx", is_flag=True, help="Also export the model to ONNX.")
@_job_options
@click.pass_obj
def train(
    settings: Settings,
    /,
    *,
    training: str,
    validation: str,
    model: str,
    weights: str | None,
    compiles: bool,
    **options: Any,
) -> int:
    """Train an image classifier in a job; its model is in the run's outputs/model."""
    from rayjobs.images.component.imagemodels.parameters import BY_NAME
    from rayjobs.images.jobs import NETWORKS, checked_parameters

    values = {name: options.pop(name) for name in (*BY_NAME, *_TRAINING)}
    values |= checked_parameters(values)
    data = {"train": training, "validation": validation}
    _check_local_images(training, validation)
    if model not in NETWORKS:
        if "/" not in model and ":" not in model and not Path(model).exists():
            raise UsageError(
                f"{model!r} is not a network; use one of: {', '.join(NETWORKS)}, or the folder of "
                f"an untrained model"
            )
        if weights is not None:
            raise UsageError(
                f"--weights needs the name of a network as --model: the untrained model {model!r} "
                f"names its own weights"
            )
        data["model"] = model
    else:
        values["model"] = model
    if weights is not None:
        data["weights"] = weights
    values["compile"] = compiles
    processes = _count(options.get("nodes")) * _count(options.get("procs_per_node"))
    if processes > 1 and options.get("backend") is None:
        options["backend"] = "nccl" if options.get("gpus_per_proc") else "gloo"
    if options.get("backend") not in (None, "none"):
        values["backend"] = options["backend"]
    return _submit(settings, "train.py", data, values, options)


@images.command(
    epilog="\b\nExamples:\n  rayjobs images score --model digits --data new/\n"
    "  rayjobs images score --model got/outputs/model --data dataset:new --format csv\n"
)
@click.option(
    "--model",
    required=True,
    metavar="MODEL[:VERSION]|…",
    type=Names("model versions"),
    help="The trained model.",
)
@click.option(
    "--data",
    "scored",
    metavar=PLACE,
    type=Names("data paths"),
    required=True,
    help="Images to score.",
)
@click.option("--format", "table", type=click.Choice(("parquet", "csv")), help="[parquet]")
@click.option("--batch-size", metavar="N", help="Images scored at once, 1 or more [64].")
@_job_options
@click.pass_obj
def score(
    settings: Settings,
    /,
    *,
    model: str,
    scored: str,
    table: str | None,
    batch_size: str | None,
    **options: Any,
) -> int:
    """Score images in a job; the run's outputs get a table with a row per image."""
    from rayjobs.images.jobs import checked_parameters

    values = {"format": table, **checked_parameters({"batch_size": batch_size})}
    return _submit(settings, "score.py", {"model": model, "data": scored}, values, options)


def _check_local_images(training: str, validation: str) -> None:
    """Refuse local folders that the job would refuse, before they are stored.

    Raises:
        UsageError: a folder has no labels or an empty class, or their classes differ.
    """
    from rayjobs.images.component.imagemodels.directory import check_same_classes, open_labeled
    from rayjobs.images.component.imagemodels.errors import ImageModelError

    try:
        found = [open_labeled(one) for one in (training, validation) if Path(one).is_dir()]
        if len(found) == 2:
            check_same_classes(*found)
    except ImageModelError as error:
        raise UsageError(f"{type(error).__name__}: {error}") from error


def _check_local_model(text: str) -> None:
    """Check that a local folder is a trained model, before it is stored.

    Raises:
        UsageError: it has no model.json.
    """
    path = Path(text).expanduser()
    if path.exists() and not (path / "model.json").exists():
        raise UsageError(
            f"InvalidModelDirectoryError: {text} is not a trained model: it has no model.json. "
            f"Give a registered model (`rayjobs model ls`), a trained model's folder, or "
            f"output:JOB/NAME of a step"
        )


def _submit(
    settings: Settings,
    script: str,
    data: dict[str, str],
    values: dict[str, Any],
    options: dict[str, Any],
) -> int:
    from rayjobs.images.jobs import COMPONENT
    from rayjobs.images.jobs import options as words_of
    from rayjobs.images.sources import registered_model, source_of, source_of_model

    mode = options.pop("mode")
    inputs = list(options.get("inputs") or ())
    with settings.open(create=True) as workspace:
        for name, text in data.items():
            is_model = name == "model" and script == "score.py"
            model = registered_model(workspace, text) if is_model else None
            if model is None:
                if is_model:
                    _check_local_model(text)
                source = source_of(workspace, text, settings.note)
            else:
                source = source_of_model(workspace, model, settings.note)
                tag = f"model={model.name}:{model.version}"
                options["tags"] = (*(options.get("tags") or ()), tag)
            inputs.append(f"{name}={source}:{mode}")
            values[name] = DATA + name
    options["inputs"] = tuple(inputs)
    options["source"] = str(COMPONENT)
    context = click.get_current_context()
    context.meta[SCRIPT_ARGUMENTS] = tuple(map(str, words_of(values)))
    submitted = {name: options.pop(name) for name in ("experiment", "detach", "attach", "dry_run")}
    return submit_typed(
        settings,
        str(COMPONENT / script),
        None,
        options,
        idempotency_key=None,
        default_name=f"images-{Path(script).stem}",
        is_own_source=False,
        **submitted,
    )


def _count(text: str | None) -> int:
    """Return a number of nodes or processes; 1 for other text, which the submit refuses."""
    return int(text) if text is not None and text.isdigit() else 1

"""Run public programs of the Azure ML SDK v1, and write docs/azure-programs.md.

Usage: python -m benchmarks.azure_programs --examples CLONE --notebooks CLONE --keep FOLDER

`--examples` is a clone of Azure/azureml-examples, `--notebooks` one of
Azure/MachineLearningNotebooks, each with its history. Each program runs with `rayjobs azureml run`
in a new folder and a new workspace. The page names what was changed in it: less data, and names
that packages no longer have. `--keep` stores the outcomes, with the commit of rayjobs and the load;
the page is written from the last outcome of each program, so some of them can be run again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.azure_fixtures import write_fixtures
from benchmarks.figures import machine
from benchmarks.head import own_folder

PAGE = Path(__file__).parents[1] / "docs" / "azure-programs.md"
EXAMPLES, NOTEBOOKS = "azureml-examples", "MachineLearningNotebooks"
LIMIT_S = 540.0
CONFIG = {
    "subscription_id": "00000000-aaaa-bbbb-cccc-000000000001",
    "resource_group": "group-1",
    "workspace_name": "team-ws",
}

# The reduced files do not have the digests that torchvision expects.
REDUCED_MNIST = "datasets.MNIST.resources = [(one[0], None) for one in datasets.MNIST.resources]\n"
REDUCED_CIFAR = "torchvision.datasets.CIFAR10._check_integrity = lambda self: True\n"


# Replacements in all files of a program: old text, new text, and the name on the page.
MODERN = (
    ("from sklearn.externals import joblib", "import joblib", "joblib's own name"),
    ('"import mlflow.azureml\\n",', '"\\n",', "no mlflow.azureml in mlflow 3"),
    (
        'mlflow.sklearn.log_model(lr, "model")',
        'mlflow.sklearn.log_model(lr, "model", serialization_format="cloudpickle")',
        "an option of mlflow 3",
    ),
    (
        'mlflow.sklearn.log_model(regression_model, "model")',
        'mlflow.sklearn.log_model(regression_model, "model", serialization_format="cloudpickle")',
        "an option of mlflow 3",
    ),
    (
        'mlflow.pytorch.log_model(model, "model")',
        'mlflow.pytorch.log_model(model, "model", serialization_format="pickle")',
        "an option of mlflow 3",
    ),
    (r"use_conda=False,\n", r"\n", "an option that mlflow 3 lacks"),
    ("channels:\n  - defaults\ndependencies", "dependencies", "no conda channel here"),
    (
        "mlflow.sklearn.log_model(regression_model,model_save_path)",
        "mlflow.sklearn.log_model(regression_model,model_save_path,"
        "serialization_format='cloudpickle')",
        "an option of mlflow 3",
    ),
)


@dataclass(frozen=True)
class Program:
    """One public driver.

    Attributes:
        folder: The folder of the repository that it needs.
        path: The driver, below `folder`.
        edits: Replacements: file below `folder`, old text, new text.
        changed: A short description of `edits`; "" if there are none.
        arguments: The driver's arguments.
    """

    repository: str
    commit: str
    folder: str
    path: str
    edits: tuple[tuple[str, str, str], ...] = ()
    changed: str = ""
    arguments: tuple[str, ...] = ()


@dataclass
class Outcome:
    """How a program ended.

    Attributes:
        code: Its exit code; None if it was still running after `LIMIT_S`.
        metrics: The last value of each metric of its runs.
        version: The commit of rayjobs that ran it; with a "+" if files were changed since.
        load: The load of the machine when the program started; None if unknown.
    """

    program: Program
    code: int | None
    seconds: float
    changed: str = ""
    version: str = ""
    load: float | None = None
    runs: list[tuple[str, str]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    last_words: str = ""


def _example(
    folder: str,
    path: str = "job.py",
    *edits: tuple[str, str, str],
    changed: str = "",
    arguments: tuple[str, ...] = (),
) -> Program:
    return Program(
        EXAMPLES, "bc5dc8a81b", f"v1/python-sdk/{folder}", path, edits, changed, arguments
    )


def _notebook(
    commit: str, folder: str, path: str, *edits: tuple[str, str, str], changed: str = ""
) -> Program:
    return Program(NOTEBOOKS, commit, f"how-to-use-azureml/{folder}", path, edits, changed)


_IMPORT_DATASETS = "from torchvision import datasets, transforms\n"
_WORKFLOWS = "workflows/train"
_TRACK = "track-and-monitor-experiments"
_MNIST = (
    "src/train.py",
    _IMPORT_DATASETS,
    _IMPORT_DATASETS + REDUCED_MNIST,
)

PROGRAMS: tuple[Program, ...] = (
    _example("setup-workspace.py", ""),
    _example(f"{_WORKFLOWS}/scikit-learn/diabetes"),
    _example(f"{_WORKFLOWS}/scikit-learn/diabetes-mlproject"),
    _example(f"{_WORKFLOWS}/lightgbm/iris"),
    _example(f"{_WORKFLOWS}/xgboost/iris"),
    _example(f"{_WORKFLOWS}/pytorch/mnist", "job.py", _MNIST, changed="1797 digits as MNIST"),
    _example(
        f"{_WORKFLOWS}/pytorch/mnist-mlproject", "job.py", _MNIST, changed="1797 digits as MNIST"
    ),
    _example(
        f"{_WORKFLOWS}/pytorch/cifar-distributed",
        "job.py",
        ("src/train.py", "# define network", REDUCED_CIFAR + "# define network"),
        ("job.py", '"--epochs", 25', '"--epochs", 1'),
        changed="500 images as CIFAR-10, 1 epoch",
    ),
    _example("tutorials/dataset-uploads", "upload_dataframe_register_as_dataset.ipynb"),
    _example("tutorials/dataset-uploads", "upload_directory_create_file_dataset.ipynb"),
    _example(
        "tutorials/train-on-low-priority-aml-compute",
        "train-on-low-priority-aml-compute.ipynb",
        (
            "training_script/training_script.py",
            "from torchvision import transforms as T\n",
            "from torchvision import transforms as T\n"
            + REDUCED_MNIST.replace("datasets.", "torchvision.datasets."),
        ),
        (
            "train-on-low-priority-aml-compute.ipynb",
            '\\"display.max_colwidth\\", -1',
            '\\"display.max_colwidth\\", None',
        ),
        changed="1797 digits as MNIST; an option that pandas no longer takes",
    ),
    _notebook("f1aff553", f"{_TRACK}/logging-api", "logging-api.ipynb"),
    _notebook("f1aff553", f"{_TRACK}/manage-runs", "manage-runs.ipynb"),
    _notebook(
        "f1aff553",
        f"{_TRACK}/tensorboard/export-run-history-to-tensorboard",
        "export-run-history-to-tensorboard.ipynb",
    ),
    _notebook("f1aff553", f"{_TRACK}/using-mlflow/train-local", "train-local.ipynb"),
    _notebook("f1aff553", f"{_TRACK}/using-mlflow/train-remote", "train-remote.ipynb"),
    _notebook(
        "f1aff553", f"{_TRACK}/using-mlflow/train-projects-local", "train-projects-local.ipynb"
    ),
    _notebook(
        "f1aff553", f"{_TRACK}/using-mlflow/train-projects-remote", "train-projects-remote.ipynb"
    ),
    _notebook("f1aff553", "training/train-on-local", "train-on-local.ipynb"),
    _notebook("f1aff553", "training/train-on-amlcompute", "train-on-amlcompute.ipynb"),
    _notebook("f1aff553", "training/using-environments", "using-environments.ipynb"),
    _notebook("69d4344d", f"{_TRACK}/logging-api", "logging-api.ipynb"),
    _notebook("69d4344d", f"{_TRACK}/manage-runs", "manage-runs.ipynb"),
    _notebook("69d4344d", f"{_TRACK}/using-mlflow/train-local", "train-local.ipynb"),
    _notebook("69d4344d", f"{_TRACK}/using-mlflow/train-remote", "train-remote.ipynb"),
    _notebook("69d4344d", "training/train-on-local", "train-on-local.ipynb"),
    _notebook("69d4344d", "training/train-on-amlcompute", "train-on-amlcompute.ipynb"),
    _notebook("69d4344d", "training/using-environments", "using-environments.ipynb"),
    _notebook(
        "69d4344d",
        "training-with-deep-learning/export-run-history-to-tensorboard",
        "export-run-history-to-tensorboard.ipynb",
    ),
    _notebook(
        "ea1b7599",
        "training-with-deep-learning/distributed-pytorch-with-horovod",
        "distributed-pytorch-with-horovod.ipynb",
        ("pytorch_horovod_mnist.py", _IMPORT_DATASETS, _IMPORT_DATASETS + REDUCED_MNIST),
        changed="1797 digits as MNIST",
    ),
    _notebook("ea1b7599", "training/logging-api", "logging-api.ipynb"),
    _notebook("ea1b7599", "training/manage-runs", "manage-runs.ipynb"),
    _notebook("ea1b7599", "training/train-on-local", "train-on-local.ipynb"),
    _notebook("ea1b7599", "training/train-on-amlcompute", "train-on-amlcompute.ipynb"),
    _notebook(
        "ea1b7599",
        "training-with-deep-learning/export-run-history-to-tensorboard",
        "export-run-history-to-tensorboard.ipynb",
    ),
)


def extract(clone: Path, program: Program, into: Path) -> tuple[Path, str]:
    """Write the program's files, with its edits; return the driver and a summary of the changes."""
    git = ["git", "-C", str(clone)]
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "-z", program.commit, program.folder],
        capture_output=True,
        check=True,
    ).stdout.decode()
    for line in filter(None, listed.split("\0")):
        facts, _, name = line.partition("\t")
        blob = subprocess.run(
            [*git, "cat-file", "blob", facts.split()[2]], capture_output=True, check=False
        ).stdout
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(blob)
    root = into / program.folder
    for name, old, new in program.edits:
        text = (root / name).read_text()
        if old not in text:
            raise ValueError(f"{program.folder}/{name} has no {old!r}")
        (root / name).write_text(text.replace(old, new))
    changed = [program.changed] if program.changed else []
    for path in sorted(into.rglob("*")):
        if path.suffix in (".py", ".ipynb", ".yml", ".yaml") and path.is_file():
            text = path.read_text()
            for old, new, named in MODERN:
                if old in text:
                    text = text.replace(old, new)
                    changed += [] if named in changed else [named]
            path.write_text(text)
    return (root / program.path if program.path else root), "; ".join(changed)


def run(program: Program, clone: Path, urls: dict[str, Path], folder: Path) -> Outcome:
    """Run a program in its own folder, for at most `LIMIT_S`."""
    folder.mkdir()
    driver, changed = extract(clone, program, folder / "code")
    (folder / "code" / "config.json").write_text(json.dumps(CONFIG))
    variables = {
        **os.environ,
        "RAYJOBS_WORKSPACE": str(folder / "workspace"),
        "MPLBACKEND": "Agg",
        "PATH": f"{_without_docker(folder / 'bin')}:{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "rayjobs", "azureml"]
    mapped = [f"{url}={path}" for url, path in urls.items()]
    subprocess.run([*command, "map", *mapped], env=variables, check=True, stdout=subprocess.DEVNULL)
    load = round(os.getloadavg()[0], 1)
    begun = time.monotonic()
    with (folder / "output.txt").open("wb") as output:
        try:
            code: int | None = subprocess.run(
                [*command, "run", "--allow-cpu", driver.name, *program.arguments],
                cwd=driver.parent,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    seconds = time.monotonic() - begun
    outcome = Outcome(program, code, seconds, changed, _version(), load)
    _read_runs(folder / "workspace", outcome)
    lines = [one for one in (folder / "output.txt").read_text(errors="replace").splitlines() if one]
    outcome.last_words = lines[-1][:200] if lines else ""
    return outcome


def _version() -> str:
    git = ["git", "-C", str(PAGE.parent)]
    at = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, check=True)
    dirty = subprocess.run([*git, "status", "--porcelain", "--", "../rayjobs"], capture_output=True)
    return at.stdout.decode().strip() + ("+" if dirty.stdout else "")


def _without_docker(folder: Path) -> Path:
    """Make a folder for PATH whose `docker` fails as if it were missing: some notebooks call it."""
    folder.mkdir()
    (folder / "docker").write_text("#!/bin/sh\nexit 127\n")
    (folder / "docker").chmod(0o755)
    return folder


def _read_runs(path: Path, outcome: Outcome) -> None:
    from rayjobs.api.workspace import Workspace

    workspace = Workspace(path=path)
    try:
        for experiment in workspace.experiments.values():
            for one in experiment.get_runs(include_children=True):
                if outcome.code is None and one.status not in ("Completed", "Failed", "Canceled"):
                    one.cancel()  # it would keep the CPUs from the programs that follow
                outcome.runs.append((one.id, one.status))
                for name, value in one.get_metrics().items():
                    last = value[-1] if isinstance(value, list) and value else value
                    if isinstance(last, int | float) and not isinstance(last, bool):
                        outcome.metrics.setdefault(name, float(last))
    finally:
        workspace.close()


# The page shows the first of these metrics that a program has.
_SHOWN = ("accuracy", "validation_accuracy", "test_accuracy", "mse", "rmse", "loss")


def _metric(outcome: Outcome) -> str:
    known = {name.lower(): (name, value) for name, value in outcome.metrics.items()}
    for wanted in _SHOWN:
        for lower, (name, value) in sorted(known.items()):
            if wanted in lower:
                return f"{name} {value:.4g}"
    for name, value in sorted(outcome.metrics.items()):
        return f"{name} {value:.4g}"
    return "–"


def completed(outcome: Outcome) -> bool:
    """Return whether a program ended with exit code 0."""
    return outcome.code == 0


def page(outcomes: Sequence[Outcome], checks: str) -> str:
    """Return docs/azure-programs.md."""
    done = [one for one in outcomes if completed(one)]
    lines = [
        "# Public programs of the Azure ML SDK v1",
        "",
        f"{len(done)} of {len(outcomes)} drivers ran to completion with `rayjobs azureml "
        f"run --allow-cpu`, {sum(not one.changed for one in done)} of them unchanged. Written by "
        "`python -m benchmarks.azure_programs --examples CLONE --notebooks CLONE`.",
        "",
        f"{_machine()}. A row's last column: the commit of rayjobs that ran it (+: with changes "
        "that were not committed), and the load of the machine, which others used too, when the "
        "program started (–: not noted).",
        "",
        "| program | commit | result | runs | metric | time | changed | rayjobs, load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        path = f"{one.program.folder}/{one.program.path}".rstrip("/")
        short = path.removeprefix("v1/python-sdk/").removeprefix("how-to-use-azureml/")
        result = "completed" if completed(one) else f"ended: {one.last_words}".replace("|", "/")
        failed = sum(status == "Failed" for _, status in one.runs)
        runs = f"{len(one.runs)}" + (f", {failed} failed" if failed else "")
        lines.append(
            f"| {one.program.repository}: {short} | {one.program.commit} | {result} | {runs} | "
            f"{_metric(one)} | {one.seconds:.0f} s | {one.changed or 'nothing'} | "
            f"{one.version}, {'–' if one.load is None else f'{one.load:g}'} |"
        )
    return "\n".join([*lines, "", checks])


def _machine() -> str:
    facts = machine()
    names = ("Python", "Ray", "torch")
    versions = ", ".join(f"{name} {facts[name.lower()]}" for name in names)
    return f"{facts['cores']} cores, {versions}"


def _save(path: Path, outcome: Outcome) -> None:
    facts = {key: value for key, value in vars(outcome).items() if key != "program"}
    path.write_text(json.dumps({**facts, "name": _name(outcome.program)}))


def _saved(folder: Path) -> list[Outcome]:
    """Return the last outcome of every program that has one, in their order."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    by_name = {one.pop("name"): one for one in found}
    known = [(program, by_name.get(_name(program))) for program in PROGRAMS]
    return [Outcome(program=program, **facts) for program, facts in known if facts is not None]


def _name(program: Program) -> str:
    return f"{program.repository} {program.commit} {program.folder}/{program.path}"


def main() -> int:
    """Run the programs whose names have a given word; write the page from all outcomes so far."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=Path, required=True)
    parser.add_argument("--notebooks", type=Path, required=True)
    parser.add_argument(
        "--only",
        nargs="*",
        default=[""],
        help="run programs whose names have one of these words; no word: only write the page",
    )
    parser.add_argument(
        "--failed", action="store_true", help="only those whose last outcome is not `completed`"
    )
    parser.add_argument("--no-page", action="store_true", help="run, and leave the page as it is")
    parser.add_argument("--keep", type=Path, required=True, help="where outcomes and folders stay")
    arguments = parser.parse_args()
    clones = {EXAMPLES: arguments.examples, NOTEBOOKS: arguments.notebooks}
    os.environ.setdefault("RAYJOBS_LOCAL_CPUS", "4")
    arguments.keep.mkdir(parents=True, exist_ok=True)
    ended = {_name(one.program) for one in _saved(arguments.keep) if completed(one)}
    skipped = ended if arguments.failed else set()
    with own_folder() as folder:
        urls = write_fixtures(folder / "fixtures")
        try:
            for program in PROGRAMS:
                name = _name(program)
                is_meant = any(word in name for word in arguments.only)
                if name in skipped or not is_meant:
                    continue
                here = arguments.keep / f"{time.time_ns() // 10**6}"
                outcome = run(program, clones[program.repository], urls, here)
                _save(here.with_suffix(".json"), outcome)
                words = (
                    "completed" if completed(outcome) else f"{outcome.code}: {outcome.last_words}"
                )
                print(
                    f"{_name(program)}: {words} ({outcome.seconds:.0f} s, {here.name})", flush=True
                )
        finally:
            command = [sys.executable, "-m", "rayjobs", "target", "stop", "local", "--force"]
            subprocess.run(command, check=False)
    if arguments.no_page:
        return 0
    PAGE.write_text(page(_saved(arguments.keep), _checks(clones)))
    return 0


def _checks(clones: dict[str, Path]) -> str:
    """Return the results of `rayjobs azureml check` for the training parts of both repositories."""
    parts = (
        (EXAMPLES, "bc5dc8a81b", ("v1/python-sdk",)),
        *(
            (NOTEBOOKS, commit, FOLDERS)
            for commit in ("f1aff553", "4cf56eee", "69d4344d", "ea1b7599")
        ),
    )
    lines = [
        "## Names",
        "",
        "The results of `rayjobs azureml check` for whole folders: `v1` of azureml-examples, and "
        "training, deep learning, tracking, frameworks and pipelines of "
        "MachineLearningNotebooks.",
        "",
        "| repository | commit | programs | every name known | nothing refused |",
        "|---|---|---|---|---|",
    ]
    for repository, commit, folders in parts:
        with tempfile.TemporaryDirectory() as folder:
            for one in folders:
                extract(clones[repository], Program(repository, commit, one, ""), Path(folder))
            done = subprocess.run(
                [sys.executable, "-m", "rayjobs", "azureml", "check", folder],
                capture_output=True,
                text=True,
                check=False,
            )
            counts = re.findall(r"[0-9]+", done.stdout.splitlines()[-1])
            lines.append(f"| {repository} | {commit} | {counts[0]} | {counts[1]} | {counts[2]} |")
    return "\n".join([*lines, ""])


FOLDERS = tuple(
    f"how-to-use-azureml/{one}"
    for one in (
        *("training", "training-with-deep-learning", "track-and-monitor-experiments"),
        *("ml-frameworks", "machine-learning-pipelines"),
    )
)


if __name__ == "__main__":
    sys.exit(main())

"""The files that `rayjobs init` writes into a project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rayjobs.core.errors import UsageError
from rayjobs.core.text import counted
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.snapshots.ignore import IGNORE_FILES
from rayjobs.submit.project import FILE

MOST_NAMED = 5

# Common names of training scripts, the most common first.
USUAL_SCRIPTS = ("train.py", "main.py", "run.py")

PROJECT = """\
# Defaults of this project's jobs; options and job files override them. See `rayjobs submit -h`.
# target: local            # the default target of jobs
# experiment: {name}
# job:                     # keys of job files
#   max_duration: 6h
#   retries: 1
#   resources:
#     gpus: 1              # per process
"""

IGNORE = """\
# Files to leave out of a job's snapshot; the syntax is that of .gitignore.
__pycache__/
.venv/
data/
outputs/
*.ckpt
"""

JOB = """\
# rayjobs submit -f job.yaml            all keys: rayjobs schema
name: {name}
script: {script}
arguments: {arguments}
resources:
  cpus: 1                  # per process
  gpus: 0
max_duration: 6h
retries: 1                 # retries after a failure of the script
"""

SWEEP = """\
# rayjobs sweep create -f sweep.yaml    try settings and keep the best
name: {name}-sweep
metric: {metric}              # logged by the script: run.log("{metric}", value)
goal: {goal}
sampling:
  type: random
  parameters:
    --lr: {{loguniform: [-9, -2]}}      # exp(-9) to exp(-2)
limits:
  total: 8
  concurrent: 2
job:
  script: {script}
"""

SCRIPT = '''\
"""A script that fits a line; replace it with your training."""

import argparse

from rayjobs import Run

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--epochs", type=int, default=20)
arguments = parser.parse_args()

run = Run.get_context()
weight = 0.0
for epoch in range(arguments.epochs):
    loss = sum((weight * x - 3.0 * x) ** 2 for x in range(1, 5)) / 4
    weight -= arguments.lr * sum(2 * x * (weight * x - 3.0 * x) for x in range(1, 5)) / 4
    run.log("loss", loss, step=epoch)
    print(f"epoch {epoch}: loss {loss:.4f}", flush=True)

with open("outputs/weight.txt", "w", encoding="utf-8") as file:
    file.write(f"{weight}\\n")
'''


@dataclass(frozen=True)
class Written:
    """The result of `init` for one file.

    Attributes:
        created: False: the file existed and was not changed.
    """

    path: Path
    created: bool


def script_of(folder: Path) -> str | None:
    """Return the name of a folder's training script; None: the folder has no Python file.

    It is one of the usual names, else the only Python file.

    Raises:
        UsageError: The folder has several Python files, of which none has a usual name.
    """
    for name in USUAL_SCRIPTS:
        if (folder / name).is_file():
            return name
    found = sorted(path.name for path in folder.glob("*.py"))
    if len(found) > 1:
        raise UsageError(
            f"{folder} has {counted(len(found), 'script')}: {', '.join(found[:MOST_NAMED])}"
            f"{' …' if len(found) > MOST_NAMED else ''}. Name the training script, for example "
            f"--script {found[0]}"
        )
    return found[0] if found else None


def write_templates(folder: Path, *, name: str, script: str | None) -> Sequence[Written]:
    """Write the files of a new project; existing files do not change.

    Args:
        name: Name of the jobs and of the experiment.
        script: The project's training script; None writes an example, `train.py`.

    Raises:
        OSError: a file could not be written.
    """
    is_example = script is None
    values = {
        "name": name,
        "script": script or USUAL_SCRIPTS[0],
        "arguments": '["--epochs", "20"]' if is_example else "[]",
        "metric": "loss" if is_example else "accuracy",
        "goal": "minimize" if is_example else "maximize",
    }
    texts = {FILE: PROJECT, "job.yaml": JOB, "sweep.yaml": SWEEP}
    # Only the first existing ignore file counts: ours must not hide the project's own.
    if not any((folder / name).is_file() for name in IGNORE_FILES[1:]):
        texts[IGNORE_FILES[0]] = IGNORE
    files = {file: text.format(**values) for file, text in texts.items()}
    if is_example:
        files[USUAL_SCRIPTS[0]] = SCRIPT
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder / file, text) for file, text in files.items()]


def _write(path: Path, text: str) -> Written:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return Written(path, created=False)
    return Written(path, created=True)

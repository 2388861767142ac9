"""`rayjobs init`: write the files of a new project."""

from __future__ import annotations

import re
from pathlib import Path

import click

from rayjobs.cli.output import print_json
from rayjobs.cli.settings import Settings, json_option, quiet_option, talk_options

EPILOG = """\b
Examples:
  rayjobs init
  rayjobs init --script fit.py
  rayjobs init new-project
"""


@click.command(epilog=EPILOG)
@click.argument("folder", default=".", metavar="[DIR]", type=click.Path(file_okay=False))
@click.option(
    "--script",
    metavar="FILE",
    help="The training script (default: train.py, main.py, run.py or the only one).",
)
@quiet_option("Do not list what was written.")
@json_option
@talk_options
@click.pass_obj
def init(settings: Settings, folder: str, script: str | None) -> None:
    """Write rayjobs.yaml, job.yaml, sweep.yaml and .rayjobsignore into DIR.

    Existing files stay unchanged. A folder without a Python file gets an example, train.py.
    """
    from rayjobs.core.errors import NotFoundError
    from rayjobs.submit.templates import script_of, write_templates

    root = Path(folder).expanduser().absolute()
    if script is not None and not (root / script).is_file():
        raise NotFoundError(f"there is no script {script} in {root}. Check its name")
    used = script or (script_of(root) if root.is_dir() else None)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", root.name).strip("_.-")[:64] or "job"
    written = write_templates(root, name=name, script=used)
    if settings.as_json:
        print_json(
            {
                "written": [str(w.path) for w in written if w.created],
                "kept": [str(w.path) for w in written if not w.created],
            }
        )
        return
    for one in written:
        settings.note(
            f"wrote {one.path.name}" if one.created else f"kept {one.path.name} (it exists)"
        )
    where = "" if folder == "." else f"cd {folder} && "
    settings.note(f"next: {where}rayjobs submit -f job.yaml")

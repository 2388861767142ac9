"""Puts a container image into a folder, for nodes without access to a registry.

The folder is an OCI folder with a mark. The submit of a job that names it stores the image in the
workspace (`local_packages`), from which each node unpacks it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from rayjobs.containers import container_tools, reference, saving, sources
from rayjobs.containers.layers import BadImageError
from rayjobs.containers.reference import Kind, Reference
from rayjobs.core.errors import PrepareError, UsageError
from rayjobs.core.failures import FailureClass
from rayjobs.core.files import write_atomic
from rayjobs.core.paths import VENDORED
from rayjobs.environments.building import run
from rayjobs.environments.work import Work
from rayjobs.spec.container_files import anchored_container
from rayjobs.submit.environments import working


def vendor(
    image: str, folder: Path, *, tell: Callable[[str], None] = lambda _text: None
) -> saving.Saved:
    """Write an image into a new folder.

    Args:
        image: As a job names it: a name, an archive, an OCI folder or a root file system.

    Raises:
        UsageError: the folder exists.
        PrepareError: the image cannot be fetched, is damaged, or there is no such file.
    """
    if folder.exists():
        raise UsageError(f"{folder} already exists; name a new folder")
    source = reference.parse(anchored_container(image, Path.cwd()))
    above = folder.absolute().parent
    above.mkdir(parents=True, exist_ok=True)
    with (
        working(tell) as (_, work),
        tempfile.TemporaryDirectory(prefix=".vendor-", dir=above) as fresh,
    ):
        made = Path(fresh, "made")
        made.mkdir()
        path, tag = _brought(source, Path(fresh, "image"), work)
        try:
            with sources.opened(path, tag) as opened:
                saved = saving.save(opened, made, say=tell)
        except BadImageError as error:
            raise PrepareError(
                f"the image {image!r} cannot be used: {error}",
                failure_class=FailureClass.ENVIRONMENT,
            ) from error
        write_atomic(made / VENDORED, json.dumps({"image": image, "digest": saved.digest}))
        made.rename(folder)
    return saved


def _brought(source: Reference, path: Path, work: Work) -> tuple[Path, str | None]:
    """Return the path of an image, and the name that selects it there (None: the only one)."""
    if source.kind is Kind.FILE:
        return source.path, source.tag
    if source.kind is Kind.FOLDER:
        saving.archive_of(source.path, path)
        return path, None
    kept = container_tools.kept_by(source)
    if kept is not None:
        steps = container_tools.steps_to_save(kept[0], source.name, path)
    else:
        steps = container_tools.steps_to_fetch(source, path, None)
    for step in steps:
        program = Path(step.arguments[0]).name
        work.tell(f"fetching {source.text} with {program}", {"step": "fetch"})
        doing = f"the image {source.text!r} cannot be fetched"
        try:
            asyncio.run(
                run(
                    step.arguments,
                    env={**container_tools.variables(), **step.variables},
                    cwd=work.paths.tmp,
                    build_log=work.log(),
                    control=work.control,
                    doing=doing,
                )
            )
        except PrepareError as error:
            raise container_tools.in_words(error, doing) from error
    return path, "image" if path.is_dir() else None

"""Packs the local files and folders of a job's environment, so that every node gets them.

This includes folders that `rayjobs env vendor` made of wheels, conda packages or an image.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core.errors import Problem, SpecError
from rayjobs.core.paths import VENDORED
from rayjobs.spec import requirements
from rayjobs.spec.model import JobSpec, Packages

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace

_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg")


def pack(workspace: OpenWorkspace, spec: JobSpec, *, stores: bool = True) -> JobSpec:
    """Return a spec whose local packages and image are stored in the workspace, by their digests.

    A path that does not exist here belongs to the node.

    Args:
        workspace: The workspace that stores them.
        spec: The job.
        stores: Store them; otherwise only compute their digests.

    Raises:
        SpecError: a folder is not a Python project.
        SnapshotError: a package or the image cannot be packed.
    """
    spec = _with_image(workspace, spec, stores=stores)
    asked = spec.environment
    if not isinstance(asked, Packages):
        return spec
    lines = [line for line in asked.pip if not line.startswith("-") and requirements.is_file(line)]
    paths = dict.fromkeys(requirements.path_of(line) for line in lines)
    folders = dict.fromkeys(requirements.folder_of(line) for line in asked.pip)
    paths |= {one: None for one in folders if one and _is_vendored(Path(one))}
    paths |= {one: None for one in asked.channels if _is_vendored(_folder_of(one))}
    here = [one for one in paths if one not in asked.sources and _folder_of(one).exists()]
    if not here:
        return spec
    found = {one: _pack(workspace, _folder_of(one), stores=stores) for one in here}
    packed = asked.model_copy(update={"sources": {**asked.sources, **found}})
    return spec.model_copy(update={"environment": packed})


def _with_image(workspace: OpenWorkspace, spec: JobSpec, *, stores: bool) -> JobSpec:
    asked = spec.container
    if asked is None or asked.image is None or asked.image in asked.sources:
        return spec
    folder = Path(asked.image.removeprefix("oci:"))
    if not folder.is_absolute() or not _is_vendored(folder):
        return spec  # a name, or files of the node
    sources = {asked.image: _pack(workspace, folder, stores=stores)}
    return spec.model_copy(update={"container": asked.model_copy(update={"sources": sources})})


def _pack(workspace: OpenWorkspace, path: Path, *, stores: bool) -> str:
    from rayjobs import snapshots

    blobs = workspace.blobs

    def known(key: str) -> bool:
        return blobs.exists(key, quick=True)

    def pack(folder: Path) -> str:
        has = known if stores else _every  # existing blobs are not stored again
        limits = snapshots.UNPACK_LIMITS if is_vendored else None
        made = snapshots.pack(folder, blobs_put=blobs.put_file, blobs_has=has, limits=limits)
        return made.digest

    is_vendored = _is_vendored(path)
    if is_vendored:
        return pack(path)
    if path.is_dir():
        if not any((path / name).is_file() for name in _PROJECT):
            what = f"{path} is a folder without {', '.join(_PROJECT[:2])}."
            raise SpecError(problems=[Problem("environment.pip", what, "Name a Python project.")])
        return pack(path)
    with tempfile.TemporaryDirectory(prefix="rayjobs-package-") as folder:
        shutil.copyfile(path, Path(folder, path.name))
        return pack(Path(folder))


def _is_vendored(folder: Path) -> bool:
    return (folder / VENDORED).exists()


def _folder_of(text: str) -> Path:
    """Return the path that a requirement or a channel names."""
    return Path(text.removeprefix("file://"))


def _every(_key: str) -> bool:
    return True

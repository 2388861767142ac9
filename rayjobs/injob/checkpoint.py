"""Atomic checkpoints: written under a temporary name, hashed, then renamed.

from rayjobs import checkpoint

found = checkpoint.latest()
if found is not None:
    state = torch.load(found.file("model.pt"))
    first_step = found.step + 1
...
checkpoint.save(step, {"model.pt": lambda path: torch.save(state, path)}, keep=3)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

MANIFEST = "manifest.json"
VERSION = 1
_PREFIX = "step-"
_PART = ".part-"

Source = Union[bytes, str, "os.PathLike[str]", Callable[[str], Any]]


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; earlier ones are unchanged."""


class Checkpoint:
    """One complete checkpoint.

    Attributes:
        step: The step it was saved at.
        path: Its folder.
        metadata: The metadata passed to `save`.
    """

    def __init__(self, path: str, manifest: Mapping[str, Any]) -> None:
        """Describe the checkpoint in `path`."""
        self.path = path
        self.step = int(manifest["step"])
        self.metadata: Dict[str, Any] = dict(manifest.get("metadata") or {})
        self._files: Dict[str, Any] = dict(manifest["files"])

    @property
    def names(self) -> List[str]:
        """The names of its files."""
        return sorted(self._files)

    def file(self, name: str) -> str:
        """Return the path of one of its files. Raises FileNotFoundError."""
        if name not in self._files:
            raise FileNotFoundError(
                "the checkpoint of step %d has no file %r; it has: %s"
                % (self.step, name, ", ".join(self.names))
            )
        return os.path.join(self.path, *name.split("/"))

    def __repr__(self) -> str:
        """Return step and folder."""
        return "Checkpoint(step=%d, path=%r)" % (self.step, self.path)


def default_dir() -> str:
    """Return the folder of this run's checkpoints: ``outputs/checkpoints`` of the job."""
    outputs = os.environ.get("RAYJOBS_OUTPUTS") or os.path.abspath("outputs")
    return os.path.join(outputs, "checkpoints")


def resume_dir() -> Optional[str]:
    """Return the folder from which this attempt resumes, or None."""
    return os.environ.get("RAYJOBS_RESUME_FROM") or None


def save(
    step: int,
    files: Mapping[str, Source],
    *,
    keep: Optional[int] = 3,
    metadata: Optional[Mapping[str, Any]] = None,
    directory: Optional[str] = None,
) -> Checkpoint:
    """Write a checkpoint and return it; it is durable when this returns.

    In a job of several processes, call it on one of them (rank 0).

    Args:
        files: Name → bytes, the path of a file to copy, or a function that is given
            a path to write to (``lambda path: torch.save(state, path)``).
        keep: How many of the newest checkpoints stay; None keeps all.
        metadata: JSON data, which `Checkpoint.metadata` returns.
        directory: Where to write; None: `default_dir`.

    Raises:
        ValueError: a wrong step, name or `keep`; nothing was written.
        CheckpointError: the disk is full, or a file could not be written; earlier checkpoints are
            untouched.
    """
    number = int(step)
    if number != step or number < 0:
        raise ValueError("a checkpoint's step must be a whole number, 0 or more, not %r" % (step,))
    if keep is not None and keep < 1:
        raise ValueError("keep must be 1 or more, or None to keep all; not %r" % (keep,))
    if not files:
        raise ValueError("a checkpoint needs at least one file")
    names = {_clean(name): source for name, source in files.items()}
    folder = directory or default_dir()
    part = os.path.join(folder, _PART + uuid.uuid4().hex)
    try:
        os.makedirs(part)
        manifest = {
            "version": VERSION,
            "step": number,
            "metadata": dict(metadata or {}),
            "files": {
                name: _write(os.path.join(part, *name.split("/")), source)
                for name, source in names.items()
            },
        }
        _write_file(os.path.join(part, MANIFEST), json.dumps(manifest).encode("utf-8"))
        _sync_tree(part)
        target = os.path.join(folder, "%s%012d" % (_PREFIX, number))
        _replace_folder(part, target)
        _sync(folder)
    except OSError as error:
        raise CheckpointError(
            "the checkpoint of step %d could not be written to %s: %s; earlier ones are "
            "untouched" % (number, folder, error.strerror or error)
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    if keep is not None:
        _drop_old(folder, keep, os.path.basename(target))
    return Checkpoint(target, manifest)


def latest(directory: Optional[str] = None) -> Optional[Checkpoint]:
    """Return the newest complete checkpoint, or None.

    Looks in `directory`; without one, in this attempt's own folder, then in the folder from which
    it resumes (a folder of checkpoints, a run's outputs, or one checkpoint). Every file's hash is
    checked; torn checkpoints are skipped.
    """
    if directory is not None:
        return _latest_in(directory)
    for folder in (default_dir(), resume_dir()):
        found = None if folder is None else _latest_in(folder)
        if found is not None:
            return found
    return None


def is_whole(path: str) -> bool:
    """Return whether a checkpoint's folder holds all files of its manifest, unchanged."""
    return _load(path) is not None


def _latest_in(folder: str) -> Optional[Checkpoint]:
    candidates = [os.path.join(root, name) for root in _roots(folder) for name in _step_names(root)]
    candidates.sort(key=lambda path: _step_of(os.path.basename(path)), reverse=True)
    if os.path.isfile(os.path.join(folder, MANIFEST)):
        candidates.insert(0, folder)
    for path in candidates:
        found = _load(path)
        if found is not None:
            return found
    return _latest_part(folder)


def _roots(folder: str) -> Tuple[str, ...]:
    """Return where checkpoints are if `folder` is their own, a run's outputs or a run's root."""
    return (
        folder,
        os.path.join(folder, "checkpoints"),
        os.path.join(folder, "outputs", "checkpoints"),
    )


def _latest_part(folder: str) -> Optional[Checkpoint]:
    """Return a complete checkpoint that a kill left under a temporary name, if there is no other.

    A script that saves the same step repeatedly has only these between two renames.
    """
    found: List[Checkpoint] = []
    for root in _roots(folder):
        try:
            names = [name for name in os.listdir(root) if name.startswith(_PART)]
        except OSError:
            continue
        parts = (_load(os.path.join(root, name)) for name in names)
        found += [part for part in parts if part is not None]
    return max(found, key=lambda part: part.step, default=None)


def _step_names(folder: str) -> List[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [name for name in names if _step_of(name) >= 0]


def _step_of(name: str) -> int:
    digits = name[len(_PREFIX) :]
    return int(digits) if name.startswith(_PREFIX) and digits.isdigit() else -1


def _load(path: str) -> Optional[Checkpoint]:
    try:
        with open(os.path.join(path, MANIFEST), encoding="utf-8") as file:
            manifest = json.load(file)
        if manifest.get("version") != VERSION or not manifest["files"]:
            return None
        for name, facts in manifest["files"].items():
            full = os.path.join(path, *_clean(name).split("/"))
            if os.path.getsize(full) != facts["size"] or _digest(full) != facts["sha256"]:
                return None
        return Checkpoint(path, manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _clean(name: str) -> str:
    parts = name.split("/") if isinstance(name, str) else [""]
    if any(part in ("", ".", "..") for part in parts) or name == MANIFEST or "\0" in name:
        raise ValueError("%r cannot be the name of a checkpoint's file" % (name,))
    return name


def _write(target: str, source: Source) -> Dict[str, Any]:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if isinstance(source, (bytes, bytearray, memoryview)):
        _write_file(target, bytes(source))
    elif callable(source):
        source(target)
        if not os.path.isfile(target):
            raise CheckpointError(
                "the function for %r wrote no file to the path that it was given"
                % os.path.basename(target)
            )
    else:
        shutil.copyfile(os.fspath(source), target)
    return {"size": os.path.getsize(target), "sha256": _digest(target)}


def _write_file(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            data = file.read(1 << 20)
            if not data:
                return digest.hexdigest()
            digest.update(data)


def _sync_tree(folder: str) -> None:
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            _sync(os.path.join(parent, name))
        _sync(parent)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace_folder(part: str, target: str) -> None:
    """Rename; a folder in the way (the same step again) is moved aside first."""
    aside = ""
    if os.path.lexists(target):
        aside = os.path.join(os.path.dirname(target), _PART + uuid.uuid4().hex)
        os.rename(target, aside)
    os.rename(part, target)
    if aside:
        shutil.rmtree(aside, ignore_errors=True)


def _drop_old(folder: str, keep: int, saved: str) -> None:
    # The one just saved stays, also if it has a lower step than others: a script may go back.
    # Torn ones do not count, or they could push out the last whole one.
    names = sorted(_step_names(folder), key=_step_of, reverse=True)
    whole = [name for name in names if os.path.isfile(os.path.join(folder, name, MANIFEST))]
    for name in [one for one in whole if one != saved][keep - 1 :]:
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    for name in os.listdir(folder):
        # A part whose writer died. Only old parts are removed: another rank may still write a new
        # one.
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):  # its writer has just renamed it
            if name.startswith(_PART) and os.stat(path).st_mtime < os.stat(folder).st_mtime - 3600:
                shutil.rmtree(path, ignore_errors=True)

"""Files that a script passes to ``upload_file``: complete copies below the attempt's folder."""

from __future__ import annotations

import os
import shutil
import uuid
from typing import Any, Iterable, Iterator, List, Optional, Tuple

from rayjobs.injob.azureml.exceptions import WrongTypeError, WrongValueError
from rayjobs.injob.files import replacing

PART = ".part-"  # prefix of copies in progress; such files are never stored


def clean_name(name: Any) -> str:
    """Return a file's name within its run, with ``/`` between the parts.

    Raises:
        TypeError: it is not text.
        ValueError: it is empty, absolute, or leads out of the run.
    """
    if not isinstance(name, str):
        raise WrongTypeError("a file's name must be text, not %s" % type(name).__name__)
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or not parts or "\0" in name:
        raise WrongValueError(
            "%r cannot be the name of a run's file; give a relative one such as "
            "'outputs/model.pt'" % name
        )
    if any(part.startswith(PART) for part in parts):
        raise WrongValueError("%r: names that begin with %r are reserved" % (name, PART))
    return "/".join(parts)


def paired(names: Iterable[Any], paths: Iterable[Any]) -> List[Tuple[Any, Any]]:
    """Return each name with its path.

    Raises:
        ValueError: there are not as many names as paths.
    """
    name_list, path_list = list(names), list(paths)
    if len(name_list) != len(path_list):
        raise WrongValueError(
            "%d names for %d paths; give one name per path" % (len(name_list), len(path_list))
        )
    return list(zip(name_list, path_list))


class UploadArea:
    """The folder that holds an attempt's uploads."""

    def __init__(self, root: str) -> None:
        self.root = root

    def add(self, name: str, source: Any, *, replace: bool = False) -> str:
        """Copy a file or binary stream to `name`, whole or not at all; return the clean name.

        Raises:
            FileExistsError: the name is taken, and `replace` is False.
        """
        stored = clean_name(name)
        target = os.path.join(self.root, *stored.split("/"))
        if os.path.lexists(target) and not replace:
            raise FileExistsError(
                "the run already has a file %r; uploads are never replaced, so choose another "
                "name" % stored
            )
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        with replacing(target, draft=self._draft()) as draft:
            if hasattr(source, "read"):
                with open(draft, "wb") as file:
                    _copy_stream(source, file)
            else:
                shutil.copyfile(os.fspath(source), draft)
        return stored

    def add_image(self, name: str, path: Optional[str], plot: Any) -> str:
        """Copy an image, or draw a figure, as ``<name>_<random>.<extension>``; return its name."""
        ending = os.path.splitext(path)[1].lstrip(".") if path is not None else "png"
        safe = "".join(c if c.isalnum() or c in "._- " else "_" for c in name).strip(". ")
        stored = "%s_%s.%s" % (safe or "image", uuid.uuid4().hex[:8], ending or "img")
        if path is not None:
            return self.add(stored, path)
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        with replacing(os.path.join(self.root, stored), draft=self._draft(".png")) as draft:
            plot.savefig(draft)
        return stored

    def _draft(self, suffix: str = "") -> str:
        """Return the path of a copy in progress, which is not stored if this process dies."""
        return os.path.join(self.root, PART + uuid.uuid4().hex + suffix)

    def names(self) -> List[str]:
        """Return the names of all uploads."""
        return sorted(relative for relative, _ in self.files_below(self.root))

    def files_below(self, folder: str) -> Iterator[Tuple[str, str]]:
        """Yield (relative name, path) of the plain files below a folder, in order."""
        for parent, folders, files in os.walk(folder):
            folders.sort()
            for file in sorted(files):
                path = os.path.join(parent, file)
                if not file.startswith(PART) and os.path.isfile(path):
                    yield os.path.relpath(path, folder).replace(os.sep, "/"), path


def _copy_stream(source: Any, file: Any) -> None:
    while True:
        data = source.read(1 << 20)
        if not data:
            return
        file.write(data.encode("utf-8") if isinstance(data, str) else data)

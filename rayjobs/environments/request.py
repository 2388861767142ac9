"""Requests to a node: requirements for one interpreter, identified by a digest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from rayjobs.environments.interpreter import Interpreter
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec import requirements

FORMAT = 1  # increased when the same request must be resolved or built differently
_REQUEST = "# request: "


@dataclass(frozen=True)
class Request:
    """Packages for one interpreter of this node.

    Attributes:
        lines: Lines of a requirements file, including options.
        constraints: Requirements that only limit versions.
        base: Digest of the base packages, or None.
        conda: The conda request, as `condas.Asked.key`, or None.
        image: Key of the image in which it is built; None: it is built on the node itself.
    """

    lines: tuple[str, ...]
    interpreter: Interpreter
    constraints: tuple[str, ...] = ()
    base: str | None = None
    conda: str | None = None
    image: str | None = None

    @property
    def options(self) -> list[str]:
        """The option lines, which the lock needs too."""
        return [one for one in self.lines if one.startswith("-") and one != requirements.PRE]

    @property
    def packages(self) -> list[str]:
        """The lines that request packages."""
        return [line for line in self.lines if not line.startswith("-")]

    def digest(self) -> str:
        """Return the identity of this request.

        Named files, and folders that are searched for packages, count with size and time, because
        their content may change.
        """
        return _digest(
            [
                FORMAT,
                list(self.lines),
                self.interpreter.version_text,
                self.interpreter.platform,
                [_stamp(path) for path in _local(self.lines)],
                list(self.constraints),
                self.base,
                self.conda,
                *([self.image] if self.image else []),
            ]
        )

    def local_paths(self) -> list[Path]:
        """Return the requested files, and the folders that are searched for packages."""
        return _local(self.lines)

    def head(self) -> str:
        """Return the first lines of a lock for this request."""
        return (
            f"# Packages of an environment of rayjobs, for Python {self.interpreter.version_text}\n"
            f"{_REQUEST}{self.digest()}\n"
        )

    def is_answered_by(self, lock: str) -> bool:
        """Whether a lock was made for the same request, on this node or another."""
        return lock.startswith(self.head())

    def key(self, lock: str) -> str:
        """Return the name of the environment with a lock's packages, for this interpreter."""
        path = self.interpreter.path
        real = path if self.image else os.path.realpath(path)
        body = lock.partition(_REQUEST)[2].partition("\n")[2]
        values = [FORMAT, body, real, self.interpreter.version_text, self.base]
        return _digest([*values, *([self.image] if self.image else [])])[:32]

    def key_of_conda(self, conda_lock: str) -> str:
        """Return the name of the conda environment with a lock's packages."""
        return _digest([FORMAT, self.digest(), conda_lock])[:32]


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _local(lines: Sequence[str]) -> list[Path]:
    found = []
    for line in lines:
        option, value = requirements.option_of(line)
        if option is None and requirements.is_file(line):
            found.append(Path(line.split(" ", 1)[0].split("[", 1)[0]))
        elif option == "--find-links" and "://" not in value:
            found.append(Path(value))
    return found


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None  # uv's message is better
    return info.st_size, info.st_mtime_ns

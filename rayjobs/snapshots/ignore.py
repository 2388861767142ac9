"""Decides which files a snapshot leaves out: by the ignore file's lines and by default."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

from rayjobs.core.errors import SnapshotError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.snapshots.secrets_found import is_secret_name

# Only the first that exists counts. Source: Azure ML SDK v1 for the last two.
IGNORE_FILES = (".rayjobsignore", ".amlignore", ".gitignore")
IGNORE_FILE_LIMIT = 1024**2  # bytes


class Why(StrEnum):
    """Why something is not in the snapshot."""

    IGNORED = "ignored"
    SECRET = "likely secret"
    VERSION_CONTROL = "version control"
    CACHE = "cache"
    VIRTUAL_ENVIRONMENT = "virtual environment"
    RECORDS = "rayjobs records"
    DOWNLOAD = "downloaded from a job"
    DESCRIPTION = "description of the run"
    VENDORED = "travels with jobs by itself"
    LINK = "link"
    SPECIAL = "special file"


# Expression, whether it ignores (or re-includes), whether it matches only folders.
_Pattern = tuple[re.Pattern[str] | None, bool, bool]


@dataclass(frozen=True)
class LeftOut:
    """A file or folder (path ends in ``/``) that is not in the snapshot, and why."""

    path: str
    why: Why
    detail: str = ""


_BY_NAME: dict[str, Why] = {
    **dict.fromkeys((".git", ".hg", ".svn", ".bzr", "_darcs", "cvs"), Why.VERSION_CONTROL),
    **dict.fromkeys(
        (
            "__pycache__",
            ".mypy_cache",
            ".pytest_cache",
            ".ruff_cache",
            ".import_linter_cache",
            ".ipynb_checkpoints",
            ".hypothesis",
            ".cache",
            ".tox",
            ".nox",
            ".eggs",
            ".dvc_cache",
            "node_modules",
            ".ds_store",
            "thumbs.db",
        ),
        Why.CACHE,
    ),
    ".rayjobs": Why.RECORDS,
}
# A folder that contains one of these is an interpreter's environment, whatever its name.
ENVIRONMENT_SIGNS = frozenset({"pyvenv.cfg", "conda-meta"})


def default_reason(name: str) -> Why | None:
    """Return why a file or folder of this name is left out by default, or None."""
    lowered = name.lower()
    found = _BY_NAME.get(lowered)
    if found is not None:
        return found
    if lowered.endswith((".pyc", ".pyo")):
        return Why.CACHE
    return Why.SECRET if is_secret_name(name) else None


def ignore_line(path: str) -> str:
    """Return the line of an ignore file that leaves out exactly this path."""
    escaped = "".join("\\" + mark if mark in "\\*?[" else mark for mark in path)
    if escaped.endswith(" "):
        escaped = escaped[:-1] + "\\ "
    return "/" + escaped


class Rules:
    """Decides path by path.

    Args:
        name: The ignore file in force, None without one.
        text: Its content.
        known: Decisions of the ignore file's lines from an earlier scan with the same text;
            they save compiling the patterns.
        without: Paths of files that describe the run, and are not part of its code.
    """

    def __init__(
        self,
        name: str | None,
        text: str,
        *,
        known: dict[str, int] | None = None,
        without: Collection[str] = (),
    ) -> None:
        self.name = name
        self._without = frozenset(without)
        self.fingerprint = hashlib.sha256(
            f"{name}\0{text}".encode(errors="surrogateescape")
        ).hexdigest()
        self.decisions: dict[str, int] = {}
        self._known = known or {}
        self._lines = [
            (number, line)
            for number, line in enumerate(text.split("\n"), start=1)
            if line.strip() and not line.startswith("#")
        ]
        self._patterns: list[_Pattern] | None = None
        self._wanted: list[tuple[str, Why]] = []  # folders that a line re-included

    def trust(self, known: dict[str, int]) -> None:
        """Reuse decisions that were made with the same ignore file."""
        self._known = known

    def reason(self, path: str, name: str, *, is_folder: bool) -> LeftOut | None:
        """Return why the path is left out; None when it is packed.

        Call it for parents before their content, and not below a folder that is left out.
        """
        shown = path + "/" if is_folder else path
        if shown in self._without:
            return LeftOut(shown, Why.DESCRIPTION)
        line = self._line(shown)
        if line > 0:
            number, text = self._lines[line - 1]
            return LeftOut(shown, Why.IGNORED, f"line {number} of {self.name}: {text.strip()}")
        why = default_reason(name)
        if why is None or self._is_wanted(shown, line, why, name):
            return None
        return LeftOut(shown, why)

    def environment_reason(self, path: str, name: str) -> LeftOut | None:
        """Return why a virtual environment's folder is left out; None when it is packed."""
        shown = path + "/"
        if self._is_wanted(shown, self._line(shown), Why.VIRTUAL_ENVIRONMENT, name):
            return None
        return LeftOut(shown, Why.VIRTUAL_ENVIRONMENT)

    def _line(self, shown: str) -> int:
        """Return the line that decides: n ignores, -n re-includes, 0 if none matches (n from 1)."""
        if not self._lines:
            return 0
        decision = self._known.get(shown)
        if decision is None:
            decision = self._decide(shown)
        self.decisions[shown] = decision
        return decision

    def _decide(self, shown: str) -> int:
        path, is_folder = shown.removesuffix("/"), shown.endswith("/")
        patterns = self._compiled()
        for at in range(len(patterns), 0, -1):
            expression, ignores, folders_only = patterns[at - 1]
            if expression is None or (folders_only and not is_folder):
                continue
            found = expression.search(path)
            # `ps_d` is pathspec's mark that a folder above the path matched. Git checks each folder
            # on the way down, as our walk does, so only the path itself counts here.
            if found is not None and found.groupdict().get("ps_d") is None:
                return at if ignores else -at
        return 0

    def _compiled(self) -> list[_Pattern]:
        if self._patterns is None:
            from pathspec import GitIgnoreSpec  # imported here: most submits need no patterns

            self._patterns = []
            for number, line in self._lines:
                text = line if line.endswith("\\ ") else line.rstrip()
                stripped = text.rstrip("/")
                if stripped in ("", "!"):
                    raise SnapshotError(
                        f"line {number} of {self.name}, {line!r}, is not a pattern; remove it"
                    )
                try:
                    (pattern,) = GitIgnoreSpec.from_lines([stripped]).patterns
                except ValueError as error:
                    raise SnapshotError(
                        f"line {number} of {self.name}, {line!r}, is not a pattern; correct it, "
                        f"see `git help ignore` for the syntax"
                    ) from error
                expression: re.Pattern[str] | None = getattr(pattern, "regex", None)
                self._patterns.append((expression, bool(pattern.include), stripped != text))
        return self._patterns

    def _is_wanted(self, shown: str, line: int, why: Why, name: str) -> bool:
        if self._brings_back(line, why, name):
            if shown.endswith("/"):
                self._wanted.append((shown, why))
            return True
        return any(kind is why and shown.startswith(folder) for folder, kind in self._wanted)

    def _brings_back(self, line: int, why: Why, name: str) -> bool:
        """Return whether a ``!pattern`` of .rayjobsignore overrides this default.

        ``!src/`` does not re-include src/.env: the pattern's last part must be of the kind that is
        left out, be exactly the name or, except for a likely secret, match the name with more
        than wildcards.
        """
        if line >= 0 or self.name != IGNORE_FILES[0]:
            return False
        pattern = self._lines[-line - 1][1].strip().lstrip("!").rstrip("/")
        while pattern.endswith("/**"):
            pattern = pattern[:-3].rstrip("/")
        part = pattern.rpartition("/")[2]
        named = fnmatch.fnmatch(name, part) and part.strip("*?.") != ""
        return default_reason(part) is why or (why is not Why.SECRET and named) or part == name


def read_rules(root: Path, *, without: Collection[str] = ()) -> Rules:
    """Return the rules of a source directory: its first ignore file, plus the defaults.

    Args:
        root: The source directory.
        without: Paths of files that describe the run, and are not part of its code.

    Raises:
        SnapshotError: the ignore file cannot be read.
    """
    for name in IGNORE_FILES:
        path = root / name
        try:
            # Non-blocking: a FIFO of that name must not stop us.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SnapshotError(
                f"the ignore file {path} cannot be read ({error.strerror}); repair or remove it, "
                f"since it decides what leaves this machine"
            ) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SnapshotError(f"the ignore file {path} is not a plain file; remove it")
            with open(descriptor, "rb", closefd=False) as file:
                raw = file.read(IGNORE_FILE_LIMIT + 1)
        finally:
            os.close(descriptor)
        if len(raw) > IGNORE_FILE_LIMIT:
            raise SnapshotError(f"the ignore file {path} is larger than 1 MiB; shorten it")
        text = raw.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n")
        if name == ".gitignore" and text == "*\n" and (root / "workspace.json").exists():
            continue  # a workspace's own ignore file covers the records, not the code
        return Rules(name, text, without=without)
    return Rules(None, "", without=without)

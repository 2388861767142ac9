"""Recognizes rayjobs' own records by content: a workspace, a home, a store, a token.

They are never packed, whatever their name and location, and no ignore file can re-include them: a
workspace contains every former snapshot, and a token opens the cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import stat
from collections.abc import Set as AbstractSet
from pathlib import Path

from rayjobs.core.paths import WORKSPACE_DIR, home

# Marks a folder of `rayjobs download`: results of a job are not source code of the next one.
DOWNLOAD_MARK = ".rayjobs-download"
WORKSPACE_RECORD = "workspace.json"
STORE = "store.db"
_READ_AT_MOST = 64 * 1024
_LOG_READ_AT_MOST = 4 * 1024**2
# Names below `targets/NAME/` of a home (`paths.TargetPaths`); any one is sufficient.
_TARGET_FILES = ("target.json", "head.json", "keeper.json", "token", "capacity.json")
# Folders of a node's scratch (`paths.NodePaths`); a project may have one of them, not all.
_NODE_FOLDERS = frozenset({"attempts", "snapshots", "injob"})
# Top-level entries of a workspace or home, in case the source directory is one itself.
_TOP_OF_WORKSPACE = frozenset(
    {WORKSPACE_RECORD, "blobs", "cache", "datastores", "prune.lock", ".gitignore"}
)
_TOP_OF_HOME = frozenset({"targets", "node", "workspace"})
_TOP_OF_NODE = _NODE_FOLDERS | {"data", "environments"}
_SQLITE_MAGIC = b"SQLite format 3\0"
_STORE_TABLES = frozenset({"jobs", "attempts", "allocations", "events"})
_TOKEN_BYTES = (32, 512)
_LONG_WORD = re.compile(rb"[A-Za-z0-9_\-+/=.]+\s*")


class OwnRecords:
    """Distinguishes rayjobs' own records in a source directory from other files."""

    def __init__(self, root: Path) -> None:
        """Look into folders and files below `root` (a real path)."""
        self._root = str(root)
        self._home = str(home())
        self._tokens: dict[bytes, str] | None = None
        self._top: frozenset[str] = frozenset()

    def folder(self, path: str, names: AbstractSet[str]) -> str | None:
        """Return the kind of a folder that contains these `names`; None if it is not ours.

        The source directory itself is never left out, only the records in it.
        """
        full = os.path.join(self._root, path) if path else self._root  # noqa: PTH118 - speed
        what, top = None, frozenset[str]()
        is_workspace = WORKSPACE_RECORD in names and (STORE in names or _is_workspace(full))
        if is_workspace or ({STORE, "blobs"} <= names and _is_store(Path(full, STORE))):
            what, top = "a workspace", _TOP_OF_WORKSPACE
        elif full == self._home or ("targets" in names and _is_home(full)):
            what, top = "a RAYJOBS_HOME", _TOP_OF_HOME
        elif names >= _NODE_FOLDERS:
            what, top = "the scratch folder of a node", _TOP_OF_NODE
        if path:
            return what
        self._top = top
        return None

    def file_at_top(self, name: str) -> str | None:
        """Return whose record a top-level entry is; None if it is not one."""
        return "of the workspace or home in this folder" if name in self._top else None

    def file(self, path: str, name: str, size: int) -> str | None:
        """Return the kind of a plain file; None if it is not ours. Opens only likely files."""
        lowered = name.lower()
        if ".db" in lowered or ".sqlite" in lowered:
            return self._store(path, name)
        if _TOKEN_BYTES[0] <= size <= _TOKEN_BYTES[1]:
            return self._token(path, lowered, size)
        return None

    def _store(self, path: str, name: str) -> str | None:
        full = Path(self._root, path)
        base = full.with_name(re.sub(r"-(wal|shm|journal|serial)$", "", name))
        if _is_store(base):
            return "the store of a workspace"
        if base.name == STORE and _is_workspace(str(full.parent)):
            return "the store of a workspace"
        return None

    def _token(self, path: str, lowered: str, size: int) -> str | None:
        known = self._known_tokens()
        if not lowered.endswith("token") and size not in {len(text) for text in known} | {
            len(text) + 1 for text in known
        }:
            return None
        content = read_start(Path(self._root, path), _TOKEN_BYTES[1] + 1)
        if content is None:
            return None
        if content.strip() in known:
            return f"the token of the target {known[content.strip()]}"
        if lowered.endswith("token") and _LONG_WORD.fullmatch(content):
            return "a file that holds nothing but a token"
        return None

    def _known_tokens(self) -> dict[bytes, str]:
        if self._tokens is None:
            self._tokens = {}
            for path in sorted(Path(self._home, "targets").glob("*/token")):
                content = read_start(path, _TOKEN_BYTES[1] + 1)
                if content and len(content.strip()) >= _TOKEN_BYTES[0]:
                    self._tokens[content.strip()] = path.parent.name
        return self._tokens


def read_start(path: Path, most: int) -> bytes | None:
    """Return the first `most` bytes of a plain file; None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        content = b""
        while len(content) < most and (more := os.read(descriptor, most - len(content))):
            content += more
        return content
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _is_workspace(folder: str) -> bool:
    if os.path.basename(folder) == WORKSPACE_DIR:  # noqa: PTH119 - speed
        return True
    content = read_start(Path(folder, WORKSPACE_RECORD), _READ_AT_MOST)
    try:
        record = json.loads(content or b"")
        return bool(isinstance(record["version"], int) and record["id"] and record["name"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _is_home(folder: str) -> bool:
    try:
        with os.scandir(os.path.join(folder, "targets")) as targets:  # noqa: PTH118 - speed
            return any(
                os.path.lexists(os.path.join(target.path, name))  # noqa: PTH118 - speed
                for target in targets
                if target.is_dir(follow_symlinks=False)
                for name in _TARGET_FILES
            )
    except OSError:
        return False


def _is_store(path: Path) -> bool:
    """Whether a file is a SQLite database with our tables. A backup of a store counts too."""
    content = read_start(path, len(_SQLITE_MAGIC))
    if content != _SQLITE_MAGIC:
        return False
    # A new store has all its pages, unencoded, in its write-ahead log.
    log = read_start(path.with_name(path.name + "-wal"), _LOG_READ_AT_MOST)
    if log is not None and all(b"CREATE TABLE " + name.encode() in log for name in _STORE_TABLES):
        return True
    # Immutable: SQLite takes no lock and creates no file next to it.
    address = f"{path.as_uri()}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            return {str(row[0]) for row in rows} >= _STORE_TABLES
    except (sqlite3.Error, ValueError):
        return False

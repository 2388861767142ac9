"""Any storage that fsspec has a file system for (abfs, gs, hdfs, sftp …), by its URL.

The package of the protocol (adlfs, gcsfs …) must be installed where the data is used. Such a file
system reports little about a file: its report serves as the file's mark, and we compute the digest
of what we read.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from rayjobs.datastore import credentials
from rayjobs.datastore.backends.base import (
    CountBytes,
    Folder,
    Stopped,
    StoredFile,
    ignore_bytes,
)
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.digests import CHUNK_BYTES, digest_of_text
from rayjobs.datastore.errors import (
    AccessDenied,
    CredentialNotSet,
    DataChanged,
    DataNotFound,
    DatastoreError,
    DatastoreUnavailable,
    InvalidReference,
    TransferFailed,
)
from rayjobs.datastore.nosecrets import check_url
from rayjobs.datastore.refs import clean_path

OPTIONS = "options"
ENV_OPTIONS = "option_env"
# Facts that distinguish two versions of a file, as the file systems name them.
_MARKS = (
    "etag",
    "ETag",
    "md5Hash",
    "generation",
    "content_md5",
    "last_modified",
    "mtime",
    "created",
)
_PARTIAL = ".partial-"
# Words in error messages about refused credentials: the file systems share no error class.
_DENIED = ("forbidden", "unauthorized", "authentication", "403", "401")


class FsspecBackend:
    """Files below one URL of an fsspec file system."""

    def __init__(self, url: str, options: Mapping[str, Any], named: Mapping[str, str]) -> None:
        """Store the settings; the file system is opened on first use.

        Args:
            url: `PROTOCOL://PATH`.
            options: Options of the file system.
            named: The environment variables that hold the values of other options, by option.
        """
        check_url(url)
        self.where = url
        self._options = dict(options)
        self._named = dict(named)
        self._lock = threading.Lock()
        self._opened: tuple[Any, str] | None = None

    @classmethod
    def from_record(cls, record: DatastoreRecord) -> FsspecBackend:
        """Return the backend of an `fsspec` record."""
        settings = record.settings
        if "://" not in settings.get("url", ""):
            raise InvalidReference(f"datastore {record.name!r} needs a URL, PROTOCOL://PATH.")
        return cls(
            settings["url"],
            json.loads(settings.get(OPTIONS) or "{}"),
            json.loads(settings.get(ENV_OPTIONS) or "{}"),
        )

    @property
    def file_system(self) -> Any:
        """The fsspec file system, with the current credentials.

        Raises:
            InvalidReference: fsspec does not know the protocol, or its package is not installed.
            CredentialNotSet: a variable with a credential is not set.
        """
        return self._open()[0]

    @property
    def root(self) -> str:
        """The URL's path in the file system."""
        return self._open()[1]

    def _open(self) -> tuple[Any, str]:
        with self._lock:
            if self._opened is None:
                import fsspec

                environment = credentials.environment()
                secret = {}
                for option, variable in self._named.items():
                    if variable not in environment:
                        raise CredentialNotSet(
                            f"the variable {variable} with the {option} of {self.where} is not "
                            "set; export it, or set it on the target (`rayjobs target secret "
                            "set`).",
                            variable,
                        )
                    secret[option] = environment[variable]
                protocol = self.where.partition("://")[0]
                try:
                    # Other programs store files too, and credentials change: cache neither.
                    fresh = {"use_listings_cache": False, "skip_instance_cache": True}
                    made, root = fsspec.core.url_to_fs(
                        self.where, **{**fresh, **self._options}, **secret
                    )
                except (ImportError, ValueError) as error:
                    raise InvalidReference(
                        f"{protocol}:// cannot be used here: {error}. Install its fsspec package "
                        "where the data is used (adlfs for abfs, gcsfs for gs)."
                    ) from error
                self._opened = made, str(root).rstrip("/")
            return self._opened

    def _full(self, path: str) -> str:
        root = self._open()[1]
        clean = clean_path(path)
        return f"{root}/{clean}" if clean else (root or "/")

    def local_path(self, path: str) -> Path | None:
        """See `Backend`."""
        return None

    def stat(self, path: str) -> StoredFile | None:
        """See `Backend`."""
        if not clean_path(path):
            return None
        with _explained(self.where):
            try:
                info = self.file_system.info(self._full(path))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return self._stored(info) if info["type"] == "file" else None

    def walk(self, path: str) -> Iterator[StoredFile]:
        """See `Backend`."""
        with _explained(self.where):
            top = self._full(path)
            try:
                found = self.file_system.find(top, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return
        for name in sorted(found):
            info = found[name]
            # `find` of a file returns the file, and some systems find names with the same prefix.
            shown = self._shown(info)
            is_below = not clean_path(path) or shown.startswith(f"{clean_path(path)}/")
            if info["type"] == "file" and is_below and _PARTIAL not in posixpath.basename(shown):
                yield self._stored(info)

    def children(self, path: str) -> list[StoredFile | Folder]:
        """See `Backend`."""
        with _explained(self.where):
            try:
                found = self.file_system.ls(self._full(path), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
        items: list[StoredFile | Folder] = []
        for info in found:
            shown = self._shown(info)
            if shown in ("", clean_path(path)):  # some systems list the folder itself
                continue
            if info["type"] == "directory":
                items.append(Folder(shown))
            elif info["type"] == "file" and _PARTIAL not in posixpath.basename(shown):
                items.append(self._stored(info))
        return sorted(items, key=lambda item: item.path)

    def fetch(self, file: StoredFile, to: Path, count: CountBytes = ignore_bytes) -> str:
        """See `Backend`."""
        running, size = hashlib.sha256(), 0
        try:
            with (
                _explained(self.where),
                self.file_system.open(self._full(file.path), "rb") as source,
                _local(to),
                to.open("xb") as out,
            ):
                while chunk := source.read(CHUNK_BYTES):
                    running.update(chunk)
                    out.write(chunk)
                    size += len(chunk)
                    count(len(chunk))
            now = self.stat(file.path)
            digest = f"sha256:{running.hexdigest()}"
            changed = digest != file.digest if file.digest else now is None or now.etag != file.etag
            if changed or size != file.size:
                raise DataChanged(
                    f"{self.where}/{file.path} has changed since it was listed ({file.size} bytes "
                    f"then, {size} now). Register a new version, or put the old file back."
                )
        except BaseException:
            to.unlink(missing_ok=True)
            raise
        return digest

    def read(self, file: StoredFile, start: int, length: int) -> bytes:
        """See `Backend`."""
        end = min(file.size, start + length)
        if start >= end:
            return b""
        with _explained(self.where):
            data = bytes(self.file_system.cat_file(self._full(file.path), start=start, end=end))
        now = self.stat(file.path)
        if now is None or now.size != file.size or (not file.digest and now.etag != file.etag):
            raise DataChanged(
                f"{self.where}/{file.path} has changed since it was listed. Register a new "
                f"version, or put the old file back."
            )
        if len(data) == file.size != end - start:  # some web servers answer with the whole file
            data = data[start:end]
        return data

    def put(self, source: Path, path: str, count: CountBytes = ignore_bytes) -> StoredFile:
        """See `Backend`. The file is written under a temporary name, then moved."""
        import secrets

        running = hashlib.sha256()
        target = self._full(path)
        parent, _, name = target.rpartition("/")
        partial = f"{parent}/.{name[:100]}{_PARTIAL}{secrets.token_hex(6)}"
        with _explained(self.where):
            system = self.file_system
            try:
                system.makedirs(parent, exist_ok=True)
                with source.open("rb") as reader, system.open(partial, "wb") as out:
                    while chunk := reader.read(CHUNK_BYTES):
                        running.update(chunk)
                        out.write(chunk)
                        count(len(chunk))
                system.mv(partial, target)
            except BaseException:
                if system.exists(partial):
                    system.rm_file(partial)
                raise
            system.invalidate_cache(parent)
        stored = self.stat(path)
        if stored is None:
            raise DatastoreUnavailable(f"{self.where}/{path} was stored, but cannot be found.")
        return StoredFile(stored.path, stored.size, stored.etag, f"sha256:{running.hexdigest()}")

    def remove(self, path: str) -> None:
        """See `Backend`."""
        with _explained(self.where):
            try:
                self.file_system.rm_file(self._full(path))
            except FileNotFoundError:
                return
            self.file_system.invalidate_cache(self._full(path).rpartition("/")[0])

    def check(self) -> None:
        """See `Backend`."""
        with _explained(self.where):
            root = self._open()[1]
            if root and not self.file_system.exists(root):
                raise DataNotFound(f"{self.where} does not exist.")

    def _shown(self, info: Mapping[str, Any]) -> str:
        root = self._open()[1].strip("/")
        name = str(info["name"]).strip("/")
        return name.removeprefix(root).lstrip("/") if root else name

    def _stored(self, info: Mapping[str, Any]) -> StoredFile:
        marks = [_text(info[mark]) for mark in _MARKS if info.get(mark)]
        etag = digest_of_text("\n".join([*marks, str(info["size"])]))[7:39]
        return StoredFile(self._shown(info), int(info["size"]), etag)


def _text(mark: Any) -> str:
    # Some systems report a time, others seconds.
    if isinstance(mark, datetime):
        mark = mark.timestamp()
    return str(round(mark * 1e6)) if isinstance(mark, float) else str(mark)


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn errors of file systems into errors of this package."""
    try:
        yield
    except (DatastoreError, Stopped):
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        what = error.filename or error.strerror or error
        raise DataNotFound(f"{where} has no such file or folder: {what}.") from error
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        words = f"{type(error).__name__} {error}".lower()
        if isinstance(error, PermissionError) or any(word in words for word in _DENIED):
            raise AccessDenied(f"{where}: {message}; check the credentials.") from error
        if isinstance(error, IsADirectoryError | FileExistsError):
            raise InvalidReference(f"{where}: {message}.") from error
        raise DatastoreUnavailable(f"{where}: {message}.") from error


@contextmanager
def _local(path: Path) -> Iterator[None]:
    """Mark an error of the local disk as such."""
    try:
        yield
    except OSError as error:
        if error.filename != os.fspath(path):
            raise
        text = error.strerror or error
        raise TransferFailed(f"cannot write {path}: {text}.") from error

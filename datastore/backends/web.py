"""Files of a web server, read over HTTPS: fetched once, stored by digest, never written.

A server does not guarantee that a file stays unchanged. So a file is fetched when it is listed and
its digest is recorded; what is fetched later must have that digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from rayjobs.core.files import locked, write_atomic
from rayjobs.core.text import duration_text
from rayjobs.core.version import __version__
from rayjobs.datastore.backends.base import CountBytes, Folder, StoredFile, ignore_bytes
from rayjobs.datastore.cache_root import default_cache_root
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.digests import CHUNK_BYTES, digest_of_file, digest_of_text, hex_of
from rayjobs.datastore.errors import (
    AccessDenied,
    DataChanged,
    DataIntegrityError,
    DataNotFound,
    DatastoreError,
    DatastoreUnavailable,
    NotSupported,
    TransferFailed,
)
from rayjobs.datastore.patience import Patience
from rayjobs.injob.lazy_dataclass import dataclass

TIMEOUT_S = 30.0
ATTEMPTS = 4
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class _Known:
    """The record of an address: the file's digest and size, and the server's marks of the file."""

    digest: str
    size: int
    etag: str = ""
    modified: str = ""


class WebBackend:
    """The files of one server; a path is an address without scheme and host.

    Args:
        root: `https://HOST` or `http://HOST`.
        cache: Where fetched files are kept for all programs of the user.
        attempts: How often a request is tried before it fails.
        timeout_s: Seconds to connect, and between two pieces of a response.
        pause_s: Seconds before the second attempt; each later pause is twice as long.
    """

    def __init__(
        self,
        root: str,
        cache: Path,
        *,
        attempts: int = ATTEMPTS,
        timeout_s: float = TIMEOUT_S,
        pause_s: float = 1.0,
    ) -> None:
        self.where = root
        self._cache = cache
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._patience = Patience(root, attempts=attempts, connect_s=timeout_s, read_s=timeout_s)

    @classmethod
    def from_record(cls, record: DatastoreRecord) -> WebBackend:
        """Return the backend of a `web` record."""
        return cls(record.settings["url"], default_cache_root() / "web")

    def local_path(self, path: str) -> Path | None:
        """See `Backend`."""
        return None

    def stat(self, path: str) -> StoredFile | None:
        """Return the file at `path`, which is fetched unless the server reports it as unchanged."""
        if not path or path.endswith("/"):
            return None
        try:
            known = self._bring(path, ignore_bytes)
        except DataNotFound:
            return None
        return StoredFile(path, known.size, known.digest, known.digest)

    def walk(self, path: str) -> Iterator[StoredFile]:
        """Yield nothing: a web server does not list its files."""
        return iter(())

    def children(self, path: str) -> list[StoredFile | Folder]:
        """Return nothing: a web server does not list its files."""
        return []

    def fetch(self, file: StoredFile, to: Path, count: CountBytes = ignore_bytes) -> str:
        """See `Backend`; a file whose digest is in the cache is not fetched."""
        kept = self._ready(file, count)
        try:
            shutil.copyfile(kept, to)
        except OSError as error:
            to.unlink(missing_ok=True)
            if not kept.exists():  # it was pruned just now
                return self.fetch(file, to, count)
            raise TransferFailed(f"cannot write {to}: {error.strerror or error}.") from error
        return "sha256:" + kept.name

    def read(self, file: StoredFile, start: int, length: int) -> bytes:
        """See `Backend`; the whole file is fetched first and kept."""
        with self._ready(file, ignore_bytes).open("rb") as stream:
            stream.seek(start)
            return stream.read(length)

    def _ready(self, file: StoredFile, count: CountBytes) -> Path:
        """Return the cached bytes of a file, fetching them if necessary."""
        kept = self._kept(file.digest) if file.digest else None
        if kept is None or digest_of_file(kept) != file.digest:
            known = self._bring(file.path, count, refetch=True)
            if known.digest != (file.digest or known.digest):
                raise DataChanged(
                    f"{self._url(file.path)} is not the file that was recorded "
                    f"({file.size} bytes with {file.digest}; now {known.size} bytes with "
                    f"{known.digest}). Register a new version, or use a copy of the old file."
                )
            return self._object(known.digest)
        count(file.size)
        return kept

    def put(self, source: Path, path: str, count: CountBytes = ignore_bytes) -> StoredFile:
        """Refuse: the web is read-only."""
        raise NotSupported(f"{self.where} is read-only; store files in a datastore.")

    def remove(self, path: str) -> None:
        """Refuse to remove: the web is read-only."""
        raise NotSupported(f"{self.where} is read-only; nothing was removed.")

    def check(self) -> None:
        """See `Backend`."""
        with self._open("", {}):
            pass

    # --- implementation ---

    def _url(self, path: str) -> str:
        return f"{self.where}/{quote(path, safe='/%:@!$&()*+,;=~')}"

    def _object(self, digest: str) -> Path:
        return self._cache / "objects" / hex_of(digest)

    def _index(self, path: str) -> Path:
        return self._cache / "index" / f"{hex_of(digest_of_text(self._url(path)))}.json"

    def _bring(self, path: str, count: CountBytes, *, refetch: bool = False) -> _Known:
        """Return the record of the current file at an address; its bytes are then in the cache."""
        for name in ("objects", "index", "partial", "locks"):
            (self._cache / name).mkdir(parents=True, exist_ok=True)
        index = self._index(path)
        with locked(self._cache / "locks" / index.stem, remove=True):
            known = None if refetch else self._known(index)
            headers = {}
            if known is not None and known.etag:
                headers["If-None-Match"] = known.etag
            elif known is not None and known.modified:
                headers["If-Modified-Since"] = known.modified
            for attempt in range(1, self._attempts + 1):
                try:
                    return self._get(path, index, known, headers, count)
                except (DatastoreUnavailable, DataIntegrityError) as error:
                    if attempt == self._attempts:
                        raise
                    self._patience.retries(attempt + 1, str(error).rstrip("."))
                    time.sleep(min(self._pause_s * 2 ** (attempt - 1), 20.0))
        raise AssertionError  # the last attempt returns or raises

    def _known(self, index: Path) -> _Known | None:
        try:
            known = _Known(**json.loads(index.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None  # not fetched yet, or written by another version
        if self._kept(known.digest) is None:
            return None
        with contextlib.suppress(OSError):
            os.utime(index)
        return known

    def _kept(self, digest: str) -> Path | None:
        """Return a cached file, marked as used now so that it is not pruned soon."""
        path = self._object(digest)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:  # it belongs to another user
            return path if path.is_file() else None
        return path

    def _get(
        self,
        path: str,
        index: Path,
        known: _Known | None,
        headers: dict[str, str],
        count: CountBytes,
    ) -> _Known:
        partial = self._cache / "partial" / index.stem
        with self._open(path, headers) as answer:
            if answer is None:
                assert known is not None
                return known
            length = answer.headers.get("Content-Length")
            running, size = hashlib.sha256(), 0
            try:
                with self._patience.reading(int(length or 0)), partial.open("wb") as out:
                    while chunk := self._next(path, answer, size):
                        running.update(chunk)
                        out.write(chunk)
                        size += len(chunk)
                        count(len(chunk))
            except DatastoreUnavailable:
                count(-size)
                raise
            except OSError as error:
                raise TransferFailed(f"cannot write {partial}: {error.strerror}.") from error
            if length is not None and size != int(length):
                count(-size)
                raise DatastoreUnavailable(
                    f"{self._url(path)} broke off: {size} of {length} bytes arrived."
                )
            found = _Known(
                f"sha256:{running.hexdigest()}",
                size,
                answer.headers.get("ETag") or "",
                answer.headers.get("Last-Modified") or "",
            )
        partial.replace(self._object(found.digest))
        write_atomic(index, json.dumps(asdict(found)).encode())
        return found

    def _next(self, path: str, answer: http.client.HTTPResponse, done: int) -> bytes:
        """Return the next bytes of a response after `done` ones; b"" at its end."""
        try:
            return answer.read(CHUNK_BYTES)
        except (http.client.HTTPException, OSError) as error:
            raise DatastoreUnavailable(
                f"{self._url(path)} broke off after {done} bytes ({error})."
            ) from error

    @contextlib.contextmanager
    def _open(self, path: str, headers: dict[str, str]) -> Iterator[Any]:
        """Yield the server's response; None if it reports no change."""
        url = self._url(path)
        agent = {"User-Agent": f"rayjobs/{__version__}", "Accept-Encoding": "identity"}
        request = urllib.request.Request(url, headers={**agent, **headers})  # noqa: S310 - http(s)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:  # noqa: S310
                yield answer
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 304 and headers:
                    yield None
                    return
                raise self._explain(url, error.code) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise AccessDenied(
                    f"the certificate of {urlsplit(url).netloc} is not valid here: "
                    f"{error.reason.verify_message}."
                ) from error
            raise DatastoreUnavailable(f"{url} cannot be reached: {error.reason}.") from error
        except TimeoutError as error:
            limit = duration_text(self._timeout_s)
            raise DatastoreUnavailable(f"{url} gave no answer within {limit}.") from error
        except (http.client.HTTPException, OSError) as error:
            raise DatastoreUnavailable(f"{url} cannot be read: {error!r}.") from error

    @staticmethod
    def _explain(url: str, status: int) -> DatastoreError:
        if status in (404, 410):
            return DataNotFound(f"there is no file {url} (HTTP {status}).")
        if status in _TRANSIENT:
            return DatastoreUnavailable(f"{url} answers {status}.")
        return AccessDenied(
            f"{url} answers {status}. A file that needs a login or a key cannot be read from its "
            "address; put it in a datastore."
        )

"""An S3 bucket, or a prefix of one, as storage.

Built on botocore, a dependency of s3fs: its calls block, each has connect and read timeouts, it
survives forks, and reading in a few threads while hashing was faster than `s3fs.get` and
`pyarrow.fs.copy_files` (512 MB in 8 files, two loaded cores, the server on the same machine, median
of 4: 258 MB/s against 147 and 127).
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rayjobs.datastore.backends.base import (
    CountBytes,
    Folder,
    Stopped,
    StoredFile,
    ignore_bytes,
)
from rayjobs.datastore.backends.s3_settings import S3Settings
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.digests import CHUNK_BYTES, digest_of_file, hex_of
from rayjobs.datastore.errors import DataChanged, DataIntegrityError, DatastoreError
from rayjobs.datastore.patience import Patience
from rayjobs.datastore.refs import clean_path

DIGEST_FIELD = "sha256"  # the object's metadata, which the server stores with the object
PART_BYTES = 16 << 20
SINGLE_PUT_BYTES = 64 << 20
MOST_PARTS = 10_000
PROGRESS_BYTES = 8 << 20
"""A download that breaks after at least this many more bytes restarts its count of attempts."""


class S3Backend:
    """Objects below one prefix of a bucket; keys omit the prefix."""

    def __init__(self, settings: S3Settings) -> None:
        self.settings = settings
        self.where = settings.where
        self._prefix = f"{settings.prefix}/" if settings.prefix else ""
        self._lock = threading.Lock()
        self._clients: dict[bool, tuple[Any, Patience]] = {}  # by whether it is for quick requests
        self._pid = 0

    @classmethod
    def from_record(cls, record: DatastoreRecord) -> S3Backend:
        """Return the backend of an `s3` record."""
        return cls(S3Settings.from_record(record))

    def local_path(self, path: str) -> Path | None:
        """See `Backend`: a bucket has no files on this machine."""
        return None

    def stat(self, path: str) -> StoredFile | None:
        """See `Backend`."""
        if not clean_path(path):
            return None
        from botocore.exceptions import ClientError

        from rayjobs.datastore.backends.s3_errors import status_of

        try:
            head = self._open().head_object(Bucket=self.settings.bucket, Key=self._key(path))
        except ClientError as error:
            if status_of(error) == 404:
                return None
            raise self._explain(error, f"read the metadata of {path!r}") from error
        except Exception as error:
            raise self._explain(error, f"read the metadata of {path!r}") from error
        return StoredFile(
            clean_path(path), int(head["ContentLength"]), _etag(head), _kept_digest(head)
        )

    def walk(self, path: str) -> Iterator[StoredFile]:
        """See `Backend`."""
        for page in self._pages(path):
            for item in page.get("Contents", ()):
                if not item["Key"].endswith("/"):  # such a key only represents an empty folder
                    yield self._listed(item)

    def children(self, path: str) -> list[StoredFile | Folder]:
        """See `Backend`."""
        found: list[StoredFile | Folder] = []
        for page in self._pages(path, quick=True, Delimiter="/"):
            for item in page.get("CommonPrefixes", ()):
                found.append(Folder(item["Prefix"][len(self._prefix) :].rstrip("/")))
            for item in page.get("Contents", ()):
                if not item["Key"].endswith("/"):
                    found.append(self._listed(item))
        return sorted(found, key=lambda item: item.path)

    def fetch(self, file: StoredFile, to: Path, count: CountBytes = ignore_bytes) -> str:
        """See `Backend`. A broken response is continued where it broke off."""
        try:
            return self._fetch(file, to, count)
        except Stopped:
            to.unlink(missing_ok=True)
            raise
        except Exception as error:
            to.unlink(missing_ok=True)
            raise self._explain(error, f"read {file.path!r}") from error

    def read(self, file: StoredFile, start: int, length: int) -> bytes:
        """See `Backend`. A broken response is continued where it broke off."""
        try:
            return self._read(file, start, min(file.size, start + length))
        except Exception as error:
            raise self._explain(error, f"read {file.path!r}") from error

    def put(self, source: Path, path: str, count: CountBytes = ignore_bytes) -> StoredFile:
        """See `Backend`."""
        try:
            return self._put(source, clean_path(path), count)
        except Stopped:
            raise  # by another file's failure, which is the one to report
        except Exception as error:
            raise self._explain(error, f"write {path!r}") from error

    def remove(self, path: str) -> None:
        """See `Backend`."""
        try:
            self._open().delete_object(Bucket=self.settings.bucket, Key=self._key(path))
        except Exception as error:
            raise self._explain(error, f"remove {path!r}") from error

    def check(self) -> None:
        """See `Backend`."""
        try:
            self._open(quick=True).list_objects_v2(
                Bucket=self.settings.bucket, Prefix=self._prefix, MaxKeys=1
            )
        except Exception as error:
            raise self._explain(error, "list") from error

    # --- implementation ---

    def __reduce__(self) -> tuple[type[S3Backend], tuple[S3Settings]]:
        return (S3Backend, (self.settings,))

    def client(self, *, quick: bool = False) -> Any:
        """Return this process's botocore client, which several threads may use.

        Args:
            quick: The one for requests that a person waits for, see `S3Settings.quick`.
        """
        return self._open(quick=quick)

    def _open(self, *, quick: bool = False) -> Any:
        return self._opened(quick)[0]

    def _opened(self, quick: bool = False) -> tuple[Any, Patience]:
        with self._lock:
            if self._pid != os.getpid():
                # Sharing a connection with a forked process would mix up the responses of the two.
                self._clients, self._pid = {}, os.getpid()
            if quick not in self._clients:
                settings = self.settings.quick() if quick else self.settings
                patience = settings.patience()
                self._clients[quick] = patience.watch(settings.client()), patience
            return self._clients[quick]

    def _key(self, path: str) -> str:
        return self._prefix + clean_path(path)

    def _explain(self, error: Exception, what: str) -> DatastoreError:
        from rayjobs.datastore.backends.s3_errors import explain

        return explain(error, what=what, where=self.where)

    def _pages(self, path: str, *, quick: bool = False, **options: str) -> Iterator[Any]:
        prefix = self._key(path)
        if clean_path(path):
            prefix += "/"
        try:
            pages = self._open(quick=quick).get_paginator("list_objects_v2")
            yield from pages.paginate(Bucket=self.settings.bucket, Prefix=prefix, **options)
        except Exception as error:
            raise self._explain(error, f"list {path or '/'!r}") from error

    def _listed(self, item: Any) -> StoredFile:
        return StoredFile(item["Key"][len(self._prefix) :], int(item["Size"]), _etag(item))

    def _fetch(self, file: StoredFile, to: Path, count: CountBytes) -> str:
        content, plain = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        expected, check_etag = file.digest, False
        received, failures, received_before = 0, 0, 0
        with to.open("xb", buffering=0) as writer:
            while True:
                answer = self._get(file, received)  # this call itself retries
                if received == 0:
                    expected = expected or _kept_digest(answer)
                    check_etag = not expected and _etag_is_md5(answer)
                body, patience = answer["Body"], self._opened()[1]
                try:
                    while chunk := _read(body, patience):
                        content.update(chunk)
                        if check_etag:
                            plain.update(chunk)
                        writer.write(chunk)
                        received += len(chunk)
                        count(len(chunk))
                    if received >= file.size:
                        break
                    raise ConnectionError(f"the answer ended after {received} bytes")
                except Exception as error:
                    if not _is_broken_connection(error):
                        raise
                    failures = 1 if received - received_before >= PROGRESS_BYTES else failures + 1
                    received_before = received
                    if failures >= self.settings.attempts:
                        raise
                    patience.retries(failures + 1, f"{file.path!r} broke off")
                finally:
                    body.close()
        digest = "sha256:" + content.hexdigest()
        if received != file.size:
            raise DataChanged(
                f"{file.path!r} on {self.where} has {received} bytes; it had {file.size} when it "
                "was listed. Register a new version, or put the old object back."
            )
        wrong = (expected and digest != expected) or (check_etag and plain.hexdigest() != file.etag)
        if wrong:
            count(-received)
            raise DataIntegrityError(
                f"{file.path!r} on {self.where} arrived with digest {digest}, but "
                f"{expected or 'md5 ' + file.etag} is recorded for it; it was not used. "
                "Store the file again from its source."
            )
        return digest

    def _read(self, file: StoredFile, start: int, end: int) -> bytes:
        data, failures = bytearray(), 0
        while start + len(data) < end:
            answer = self._get(file, start + len(data), end)
            body, patience = answer["Body"], self._opened()[1]
            try:
                while chunk := _read(body, patience):
                    data += chunk
                if start + len(data) < end:
                    raise ConnectionError(f"the answer ended after {len(data)} bytes")
            except Exception as error:
                failures += 1
                if not _is_broken_connection(error) or failures >= self.settings.attempts:
                    raise
                patience.retries(failures + 1, f"{file.path!r} broke off")
            finally:
                body.close()
        return bytes(data)

    def _get(self, file: StoredFile, start: int, end: int | None = None) -> Any:
        options = {"IfMatch": f'"{file.etag}"'} if file.etag else {}
        if start or end is not None:
            options["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        return self._open().get_object(
            Bucket=self.settings.bucket, Key=self._prefix + file.path, **options
        )

    def _put(self, source: Path, path: str, count: CountBytes) -> StoredFile:
        digest = digest_of_file(source)
        size = source.stat().st_size
        client, key = self._open(), self._key(path)
        metadata = {DIGEST_FIELD: hex_of(digest)}
        if size <= SINGLE_PUT_BYTES:
            with source.open("rb") as body:
                answer = client.put_object(
                    Bucket=self.settings.bucket,
                    Key=key,
                    Body=body,
                    ContentLength=size,
                    Metadata=metadata,
                    ChecksumSHA256=base64.b64encode(bytes.fromhex(hex_of(digest))).decode(),
                )
            count(size)
        else:
            answer = self._put_in_parts(client, source, key, size, digest, count)
        return StoredFile(path, size, _etag(answer), digest)

    def _put_in_parts(
        self,
        client: Any,
        source: Path,
        key: str,
        size: int,
        digest: str,
        count: CountBytes,
    ) -> Any:
        target = {"Bucket": self.settings.bucket, "Key": key}
        metadata, sent = {DIGEST_FIELD: hex_of(digest)}, hashlib.sha256()
        upload = client.create_multipart_upload(**target, Metadata=metadata)["UploadId"]
        part_bytes = max(PART_BYTES, -(-size // MOST_PARTS))
        parts: list[dict[str, Any]] = []
        try:
            with source.open("rb") as reader:
                while chunk := reader.read(part_bytes):
                    number = len(parts) + 1
                    answer = client.upload_part(
                        **target, UploadId=upload, PartNumber=number, Body=chunk
                    )
                    parts.append({"PartNumber": number, "ETag": answer["ETag"]})
                    sent.update(chunk)
                    count(len(chunk))
            if sent.hexdigest() != hex_of(digest):
                raise DataChanged(
                    f"{source} changed while it was stored; nothing was stored. Store it again "
                    f"when no program writes to it."
                )
            return client.complete_multipart_upload(
                **target, UploadId=upload, MultipartUpload={"Parts": parts}
            )
        except Exception:
            self._abort(client, target, upload)
            raise

    def _abort(self, client: Any, target: dict[str, str], upload: str) -> None:
        try:
            client.abort_multipart_upload(**target, UploadId=upload)
        except Exception:  # noqa: S110 - the first error is the one to report; parts are invisible
            pass


def _read(body: Any, patience: Patience) -> bytes:
    with patience.reading(CHUNK_BYTES):
        return bytes(body.read(CHUNK_BYTES))


def _etag(answer: Any) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _kept_digest(answer: Any) -> str:
    kept = str((answer.get("Metadata") or {}).get(DIGEST_FIELD, ""))
    is_hex = len(kept) == 64 and all(letter in "0123456789abcdef" for letter in kept)
    return f"sha256:{kept}" if is_hex else ""


def _etag_is_md5(answer: Any) -> bool:
    # A server that encrypts with its own key returns a tag that is not the digest of what we read.
    etag = _etag(answer)
    encrypted = answer.get("ServerSideEncryption") in ("aws:kms", "aws:kms:dsse")
    by_customer = answer.get("SSECustomerAlgorithm") is not None
    return len(etag) == 32 and not encrypted and not by_customer


def _is_broken_connection(error: Exception) -> bool:
    from botocore.exceptions import HTTPClientError, IncompleteReadError
    from urllib3.exceptions import HTTPError

    kinds = (HTTPClientError, IncompleteReadError, HTTPError, ConnectionError, TimeoutError)
    return isinstance(error, kinds)

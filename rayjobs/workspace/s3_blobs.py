"""Blobs in an S3 bucket, for workspaces of several machines without a shared disk.

Below the workspace's prefix, ``blobs/KEY`` contains the bytes, with their digest in the object's
metadata. ``touched/KEY`` says when a process last relied on a blob without storing it.
``prune/NAME`` lists the keys that a prune is removing now. ``workspace.json`` names the workspace
that owns the prefix.

All ages use the server's clock (the Date header of its answers), because clients' clocks differ.

A prune never removes a blob that a client has just stored or relied on. The client first writes,
then reads the lists of running prunes, then checks that the blob is still there. The prune first
writes its list, then reads the times, removes old blobs, and finally removes its list. Whichever
comes second sees the other: the client waits and stores again, or the prune spares the blob.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from rayjobs.core.durable import make_folders
from rayjobs.core.errors import (
    NotFoundError,
    RayjobsError,
    StorageFullError,
    StoreError,
    StoreUnreachableError,
    UsageError,
)
from rayjobs.core.files import replacing
from rayjobs.core.ids import token
from rayjobs.core.safe_delete import Removed
from rayjobs.workspace.blobs import (
    ABANDONED_S,
    Blob,
    Stored,
    blob_key,
    check_digest,
    check_key,
    drop_abandoned,
    open_source,
)
from rayjobs.workspace.s3_address import S3Address
from rayjobs.workspace.s3_source import Source

if TYPE_CHECKING:
    from rayjobs.datastore.backends.s3 import S3Backend

log = logging.getLogger(__name__)
Result = TypeVar("Result")

BLOBS, TOUCHED, PRUNE, RECORD = "blobs/", "touched/", "prune/", "workspace.json"
DIGEST_FIELD = "sha256"
MOST_KEY_BYTES = 1024  # limit of S3, including the prefix
COPIED_AT_ONCE = 1 << 30  # bytes; S3 can copy up to 5 GiB per request, but slowly
PARTS_AT_ONCE = 4
FILES_AT_ONCE = 8
# Relying on a blob that was stored longer ago than this records the use in a touch; a younger blob
# needs none. A prune therefore spares blobs that are younger than its own limit plus this.
TOUCH_S = 3600.0
# A prune removes the keys of one list within `PRUNING_S`. A client waits until the list is gone or
# older than `LIST_S`, when no removal can still be in flight.
PRUNED_TOGETHER = 500
PRUNING_S = 60.0
LIST_S = 300.0
POLL_S = 0.5
STORE_TRIES = 5


class S3Blobs:
    """A `BlobStore` below a prefix of a bucket. Nothing is sent before the first call.

    Args:
        scratch: A folder of this machine for downloads; created when needed.
        touch_s: See `TOUCH_S`.
    """

    def __init__(self, address: S3Address, scratch: Path, *, touch_s: float = TOUCH_S) -> None:
        self.address = address
        self.scratch = scratch
        self._touch_s = touch_s
        self._prefix = f"{address.prefix}/" if address.prefix else ""
        self._opened: S3Backend | None = None
        self._guard = threading.Lock()

    # -- storing -----------------------------------------------------------------------------

    def put_file(self, path: str | Path, key: str, *, digest: str | None = None) -> Blob:
        """See `BlobStore.put_file`."""
        self._check(key)
        with self.errors(key), open_source(path) as source:
            return self._upload(Source(source, str(path), digest), key)

    def put_bytes(self, data: bytes, key: str) -> Blob:
        """See `BlobStore.put_bytes`."""
        self._check(key)
        with self.errors(key):
            return self._upload(Source(io.BytesIO(data), key, None, len(data)), key)

    def add_file(self, path: str | Path, *, digest: str | None = None) -> Blob:
        """See `BlobStore.add_file`."""
        if digest is not None:
            blob_key(digest)
        with self.errors(str(path)), open_source(path) as source:
            found = Source(source, str(path), digest)
            key = blob_key(found.digest)
            if not self._holds(key, found.size, found.digest):
                self._upload(found, key)
        return Blob(key, found.size, found.digest)

    def add_files(self, paths: Sequence[Path]) -> list[Blob | RayjobsError]:
        """See `BlobStore.add_files`; stores several files at once."""

        def one(path: Path) -> Blob | RayjobsError:
            try:
                return self.add_file(path)
            except RayjobsError as error:
                return error

        return list(self._at_once(one, paths))

    def _upload(self, source: Source, key: str) -> Blob:
        """Store bytes, and store them again if a running prune may remove them."""
        for _ in range(STORE_TRIES):
            if source.is_small:
                self._put_at_once(source, key)
            else:
                self._put_in_parts(source, key)
            if self._stays(key):
                return Blob(key, source.size, source.digest)
            self._wait_for_prunes(key)
        raise self._always_pruned(key)

    def _always_pruned(self, key: str) -> StoreError:
        return StoreError(
            f"{key} cannot be stored in {self.address.where}: prunes keep removing it. Repeat the "
            f"command once `rayjobs prune` has ended everywhere"
        )

    def _put_at_once(self, source: Source, key: str) -> None:
        data = source.data()
        check = base64.b64encode(bytes.fromhex(_hex_of(source.digest))).decode()
        self.client().put_object(
            Bucket=self.address.bucket,
            Key=self._at(BLOBS, key),
            Body=data,
            ContentLength=len(data),
            Metadata={DIGEST_FIELD: _hex_of(source.digest)},
            ChecksumSHA256=check,
        )

    def _put_in_parts(self, source: Source, key: str) -> None:
        """Send a large file in parallel parts; nothing is visible before the last call."""
        client = self.client()
        target = {"Bucket": self.address.bucket, "Key": self._at(BLOBS, key)}
        upload = client.create_multipart_upload(
            **target, Metadata={DIGEST_FIELD: _hex_of(source.digest)}
        )["UploadId"]

        def send(number: int, data: bytes) -> dict[str, Any]:
            answer = client.upload_part(**target, UploadId=upload, PartNumber=number, Body=data)
            return {"PartNumber": number, "ETag": answer["ETag"]}

        try:
            with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
                sent: list[Future[dict[str, Any]]] = []
                for number, data in enumerate(source.parts(), 1):
                    if number > PARTS_AT_ONCE:  # limits the parts in memory to those being sent
                        sent[number - PARTS_AT_ONCE - 1].result()
                    sent.append(pool.submit(send, number, data))
                parts = [one.result() for one in sent]
            # The sent bytes have the announced digest; otherwise `parts` has raised.
            client.complete_multipart_upload(
                **target, UploadId=upload, MultipartUpload={"Parts": parts}
            )
        except BaseException:
            with contextlib.suppress(Exception):  # the first error matters; parts are invisible
                client.abort_multipart_upload(**target, UploadId=upload)
            raise

    def copy_in(self, source: str, key: str, *, digest: str, size: int, etag: str) -> Blob:
        """Store the bytes of the blob `source` under `key`, without fetching them.

        Args:
            digest: Digest of the bytes, which the caller has verified.
            etag: ETag of the verified object; an object with another ETag is not copied.
        """
        origin = {"CopySource": self.object_of(source), "CopySourceIfMatch": etag}
        with self.errors(key):
            for _ in range(STORE_TRIES):
                self._copy(origin, self.object_of(key), digest, size)
                if self._stays(key):
                    return Blob(key, size, digest)
                self._wait_for_prunes(key)
        raise self._always_pruned(key)

    def _copy(
        self, origin: Mapping[str, Any], target: Mapping[str, str], digest: str, size: int
    ) -> None:
        client, metadata = self.client(), {DIGEST_FIELD: _hex_of(digest)}
        if size <= COPIED_AT_ONCE:
            client.copy_object(**target, **origin, Metadata=metadata, MetadataDirective="REPLACE")
            return
        upload = client.create_multipart_upload(**target, Metadata=metadata)["UploadId"]
        try:
            parts = []
            for number, start in enumerate(range(0, size, COPIED_AT_ONCE), 1):
                end = min(size, start + COPIED_AT_ONCE) - 1
                answer = client.upload_part_copy(
                    **target,
                    **origin,
                    UploadId=upload,
                    PartNumber=number,
                    CopySourceRange=f"bytes={start}-{end}",
                )
                parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
            client.complete_multipart_upload(
                **target, UploadId=upload, MultipartUpload={"Parts": parts}
            )
        except BaseException:
            with contextlib.suppress(Exception):
                client.abort_multipart_upload(**target, UploadId=upload)
            raise

    # -- reading -----------------------------------------------------------------------------

    def open(self, key: str) -> BinaryIO:
        """See `BlobStore.open`; returns a copy in a file that is deleted when it is closed.

        Its bytes have been checked against the digest stored with them.
        """
        self._check(key)
        with self.errors(key):
            file = self._stat(key)
            draft = self._draft()
            try:
                self._backend().fetch(file, draft)
                return cast(BinaryIO, draft.open("rb"))
            finally:
                draft.unlink(missing_ok=True)

    def read(self, key: str, start: int, length: int) -> bytes:
        """See `BlobStore.read`."""
        from botocore.exceptions import ClientError

        self._check(key)
        if length <= 0:
            return b""
        with self.errors(key), self._absence(key):
            try:
                answer = self.client().get_object(
                    Bucket=self.address.bucket,
                    Key=self._at(BLOBS, key),
                    Range=f"bytes={start}-{start + length - 1}",
                )
            except ClientError as error:
                if _code_of(error) in ("InvalidRange", "416"):
                    return b""
                raise
            with contextlib.closing(answer["Body"]) as body:
                return bytes(body.read())

    def get_to(self, key: str, path: str | Path, *, digest: str | None = None) -> Blob:
        """See `BlobStore.get_to`."""
        self._check(key)
        with self.errors(key):
            file = self._stat(key)
            try:
                with replacing(path) as draft:
                    found = self._backend().fetch(file, Path(draft))
                    check_digest(digest, found, f"the blob {key!r} of {self.address.where}")
            except OSError as error:
                raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return Blob(key, file.size, found)

    def exists(self, key: str, *, quick: bool = False) -> bool:
        """See `BlobStore.exists`; if `quick`, as in `S3Settings.quick`."""
        self._check(key)
        with self.errors(key):
            return self._relied_on(key, self._head(key, quick=quick))

    def size(self, key: str) -> int:
        """See `BlobStore.size`."""
        self._check(key)
        with self.errors(key):
            return int(self._stat(key).size)

    def delete(self, key: str) -> bool:
        """See `BlobStore.delete`."""
        self._check(key)
        with self.errors(key):
            if self._head(key) is None:
                return False
            self._remove(BLOBS, key)
        return True

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `BlobStore.list`."""
        with self.errors(prefix):
            found = [one["Key"] for one in self._objects(BLOBS + prefix)]
        start = len(self._prefix) + len(BLOBS)
        return iter(sorted(key[start:] for key in found))

    # -- pruning --------------------------------------------------------------------------------

    def stored(self) -> Iterator[Stored]:
        """See `BlobStore.stored`."""
        with self.errors(""):
            touched = {
                one["Key"][len(self._prefix) + len(TOUCHED) :]: one["LastModified"]
                for one in self._objects(TOUCHED)
            }
            now = self._now()
            start = len(self._prefix) + len(BLOBS)
            for one in self._objects(BLOBS):
                key = one["Key"][start:]
                used = max(one["LastModified"], touched.get(key, one["LastModified"]))
                yield Stored(key, int(one["Size"]), (now - used).total_seconds() - self._touch_s)

    def discard(self, keys: Iterable[str], *, unused_s: float) -> Removed:
        """See `BlobStore.discard`; also removes the parts of abandoned uploads."""
        removed = Removed()
        waiting = sorted(keys)
        with self.errors("prune"):
            for start in range(0, len(waiting), PRUNED_TOGETHER):
                self._discard(waiting[start : start + PRUNED_TOGETHER], unused_s, removed)
            self._drop_parts()
        return removed

    def put_back(self, key: str) -> None:
        """See `BlobStore.put_back`; does nothing, because nothing is set aside."""

    def _discard(self, keys: Sequence[str], unused_s: float, removed: Removed) -> None:
        """Announce the keys, read their times, remove them; see the module's docstring."""
        name = token(8)
        self._put(PRUNE, name, json.dumps({"keys": list(keys)}).encode())
        ends_s = time.monotonic() + PRUNING_S

        def one(key: str) -> tuple[int, bool] | None:
            head = self._head(key)
            if head is None:
                return None
            if self._unused_s(key, head) < unused_s + self._touch_s:
                return 0, False
            if time.monotonic() > ends_s:
                return None  # clients may no longer wait for this list; the next prune removes it
            self._remove(BLOBS, key)
            self._remove(TOUCHED, key)
            return int(head["ContentLength"]), True

        try:
            for result in self._at_once(one, keys):
                if result is not None and result[1]:
                    removed.files += 1
                    removed.bytes += result[0]
                elif result is not None:
                    removed.spared += 1
        finally:
            # If the prune is killed before this, the list expires after `LIST_S`.
            self._remove(PRUNE, name)

    def _drop_parts(self) -> None:
        client, now = self.client(), self._now()
        for one in self.uploads():
            if (now - one["Initiated"]).total_seconds() > ABANDONED_S:
                upload = {"Key": one["Key"], "UploadId": one["UploadId"]}
                client.abort_multipart_upload(Bucket=self.address.bucket, **upload)

    def _condemned(self) -> set[str]:
        """Return the keys that prunes are removing now."""
        keys: set[str] = set()
        now: datetime | None = None
        for listed in self._objects(PRUNE):
            now = now or self._now()
            if (now - listed["LastModified"]).total_seconds() > LIST_S:
                continue
            with contextlib.suppress(NotFoundError):
                keys.update(json.loads(self._get(listed["Key"]))["keys"])
        return keys

    def _wait_for_prunes(self, key: str) -> None:
        end_s = time.monotonic() + LIST_S + PRUNING_S
        while key in self._condemned() and time.monotonic() < end_s:
            time.sleep(POLL_S)

    def _holds(self, key: str, size: int, digest: str) -> bool:
        """Whether the bytes with this digest are stored completely and will not be pruned now."""
        head = self._head(key)
        if head is None or int(head["ContentLength"]) != size:
            return False
        kept = (head.get("Metadata") or {}).get(DIGEST_FIELD)
        return kept == _hex_of(digest) and self._relied_on(key, head)

    def _relied_on(self, key: str, head: Any) -> bool:
        """Record the use of a blob; return False if it is missing or being removed."""
        if head is None:
            return False
        if (_date_of(head) - head["LastModified"]).total_seconds() < self._touch_s:
            return True
        self._put(TOUCHED, key, b"")
        return self._stays(key)

    def _stays(self, key: str) -> bool:
        """Whether a blob that was just stored or touched is safe from running prunes.

        The order matters: a prune whose list is gone has finished removing, and a prune whose list
        appears after this check sees the new time.
        """
        return key not in self._condemned() and self._head(key) is not None

    def _unused_s(self, key: str, head: Any) -> float:
        used = head["LastModified"]
        with contextlib.suppress(NotFoundError):
            used = max(used, self._head_of(self._at(TOUCHED, key))["LastModified"])
        return float((_date_of(head) - used).total_seconds())

    # -- the owner of the prefix -------------------------------------------------------------

    def owner(self) -> dict[str, Any] | None:
        """Return the record of the workspace that owns the prefix; None if it has no owner."""
        with self.errors(RECORD):
            try:
                found = json.loads(self._get(self._prefix + RECORD))
            except NotFoundError:
                return None
            except ValueError as error:
                raise StoreError(
                    f"{RECORD} in {self.address.where} is damaged, or another program wrote it. "
                    f"Name another prefix"
                ) from error
        return dict(found)

    def take(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Record the owner of the prefix unless it has one; return the stored record.

        Args:
            values: ``id``, ``name`` and ``schema`` of the workspace.
        """
        found = self.owner()
        if found is None:
            with self.errors(RECORD):
                self._put("", RECORD, json.dumps(dict(values)).encode(), only_new=True)
            found = self.owner()
        return found or {}

    def make_bucket(self) -> None:
        """Create the bucket unless it exists."""
        from botocore.exceptions import ClientError

        region = self.client().meta.region_name
        options = {}
        if not self.address.endpoint and region not in (None, "", "us-east-1"):
            options = {"CreateBucketConfiguration": {"LocationConstraint": region}}
        with self.errors(RECORD):
            try:
                self.client().create_bucket(Bucket=self.address.bucket, **options)
            except ClientError as error:
                if _code_of(error) not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise

    def clock_s(self) -> float:
        """Return the server's time, in seconds since 1970."""
        with self.errors(RECORD):
            return self._now().timestamp()

    # -- requests ----------------------------------------------------------------------------

    def _backend(self) -> S3Backend:
        with self._guard:
            if self._opened is None:
                from rayjobs.datastore.backends.s3 import S3Backend

                self._opened = S3Backend.from_record(
                    self.address.record("workspace", BLOBS.rstrip("/"))
                )
            return self._opened

    def client(self) -> Any:
        """Return botocore's client; it may be used from several threads."""
        return self._backend().client()

    def object_of(self, key: str) -> dict[str, str]:
        """Return the bucket and object of a blob."""
        self._check(key)
        return {"Bucket": self.address.bucket, "Key": self._at(BLOBS, key)}

    def _at(self, kind: str, key: str) -> str:
        return self._prefix + kind + key

    def _check(self, key: str) -> None:
        check_key(key)
        if len(os.fsencode(self._at(TOUCHED, key))) > MOST_KEY_BYTES:
            raise UsageError(f"{key!r} is not a blob key: it is too long for S3")

    def _stat(self, key: str) -> Any:
        found = self._backend().stat(key)
        if found is None:
            raise self._missing(key)
        return found

    def _missing(self, key: str) -> NotFoundError:
        return NotFoundError(
            f"there is no blob {key!r} in {self.address.where}; it was never stored, or it was "
            f"pruned",
            key=key,
        )

    def _head(self, key: str, *, quick: bool = False) -> Any:
        try:
            return self._head_of(self._at(BLOBS, key), quick=quick)
        except NotFoundError:
            return None

    def _head_of(self, full: str, *, quick: bool = False) -> Any:
        with self._absence(full):
            client = self._backend().client(quick=quick)
            return client.head_object(Bucket=self.address.bucket, Key=full)

    def _get(self, full: str) -> bytes:
        with self._absence(full):
            answer = self.client().get_object(Bucket=self.address.bucket, Key=full)
            with contextlib.closing(answer["Body"]) as body:
                return bytes(body.read())

    def _put(self, kind: str, key: str, data: bytes, *, only_new: bool = False) -> None:
        from botocore.exceptions import ClientError

        options = {"IfNoneMatch": "*"} if only_new else {}
        try:
            self.client().put_object(
                Bucket=self.address.bucket, Key=self._at(kind, key), Body=data, **options
            )
        except ClientError as error:
            conflicts = ("PreconditionFailed", "ConditionalRequestConflict")
            if not only_new or _code_of(error) not in conflicts:
                raise

    def _remove(self, kind: str, key: str) -> None:
        self.client().delete_object(Bucket=self.address.bucket, Key=self._at(kind, key))

    def _objects(self, below: str) -> Iterator[Any]:
        pages = self.client().get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self.address.bucket, Prefix=self._prefix + below):
            yield from page.get("Contents", ())

    def uploads(self, prefix: str = "") -> Iterator[Any]:
        """Yield the unfinished multipart uploads to keys that begin with `prefix`, as S3 does."""
        pages = self.client().get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=self.address.bucket, Prefix=self._at(BLOBS, prefix)):
            yield from page.get("Uploads", ())

    def _now(self) -> datetime:
        """Return the time of the server."""
        return _date_of(
            self.client().list_objects_v2(
                Bucket=self.address.bucket, Prefix=self._prefix + RECORD, MaxKeys=1
            )
        )

    def _draft(self) -> Path:
        make_folders(self.scratch)
        drop_abandoned(self.scratch)
        return self.scratch / f"{os.getpid()}-{token(8)}"

    def _at_once(self, work: Callable[[Any], Result], items: Iterable[Any]) -> Iterator[Result]:
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            yield from pool.map(work, items)

    @contextmanager
    def _absence(self, full: str) -> Iterator[None]:
        from botocore.exceptions import ClientError

        from rayjobs.datastore.backends.s3_errors import status_of

        try:
            yield
        except ClientError as error:
            if status_of(error) == 404 and _code_of(error) != "NoSuchBucket":
                raise self._missing(full) from error
            raise

    @contextmanager
    def errors(self, key: str) -> Iterator[None]:
        """Convert errors of the storage and the disk to those of a blob store."""
        from botocore.exceptions import BotoCoreError, ClientError

        from rayjobs.datastore.errors import BucketNotFound, DataNotFound, DatastoreError

        try:
            yield
        except RayjobsError:
            raise
        except BucketNotFound as error:
            raise self._failed(error) from error
        except DataNotFound as error:
            raise self._missing(key) from error
        except DatastoreError as error:
            raise self._failed(error) from error
        except (BotoCoreError, ClientError) as error:
            from rayjobs.datastore.backends.s3_errors import explain, status_of

            where = self.address.where
            if _code_of(error) in _FULL or status_of(error) == 507:
                raise StorageFullError(
                    f"no space is left for files in {where} ({_code_of(error)}); the existing "
                    f"files are unchanged. Free space there, or raise the quota"
                ) from error
            raise self._failed(explain(error, what=f"use {key!r}")) from error
        except OSError as error:
            raise StoreError(f"{key} cannot be read or written: {error}") from error

    def _failed(self, error: Exception) -> StoreError:
        from rayjobs.datastore.errors import BucketNotFound, DatastoreUnavailable

        where = self.address.where
        why = str(error)
        if isinstance(error, BucketNotFound):
            why = "there is no bucket of this name: create it, or check the address"
        kind = StoreUnreachableError if isinstance(error, DatastoreUnavailable) else StoreError
        return kind(f"the workspace's files in {where} are not available: {why}", path=where)


_FULL = ("QuotaExceeded", "XMinioStorageFull", "StorageFull", "InsufficientStorage")


def _code_of(error: Exception) -> str:
    return str((getattr(error, "response", None) or {}).get("Error", {}).get("Code", ""))


def _hex_of(digest: str) -> str:
    return digest.partition(":")[2]


def _date_of(answer: Any) -> datetime:
    """Return the server's time in an answer."""
    text = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return datetime.now(UTC) if text is None else parsedate_to_datetime(text)

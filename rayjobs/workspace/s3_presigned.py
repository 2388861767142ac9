"""Signed URLs with which a server's clients upload and download a workspace's files in S3.

A client sends a file in the parts of a multipart upload below ``blobs/uploads/``. The server
completes the upload, reads it once to check the digest of its bytes, and copies it to its key
inside the bucket. So no client can store bytes under a wrong digest.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rayjobs.core.errors import NotFoundError, SnapshotError, StoreError
from rayjobs.snapshots.unpack import is_of_key, require_key
from rayjobs.workspace.blobs import CHUNK_BYTES, Blob, blob_key, check_digest
from rayjobs.workspace.http_messages import Part, Parts
from rayjobs.workspace.s3_blobs import S3Blobs
from rayjobs.workspace.s3_source import MOST_PARTS, PART_BYTES

VALID_S = 3600
PARTS_TOGETHER = 100  # URLs in one answer; the client asks again for more


class Presigned:
    """Signs URLs for the files of one workspace. Thread-safe.

    Args:
        endpoint: The bucket's server as clients reach it; None means the address this machine uses.
    """

    def __init__(self, blobs: S3Blobs, endpoint: str | None = None) -> None:
        self._blobs = blobs
        self._endpoint = endpoint
        self._signs: Any = None

    def download(self, key: str) -> str:
        """Return the URL of a blob for a GET, valid for an hour. Does not check that it exists."""
        return self._signed("get_object", key)

    def parts(self, staged: str, size: int) -> Parts:
        """Return the missing parts of an upload of `size` bytes to the key `staged`."""
        part_bytes = max(PART_BYTES, -(-size // MOST_PARTS))
        with self._blobs.errors(staged):
            upload = self._upload_of(staged)
            known: dict[int, int] = {}
            if upload is not None:
                known = {one["PartNumber"]: one["Size"] for one in self._sent(staged, upload)}
            elif self._size(staged) == size:
                return Parts(part_bytes, [])  # already complete: its answer was lost
            else:
                upload = self._client().create_multipart_upload(**self._object(staged))["UploadId"]
            missing = []
            for number in range(1, -(-size // part_bytes) + 1):
                if known.get(number) != min(part_bytes, size - (number - 1) * part_bytes):
                    missing.append(number)
                    if len(missing) == PARTS_TOGETHER:
                        break
            return Parts(
                part_bytes,
                [
                    Part(
                        number,
                        self._signed("upload_part", staged, UploadId=upload, PartNumber=number),
                    )
                    for number in missing
                ],
            )

    def keep(self, staged: str, size: int, key: str | None, digest: str) -> Blob:
        """Move a complete upload to its key; None means the key of its digest.

        A call that is repeated after a lost answer returns the existing blob.

        Raises:
            NotFoundError: the upload is not complete.
            StoreError: its bytes have another digest; they are removed.
            SnapshotError: its bytes are not the snapshot that the key names; they are removed.
        """
        target = key or blob_key(digest)
        with self._blobs.errors(staged):
            upload = self._upload_of(staged)
            if upload is not None:
                self._complete(staged, upload, size)
            elif self._size(staged) is None:
                if self._blobs.exists(target):
                    return Blob(target, self._blobs.size(target), digest)
                raise NotFoundError("this upload does not exist: send it again")
            etag, found = self._digest_of(staged)
            try:
                check_digest(digest, found, "the upload")
                if key is not None:
                    # A snapshot's key names its content: others run it without sending it again.
                    with contextlib.closing(self._body(staged, etag)) as body:
                        require_key(body, key)
            except (StoreError, SnapshotError):
                self._blobs.delete(staged)
                raise
            if key is not None and self._is_whole(key):
                self._blobs.delete(staged)
                return Blob(key, self._blobs.size(key), digest)
            blob = self._blobs.copy_in(staged, target, digest=digest, size=size, etag=etag)
            self._blobs.delete(staged)
            return blob

    def _complete(self, staged: str, upload: str, size: int) -> None:
        sent = sorted(self._sent(staged, upload), key=lambda one: one["PartNumber"])
        found = sum(one["Size"] for one in sent)
        if found != size:
            raise NotFoundError(f"the upload has {found} bytes instead of {size}")
        parts = [{"PartNumber": one["PartNumber"], "ETag": one["ETag"]} for one in sent]
        self._client().complete_multipart_upload(
            **self._object(staged), UploadId=upload, MultipartUpload={"Parts": parts}
        )

    def _is_whole(self, key: str) -> bool:
        if not self._blobs.exists(key):
            return False
        with contextlib.closing(self._body(key)) as body:
            return is_of_key(body, key)

    def _body(self, key: str, etag: str | None = None) -> Any:
        condition = {} if etag is None else {"IfMatch": etag}
        return self._client().get_object(**self._object(key), **condition)["Body"]

    def _digest_of(self, staged: str) -> tuple[str, str]:
        answer = self._client().get_object(**self._object(staged))
        digest = hashlib.sha256()
        with contextlib.closing(answer["Body"]) as body:
            for piece in body.iter_chunks(CHUNK_BYTES):
                digest.update(piece)
        return answer["ETag"], f"sha256:{digest.hexdigest()}"

    def _upload_of(self, staged: str) -> str | None:
        """Return the multipart upload to a key that any server of this workspace has begun."""
        name = self._object(staged)["Key"]
        uploads = [one for one in self._blobs.uploads(staged) if one["Key"] == name]
        if not uploads:
            return None
        return str(min(uploads, key=lambda one: (one["Initiated"], one["UploadId"]))["UploadId"])

    def _sent(self, staged: str, upload: str) -> Iterator[Any]:
        pages = self._client().get_paginator("list_parts")
        for page in pages.paginate(**self._object(staged), UploadId=upload):
            yield from page.get("Parts", ())

    def _size(self, key: str) -> int | None:
        try:
            return self._blobs.size(key)
        except NotFoundError:
            return None

    def _object(self, key: str) -> dict[str, str]:
        return self._blobs.object_of(key)

    def _client(self) -> Any:
        return self._blobs.client()

    def _signed(self, method: str, key: str, **kwargs: Any) -> str:
        if self._signs is None:
            self._signs = self._blobs.client()
            if self._endpoint is not None:
                address = replace(self._blobs.address, endpoint=self._endpoint)
                self._signs = S3Blobs(address, self._blobs.scratch).client()
        return str(
            self._signs.generate_presigned_url(
                method, Params={**self._object(key), **kwargs}, ExpiresIn=VALID_S
            )
        )

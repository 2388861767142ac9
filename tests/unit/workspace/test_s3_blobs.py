"""Requests of blobs in S3, with a double of botocore's client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session
from botocore.stub import Stubber

from rayjobs.workspace.s3_address import S3Address
from rayjobs.workspace.s3_blobs import S3Blobs
from rayjobs.workspace.s3_presigned import Presigned

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def client() -> Any:
    return get_session().create_client(
        "s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )


@pytest.fixture
def blobs(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Blobs:
    made = S3Blobs(S3Address("bucket", "w"), tmp_path)
    monkeypatch.setattr(made, "client", lambda: client)
    monkeypatch.setattr(made, "_now", lambda: NOW)
    return made


def add_page(stub: Stubber, prefix: str, key: str, after: str = "", *, is_last: bool) -> None:
    """Let the server list one old upload, on the page that follows the key `after`."""
    upload = {"Key": key, "UploadId": f"of {key}", "Initiated": NOW - timedelta(days=365)}
    answer: dict[str, Any] = {"Uploads": [upload], "IsTruncated": not is_last}
    if not is_last:
        answer |= {"NextKeyMarker": key, "NextUploadIdMarker": f"of {key}"}
    marks = {"KeyMarker": after, "UploadIdMarker": f"of {after}"} if after else {}
    wanted = {"Bucket": "bucket", "Prefix": prefix, **marks}
    stub.add_response("list_multipart_uploads", answer, wanted)


def test_abandoned_uploads_of_all_pages_are_removed(blobs: S3Blobs, client: Any) -> None:
    after = ""
    with Stubber(client) as stub:
        for key in ("w/blobs/a", "w/blobs/b"):
            add_page(stub, "w/blobs/", key, after, is_last=bool(after))
            removed = {"Bucket": "bucket", "Key": key, "UploadId": f"of {key}"}
            stub.add_response("abort_multipart_upload", {}, removed)
            after = key
        blobs.discard([], unused_s=0)
        stub.assert_no_pending_responses()


def test_an_upload_on_a_later_page_is_found(blobs: S3Blobs, client: Any) -> None:
    name = "w/blobs/uploads/a"
    with Stubber(client) as stub:
        add_page(stub, name, f"{name}-other", is_last=False)
        add_page(stub, name, name, f"{name}-other", is_last=True)
        assert Presigned(blobs)._upload_of("uploads/a") == f"of {name}"

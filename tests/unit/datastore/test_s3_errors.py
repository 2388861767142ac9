"""Errors of S3 name the storage once."""

from __future__ import annotations

import pytest
from botocore import exceptions as boto

from rayjobs.datastore.backends.s3_errors import explain
from rayjobs.datastore.errors import DatastoreUnavailable

URL = "http://127.0.0.1:9/bucket/a"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (boto.EndpointConnectionError(endpoint_url=URL, error="x"), "Could not connect"),
        (boto.ConnectTimeoutError(endpoint_url=URL, error="x"), "Connect timeout"),
        (boto.ReadTimeoutError(endpoint_url=URL, error="x"), "Read timeout"),
        (
            boto.ConnectionClosedError(endpoint_url=URL),
            "Connection was closed before we received a valid response",
        ),
    ],
)
def test_a_storage_that_does_not_answer_is_named_once(error: Exception, why: str) -> None:
    found = explain(error, what="use 'a'", where="s3://bucket at http://127.0.0.1:9")
    assert isinstance(found, DatastoreUnavailable)
    assert str(found).startswith(
        f"cannot use 'a' on s3://bucket at http://127.0.0.1:9: {why}. The "
    )

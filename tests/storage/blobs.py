"""Blobs in the run's S3 server, each test below its own prefix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.datastore.credentials import AWS_KEYS
from rayjobs.target.secrets import TargetSecrets
from rayjobs.workspace.s3_address import S3Address
from rayjobs.workspace.s3_blobs import S3Blobs
from tests.storage.server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.support.local_target import LocalTarget


@pytest.fixture
def given_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export the server's keys, as a user does."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


def address_in(server: S3Server, *, endpoint: str | None = None) -> S3Address:
    """Return an address with a new, empty prefix."""
    return S3Address(BUCKET, f"w{next(server.prefixes)}/team", endpoint or server.endpoint)


def blobs_in(server: S3Server, scratch: Path, *, touch_s: float = 0.0) -> S3Blobs:
    """Return blobs below a new prefix."""
    return S3Blobs(address_in(server), scratch, touch_s=touch_s)


@pytest.fixture
def target(local_target: LocalTarget) -> Iterator[LocalTarget]:
    """The running target; keys that a test gave it are removed at the end."""
    yield local_target
    for name in AWS_KEYS:
        TargetSecrets("local", home=local_target.home).remove(name)

"""A web server that hangs, drops connections, returns errors or changes its files.

Off switches: the length check in `WebBackend._get`, the digest check in `WebBackend.fetch`, the
retries in `WebBackend._bring`.
"""

from __future__ import annotations

import errno
import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.datastore.backends.base import StoredFile
from rayjobs.datastore.backends.web import WebBackend
from rayjobs.datastore.digests import digest_of
from rayjobs.datastore.errors import DataChanged, DatastoreUnavailable, TransferFailed
from tests.unit.datastore.web_server import WebServer

CONTENT = b"0123456789" * 1000


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer().running() as made:
        made.files["/a"] = CONTENT
        yield made


@pytest.fixture
def backend(server: WebServer, tmp_path: Path) -> WebBackend:
    return WebBackend(server.root, tmp_path / "web", attempts=2, timeout_s=20.0, pause_s=0.01)


@pytest.mark.parametrize("fault", ["cut", "503", "429"])
def test_transient_fault_is_retried(server: WebServer, backend: WebBackend, fault: str) -> None:
    server.faults = [fault]
    file = backend.stat("a")
    assert file is not None and file.digest == digest_of(CONTENT)
    assert len(server.statuses("/a")) == 2


@pytest.mark.parametrize(
    "error",
    [ssl.SSLError(1, "bad record mac"), OSError(errno.EHOSTUNREACH, "No route to host")],
    ids=["tls", "network"],
)
def test_a_connection_that_fails_while_it_is_read_is_retried(
    server: WebServer, backend: WebBackend, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    read, errors = http.client.HTTPResponse.read, [error]

    def failing_once(answer: http.client.HTTPResponse, size: int | None = None) -> bytes:
        if errors:
            raise errors.pop()
        return read(answer, size)

    monkeypatch.setattr(http.client.HTTPResponse, "read", failing_once)
    file = backend.stat("a")
    assert file is not None and file.digest == digest_of(CONTENT)
    assert len(server.statuses("/a")) == 2


def test_a_cache_that_cannot_be_written_is_named(backend: WebBackend, tmp_path: Path) -> None:
    partial = tmp_path / "web" / "partial" / backend._index("a").stem
    partial.mkdir(parents=True)
    with pytest.raises(TransferFailed, match=f"cannot write {partial}: Is a directory"):
        backend.stat("a")


def test_repeatedly_interrupted_file_is_never_considered_complete(
    server: WebServer, backend: WebBackend, tmp_path: Path
) -> None:
    server.faults = ["cut", "cut"]
    with pytest.raises(DatastoreUnavailable, match="broke off"):
        backend.stat("a")
    assert list((tmp_path / "web" / "objects").iterdir()) == []


def test_hanging_server_is_abandoned(server: WebServer, tmp_path: Path) -> None:
    server.faults = ["hang"]
    backend = WebBackend(server.root, tmp_path / "web", attempts=1, timeout_s=0.2)
    with pytest.raises(DatastoreUnavailable, match="no answer within"):
        backend.stat("a")


def test_bytes_with_a_wrong_digest_are_refused(
    server: WebServer, backend: WebBackend, tmp_path: Path
) -> None:
    recorded = StoredFile("a", 3, "", digest_of(b"old"))
    with pytest.raises(DataChanged, match="is not the file that was recorded"):
        backend.fetch(recorded, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_kept_file_that_was_damaged_is_fetched_again(
    server: WebServer, backend: WebBackend, tmp_path: Path
) -> None:
    file = backend.stat("a")
    assert file is not None
    (kept,) = (tmp_path / "web" / "objects").iterdir()
    kept.write_bytes(b"damaged")
    backend.fetch(file, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == CONTENT

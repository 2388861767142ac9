"""Reports while an S3 server accepts connections and does not respond."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.datastore.backends.s3 import S3Backend
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.errors import DatastoreUnavailable
from tests.storage.proxy import Proxy

pytestmark = pytest.mark.long


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A server that accepts connections, never responds, and is identified by its port."""
    monkeypatch.setenv("TEST_ACCESS_KEY", "key")
    monkeypatch.setenv("TEST_SECRET_KEY", "secret")
    with Proxy(1) as proxy:
        proxy.mode = "hang"
        yield proxy


def _backend(proxy: Proxy, **settings: str) -> S3Backend:
    given = {
        "bucket": "pets",
        "endpoint": proxy.endpoint,
        "access_key_env": "TEST_ACCESS_KEY",
        "secret_key_env": "TEST_SECRET_KEY",
    }
    return S3Backend.from_record(DatastoreRecord("photos", "s3", {**given, **settings}))


def test_check_gives_up_soon_and_reports_what_it_waits_for(
    silent: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    backend = _backend(silent)
    with pytest.raises(DatastoreUnavailable, match="check its address"):
        backend.check()
    server = f"s3://pets at http://127.0.0.1:{silent.port}"
    assert caplog.messages == [
        f"waiting for {server}: no answer for 3s; gives up after 15s at most",
        f"{server}: no answer within 4s; trying again, attempt 2 of 2",
    ]


def test_an_interactive_listing_gives_up_as_soon_as_a_check(silent: Proxy) -> None:
    with pytest.raises(DatastoreUnavailable):
        _backend(silent).children("photos")
    assert silent.connections == 2


def test_limits_of_the_datastore_itself_hold_for_a_check(
    silent: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DatastoreUnavailable):
        _backend(silent, read_timeout_s="0.2", attempts="3").check()
    assert [text.partition(f"{silent.port}: ")[2] for text in caplog.messages] == [
        "no answer within 0.2s; trying again, attempt 2 of 3",
        "no answer within 0.2s; trying again, attempt 3 of 3",
    ]


def test_a_transfer_keeps_its_patience_and_reports_each_retry(
    silent: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "cat.jpg"
    source.write_bytes(b"cat")
    with pytest.raises(DatastoreUnavailable):
        _backend(silent, read_timeout_s="0.2").put(source, "cat.jpg")
    assert [text[-len("attempt 2 of 4") :] for text in caplog.messages] == [
        "attempt 2 of 4",
        "attempt 3 of 4",
        "attempt 4 of 4",
    ]


def test_an_answer_of_an_overloaded_server_is_named(
    silent: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    silent.mode = "503"
    with pytest.raises(DatastoreUnavailable):
        _backend(silent).check()
    assert caplog.messages[0].endswith(": answers 503; trying again, attempt 2 of 2")

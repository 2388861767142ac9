"""Blobs in S3 under faults: servers that refuse, hang or break off, killed clients, prunes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import StoreError, StoreUnreachableError, UsageError
from rayjobs.workspace import s3_blobs, s3_source
from rayjobs.workspace.blobs import blob_key
from rayjobs.workspace.s3_address import S3Address
from rayjobs.workspace.s3_blobs import S3Blobs
from tests.contract.blob_contract import content, digest_of
from tests.storage.blobs import address_in, blobs_in, given_keys
from tests.storage.proxy import Proxy
from tests.storage.server import S3Server

__all__ = ["given_keys"]

pytestmark = [pytest.mark.storage, pytest.mark.usefixtures("given_keys")]

LARGE = s3_source.PART_BYTES * 2 + 12_345


@pytest.fixture
def blobs(s3_server: S3Server, tmp_path: Path) -> S3Blobs:
    return blobs_in(s3_server, tmp_path / "scratch")


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with Proxy(s3_server.port) as made:
        yield made


@pytest.fixture
def behind(s3_server: S3Server, proxy: Proxy, tmp_path: Path, quick: None) -> S3Blobs:
    """Blobs that are reached through the proxy."""
    return S3Blobs(address_in(s3_server, endpoint=proxy.endpoint), tmp_path / "scratch")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients wait for seconds instead of minutes."""
    from rayjobs.datastore.backends import s3_settings

    plain = s3_settings.S3Settings.from_record

    def short(record: Any) -> Any:
        values = {"connect_timeout_s": "2", "read_timeout_s": "2", "attempts": "2"}
        return plain(type(record)(record.name, record.kind, {**record.settings, **values}))

    monkeypatch.setattr(s3_settings.S3Settings, "from_record", staticmethod(short))


def large(path: Path) -> Path:
    path.write_bytes(os.urandom(LARGE))
    return path


# --- large files ---------------------------------------------------------------------------------


def test_a_large_file_is_stored_in_parts(blobs: S3Blobs, tmp_path: Path) -> None:
    source = large(tmp_path / "large")
    blob = blobs.add_file(source)
    assert blob.size == LARGE and blob.digest == digest_of(source.read_bytes())
    assert content(blobs, blob.key) == source.read_bytes()
    assert blobs.get_to(blob.key, tmp_path / "copy", digest=blob.digest) == blob


def test_a_large_file_that_changes_meanwhile_is_not_stored(
    blobs: S3Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = large(tmp_path / "large")
    plain = s3_source.Source.parts

    def changed(self: Any) -> Iterator[bytes]:
        with source.open("r+b") as file:
            file.seek(LARGE // 2)
            file.write(b"other bytes")
        yield from plain(self)

    monkeypatch.setattr(s3_source.Source, "parts", changed)
    with pytest.raises(StoreError, match="it changed while it was read"):
        blobs.put_file(source, "a")
    assert not blobs.exists("a")
    assert not uploads(blobs)


def uploads(blobs: S3Blobs) -> list[Any]:
    """Return the uploads in parts that are not complete."""
    found = blobs.client().list_multipart_uploads(Bucket=blobs.address.bucket)
    return [one for one in found.get("Uploads", ()) if one["Key"].startswith(blobs._prefix)]


UPLOAD = """
import sys
from pathlib import Path

from rayjobs.workspace.s3_address import S3Address
from rayjobs.workspace.s3_blobs import S3Blobs

bucket, prefix, endpoint, source, scratch = sys.argv[1:]
print("begins", flush=True)
S3Blobs(S3Address(bucket, prefix, endpoint), Path(scratch)).put_file(source, "a")
"""


def test_an_upload_that_is_killed_leaves_nothing(
    blobs: S3Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.put_bytes(b"before", "a")
    source = tmp_path / "large"
    with source.open("wb") as file:
        file.truncate(40 * s3_source.PART_BYTES)
    address = blobs.address
    client = subprocess.Popen(
        [
            *(sys.executable, "-c", UPLOAD, address.bucket, address.prefix, address.endpoint),
            *(str(source), str(tmp_path / "scratch")),
        ],
        stdout=subprocess.PIPE,
    )
    with client:
        while not uploads(blobs):
            assert client.poll() is None
        client.send_signal(signal.SIGKILL)
    assert content(blobs, "a") == b"before"
    assert uploads(blobs)
    # A later prune removes the parts that the dead client has sent.
    monkeypatch.setattr(s3_blobs, "ABANDONED_S", -1.0)
    blobs.discard([], unused_s=0.0)
    assert not uploads(blobs)


# --- servers that do not answer ------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["503", "hang", "cut_request"])
def test_a_server_that_does_not_answer_is_named(
    behind: S3Blobs, proxy: Proxy, tmp_path: Path, mode: str
) -> None:
    behind.put_bytes(b"kept", "a")
    proxy.lose()
    proxy.mode = mode
    (tmp_path / "b").write_bytes(b"new")
    calls: list[Callable[[], object]] = [
        lambda: behind.open("a"),
        lambda: behind.exists("a"),
        lambda: behind.add_file(tmp_path / "b"),
        lambda: list(behind.list()),
    ]
    for call in calls:
        with pytest.raises(
            StoreUnreachableError, match=r"files in s3://.*are not available"
        ) as failed:
            call()
        assert str(failed.value).count(behind.address.where) == 1
    proxy.lose()
    proxy.come_back()
    assert content(behind, "a") == b"kept"
    assert not behind.exists(blob_key(digest_of(b"new")))


@pytest.mark.parametrize(("quick", "most"), [(True, 2), (False, 4)])
def test_caller_of_exists_chooses_how_soon_it_fails_without_a_file_server(
    s3_server: S3Server,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    quick: bool,
    most: int,
) -> None:
    blobs = S3Blobs(S3Address("bucket", "w", "http://127.0.0.1:9"), tmp_path)
    with pytest.raises(StoreUnreachableError, match="not available"):
        blobs.exists("a", quick=quick)
    assert [text.partition(": ")[2] for text in caplog.messages] == [
        f"no connection is possible; trying again, attempt {number} of {most}"
        for number in range(2, most + 1)
    ]


def test_one_broken_connection_does_not_fail_a_submit(
    s3_server: S3Server, proxy: Proxy, tmp_path: Path
) -> None:
    blobs = S3Blobs(address_in(s3_server, endpoint=proxy.endpoint), tmp_path)
    blobs.put_bytes(b"kept", "a")
    proxy.lose()
    proxy.mode, proxy.cut_after, proxy.cuts_left = "cut", 0, 1
    assert blobs.exists("a", quick=True)


def test_a_server_that_refuses_connections_is_named(
    s3_server: S3Server, tmp_path: Path, quick: None
) -> None:
    blobs = S3Blobs(S3Address("bucket", "w", "http://127.0.0.1:9"), tmp_path)
    with pytest.raises(StoreUnreachableError, match="not available"):
        blobs.put_bytes(b"x", "a")


def test_refused_keys_are_not_an_outage(blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    from rayjobs.datastore.backends import s3_settings

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    s3_settings._session.cache_clear()  # as in a new process
    with pytest.raises(StoreError, match="Check the credentials") as refused:
        blobs.put_bytes(b"x", "a")
    s3_settings._session.cache_clear()
    assert not isinstance(refused.value, StoreUnreachableError)


def test_a_bucket_that_does_not_exist_is_named(s3_server: S3Server, tmp_path: Path) -> None:
    blobs = S3Blobs(S3Address("no-such-bucket", "w", s3_server.endpoint), tmp_path)
    with pytest.raises(StoreError, match="no bucket"):
        list(blobs.list())


def test_interrupted_read_continues(behind: S3Blobs, proxy: Proxy, tmp_path: Path) -> None:
    source = large(tmp_path / "large")
    blob = behind.add_file(source)
    proxy.lose()
    proxy.mode, proxy.cut_after, proxy.cuts_left = "cut", LARGE // 2, 1
    assert content(behind, blob.key) == source.read_bytes()
    assert proxy.cuts_left < 1
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize("way", ["open", "get_to"])
def test_bytes_changed_in_transit_are_refused(
    behind: S3Blobs, proxy: Proxy, tmp_path: Path, way: str
) -> None:
    behind.put_bytes(b"some bytes of a model", "a")
    proxy.flip = b"of a model"
    with pytest.raises(StoreError, match="arrived with digest"):
        behind.open("a").close() if way == "open" else behind.get_to("a", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert content(behind, "a") == b"some bytes of a model"


def test_bytes_of_a_large_file_changed_in_transit_are_refused(
    behind: S3Blobs, proxy: Proxy, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(b"0123456789abcdef" * (LARGE // 16))  # its tag is not a digest
    behind.put_file(tmp_path / "large", "a")
    proxy.flip = b"0123456789abcdef"
    with pytest.raises(StoreError, match="arrived with digest"):
        behind.open("a").close()


# --- prunes --------------------------------------------------------------------------------------


def unused(blobs: S3Blobs) -> dict[str, float]:
    return {one.key: one.unused_s for one in blobs.stored()}


def test_prune_removes_only_unused_blobs(blobs: S3Blobs) -> None:
    for key in ("old", "kept"):
        blobs.put_bytes(key.encode(), key)
    removed = blobs.discard(["old", "absent"], unused_s=-10.0)
    assert (removed.files, removed.bytes, removed.spared) == (1, 3, 0)
    assert list(blobs.list()) == ["kept"]
    assert list(unused(blobs)) == ["kept"]
    assert blobs.discard(["kept"], unused_s=3600.0).spared == 1
    assert content(blobs, "kept") == b"kept"


def test_reused_blob_is_young_again(blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs.put_bytes(b"x", "a")
    later(monkeypatch, 7200.0, of="a")
    assert unused(blobs)["a"] > 7000
    assert blobs.exists("a")
    assert unused(blobs)["a"] < 100
    assert blobs.discard(["a"], unused_s=3600.0).spared == 1
    assert blobs.exists("a")


def later(monkeypatch: pytest.MonkeyPatch, seconds: float, *, of: str) -> None:
    """Let a blob appear older: the times that the server reports for it are moved back."""
    from datetime import timedelta

    plain_head, plain_objects = S3Blobs._head_of, S3Blobs._objects

    def head_of(self: S3Blobs, full: str, **how: Any) -> Any:
        found = plain_head(self, full, **how)
        if full == self._at(s3_blobs.BLOBS, of):
            found["LastModified"] -= timedelta(seconds=seconds)
        return found

    def objects(self: S3Blobs, below: str) -> Iterator[Any]:
        for one in plain_objects(self, below):
            if one["Key"] == self._at(s3_blobs.BLOBS, of):
                one = {**one, "LastModified": one["LastModified"] - timedelta(seconds=seconds)}
            yield one

    monkeypatch.setattr(S3Blobs, "_head_of", head_of)
    monkeypatch.setattr(S3Blobs, "_objects", objects)


@pytest.mark.parametrize("moment", ["before the removal", "after the prune"])
@pytest.mark.parametrize("way", ["relies", "stores", "adds"])
def test_writer_during_a_prune_loses_nothing(
    blobs: S3Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, moment: str
) -> None:
    """A writer arrives when a prune has read the times, and has not removed the blob yet.

    The writer checks for prunes before the removal, or only after the prune has ended.
    """
    source = tmp_path / "source"
    source.write_bytes(b"bytes")
    key = blobs.add_file(source).key
    monkeypatch.setattr(s3_blobs, "POLL_S", 0.05)
    has_looked, may_remove, ended = threading.Event(), threading.Event(), threading.Event()
    plain_remove, plain_condemned = S3Blobs._remove, S3Blobs._condemned
    problems: list[BaseException] = []
    kept: list[bool] = []

    def remove(self: S3Blobs, kind: str, name: str) -> None:
        if kind == s3_blobs.BLOBS:
            has_looked.set()
            assert may_remove.wait(60)
        plain_remove(self, kind, name)

    def condemned(self: S3Blobs) -> set[str]:
        if moment == "after the prune":
            may_remove.set()
            assert ended.wait(60)
            return plain_condemned(self)
        found = plain_condemned(self)
        may_remove.set()
        return found

    def prune() -> None:
        try:
            S3Blobs(blobs.address, tmp_path / "p", touch_s=0.0).discard([key], unused_s=-10.0)
        except BaseException as error:
            problems.append(error)
        ended.set()

    monkeypatch.setattr(S3Blobs, "_remove", remove)
    monkeypatch.setattr(S3Blobs, "_condemned", condemned)
    pruning = threading.Thread(target=prune)
    pruning.start()
    assert has_looked.wait(60)
    if way == "relies":
        kept.append(blobs.exists(key))
    elif way == "stores":
        blobs.put_file(source, key)
    else:
        blobs.add_file(source)
    pruning.join(60)
    assert not problems
    # A caller that gets False stores the bytes itself.
    assert kept == ([False] if way == "relies" else [])
    assert (key in list(blobs.list())) is (way != "relies")


def test_killed_prune_delays_others_only_briefly(
    blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.put_bytes(b"x", "a")
    plain = S3Blobs._remove

    def killed(self: S3Blobs, kind: str, name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(S3Blobs, "_remove", killed)
    with pytest.raises(KeyboardInterrupt):
        blobs.discard(["a"], unused_s=-10.0)
    monkeypatch.setattr(S3Blobs, "_remove", plain)
    assert blobs._condemned() == {"a"}
    monkeypatch.setattr(s3_blobs, "LIST_S", -1.0)  # some minutes later
    assert blobs.put_bytes(b"y", "a").size == 1
    assert content(blobs, "a") == b"y"


def test_a_prune_that_hangs_removes_nothing_afterwards(
    blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.put_bytes(b"x", "a")
    monkeypatch.setattr(s3_blobs, "PRUNING_S", -1.0)
    assert blobs.discard(["a"], unused_s=-10.0).files == 0
    assert content(blobs, "a") == b"x"


# --- addresses -----------------------------------------------------------------------------------


def test_an_address_is_parsed() -> None:
    address = S3Address.parsed("s3://bucket/a/b/", endpoint="http://host:9000/")
    assert address == S3Address("bucket", "a/b", "http://host:9000")
    assert S3Address.from_json(address.to_json()) == address
    assert S3Address.parsed("s3://bucket").url == "s3://bucket"


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("bucket/prefix", ""),
        ("s3://", ""),
        ("s3://key:secret@bucket/x", ""),
        ("s3://bucket/a/../b", ""),
        ("s3://bucket/a//b", ""),
        ("s3://bucket/a", "host:9000"),
        ("s3://bucket/a", "http://key:secret@host"),
    ],
)
def test_a_wrong_address_is_refused(url: str, endpoint: str) -> None:
    with pytest.raises(UsageError, match="is not valid"):
        S3Address.parsed(url, endpoint=endpoint)


def test_bucket_is_created_once(s3_server: S3Server, tmp_path: Path) -> None:
    address = S3Address(f"made-{next(s3_server.prefixes)}", "w", s3_server.endpoint)
    blobs = S3Blobs(address, tmp_path / "scratch")
    for _ in range(2):
        blobs.make_bucket()
    assert blobs.owner() is None

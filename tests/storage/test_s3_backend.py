"""The S3 storage fulfills the contract of every storage, and more."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rayjobs import datastore
from rayjobs.datastore import Datastore, MemoryCatalogue
from rayjobs.datastore.backends import Backend, open_backend, s3
from rayjobs.datastore.backends.base import Stopped
from rayjobs.datastore.backends.s3 import DIGEST_FIELD
from rayjobs.datastore.digests import digest_of, hex_of
from rayjobs.datastore.errors import AccessDenied, DataChanged, DataNotFound
from rayjobs.datastore.kept import Tally
from tests.contract.test_datastore_backends import BackendContract
from tests.storage.server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

pytestmark = pytest.mark.storage


class TestS3Backend(BackendContract):
    @pytest.fixture
    def backend(self, s3_server: S3Server) -> Backend:
        return s3_server.backend()


def test_a_large_file_goes_in_parts(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "SINGLE_PUT_BYTES", 1 << 20)
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    backend = s3_server.backend()
    content = os.urandom((11 << 20) + 1)
    (tmp_path / "large").write_bytes(content)
    seen: list[int] = []
    backend.put(tmp_path / "large", "large", seen.append)
    assert seen == [5 << 20, 5 << 20, (1 << 20) + 1]
    (listed,) = backend.walk("")
    assert backend.fetch(listed, tmp_path / "back") == digest_of(content)
    assert (tmp_path / "back").read_bytes() == content


def test_a_piece_that_broke_off_is_continued(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = s3_server.backend()
    content = os.urandom(1 << 20)
    (tmp_path / "file").write_bytes(content)
    backend.put(tmp_path / "file", "file")
    (listed,) = backend.walk("")
    monkeypatch.setattr(s3, "CHUNK_BYTES", 10_000)
    calls, read = iter(range(100)), s3._read

    def breaks(body: Any, patience: Any) -> bytes:
        if next(calls) == 3:  # some bytes have arrived
            raise ConnectionResetError("reset by a test")
        return read(body, patience)

    monkeypatch.setattr(s3, "_read", breaks)
    assert backend.read(listed, 1000, 500_000) == content[1000:501_000]


def test_the_digest_is_kept_with_the_object(s3_server: S3Server, tmp_path: Path) -> None:
    backend = s3_server.backend()
    (tmp_path / "f").write_bytes(b"content")
    backend.put(tmp_path / "f", "f")
    found = backend.stat("f")
    assert found is not None
    assert found.digest == digest_of(b"content")
    head = backend.settings.client().head_object(Bucket=BUCKET, Key=backend.settings.prefix + "/f")
    assert head["Metadata"][DIGEST_FIELD] == hex_of(digest_of(b"content"))


def test_objects_written_by_other_programs_are_read(s3_server: S3Server, tmp_path: Path) -> None:
    backend = s3_server.backend()
    client, prefix = backend.settings.client(), backend.settings.prefix
    client.put_object(Bucket=BUCKET, Key=f"{prefix}/theirs", Body=b"plain")
    (listed,) = backend.walk("")
    assert backend.fetch(listed, tmp_path / "back") == digest_of(b"plain")


def test_wrong_bucket_is_reported(s3_server: S3Server) -> None:
    with pytest.raises(DataNotFound, match="no bucket"):
        s3_server.backend(bucket="no-such-bucket").check()
    with pytest.raises(DataNotFound):
        list(s3_server.backend(bucket="no-such-bucket").walk(""))


def test_wrong_credentials_are_reported_and_never_shown(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG_SECRET", "not-the-secret")
    backend = s3_server.backend(secret_key_env="WRONG_SECRET")
    with pytest.raises(AccessDenied) as caught:
        backend.check()
    assert "not-the-secret" not in str(caught.value)
    assert "not-the-secret" not in repr(backend.settings)


def test_a_registered_datastore_holds_no_secret(s3_server: S3Server) -> None:
    catalogue = MemoryCatalogue()
    store = Datastore.register_s3(
        catalogue,
        "s3",
        BUCKET,
        prefix="reg",
        endpoint=s3_server.endpoint,
        access_key_env="TEST_ACCESS_KEY",
        secret_key_env="TEST_SECRET_KEY",
    )
    store.check()
    text = f"{catalogue.datastore('s3').to_json()} {store!r} {store.__getstate__()!r}"
    assert ACCESS_KEY not in text
    assert SECRET_KEY not in text


def test_kept_objects_are_compared_by_size_and_digest(s3_server: S3Server, tmp_path: Path) -> None:
    store = Datastore.from_record(s3_server.record())
    files = [tmp_path / name for name in ("same", "other", "longer")]
    for file in files:
        file.write_text("one")
    assert store.put(files, None, "kept", False, None).tally == Tally(moved=3)
    files[1].write_text("two")
    files[2].write_text("three")
    done = store.put(files, None, "kept", False, None).tally
    assert done == Tally(moved=0, kept=3, other_size=1, other_content=1)


def test_registration_finds_a_wrong_bucket_at_once(s3_server: S3Server) -> None:
    catalogue = MemoryCatalogue()
    with pytest.raises(DataNotFound, match="misspelt"):
        Datastore.register_s3(
            catalogue,
            "s3",
            "misspelt",
            endpoint=s3_server.endpoint,
            access_key_env="TEST_ACCESS_KEY",
            secret_key_env="TEST_SECRET_KEY",
        )
    assert catalogue.datastores() == []


FORKS = """
import json, os, sys
from rayjobs.datastore import DatastoreRecord
from rayjobs.datastore.backends import open_backend
backend = open_backend(DatastoreRecord.from_json(json.loads(sys.argv[1])))
assert backend.stat("f") is not None
before = backend._open()
child = os.fork()
if child == 0:
    os._exit(0 if backend._open() is not before and backend.stat("f") is not None else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert backend._open() is before
"""


def test_a_client_is_not_shared_with_a_forked_process(s3_server: S3Server, tmp_path: Path) -> None:
    record = s3_server.record()
    (tmp_path / "f").write_bytes(b"content")
    open_backend(record).put(tmp_path / "f", "f")
    subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps(record.to_json())],
        check=True,
        timeout=200,
        cwd=Path(datastore.__file__).parents[2],
    )


def test_large_file_that_changes_while_it_is_stored_is_refused(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "SINGLE_PUT_BYTES", 1 << 20)
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    backend, large = s3_server.backend(), tmp_path / "large"
    large.write_bytes(os.urandom(6 << 20))

    def rewrite(_: int) -> None:
        large.write_bytes(os.urandom(6 << 20))

    with pytest.raises(DataChanged, match="changed while it was stored"):
        backend.put(large, "large", rewrite)
    assert list(backend.walk("")) == []


def test_failure_of_one_file_is_not_replaced_by_the_end_of_the_others(
    s3_server: S3Server, tmp_path: Path
) -> None:
    backend = s3_server.backend()
    (tmp_path / "a").write_bytes(b"a")

    def stop(_: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        backend.put(tmp_path / "a", "a", stop)
    backend.put(tmp_path / "a", "a")
    (listed,) = backend.walk("")
    with pytest.raises(Stopped):
        backend.fetch(listed, tmp_path / "back", stop)
    assert not (tmp_path / "back").exists()

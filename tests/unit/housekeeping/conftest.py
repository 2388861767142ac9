"""A workspace with jobs in it, and a terminal."""

from __future__ import annotations

import hashlib
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rayjobs.jobs.records import Job, StoredFile
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.folder import OpenWorkspace
from tests.unit.cli.conftest import Queue, queue, terminal  # noqa: F401 - fixtures

DAY_S = 86_400.0


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def store_file(workspace: OpenWorkspace, job: Job, name: str, data: bytes, folder: Path) -> str:
    """Store a live job's file as its node does; return the key."""
    path = folder / "stored"
    path.write_bytes(data)
    blob = workspace.blobs.add_file(path)
    stored = StoredFile(
        name=name,
        attempt=job.attempt,
        size=blob.size,
        digest=blob.digest,
        blob=blob.key,
        stored_at=datetime.now(UTC),
    )
    assert workspace.store.publish_files(job.id, attempt=job.attempt, files=[stored])
    return blob.key


def age(folder: Path, seconds: float = 2 * DAY_S) -> None:
    """Give all files in a folder an old modification time."""
    then = time.time() - seconds
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, (then, then))


class Runs:
    """Writes jobs with stored files and snapshots."""

    def __init__(self, made: Queue, folder: Path) -> None:
        self.queue = made
        self.workspace = made.workspace
        self.store = made.workspace.store
        self.blobs = made.workspace.blobs
        self._folder = folder

    def submit(self, name: str = "mnist", *, code: bytes = b"", **options: object) -> Job:
        """Submit a job, with `code` as its snapshot's archive."""
        snapshot = None
        if code:
            snapshot = digest_of(code)
            self.blobs.put_bytes(code, f"snapshots/sha256/{snapshot[7:9]}/{snapshot[7:]}.tar.zst")
        spec = {key: options.pop(key) for key in ("resume_from", "depends_on") if key in options}
        return self.store.submit(
            NewJob(
                spec=JobSpec(script="train.py", name=name, **spec),
                experiment="mnist",
                snapshot=snapshot,
                user="ada",
                **options,  # type: ignore[arg-type]  # what the test gives
            )
        )[0]

    def finished(self, name: str, *files: bytes, code: bytes = b"", **options: object) -> Job:
        """Write a job that has completed with these files."""
        job = self.queue.start(self.submit(name, code=code, **options), until=JobState.FINALIZING)
        for number, data in enumerate(files):
            store_file(self.workspace, job, f"outputs/{number}.bin", data, self._folder)
        return self.queue.finish(job)

    def has(self, data: bytes, *, code: bool = False) -> bool:
        """Return whether bytes are stored."""
        value = digest_of(data)[7:]
        key = f"files/sha256/{value[:2]}/{value}"
        if code:
            key = f"snapshots/sha256/{value[:2]}/{value}.tar.zst"
        return (self.workspace.path / "blobs" / key).exists()

    def age(self) -> None:
        """Give all stored files an old modification time."""
        age(self.workspace.path / "blobs")


@pytest.fixture
def runs(queue: Queue, tmp_path: Path) -> Runs:  # noqa: F811 - the fixture
    """Writes jobs into the workspace that commands use."""
    return Runs(queue, tmp_path)

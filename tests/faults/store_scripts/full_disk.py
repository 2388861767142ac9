"""Fill the disk (a small tmpfs) at FOLDER below a workspace; print what happened as JSON."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

from rayjobs.core.errors import StorageFullError, StoreFullError
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore
from rayjobs.workspace.folder import WorkspaceFiles, open_workspace

folder = Path(sys.argv[1])
found: dict[str, Any] = {"size": os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize}
filler = folder / "filler"
filler.write_bytes(b"\0" * (256 << 10))
workspace = open_workspace(folder / "w")
store = workspace.store
spec = JobSpec(script="train.py")


def submit() -> str:
    return store.submit(NewJob(spec=spec, experiment="mnist", snapshot=None, user="ada"))[0].id


def full(call: Any) -> str:
    try:
        call()
    except StoreFullError as error:
        return f"{type(error).__name__}: {error}"
    return "it worked"


running = submit()
store.start(running, attempt=0, allocation="a")
workspace.blobs.put_bytes(b"before", "a")
found["blob"] = full(lambda: workspace.blobs.put_bytes(b"\0" * (8 << 20), "a"))
assert found["blob"].startswith(StorageFullError.__name__), found["blob"]
found["blob kept"] = workspace.blobs.open("a").read().decode()
found["left by blob"] = len(list((WorkspaceFiles(workspace.path).blobs / ".tmp").iterdir()))

acknowledged = [running]
try:
    while len(acknowledged) < 20_000:
        acknowledged.append(submit())
    found["submit"] = "it worked"
except StoreFullError as error:
    found["submit"] = f"{type(error).__name__}: {error}"
# Until calls of every size fail.
while full(lambda: store.add_event(running, "note", "x")) == "it worked":
    pass
found["event"] = full(lambda: store.add_event(running, "note", "x"))
found["finish"] = full(lambda: store.finish(running, attempt=1, state=JobState.FAILED))
found["state while full"] = store.job(running).state
found["read while full"] = {job.id for job in store.jobs()} == set(acknowledged)
other = SqlStore(WorkspaceFiles(workspace.path).store)
found["read by another while full"] = len(other.job_lines()) == len(acknowledged)
other.close()

filler.unlink()
found["finish after"] = store.finish(running, attempt=1, state=JobState.FAILED)
acknowledged.append(submit())
found["blob after"] = workspace.blobs.put_bytes(b"after", "a").size
found["kept"] = {job.id for job in store.jobs()} == set(acknowledged)
workspace.close()
with sqlite3.connect(WorkspaceFiles(workspace.path).store) as connection:
    found["integrity"] = connection.execute("PRAGMA integrity_check").fetchone()[0]
print(json.dumps(found))

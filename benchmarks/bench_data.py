"""Eight files from a real S3 server: downloaded, mounted, and shared by eight trials on a node."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, median
from benchmarks.head import own_folder, until
from rayjobs.datastore import Datastore, MemoryCatalogue
from rayjobs.datastore.data_input import DataInput
from rayjobs.datastore.inputs import resolve_input
from rayjobs.datastore.materialise import materialise, release
from rayjobs.injob.processes import all_pids
from rayjobs.target.local_head import command_of
from tests.storage import server as s3
from tests.storage.proxy import Proxy

FILES = 8
TRIALS = 8
MOST_SHARED_MIB = 64  # bytes are counted, not seconds: more data would show nothing new
CHUNK = 1024 * 1024


def measure(*, rounds: int, mib: int) -> list[Figure]:
    """Download by every client in turn, each time into a new folder, then read the mount."""
    with own_folder() as folder:
        running = s3.acquire(folder)
        try:
            return [
                *_measure(running, folder, rounds, mib),
                _shared(running, folder, min(mib, MOST_SHARED_MIB)),
            ]
        finally:
            s3.release()


def _measure(running: s3.S3Server, folder: Path, rounds: int, mib: int) -> list[Figure]:
    record = running.record("bench")
    catalogue = MemoryCatalogue()
    catalogue.add_datastore(record)
    store = Datastore.from_record(record)
    _upload(store, folder, mib)
    prefix = f"{s3.BUCKET}/{record.settings['prefix']}/data"
    reference = store.path("data", "bench")

    def ours(to: Path) -> None:
        store.download(to, prefix="data", show_progress=False)

    mounting: list[float] = []

    def mounted(to: Path) -> float:
        node = to / "node"  # its cache is new
        began = time.monotonic()
        done = materialise(resolve_input(reference, catalogue, mode="mount"), node, into=to)
        try:
            assert done.how == "mounted", done.said
            ready = time.monotonic()
            _read_all(Path(done.path))
            read = time.monotonic()
        finally:
            release(done)
        mounting.append(ready - began)
        return read - ready

    ways: dict[str, Callable[[Path], float | None]] = {
        "ours": ours,
        "pyarrow.fs": lambda to: _by_pyarrow(running, prefix, to),
        "s3fs": lambda to: _by_s3fs(running, prefix, to),
        "mounted": mounted,
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            to = folder / f"{name}-{number}"
            to.mkdir()
            began = time.monotonic()
            seconds = way(to)
            if seconds is None:
                seconds = time.monotonic() - began
            if number:  # the first round imports the clients and fills the server's caches
                speeds[name].append(mib / seconds)
            until(lambda below=to: not _is_served(below), f"the mount below {to} ends")  # type: ignore[misc]
            shutil.rmtree(to, ignore_errors=True)
    own = median(speeds["ours"])
    peer = max(("pyarrow.fs", "s3fs"), key=lambda name: median(speeds[name]))
    fastest = median(speeds[peer])
    return [
        Figure(f"S3 download, {mib} MiB in 8 files", "MiB/s", own, fastest, peer, share=0.8),
        Figure(
            "the same, read file by file through a ready mount",
            "MiB/s",
            median(speeds["mounted"]),
            own,
            "our download",
            share=0.5,
        ),
        Figure("mounting it: keeper started, mount served", "s", median(mounting[1:])),
    ]


def _upload(store: Datastore, folder: Path, mib: int) -> None:
    """Store `mib` MiB of random bytes, which nothing can compress, in files under ``data``."""
    source = folder / "source"
    source.mkdir()
    for number in range(FILES):
        (source / f"{number}.bin").write_bytes(os.urandom(mib * CHUNK // FILES))
    store.upload(source, "data", show_progress=False)
    shutil.rmtree(source)


def _shared(running: s3.S3Server, folder: Path, mib: int) -> Figure:
    """Count the bytes that the storage sends to eight processes of a node that start at once."""
    with Proxy(running.port) as proxy:
        record = running.record("shared", endpoint=proxy.endpoint)
        catalogue = MemoryCatalogue()
        catalogue.add_datastore(record)
        store = Datastore.from_record(record)
        _upload(store, folder, mib)
        source = resolve_input(store.path("data", "shared"), catalogue, mode="download")
        spawn = multiprocessing.get_context("spawn")  # this process has threads
        begin = spawn.Barrier(TRIALS)
        places = [folder / f"trial-{number}" for number in range(TRIALS)]
        trials = [
            spawn.Process(target=_trial, args=(source, folder / "shared-node", place, begin))
            for place in places
        ]
        proxy.sent = 0
        for trial in trials:
            trial.start()
        for trial in trials:
            trial.join()
        sent = proxy.sent
    failed = [trial.exitcode for trial in trials if trial.exitcode]
    if failed:
        raise SystemExit(f"{len(failed)} of {TRIALS} trials could not read their data")
    name = f"{TRIALS} trials at once on one data set of {mib} MiB: bytes sent / its size"
    return Figure(name, "×", sent / (mib * CHUNK), most=1.05)


def _trial(source: DataInput, node: Path, into: Path, begin: Barrier) -> None:
    """Read the data set as a trial on this node does."""
    begin.wait(timeout=60.0)  # until all have imported; the limit is for one that has died
    done = materialise(replace(source, mode="download"), node, into=into)
    try:
        _read_all(Path(done.path))
    finally:
        release(done)


def _is_served(folder: Path) -> bool:
    """Return whether a mount keeper still runs below the folder; it unmounts when it ends."""
    wanted = os.fsencode(f"{folder}/")
    return any(wanted in command_of(pid) for pid in all_pids() if pid != os.getpid())


def _read_all(folder: Path) -> None:
    for file in sorted(folder.rglob("*.bin")):
        with file.open("rb", buffering=0) as stream:
            while stream.read(CHUNK):
                pass


def _by_pyarrow(running: s3.S3Server, prefix: str, to: Path) -> None:
    from pyarrow import fs

    remote = fs.S3FileSystem(
        access_key=s3.ACCESS_KEY,
        secret_key=s3.SECRET_KEY,
        endpoint_override=running.endpoint,
        region="us-east-1",
    )
    fs.copy_files(prefix, str(to), source_filesystem=remote, destination_filesystem=_local())


def _local() -> Any:
    from pyarrow import fs

    return fs.LocalFileSystem()


def _by_s3fs(running: s3.S3Server, prefix: str, to: Path) -> None:
    import s3fs

    remote = s3fs.S3FileSystem(
        key=s3.ACCESS_KEY,
        secret=s3.SECRET_KEY,
        endpoint_url=running.endpoint,
        skip_instance_cache=True,
    )
    remote.get(prefix, f"{to}/s3fs", recursive=True)

"""Brings an input to a node: a link to a local folder, a mount, or a download through the cache.

What a job finds at the path is complete before the path exists: it is built under another name and
put in place by a rename, or by the mount coming up.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rayjobs.datastore import mounts
from rayjobs.datastore.backends import Backend, open_backend
from rayjobs.datastore.cache import NodeCache
from rayjobs.datastore.errors import (
    DataNotFound,
    DatastoreError,
    InvalidReference,
    MountUnavailable,
    TransferFailed,
)
from rayjobs.datastore.inputs import DataInput
from rayjobs.datastore.manifest import FileEntry, Manifest
from rayjobs.datastore.processes import ProcessIdentity
from rayjobs.datastore.progress import Meter, ProgressCallback
from rayjobs.datastore.reading import check_local
from rayjobs.datastore.refs import check_mode
from rayjobs.datastore.sources import record_for, resolve
from rayjobs.datastore.transfer import for_each

MODES = ("mount", "download", "direct")


@dataclass(frozen=True)
class Materialised:
    """An input on this node. Plain values, so that another process can release it.

    `how` is linked, mounted, downloaded or direct; `bytes` and `files` are None where nobody
    counted (a folder that is only linked). `said` is what the user should read in the job's log.
    """

    name: str
    path: str
    how: str
    bytes: int | None = None
    files: int | None = None
    said: tuple[str, ...] = ()
    version: str = ""
    made: tuple[str, ...] = ()
    mount_folder: str = ""
    mount_token: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the values as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Materialised:
        """Return what `to_json` wrote."""
        given = dict(values)
        given["said"], given["made"] = tuple(given["said"]), tuple(given["made"])
        return cls(**given)


def mounts_root(node_root: Path) -> Path:
    """Return where the mounts of a node are."""
    return node_root / "mounts"


def cache_root(node_root: Path) -> Path:
    """Return where the cache of a node is."""
    return node_root / "cache"


def start_node(node_root: Path) -> list[Path]:
    """Take away mounts that dead processes left below `node_root`; return their mount points."""
    return mounts.reap(mounts_root(node_root))


def materialise(
    source: DataInput,
    mode: str | None,
    node_root: Path,
    *,
    into: Path,
    working_directory: Path | None = None,
    cache_bytes: int | None = None,
    owner: ProcessIdentity | None = None,
    progress: ProgressCallback | None = None,
) -> Materialised:
    """Bring `source` to this node and return where it is.

    Args:
        source: The input, from `resolve_input`.
        mode: mount, download or direct; None for the input's own.
        node_root: The node's folder, shared by all jobs: its cache and mounts are there.
        into: The attempt's folder for inputs; the input appears as `into/<name>`.
        working_directory: What a relative `path_on_compute` is relative to (default: `into`).
        cache_bytes: Bound of the node's cache; None leaves only the disk's.
        owner: The process whose end also ends the mount (default: this one).
        progress: Told how far a download is.

    Raises:
        DatastoreError: what is wrong with the data, its storage, the cache or the mount. Nothing
            is left at the path.
    """
    chosen = check_mode(mode or source.mode, allowed=MODES)
    if chosen == "direct":
        return Materialised(source.name, source.dataset_id, "direct", version=source.version)
    into.mkdir(parents=True, exist_ok=True)
    place = into / source.name
    _remove(place)
    records = {record.name: record for record in source.records}
    job = _Job(source, place, node_root, records, cache_bytes, owner, progress)
    manifest = source.manifest
    if manifest is None and source.live is not None and chosen == "download":
        manifest = resolve([source.live], records.__getitem__)
    done = job.link_live() if manifest is None else job.run(manifest, chosen)
    done = replace(done, version=source.version)
    try:
        return _at_path_on_compute(source, done, working_directory or into)
    except BaseException:
        release(done)
        raise


def release(materialised: Materialised) -> None:
    """Take the input away; a mount's last user unmounts it. Doing it twice is harmless."""
    for path in materialised.made:
        _remove(Path(path))
    if materialised.mount_folder:
        mounts.release(Path(materialised.mount_folder), materialised.mount_token)


def hold(materialised: Materialised, owner: ProcessIdentity, part: str) -> None:
    """Let one more process answer for the input's mount, until `release`.

    `part` names what the process is, so that a later one of the same part takes its place.
    Nothing happens for what is not mounted, and for a mount that is gone.
    """
    if materialised.mount_folder:
        mounts.hold(Path(materialised.mount_folder), f"{materialised.mount_token}-{part}", owner)


def trouble(materialised: Materialised) -> DatastoreError | None:
    """Return what went wrong with the input while it was used, None if nothing is known.

    A script that reads from a mount sees only "Input/output error"; ask here for the cause, before
    `release`.
    """
    if not materialised.mount_folder:
        return None
    return mounts.trouble(Path(materialised.mount_folder))


@dataclass(frozen=True)
class _Job:
    source: DataInput
    place: Path
    node_root: Path
    records: Mapping[str, Any]
    cache_bytes: int | None
    owner: ProcessIdentity | None
    progress: ProgressCallback | None

    def backend(self, name: str) -> Backend:
        return open_backend(record_for(name, self.records.__getitem__))

    # --- a path in a local folder, as it is ---

    def link_live(self) -> Materialised:
        live = self.source.live
        if live is None:
            raise InvalidReference(f"input {self.source.name!r} names no data.")
        target = self.backend(live.datastore).local_path(live.path)
        if target is None or not target.exists():
            raise DataNotFound(
                f"{target or live.path} does not exist on this node. A local datastore is a folder "
                "that every node must have under the same path; use a shared folder or S3."
            )
        if target.is_dir():
            self.place.symlink_to(target)
            path = self.place
        else:
            path = self._link_one(target)
        return self._done(path, "linked")

    def _link_one(self, target: Path) -> Path:
        self.place.mkdir()
        path = self.place / target.name
        path.symlink_to(target)
        return path

    # --- exact files ---

    def run(self, manifest: Manifest, mode: str) -> Materialised:
        if not manifest.files:
            raise DataNotFound(f"input {self.source.name!r} holds no files.")
        backends = {name: self.backend(name) for name in manifest.datastores}
        if all(backend.local_path("") is not None for backend in backends.values()):
            if mode == "mount" and (folder := self._whole_folder(manifest, backends)):
                self.place.symlink_to(folder)
            else:
                self._build(manifest, backends)
            return self._counted(manifest, "linked")
        if mode == "mount":
            missing = mounts.fuse_missing()
            if not missing:
                try:
                    return self._mount(manifest)
                except MountUnavailable as error:
                    missing = str(error)
            said = f"input {self.source.name!r} cannot be mounted ({missing}): downloaded instead"
            self._build(manifest, backends)
            return replace(self._counted(manifest, "downloaded"), said=(said,))
        self._build(manifest, backends)
        return self._counted(manifest, "downloaded")

    def _whole_folder(self, manifest: Manifest, backends: Mapping[str, Backend]) -> Path | None:
        """Return the one folder that holds the manifest's files and no others, if there is one."""
        first = manifest.files[0]
        if manifest.single_file or len(backends) > 1 or not first.key.endswith(first.path):
            return None
        backend = backends[first.datastore]
        base = first.key[: len(first.key) - len(first.path)].rstrip("/")
        expected = {f"{base}/{entry.path}".lstrip("/"): entry for entry in manifest}
        present = {file.path for file in backend.walk(base)}
        if present != set(expected) or any(expected[entry.key] != entry for entry in manifest):
            return None
        for entry in manifest:
            check_local(entry, backend)
        return backend.local_path(base)

    def _build(self, manifest: Manifest, backends: Mapping[str, Backend]) -> None:
        """Make a folder of its own: links to local files, hard links to cached ones."""
        draft = self.place.with_name(f".{self.place.name}.partial")
        _remove(draft)
        draft.mkdir()
        cache = NodeCache(cache_root(self.node_root), max_bytes=self.cache_bytes)
        meter = Meter(
            "input " + self.source.name, len(manifest), manifest.total_bytes, self.progress
        )

        def one(entry: FileEntry, stop: threading.Event) -> None:
            to = draft / entry.path
            backend = backends[entry.datastore]
            try:
                if backend.local_path(entry.key) is not None:
                    local = check_local(entry, backend)
                    to.parent.mkdir(parents=True, exist_ok=True)
                    to.symlink_to(local)
                    meter.add_bytes(entry.size)
                else:
                    cache.link(entry, backend, to, meter.add_bytes)
            except OSError as error:
                raise TransferFailed(f"cannot make {to}: {error.strerror or error}.") from error
            meter.add_file()

        try:
            for_each(manifest.files, one)
            draft.replace(self.place)
        except BaseException:
            _remove(draft)
            raise
        meter.finish()

    def _mount(self, manifest: Manifest) -> Materialised:
        held = mounts.acquire(
            manifest,
            self.records,
            mounts_root(self.node_root),
            cache_root=cache_root(self.node_root),
            cache_bytes=self.cache_bytes,
            owner=self.owner,
        )
        try:
            self.place.symlink_to(held.point)
        except BaseException:
            mounts.release(held.folder, held.token)
            raise
        done = self._counted(manifest, "mounted")
        return replace(done, mount_folder=str(held.folder), mount_token=held.token)

    def _counted(self, manifest: Manifest, how: str) -> Materialised:
        path = self.place / manifest.files[0].path if manifest.single_file else self.place
        done = self._done(path, how)
        return replace(done, bytes=manifest.total_bytes, files=len(manifest))

    def _done(self, path: Path, how: str) -> Materialised:
        return Materialised(self.source.name, str(path), how, made=(str(self.place),))


def _at_path_on_compute(source: DataInput, done: Materialised, relative_to: Path) -> Materialised:
    if not source.path_on_compute:
        return done
    wanted = relative_to / Path(source.path_on_compute).expanduser()
    if wanted.is_symlink() and not wanted.exists():
        wanted.unlink()  # left by a job that is gone
    if wanted.is_dir() and not wanted.is_symlink() and not any(wanted.iterdir()):
        wanted.rmdir()
    if wanted.exists() or wanted.is_symlink():
        raise InvalidReference(
            f"input {source.name!r} should appear at {wanted}, but something is there. Choose "
            "another path_on_compute; what is there was not touched."
        )
    place = Path(done.made[0])
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.symlink_to(place)
    inside = Path(done.path).relative_to(place)
    return replace(done, path=str(wanted / inside), made=(str(wanted), *done.made))


def _remove(path: Path) -> None:
    """Remove a link, file or folder of ours; what links in it point to stays."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    elif os.path.lexists(path):
        shutil.rmtree(path)

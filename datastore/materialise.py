"""Provides an input on a node: by a link to a local folder, a mount, or a private copy.

An input is complete before its path exists: it is built under another name and moved into place, or
appears when its mount is ready.

What a job writes to its input never reaches data that others read. A link leads to a folder that is
read-only for the job; where that is impossible (`Protection`), the job gets a mount or a copy.
"""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from rayjobs.core.text import counted
from rayjobs.datastore import mounts
from rayjobs.datastore import protection as protections
from rayjobs.datastore.backends import Backend, open_backend
from rayjobs.datastore.backends.base import CountBytes
from rayjobs.datastore.cache import NodeCache
from rayjobs.datastore.clones import clone
from rayjobs.datastore.data_input import DataInput
from rayjobs.datastore.errors import (
    DataChanged,
    DataNotFound,
    DatastoreError,
    InvalidReference,
    MountUnavailable,
    TransferFailed,
)
from rayjobs.datastore.looks import Look, Seen, etag_of, look_at, look_below
from rayjobs.datastore.manifest import FileEntry, Manifest
from rayjobs.datastore.progress import Meter, ProgressCallback
from rayjobs.datastore.protection import Protection
from rayjobs.datastore.reading import Version, checked, command_word
from rayjobs.datastore.refs import check_mode
from rayjobs.datastore.sources import Source, record_for, resolve
from rayjobs.datastore.transfer import for_each
from rayjobs.injob.identity import Identity
from rayjobs.injob.lazy_dataclass import dataclass

MODES = ("mount", "download", "direct")
MOST_CLOSED = 1024
"""Up to this many files and folders of an input are made read-only one by one; beyond it, the
folders that hold most of them are made read-only as a whole."""


@dataclass(frozen=True)
class Materialised:
    """An input on this node, as plain values, so that another process can release it.

    `how` is linked, mounted, downloaded, copied or direct; `bytes` and `files` are None if they
    were not counted. `said` has the notes for the user in the job's log.

    The job's launcher must first mount an overlay on each folder in `overlays` (folder, upper,
    work), then make the `read_only` paths read-only for the job. Each folder in `shown` (folder,
    path) must appear read-only at that path, because the folder itself stays writable. `why_open`
    explains why the input's source can be changed through another path despite `read_only`; "" if
    it cannot. `seen` has the stats of the source's local files; it is not sent to other processes.
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
    read_only: tuple[str, ...] = ()
    overlays: tuple[tuple[str, str, str], ...] = ()
    shown: tuple[tuple[str, str], ...] = ()
    why_open: str = ""
    seen: tuple[Seen, ...] = field(default=(), compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the values as a JSON object."""
        return asdict(replace(self, seen=()))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Materialised:
        """Return what `to_json` wrote."""
        given = dict(values)
        for name in ("said", "made", "read_only", "seen"):
            given[name] = tuple(given.get(name, ()))
        given["overlays"] = tuple((at, up, work) for at, up, work in given.get("overlays", ()))
        given["shown"] = tuple((folder, at) for folder, at in given.get("shown", ()))
        return cls(**given)


def mounts_root(node_root: Path) -> Path:
    """Return the folder of a node's mounts."""
    return node_root / "mounts"


def cache_root(node_root: Path) -> Path:
    """Return the folder of a node's cache."""
    return node_root / "cache"


def start_node(node_root: Path) -> list[Path]:
    """Remove mounts that dead processes left below `node_root`; return their mount points."""
    return mounts.reap(mounts_root(node_root))


def materialise(
    source: DataInput,
    node_root: Path,
    *,
    into: Path,
    working_directory: Path | None = None,
    cache_bytes: int | None = None,
    owner: Identity | None = None,
    progress: ProgressCallback | None = None,
    protection: Protection = protections.NONE,
) -> Materialised:
    """Provide `source` on this node and return its location.

    Args:
        source: The input, from `resolve_input`; its mode is mount, download or direct.
        node_root: The node's folder, shared by all jobs: its cache and mounts are there.
        into: The attempt's folder for inputs; the input appears as `into/<name>`.
        working_directory: The base of a relative `path_on_compute` (default: `into`).
        cache_bytes: Limit of the node's cache; None: only the disk limits it.
        owner: The process whose end also ends the mount (default: this process).
        progress: Called with the progress of a download.
        protection: How a reader of the input is kept from changing its source.

    Raises:
        DatastoreError: the data, its storage, the cache or the mount failed. Nothing is left at the
            path.
    """
    chosen = check_mode(source.mode, allowed=MODES)
    if chosen == "direct":
        return Materialised(source.name, source.dataset_id, "direct", version=source.version)
    into.mkdir(parents=True, exist_ok=True)
    input_path = into / source.name
    _remove(input_path)
    records = {record.name: record for record in source.records}
    maker = _InputMaker(
        source, input_path, node_root, records, cache_bytes, owner, progress, protection
    )
    manifest = source.manifest
    if manifest is None and source.live is not None and not maker.can_link(chosen):
        maker.live_path()
        manifest = resolve([source.live], records.__getitem__)
    done = maker.link_live() if manifest is None else maker.make(manifest, chosen)
    done = replace(done, version=source.version)
    try:
        return _at_path_on_compute(source, done, working_directory or into)
    except BaseException:
        release(done)
        raise


def release(materialised: Materialised) -> None:
    """Remove the input; a mount's last user unmounts it. A second call is harmless."""
    for path in materialised.made:
        _remove(Path(path))
    if materialised.mount_folder:
        mounts.release(Path(materialised.mount_folder), materialised.mount_token)


def retain(materialised: Materialised, owner: Identity, part: str) -> None:
    """Add a process that keeps the input's mount alive, until `release`.

    `part` names the role of the process, so that a later one with the same role replaces it. Does
    nothing for an input that is not mounted, or whose mount is gone.
    """
    if materialised.mount_folder:
        mounts.retain(Path(materialised.mount_folder), f"{materialised.mount_token}-{part}", owner)


def trouble(materialised: Materialised) -> DatastoreError | None:
    """Return what went wrong with the input while it was used, None if nothing did.

    A script that reads from a mount sees only "Input/output error"; this gives the cause, until
    `release`.
    """
    if not materialised.mount_folder:
        return None
    return mounts.trouble(Path(materialised.mount_folder))


@dataclass(frozen=True)
class _InputMaker:
    """Makes one input appear at its place on this node: linked, mounted, copied or downloaded."""

    source: DataInput
    input_path: Path
    node_root: Path
    records: Mapping[str, Any]
    cache_bytes: int | None
    owner: Identity | None
    progress: ProgressCallback | None
    protection: Protection

    def backend(self, name: str) -> Backend:
        return open_backend(record_for(name, self.records.__getitem__))

    def can_link(self, mode: str) -> bool:
        """Whether local files may be shown in place."""
        return mode == "mount" and self.protection.read_only

    # --- a path in a local folder, in its current state ---

    def live_path(self) -> Path:
        """Return the local path that is shown in its current state.

        Raises:
            DataNotFound: nothing is there.
        """
        live = self.source.live
        if live is None:
            raise InvalidReference(f"input {self.source.name!r} names no data.")
        target = self.backend(live.datastore).local_path(live.path)
        if target is None or not target.exists():
            raise DataNotFound(
                f"{target or live.path} does not exist on this node. A local datastore is a folder "
                "that every node must have under the same path; use a shared folder or S3."
            )
        return target

    def link_live(self) -> Materialised:
        target = self.live_path()
        if not target.is_dir():
            path = self._link_one(target)
            seen = Seen(str(target.parent), {target.name: look_at(target)}, {})
            return self._live(path, seen, read_only=(str(target),))
        links: set[str] = set()
        partial: set[str] = set()
        files = look_below(target, links, partial)
        if partial:
            return self._complete_files(len(partial))
        if _is_broad(str(target), self.input_path):
            # Making it read-only would affect the user's caches too: the job sees it read-only at
            # the input's path, and unchanged elsewhere.
            self.input_path.mkdir()
            seen = Seen(str(target), files, {})
            shown = ((str(target), str(self.input_path)),)
            return self._live(self.input_path, seen, shown=shown, why_open=_why_broad(str(target)))
        self.input_path.symlink_to(target)
        seen = Seen(str(target), files, {})
        ends, why_open = _ends_of(links, self.input_path)
        return self._live(self.input_path, seen, read_only=(str(target), *ends), why_open=why_open)

    def _complete_files(self, partial: int) -> Materialised:
        """Show the present files of a path, without those of unfinished uploads."""
        assert self.source.live is not None
        done = self.make(resolve([self.source.live], self.records.__getitem__), "mount")
        note = (
            f"input {self.source.name!r}: {counted(partial, 'file')} of unfinished uploads left out"
        )
        return replace(done, said=(*done.said, note))

    def _live(self, path: Path, seen: Seen, **facts: Any) -> Materialised:
        done = replace(self._done(path, "linked"), **facts)
        said = (f"input {self.source.name!r}: {done.why_open}",) if done.why_open else ()
        size = sum(look[0] for look in seen.files.values())
        return replace(done, files=len(seen.files), bytes=size, seen=(seen,), said=said)

    def _link_one(self, target: Path) -> Path:
        self.input_path.mkdir()
        path = self.input_path / target.name
        path.symlink_to(target)
        return path

    # --- exact files ---

    def make(self, manifest: Manifest, mode: str) -> Materialised:
        if not manifest.files:
            if not self.source.may_be_empty:
                raise DataNotFound(f"input {self.source.name!r} holds no files.")
            self.input_path.mkdir()
            return replace(self._done(self.input_path, "copied"), bytes=0, files=0)
        backends = {name: self.backend(name) for name in manifest.datastores}
        is_local = all(backend.local_path("") is not None for backend in backends.values())
        looks = _Looks(manifest, backends, self._version(), self.input_path)
        if mode == "mount" and is_local and self.can_link(mode):
            if folder := self._whole_folder(manifest, backends, looks):
                self.input_path.symlink_to(folder)
            else:
                self._build(manifest, backends, looks, _link)
                folder = self.input_path
            done = replace(self._counted(manifest, "linked"), read_only=(str(folder),))
            return looks.added_to(done, read_only=True, mode=mode)
        said: tuple[str, ...] = ()
        if mode == "mount":
            missing = mounts.fuse_missing()
            if not missing:
                looks.check_all()
                try:
                    done = self._mount(manifest)
                    return looks.added_to(done, read_only=self.protection.read_only, mode=mode)
                except MountUnavailable as error:
                    missing = str(error)
            if is_local:
                missing = f"not read-only in place: {self.protection.why}; not by FUSE: {missing}"
            how = "copied" if is_local else "downloaded"
            said = (f"input {self.source.name!r} cannot be mounted ({missing}): {how} instead",)
        done = self._own_files(manifest, backends, looks, is_local=is_local, mode=mode)
        done = replace(done, said=said)
        return looks.added_to(done, read_only=self.protection.read_only, mode=mode)

    def _own_files(
        self,
        manifest: Manifest,
        backends: Mapping[str, Backend],
        looks: _Looks,
        *,
        is_local: bool,
        mode: str,
    ) -> Materialised:
        """Give the job its own files, which no other process reads."""
        if is_local or not self.protection.overlay:
            self._build(manifest, backends, looks, _copy if mode == "download" else _copy_shut)
            return self._counted(manifest, "copied" if is_local else "downloaded")
        # The cached files themselves: read-only, or below a layer that receives the job's writes.
        self._build(manifest, backends, looks, _share)
        if mode == "mount" and self.protection.read_only:
            return replace(self._counted(manifest, "downloaded"), read_only=(str(self.input_path),))
        layers = self.input_path.with_name(f".{self.input_path.name}.layers")
        _remove(layers)
        layers.mkdir(mode=0o700)
        overlay = (str(self.input_path), str(layers / "upper"), str(layers / "work"))
        done = self._counted(manifest, "downloaded")
        return replace(done, overlays=(overlay,))

    def _version(self) -> Version:
        source = self.source
        if not source.dataset:
            return Version()
        sources = json.loads(source.definition).get("sources", ()) if source.definition else ()
        words = tuple(command_word(Source(*one)) for one in sources)
        return Version(source.dataset, source.registered_at, words)

    def _whole_folder(
        self, manifest: Manifest, backends: Mapping[str, Backend], looks: _Looks
    ) -> Path | None:
        """Return the folder that holds exactly the manifest's files, if there is one."""
        first = manifest.files[0]
        if manifest.single_file or len(backends) > 1 or not first.key.endswith(first.path):
            return None
        backend = backends[first.datastore]
        base = first.key[: len(first.key) - len(first.path)].rstrip("/")
        if any(entry.key != f"{base}/{entry.path}".lstrip("/") for entry in manifest):
            return None
        folder = backend.local_path(base)
        if folder is None or not folder.is_dir() or _is_broad(str(folder), self.input_path):
            return None
        partial: set[str] = set()
        present = look_below(folder, looks.links, partial)
        if partial or set(present) != {entry.path for entry in manifest}:
            return None
        for entry in manifest:
            look = present[entry.path]
            if look[0] == entry.size and etag_of(look) == entry.etag:
                looks.note(entry, look)
            else:
                looks.check(entry)
        looks.whole = folder
        return folder

    def _build(
        self,
        manifest: Manifest,
        backends: Mapping[str, Backend],
        looks: _Looks,
        way: _Way,
    ) -> None:
        """Make a private folder, with the files made by `way`."""
        draft = self.input_path.with_name(f".{self.input_path.name}.partial")
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
                if backend.local_path(entry.key) is None:
                    way.from_cache(cache, entry, backend, to, meter.add_bytes)
                else:
                    local = looks.check(entry)
                    to.parent.mkdir(parents=True, exist_ok=True)
                    way.from_folder(local, to)
                    if way.takes_bytes:
                        looks.check(entry, before=True)
                    meter.add_bytes(entry.size)
            except OSError as error:
                raise TransferFailed(f"cannot make {to}: {error.strerror or error}.") from error
            meter.add_file()

        try:
            for_each(manifest.files, one)
            draft.replace(self.input_path)
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
            self.input_path.symlink_to(held.point)
        except BaseException:
            mounts.release(held.folder, held.token)
            raise
        done = self._counted(manifest, "mounted")
        return replace(done, mount_folder=str(held.folder), mount_token=held.token)

    def _counted(self, manifest: Manifest, how: str) -> Materialised:
        path = self.input_path / manifest.files[0].path if manifest.single_file else self.input_path
        done = self._done(path, how)
        return replace(done, bytes=manifest.total_bytes, files=len(manifest))

    def _done(self, path: Path, how: str) -> Materialised:
        return Materialised(self.source.name, str(path), how, made=(str(self.input_path),))


class _Looks:
    """The stats of a manifest's local files when they were verified."""

    def __init__(
        self,
        manifest: Manifest,
        backends: Mapping[str, Backend],
        version: Version,
        input_path: Path,
    ) -> None:
        self.links: set[str] = set()
        self.whole: Path | None = None  # the folder that holds exactly these files, if found
        self._input_path = input_path
        self._manifest = manifest
        self._backends = backends
        self._version = version
        self._looks: dict[tuple[str, str], Look] = {}

    def check(self, entry: FileEntry, *, before: bool = False) -> Path:
        """Return the local path of a file.

        Args:
            before: The file was checked before, and must not have changed since.

        Raises:
            DataChanged: it is not the file of the manifest.
        """
        known = self._looks.get((entry.datastore, entry.key))
        backend = self._backends[entry.datastore]
        if before and known is not None:
            local = backend.local_path(entry.key)
            if local is not None and look_at(local) == known:
                return local
        local, look = checked(entry, backend, self._version)
        if local.is_symlink():
            self.links.add(str(local))
        if before and look != known:
            raise DataChanged(f"{local} was written to while it was copied. Run the job again.")
        self.note(entry, look)
        return local

    def check_all(self) -> None:
        """Check every local file that was not checked yet. Raises as `check`."""
        for entry in self._manifest:
            is_local = self._backends[entry.datastore].local_path("") is not None
            if is_local and (entry.datastore, entry.key) not in self._looks:
                self.check(entry)

    def note(self, entry: FileEntry, look: Look) -> None:
        """Record the stat of a file of the manifest."""
        self._looks[entry.datastore, entry.key] = look

    def added_to(self, done: Materialised, *, read_only: bool, mode: str) -> Materialised:
        """Return `done` with the stats and, if `read_only`, the paths that must be read-only."""
        seen: list[Seen] = []
        closed: set[str] = set(done.read_only)
        can_close_folders = mode == "mount" and not self._manifest.single_file
        for name, backend in self._backends.items():
            root = backend.local_path("")
            if root is None:
                continue
            mine = [entry for entry in self._manifest if entry.datastore == name]
            files = {entry.key: self._looks[name, entry.key] for entry in mine}
            digests = {entry.key: entry.digest for entry in mine if entry.digest}
            seen.append(Seen(str(root), files, digests))
            # As text: a hundred thousand path objects take half a second.
            top = str(root).rstrip("/")
            if read_only and self.whole is None:
                paths = (f"{top}/{key}" for key in files)
                closed.update(_to_close(paths, self._input_path, folders_too=can_close_folders))
        if not read_only:
            return replace(done, seen=tuple(seen))
        ends, why_open = _ends_of(self.links, self._input_path)
        # A mount cannot protect a link itself, only its target.
        loose = [link for link in sorted(self.links) if not _is_in(link, closed - self.links)]
        if loose and self.whole is None:
            why_open = why_open or f"{loose[0]} is a link in a folder that stays writable"
        outermost = tuple(_outermost({*closed, *ends}))
        return replace(done, seen=tuple(seen), read_only=outermost, why_open=why_open)


def _ends_of(links: Iterable[str], input_path: Path) -> tuple[list[str], str]:
    """Return the paths to make read-only to protect the targets of `links`, and why some cannot."""
    ends = {os.path.realpath(link): link for link in sorted(links)}
    folders = {end for end in ends if Path(end).is_dir()}
    broad = sorted(end for end in folders if _is_broad(end, input_path))
    why_open = (
        f"its link {ends[broad[0]]} leads out of the input: {_why_broad(broad[0])}" if broad else ""
    )
    files = _to_close(ends.keys() - folders, input_path, folders_too=False)
    return sorted({*folders.difference(broad), *files}), why_open


def _to_close(files: Iterable[str], input_path: Path, *, folders_too: bool) -> list[str]:
    """Return the paths to make read-only: `files`, or their folders if there are too many files.

    A mount point cannot be removed or replaced, so making a file read-only affects nothing else.

    Args:
        folders_too: Use a folder without other files instead of each of its files.
    """
    by_folder: dict[str, list[str]] = {}
    for file in files:
        by_folder.setdefault(posixpath.dirname(file), []).append(file)
    broad = {folder for folder in by_folder if _is_broad(folder, input_path)}
    found: set[str] = set()
    for folder, inside in by_folder.items():
        is_whole = folders_too and folder not in broad and _holds_only(folder, inside)
        found.update([folder] if is_whole else inside)
    for folder, inside in sorted(by_folder.items(), key=lambda one: -len(one[1])):
        if len(found) <= MOST_CLOSED:
            break
        if folder not in broad:
            found = found.difference(inside) | {folder}
    closed = _outermost(found)
    while len(closed) > MOST_CLOSED:
        fewer = _outermost({posixpath.dirname(path) for path in closed})
        if any(_is_broad(folder, input_path) for folder in fewer):
            break
        closed = fewer
    return closed


def _holds_only(folder: str, files: Iterable[str]) -> bool:
    names = {posixpath.basename(file) for file in files}
    with os.scandir(folder) as items:
        return all(item.name in names for item in items)


def _is_in(path: str, closed: set[str]) -> bool:
    return any(str(above) in closed for above in Path(path).parents)


def _outermost(folders: Iterable[str]) -> list[str]:
    """Return `folders` without those that are inside another one of them."""
    found: list[str] = []
    for folder in sorted(folders, key=lambda one: one.split("/")):
        if not found or not f"{folder}/".startswith(f"{found[-1]}/"):
            found.append(folder)
    return found


def _is_broad(folder: str, input_path: Path) -> bool:
    """Whether a folder contains the user's home or the attempt, and so must stay writable."""
    top = os.path.realpath(folder).rstrip("/")
    inside = (str(Path.home()), str(input_path.parent), tempfile.gettempdir())
    return any(f"{os.path.realpath(one)}/".startswith(f"{top}/") for one in inside)


def _why_broad(folder: str) -> str:
    return (
        f"{folder} stays writable through its own path, because it contains your home, the folder "
        "for temporary files or the job itself"
    )


@dataclass(frozen=True)
class _Way:
    """A way to make the files of a private folder; `takes_bytes` if it reads a local file."""

    from_folder: Callable[[Path, Path], None]
    from_cache: Callable[[NodeCache, FileEntry, Backend, Path, CountBytes], object]
    takes_bytes: bool = True


def _copy_local(source: Path, to: Path, *, is_writable: bool = True) -> None:
    handle = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        mode = stat.S_IMODE(status.st_mode) & 0o777
        clone(handle, to, mode=mode | 0o200 if is_writable else mode & 0o555)
        os.utime(to, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(handle)


_link = _Way(
    lambda source, to: to.symlink_to(source),
    lambda cache, entry, backend, to, count: cache.link(entry, backend, to, count),
    takes_bytes=False,
)
_share = _Way(
    _copy_local, lambda cache, entry, backend, to, count: cache.link(entry, backend, to, count)
)
_copy = _Way(
    _copy_local, lambda cache, entry, backend, to, count: cache.copy(entry, backend, to, count)
)
_copy_shut = _Way(
    lambda source, to: _copy_local(source, to, is_writable=False),
    lambda cache, entry, backend, to, count: cache.copy(entry, backend, to, count, mode=0o444),
)


def _at_path_on_compute(source: DataInput, done: Materialised, relative_to: Path) -> Materialised:
    if not source.path_on_compute:
        return done
    wanted = relative_to / Path(source.path_on_compute).expanduser()
    if wanted.is_symlink() and not wanted.exists():
        wanted.unlink()  # left by a job that no longer exists
    if wanted.is_dir() and not wanted.is_symlink() and not any(wanted.iterdir()):
        wanted.rmdir()
    if wanted.exists() or wanted.is_symlink():
        raise InvalidReference(
            f"input {source.name!r} should appear at {wanted}, but that path already exists. "
            "Choose another path_on_compute. Nothing was changed."
        )
    input_path = Path(done.made[0])
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.symlink_to(input_path)
    inside = Path(done.path).relative_to(input_path)
    return replace(done, path=str(wanted / inside), made=(str(wanted), *done.made))


def _remove(path: Path) -> None:
    """Remove a link, file or folder of ours; the targets of its links stay."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    elif os.path.lexists(path):
        shutil.rmtree(path)

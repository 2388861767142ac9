"""The files of a submitted run: its logs, its stored files, and its code."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.files import replacing
from rayjobs.injob.uploads import UploadArea, clean_name
from rayjobs.jobs.records import StoredFile
from rayjobs.results.logs import Logs, is_log, real_name

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace


# Azure ML's name for the storage of run files.
ARTIFACT_STORE = "workspaceartifactstore"


class RunFiles:
    """The file methods of `JobRun`. Source: ``azureml.core.Run``."""

    id: str
    _opened: OpenWorkspace

    def _logs(self) -> Logs:
        return Logs(self._opened, self.id)

    def get_all_logs(self, destination: str | None = None) -> Sequence[str]:
        """Write all logs below a folder; return their paths."""
        folder = Path(destination) if destination is not None else Path(self.id)
        written = []
        logs = self._logs()
        for name in logs.names():
            target = _inside(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                for part in logs.chunks(name):
                    file.write(part)
            written.append(str(target))
        return written

    def get_file_names(self) -> Sequence[str]:
        """Return the names of the run's files, including its logs."""
        names = {one.name for one in self._opened.store.files(self.id)}
        return sorted(names | set(self._logs().names()))

    def download_file(self, name: str, output_file_path: str | Path | None = None) -> None:
        """Write one of the run's files to `output_file_path` (default: its base name).

        Raises:
            NotFoundError: the run has no such file; lists the existing ones.
        """
        target = Path(output_file_path) if output_file_path else Path(PurePosixPath(name).name)
        if target.is_dir() or str(output_file_path or "").endswith("/"):
            target = target / PurePosixPath(name).name
        self._fetch(name, target)

    def download_files(
        self,
        prefix: str | None = None,
        output_directory: str | Path | None = None,
        output_paths: Sequence[str | Path] | None = None,
        batch_size: int = 100,
        append_prefix: bool = True,
        timeout_seconds: float | None = None,
    ) -> None:
        """Write the run's files whose names begin with `prefix` below a folder.

        Args:
            output_paths: One path for each file, in the order of `get_file_names`.
            batch_size: Accepted but unused: files are fetched one by one.
            append_prefix: Keep the prefix in the paths.
            timeout_seconds: Start no further file after this time; None sets no limit.

        Raises:
            TimeoutError: the time is up; the files fetched so far are complete.
            NotFoundError: no file name begins with the prefix.
            UsageError: the number of `output_paths` differs from the number of files.
        """
        wanted = prefix or ""
        names = [name for name in self.get_file_names() if name.startswith(wanted)]
        if not names:
            raise NotFoundError(f"run {self.id} has no file whose name begins with {wanted!r}")
        folder = Path(output_directory) if output_directory else Path.cwd()
        if output_paths is not None:
            if len(output_paths) != len(names):
                raise UsageError(
                    f"{len(output_paths)} output_paths for {len(names)} files: {', '.join(names)}"
                )
            targets = [Path(path) for path in output_paths]
        else:
            cut = 0 if append_prefix else len(wanted)
            targets = [_inside(folder, name[cut:].lstrip("/") or name) for name in names]
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for number, (name, target) in enumerate(zip(names, targets, strict=True)):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(
                    f"{number} of {len(names)} files were fetched in {timeout_seconds:g} s; call "
                    f"download_files again for the rest, or give a longer timeout_seconds"
                )
            self._fetch(name, target)

    def upload_file(
        self, name: str, path_or_stream: Any, datastore_name: str | None = None
    ) -> StoredFile:
        """Store a file (path or binary stream) with the run under `name`.

        Raises:
            UsageError: the run already has such a file or has ended, or the name leads out of its
                folder.
            NotFoundError: there is no such file.
        """
        if not hasattr(path_or_stream, "read"):
            return self.upload_files([name], [path_or_stream], datastore_name=datastore_name)[0]
        with tempfile.TemporaryDirectory(prefix="rayjobs-") as folder:
            area = UploadArea(folder)
            stored = _checked_name(name)
            area.add(stored, path_or_stream)
            return self.upload_files([stored], [Path(folder, *stored.split("/"))])[0]

    def upload_files(
        self,
        names: Sequence[str],
        paths: Sequence[str | Path],
        return_artifacts: bool = False,
        timeout_seconds: float | None = None,
        datastore_name: str | None = None,
    ) -> Sequence[StoredFile]:
        """Store several files with the run: all of them, or none.

        Args:
            return_artifacts: Accepted but unused: the stored files are always returned.
            timeout_seconds: Store no file if not all bytes are stored within this time; None sets
                no limit.
            datastore_name: Refused, except for Azure ML's name for the storage of run files.

        Raises:
            UsageError: see `upload_file`; also if the numbers of names and paths differ.
            NotFoundError: there is no such file.
            TimeoutError: the time is up.
        """
        if datastore_name not in (None, ARTIFACT_STORE):
            raise UsageError(
                f"files of a run are stored with the run, not in datastore {datastore_name!r}; "
                f"leave out datastore_name, or use Datastore.upload_files"
            )
        if len(names) != len(paths):
            raise UsageError(f"{len(names)} names for {len(paths)} paths; give one name per path")
        stored = [_checked_name(name) for name in names]
        store = self._opened.store
        known = {one.name for one in store.files(self.id)}
        for number, name in enumerate(stored):
            if name in known or name in stored[:number]:
                raise UsageError(
                    f"run {self.id} already has a file {name!r}; uploads are never replaced, "
                    f"choose another name"
                )
        for path in paths:
            if not Path(path).is_file():
                raise NotFoundError(f"there is no file {Path(path).absolute()} to upload")
        job = store.job(self.id)
        now = SystemClock().now()
        files = []
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for name, path in zip(stored, paths, strict=True):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(
                    f"{len(stored)} files could not be stored in {timeout_seconds:g} s; none of "
                    f"them was added. Give fewer files per call, or a longer timeout_seconds"
                )
            blob = self._opened.blobs.add_file(Path(path))
            files.append(
                StoredFile(
                    name=name,
                    attempt=job.attempt,
                    size=blob.size,
                    digest=blob.digest,
                    blob=blob.key,
                    stored_at=now,
                )
            )
        if not store.publish_files(self.id, attempt=job.attempt, files=files):
            state = store.job(self.id).state
            raise UsageError(f"run {self.id} is {state}: files can only be added until a run ends")
        return files

    def upload_folder(
        self, name: str, path: str | Path, datastore_name: str | None = None
    ) -> Sequence[StoredFile]:
        """Store all files below a folder under `name`/…; see `upload_files`."""
        if not Path(path).is_dir():
            raise NotFoundError(f"there is no folder {Path(path).absolute()} to upload")
        below = list(UploadArea(str(path)).files_below(str(path)))
        return self.upload_files(
            [f"{name.rstrip('/')}/{relative}" for relative, _full in below],
            [full for _relative, full in below],
            datastore_name=datastore_name,
        )

    def _keep_image(self, name: str, path: str | None, plot: Any) -> str:
        with tempfile.TemporaryDirectory(prefix="rayjobs-") as folder:
            stored = UploadArea(folder).add_image(name, path, plot)
            self.upload_files([stored], [Path(folder, *stored.split("/"))])
        return stored

    def _fetch(self, name: str, target: Path) -> None:
        stored = {one.name: one for one in self._opened.store.files(self.id)}
        one: StoredFile | None = stored.get(name) or stored.get(real_name(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        if one is not None:
            self._opened.blobs.get_to(one.blob, target, digest=one.digest)
        elif is_log(name):
            with target.open("wb") as file:
                for part in self._logs().chunks(name):
                    file.write(part)
        else:
            known = ", ".join(list(self.get_file_names())[:20])
            raise NotFoundError(f"run {self.id} has no file {name!r}; it has: {known or 'none'}")

    def _bytes_of(self, name: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="rayjobs-") as folder:
            target = Path(folder, "file")
            self._fetch(name, target)
            return target.read_bytes()

    # -- code ----------------------------------------------------------------------------------
    def get_snapshot_id(self) -> str | None:
        """Return the id (the digest) of the run's snapshot; None if it has none."""
        return self._opened.store.job(self.id).snapshot

    def take_snapshot(self, file_or_folder_path: str | Path) -> str:
        """Store a file or folder as the code of an interactive run; return the snapshot's id.

        Raises:
            UsageError: the run already has a snapshot or is a job, or there is no such path.
            SnapshotError: it cannot be packed.
        """
        from rayjobs.api.interactive import pack_snapshot

        path = Path(file_or_folder_path).expanduser()
        with tempfile.TemporaryDirectory(prefix="rayjobs-") as folder:
            if path.is_file():
                shutil.copy2(path, folder)
                path = Path(folder)
            digest = pack_snapshot(self._opened, path).digest
        if not self._opened.store.set_run_snapshot(self.id, digest):
            raise UsageError(
                f"run {self.id} already has a snapshot, or is a job; a snapshot is never replaced. "
                f"Start another run, or a child run"
            )
        return digest

    def restore_snapshot(
        self, snapshot_id: str | None = None, path: str | Path | None = None
    ) -> str:
        """Write the run's snapshot as a zip file; return its path.

        Args:
            snapshot_id: Another snapshot; None means the run's own.
            path: The zip file, or an existing folder for it; None means the working directory.

        Raises:
            NotFoundError: the run has no snapshot, or it was pruned.
        """
        from rayjobs.snapshots import NodeSnapshots, blob_key

        digest = snapshot_id or self.get_snapshot_id()
        if digest is None:
            raise NotFoundError(f"run {self.id} has no snapshot")
        target = Path.cwd() if path is None else Path(path)
        if path is None or target.is_dir():
            target = target / f"{digest.replace(':', '-')[:19]}.zip"
        cache = NodeSnapshots(self._opened.path / "cache" / "unpacked")
        cache.ensure(digest, lambda: self._opened.blobs.open(blob_key(digest)))
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="rayjobs-") as folder, replacing(target) as draft:
            cache.copy_into(digest, Path(folder, "code"))
            made = shutil.make_archive(str(Path(folder, "code")), "zip", Path(folder, "code"))
            shutil.move(made, draft)
        return str(target)


def _checked_name(name: str) -> str:
    try:
        return clean_name(name)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _inside(folder: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    if ".." in parts or PurePosixPath(name).is_absolute() or not parts:
        raise UsageError(f"the file name {name!r} leads out of {folder}")
    return folder.joinpath(*parts)

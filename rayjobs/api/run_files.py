"""The files of a submitted run: its logs, what it stored, and the code that ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.jobs.records import StoredFile
from rayjobs.results.logs import Logs, is_log, real_name

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace


class RunFiles:
    """What `JobRun` knows of files. Source: ``azureml.core.Run``."""

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
        """Return the names of the run's files, logs among them."""
        names = {one.name for one in self._opened.store.files(self.id)}
        return sorted(names | set(self._logs().names()))

    def download_file(self, name: str, output_file_path: str | Path | None = None) -> None:
        """Write one of the run's files to `output_file_path` (its base name, here).

        Raises:
            NotFoundError: the run has no such file; lists those it has.
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
    ) -> None:
        """Write the run's files whose names begin with `prefix` below a folder.

        Args:
            output_paths: One path for each file, in the order of `get_file_names`.
            append_prefix: Keep the prefix in the paths.

        Raises:
            NotFoundError: no file begins so.
            UsageError: `output_paths` are not as many as the files.
        """
        wanted = prefix or ""
        names = [name for name in self.get_file_names() if name.startswith(wanted)]
        if not names:
            raise NotFoundError(f"run {self.id} has no file that begins with {wanted!r}")
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
        for name, target in zip(names, targets, strict=True):
            self._fetch(name, target)

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

    def restore_snapshot(self, snapshot_id: str | None = None, path: str | None = None) -> str:
        """Unpack the run's snapshot below `path` (here); return the folder."""
        from rayjobs.snapshots import NodeSnapshots, blob_key

        digest = snapshot_id or self._opened.store.job(self.id).snapshot
        if digest is None:
            raise NotFoundError(f"run {self.id} has no snapshot")
        folder = Path(path) if path is not None else Path.cwd()
        target = folder / digest.replace(":", "-")[:19]
        if not target.exists():
            cache = NodeSnapshots(self._opened.path / "cache" / "unpacked")
            cache.ensure(digest, lambda: self._opened.blobs.open(blob_key(digest)))
            target.mkdir(parents=True)
            cache.copy_into(digest, target)
        return str(target)


def _inside(folder: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    if ".." in parts or PurePosixPath(name).is_absolute() or not parts:
        raise UsageError(f"the file name {name!r} leads out of {folder}")
    return folder.joinpath(*parts)

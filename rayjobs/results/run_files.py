"""The logs, stored files and code of a submitted run, as its submitter fetches them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.jobs.records import StoredFile
from rayjobs.results.logs import Logs, is_log, real_name

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace


class RunFiles:
    """Reads the files of one run: its logs, and what the store keeps with it."""

    def __init__(self, workspace: OpenWorkspace, run_id: str) -> None:
        self._workspace = workspace
        self.run_id = run_id

    @property
    def logs(self) -> Logs:
        """The run's logs."""
        return Logs(self._workspace, self.run_id)

    def names(self) -> Sequence[str]:
        """Return the names of the run's files, including its logs."""
        names = {one.name for one in self._workspace.store.files(self.run_id)}
        return sorted(names | set(self.logs.names()))

    def save_logs(self, folder: Path) -> Sequence[str]:
        """Write all logs below a folder; return their paths."""
        written = []
        logs = self.logs
        for name in logs.names():
            target = _inside(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                for part in logs.chunks(name):
                    file.write(part)
            written.append(str(target))
        return written

    def save(self, name: str, path: str | Path | None = None) -> None:
        """Write a file to `path`, or below it if it is a folder or ends with ``/``.

        Args:
            path: None means the last part of the name.

        Raises:
            NotFoundError: the run has no such file; lists the existing ones.
        """
        target = Path(path) if path else Path(PurePosixPath(name).name)
        if target.is_dir() or str(path or "").endswith("/"):
            target = target / PurePosixPath(name).name
        self._fetch(name, target)

    def save_all(
        self,
        prefix: str,
        folder: Path,
        *,
        paths: Sequence[str | Path] | None,
        keep_prefix: bool,
        timeout_s: float | None,
    ) -> None:
        """Write the files whose names begin with `prefix` below a folder.

        Args:
            paths: One path for each file, in the order of `names`, instead of the folder.
            keep_prefix: Keep the prefix in the paths below the folder.
            timeout_s: Start no further file after this time; None sets no limit.

        Raises:
            TimeoutError: the time is up; the files fetched so far are complete.
            NotFoundError: no file name begins with the prefix.
            UsageError: the number of `paths` differs from the number of files.
        """
        names = [name for name in self.names() if name.startswith(prefix)]
        if not names:
            raise NotFoundError(f"run {self.run_id} has no file whose name begins with {prefix!r}")
        if paths is not None:
            if len(paths) != len(names):
                raise UsageError(
                    f"{len(paths)} output_paths for {len(names)} files: {', '.join(names)}"
                )
            targets = [Path(path) for path in paths]
        else:
            cut = 0 if keep_prefix else len(prefix)
            targets = [_inside(folder, name[cut:].lstrip("/") or name) for name in names]
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        for number, (name, target) in enumerate(zip(names, targets, strict=True)):
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise TimeoutError(
                    f"{number} of {len(names)} files were fetched in {timeout_s:g} s; call "
                    f"download_files again for the rest, or give a longer timeout_seconds"
                )
            self._fetch(name, target)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file. Raises as `save` does."""
        with tempfile.TemporaryDirectory(prefix="rayjobs-") as folder:
            target = Path(folder, "file")
            self._fetch(name, target)
            return target.read_bytes()

    def _fetch(self, name: str, target: Path) -> None:
        stored = {one.name: one for one in self._workspace.store.files(self.run_id)}
        one: StoredFile | None = stored.get(name) or stored.get(real_name(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        if one is not None:
            self._workspace.blobs.get_to(one.blob, target, digest=one.digest)
        elif is_log(name):
            with target.open("wb") as file:
                for part in self.logs.chunks(name):
                    file.write(part)
        else:
            known = ", ".join(list(self.names())[:20])
            raise NotFoundError(
                f"run {self.run_id} has no file {name!r}; it has: {known or 'none'}"
            )


def save_snapshot(workspace: OpenWorkspace, digest: str, path: str | Path | None) -> str:
    """Write a stored snapshot as a zip file; return its path.

    Args:
        path: The zip file, or an existing folder for it; None means the working directory.

    Raises:
        NotFoundError: it was pruned.
    """
    from rayjobs.snapshots import blob_key
    from rayjobs.snapshots.zipped import write_zip, zip_name

    target = Path.cwd() if path is None else Path(path)
    if path is None or target.is_dir():
        target = target / zip_name(digest)
    write_zip(
        digest,
        target,
        cache=workspace.path / "cache" / "unpacked",
        fetch=lambda: workspace.blobs.open(blob_key(digest)),
    )
    return str(target)


def _inside(folder: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    if ".." in parts or PurePosixPath(name).is_absolute() or not parts:
        raise UsageError(f"the file name {name!r} leads out of {folder}")
    return folder.joinpath(*parts)

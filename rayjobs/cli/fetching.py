"""Chooses stored files by name and writes them to disk, with progress, never outside the folder."""

from __future__ import annotations

import fnmatch
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from rayjobs.cli.settings import Settings
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.text import size_text
from rayjobs.jobs.records import StoredFile
from rayjobs.results.logs import real_name
from rayjobs.workspace.blobs import BlobStore


def chosen_files(
    job_id: str, stored: Sequence[StoredFile], names: Sequence[str], *, gone: str = ""
) -> list[StoredFile]:
    """Return the files that match the names (files, folders, patterns); without names, all files.

    Args:
        gone: What removed the job's files, if anything did.

    Raises:
        NotFoundError: a name matches nothing; the message lists the files.
    """
    if not names:
        return list(stored)
    chosen: dict[str, StoredFile] = {}
    for name in names:
        wanted = name.removeprefix("./")
        hits = [
            one
            for one in stored
            if one.name in (wanted, real_name(wanted))
            or one.name.startswith(wanted.rstrip("/") + "/")
            or fnmatch.fnmatchcase(one.name, wanted)
            or fnmatch.fnmatchcase(PurePosixPath(one.name).name, wanted)
        ]
        if not hits:
            known = ", ".join(one.name for one in stored[:10])
            more = f" and {len(stored) - 10} more" if len(stored) > 10 else ""
            raise NotFoundError(
                f"job {job_id} has no stored file {name!r}; "
                + (f"it has: {known}{more}" if stored else gone or "it has none so far")
            )
        chosen.update({one.name: one for one in hits})
    return sorted(chosen.values(), key=lambda one: one.name)


def destinations(
    job_id: str, files: Sequence[StoredFile], names: Sequence[str], output: str | None
) -> dict[str, Path]:
    """Return the destination of each file, by its name.

    A single file that was named itself goes to `output`, or into it if that is a folder (or ends in
    a slash), or into the current folder. Other files keep their names below `output`, or below a
    folder here that has the job's id.

    Raises:
        UsageError: a path would leave the folder.
    """
    if len(files) == 1 and list(names) in ([files[0].name], [real_name(files[0].name)]):
        own = PurePosixPath(files[0].name).name
        target = Path(output) if output is not None else Path(own)
        into_folder = output is not None and (output.endswith("/") or target.is_dir())
        return {files[0].name: target / own if into_folder else target}
    folder = Path(output) if output is not None else Path(job_id)
    found = {}
    for one in files:
        parts = PurePosixPath(one.name).parts
        if not parts or ".." in parts or PurePosixPath(one.name).is_absolute():
            raise UsageError(f"the file {one.name!r} of {job_id} would be written outside {folder}")
        found[one.name] = folder.joinpath(*parts)
    return found


def is_same(path: Path, file: StoredFile) -> bool:
    """Whether a path holds the file's bytes already."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return file.digest == f"sha256:{digest}"


def fetch(
    settings: Settings,
    blobs: BlobStore,
    files: Sequence[StoredFile],
    targets: dict[str, Path],
    *,
    force: bool,
) -> tuple[int, int]:
    """Write files; return how many were written, and how many existed already.

    Raises:
        UsageError: other files are in the way, and `force` is off; nothing was written.
    """
    present = {one.name for one in files if is_same(targets[one.name], one)}
    in_the_way = [
        str(targets[one.name])
        for one in files
        if one.name not in present and targets[one.name].exists()
    ]
    if in_the_way and not force:
        more = f" and {len(in_the_way) - 5} more" if len(in_the_way) > 5 else ""
        raise UsageError(
            f"these exist with other content: {', '.join(in_the_way[:5])}{more}. Give --force to "
            f"replace them, or another path with -o."
        )
    progress = _Progress(settings, sum(one.size for one in files if one.name not in present))
    for one in files:
        if one.name not in present:
            progress.show(one)
            targets[one.name].parent.mkdir(parents=True, exist_ok=True)
            blobs.get_to(one.blob, targets[one.name], digest=one.digest)
            progress.done_bytes += one.size
    progress.end()
    return len(files) - len(present), len(present)


class _Progress:
    """One line on a terminal that shows which file is being fetched."""

    def __init__(self, settings: Settings, total_bytes: int) -> None:
        self.done_bytes = 0
        self._total = size_text(total_bytes)
        self._is_shown = sys.stderr.isatty() and not settings.quiet
        self._was_shown = False

    def show(self, file: StoredFile) -> None:
        if self._is_shown:
            self._was_shown = True
            text = f"{size_text(self.done_bytes)} of {self._total}  {file.name}"
            sys.stderr.write(f"\r\x1b[K{text[:100]}")
            sys.stderr.flush()

    def end(self) -> None:
        if self._was_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

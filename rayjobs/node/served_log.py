"""Shows a job's driver log on Ray's dashboard: as a bounded copy in the session's logs.

A copy, not a link: a job could put anything at the target of a link, and Ray's agent, whose death
ends its node's raylet, reads a whole log into memory as text. So the copy is UTF-8, ends after
`MOST_BYTES`, and comes from a file that was opened without following any link.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from rayjobs.core.paths import AttemptPaths
from rayjobs.core.text import size_text

log = logging.getLogger(__name__)

MOST_BYTES = 4 * 2**20
MOST_LOGS = 100
PIECE_BYTES = 256 * 2**10
LOOK_EVERY_S = 0.5


class ServedLogs:
    """The copies of one node's driver logs; they disappear with Ray's session."""

    def __init__(
        self, path_of: Callable[[str], Path | None], is_ours: Callable[[str], bool]
    ) -> None:
        """Write copies to the path that `path_of` returns for a job.

        Args:
            is_ours: Whether a file with this name in the same folder is such a copy.
        """
        self._path_of = path_of
        self._is_ours = is_ours
        self._copies: dict[str, _Copy] = {}
        self._last: set[asyncio.Future[None]] = set()

    async def serve(self, job: str, attempt: int, root: Path) -> None:
        """Copy the output of rank 0 until this is canceled, including all output up to then.

        This logs any error: a job never fails because of one.
        """
        copy = self._begin(job, attempt, root)
        if copy is None:
            return
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                if copy.has_more():
                    await asyncio.to_thread(copy.copy_new)
        except OSError as error:
            log.info("the log of %s is not shown on the dashboard: %s", job, error)
        finally:
            # No caller waits for the rest. The attempt's folder may disappear: the file is open.
            last = asyncio.ensure_future(asyncio.to_thread(copy.end))
            self._last.add(last)
            last.add_done_callback(self._last.discard)

    async def finish(self) -> None:
        """Wait until every started copy is complete."""
        while self._last:
            await asyncio.gather(*self._last, return_exceptions=True)

    def _begin(self, job: str, attempt: int, root: Path) -> _Copy | None:
        target = self._path_of(job)
        if target is None:
            return None
        known = self._copies.get(job)
        copy = _Copy(
            AttemptPaths(root).driver_log(0), root, target, job, attempt, follows=known is not None
        )
        self._copies[job] = copy
        if known is None:
            self._keep_newest(target.parent)
        return copy

    def _keep_newest(self, folder: Path) -> None:
        """Remove the oldest copies, so that a long session does not fill the disk."""
        with contextlib.suppress(OSError):
            found = sorted(
                (one.stat(follow_symlinks=False).st_mtime_ns, one.name)
                for one in os.scandir(folder)
                if self._is_ours(one.name)
            )
            for _at, name in found[: max(0, len(found) - MOST_LOGS)]:
                (folder / name).unlink(missing_ok=True)
        while len(self._copies) > 2 * MOST_LOGS:
            del self._copies[next(iter(self._copies))]


class _Copy:
    """One attempt's log, copied in pieces."""

    def __init__(
        self, log_file: Path, root: Path, target: Path, job: str, attempt: int, *, follows: bool
    ) -> None:
        """Copy to `target`; append if it `follows` an earlier attempt's log there."""
        self._log_file = log_file
        self._root = root
        self._target = target
        self._job = job
        self._attempt = attempt
        self._follows = follows
        self._source: int | None = None
        self._read = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_full = False
        self._lock = threading.Lock()  # a canceled `serve` may leave its thread at work

    def has_more(self) -> bool:
        """Whether there is new output to copy. Cheap, since it is called often."""
        if self._is_full or not self._is_open():
            return False
        assert self._source is not None
        return os.fstat(self._source).st_size > self._read

    def copy_new(self) -> None:
        """Copy the new output. Raises OSError."""
        with self._lock:
            self._copy_new()

    def _copy_new(self) -> None:
        if not self.has_more():
            return
        assert self._source is not None
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        if self._read == 0 and not self._follows:
            self._target.unlink(missing_ok=True)  # of an earlier agent: this one copies everything
            flags |= os.O_EXCL
        target = os.open(self._target, flags, 0o600)
        with os.fdopen(target, "wb") as file:
            if self._read == 0 and self._attempt > 1:
                file.write(f"[rayjobs] attempt {self._attempt}\n".encode())
            while not self._is_full and (piece := os.pread(self._source, PIECE_BYTES, self._read)):
                self._read += len(piece)
                text = self._decoder.decode(piece)
                left = MOST_BYTES - os.fstat(file.fileno()).st_size - len(text)
                if left < 0:
                    self._is_full = True
                    text = text[:left] + (
                        f"\n[rayjobs] The dashboard shows the first {size_text(MOST_BYTES)} of a "
                        f"log. For the whole log: rayjobs logs {self._job}\n"
                    )
                file.write(text.encode())
                file.flush()

    def end(self) -> None:
        """Copy the rest, and close the log."""
        with self._lock:
            try:
                self._copy_new()
            except OSError as error:
                log.info("the log of %s is not shown on the dashboard: %s", self._job, error)
            finally:
                if self._source is not None:
                    os.close(self._source)
                    self._source = None
                self._is_full = True

    def _is_open(self) -> bool:
        if self._source is None:
            try:
                self._source = _open_regular(self._root, self._log_file.relative_to(self._root))
            except FileNotFoundError:
                return False
        return True


def _open_regular(root: Path, below: Path) -> int:
    """Open a file below a folder for reading, without following any link below it.

    Raises:
        FileNotFoundError: it does not exist yet.
        OSError: it, or a folder above it, is a link or not a regular file.
    """
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in below.parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=folder)
            os.close(folder)
            folder = inner
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(below.name, flags, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{root / below} is not a regular file")
    return file

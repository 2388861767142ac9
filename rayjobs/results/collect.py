"""Brings an attempt's metrics, logs and files into the store.

Used by the node agent, while the attempt runs and at its end. Everything blocks; nothing here uses
Ray. Every step may be repeated: metrics have keys, blobs are stored by digest.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core.clock import Clock, SystemClock
from rayjobs.core.errors import RayjobsError, StoreUnreachableError, UsageError
from rayjobs.core.paths import (
    BUILD_LOG,
    ENVIRONMENT_LOCK,
    LOG_TIMES,
    MPI_LOG,
    AttemptPaths,
    driver_log_name,
)
from rayjobs.core.text import counted
from rayjobs.injob import open_files
from rayjobs.injob.checkpoint import MANIFEST
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.metrics_file import METRIC_KINDS, MOST_BYTES, MOST_RANK_FILES, read_batch
from rayjobs.injob.record_files import MOST_RECORD_BYTES, UnusableFileError
from rayjobs.injob.uploads import PART
from rayjobs.jobs.records import MetricPoint, StoredFile
from rayjobs.results import log_times
from rayjobs.results.driver_log import compact, first_gap, problem_of, read_tail
from rayjobs.results.left_out import LeftOut
from rayjobs.results.metrics import point_of
from rayjobs.store.attempts import SCRIPT_ERROR
from rayjobs.store.requests import JobChanges

if TYPE_CHECKING:
    from rayjobs.injob.exit_record import ExitRecord
    from rayjobs.protocol.attempts import AttemptOnNode
    from rayjobs.store.base import Store
    from rayjobs.workspace.blobs import Blob, BlobStore

_OF_STEP = re.compile(r"(?P<at>(?:node-\d+/)?outputs/checkpoints/)step-(?P<step>\d+)/(?P<name>.+)")
_ESCAPE = re.compile(r"\\(?=x[0-9a-f]{2})")
_RANK_FILE = re.compile(r"rank-([0-9]{1,9})\.jsonl")
STABLE_S = 2.0  # a file unchanged for this long counts as complete
AGAIN_S = 30.0  # a file that keeps changing is stored again at most this often while running
TAIL_BYTES = 64 * 1024
NAMED_AT_MOST = 5
MOST_FILES = 200_000
# Files up to this size are stored in batches.
SMALL_BYTES = 1 << 20
TOGETHER_FILES = 500
TOGETHER_BYTES = 64 << 20

Watch = Callable[[str, int], None]
"""Called with the name and the size in bytes of the next file to read or store."""


@dataclass
class Found:
    """The content of an attempt's folder.

    Attributes:
        files: (name, path) of the files to store, by name.
        left_out: What is not stored.
    """

    files: list[tuple[str, Path]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def leave_out(self, name: str, why: str) -> None:
        """Record that a file or folder is not stored."""
        self.left_out.append(LeftOut(f"{name}: {why}", name))


def scan_files(on: AttemptOnNode) -> Found:
    """Return the files of an attempt: outputs, logs, uploads and what its ranks printed.

    Links are followed as long as they stay below the script's directory; sockets, FIFOs and
    devices are left out. Files of a second node appear under ``node-<k>/``.
    """
    paths, node = AttemptPaths(Path(on.root)), on.node
    prefix = f"node-{node}/" if node else ""
    found = Found()
    names: dict[str, Path] = {}
    # The script may have replaced work and outputs in the attempt's folder with links.
    real_root = Path(os.path.realpath(paths.root))
    inside = real_root / paths.work.name
    for folder in ("outputs", "logs"):
        for name, path in _walk(paths.work / folder, folder, inside, found):
            names[prefix + name] = path
    uploads = paths.root / "uploads"
    for name, path in _walk(uploads, "", real_root / uploads.name, found):
        names[prefix + name] = path
    ours = {prefix + BUILD_LOG: paths.build_log, prefix + ENVIRONMENT_LOCK: paths.environment_lock}
    if _size_of(paths.mpi_log) or not node:
        ours[prefix + MPI_LOG] = paths.mpi_log
    if log_times.is_worth_storing(paths):
        ours[prefix + LOG_TIMES] = paths.log_times
    world_size = on.node_count * len(on.ranks)
    for number in on.ranks:
        ours[driver_log_name(number, world_size)] = paths.driver_log(number)
    for name, path in ours.items():
        # Links are not followed here: these files are ours, and the script needs no links.
        if not os.path.lexists(path):
            continue
        why = problem_of(path)
        if not why and path == paths.environment_lock and _size_of(path) > MOST_RECORD_BYTES:
            why = f"{path.name} has more than {MOST_RECORD_BYTES} bytes"
        if why:
            found.leave_out(name, why)
        else:
            names[name] = path
    found.files = sorted(names.items())
    return found


def _size_of(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def missing_records(
    on: AttemptOnNode, record: ExitRecord | None, *, restored: str = ""
) -> list[LeftOut]:
    """Return what an attempt's folder lacks at its end.

    Args:
        record: The exit record: a rank that was never started has no log.
        restored: A note about a restore of the store since the attempt began, if there was one.
    """
    paths = AttemptPaths(Path(on.root))
    if not os.path.lexists(paths.root):
        if restored:  # the attempt had ended, and storing its records removed its folder
            gone = f"the attempt's folder is gone, since the attempt had ended: {restored}"
            return [LeftOut(gone, has_lost_files=True)]
        gone = (
            "the attempt's folder was gone at its end, so its log, metrics and outputs are not "
            f"stored: something removed {paths.root}, which RAYJOBS_ATTEMPT_DIR names. Remove "
            "only files of your own there"
        )
        return [LeftOut(gone, has_lost_files=True)]
    lost = []
    whats = {paths.work: "outputs", paths.driver_log(0).parent: "log", paths.metrics(0).parent: ""}
    for folder, what in whats.items():
        if folder.is_symlink() or not folder.is_dir():
            gone = (
                f"the attempt's folder {folder.name}/ was gone at its end, so "
                f"{what or 'metrics that were logged last'} may be missing: something removed or "
                f"replaced {folder}"
            )
            lost.append(LeftOut(gone, has_lost_files=True))
    world_size = on.node_count * len(on.ranks)
    for rank in record.ranks if record is not None else ():
        log = paths.driver_log(rank.rank)
        if rank.started_at and log.parent.is_dir() and not os.path.lexists(log):
            name = driver_log_name(rank.rank, world_size)
            gone = f"{name}: the log was gone at the attempt's end: something removed {log}"
            lost.append(LeftOut(gone, name))
    return lost


def _walk(folder: Path, name: str, inside: Path, found: Found) -> Iterator[tuple[str, Path]]:
    pending: list[tuple[Path, str, frozenset[str]]] = [(folder, name, frozenset())]
    count = 0
    while pending:
        at, at_name, above = pending.pop()
        real = os.path.realpath(at)
        if not Path(real).is_relative_to(inside):
            found.leave_out(at_name, "a link that leads out of the job's directory")
            continue
        if real in above:
            found.leave_out(at_name, "a link that leads to a folder above it")
            continue
        try:
            entries = sorted(os.scandir(at), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            found.leave_out(at_name, f"cannot be read ({error.strerror})")
            continue
        for entry in entries:
            if entry.name.startswith(PART):
                continue  # a copy or checkpoint in progress
            path = Path(entry.path)
            shown = f"{at_name}/{_text(entry.name)}" if at_name else _text(entry.name)
            kind = _kind(path, inside)
            if kind == "folder":
                pending.append((path, shown, above | {real}))
            elif kind == "file":
                count += 1
                if count > MOST_FILES:
                    found.leave_out(name, f"more than {MOST_FILES} files; the rest is left out")
                    return
                yield shown, path
            elif kind:
                found.leave_out(shown, kind)


def _text(name: str) -> str:
    r"""Return a file's name as text; bytes that are not UTF-8 are escaped, since records are text.

    In a name that itself contains such an escape, the backslash is escaped: two files never share a
    name.
    """
    return os.fsencode(_ESCAPE.sub(r"\\x5c", name)).decode("utf-8", "backslashreplace")


def _kind(path: Path, inside: Path) -> str:
    """Return ``file``, ``folder``, "" if it has gone, or why it is left out."""
    try:
        if path.is_symlink():
            target = Path(os.path.realpath(path))
            if not target.is_relative_to(inside):
                return "a link that leads out of the job's directory"
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "a link to nothing" if path.is_symlink() else ""
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if stat.S_ISDIR(mode):
        return "folder"
    return "file" if stat.S_ISREG(mode) else "neither a file nor a folder"


@dataclass
class _Seen:
    """A file as it was when it was stored."""

    size: int
    changed_ns: int
    inode: int
    stored_s: float


class Publisher:
    """Stores an attempt's files: complete ones while it runs, everything at its end.

    A file is visible once `publish` has accepted its row (``store.publish_files`` of the job and
    attempt). A refusal means that a newer attempt owns the job; then nothing more is stored.

    Args:
        drop: Removes rows of files by their names (``store.drop_files``), for the checkpoints that
            the script drops; None: everything that was stored stays.
    """

    def __init__(
        self,
        on: AttemptOnNode,
        *,
        blobs: BlobStore,
        publish: Callable[[Sequence[StoredFile]], bool],
        drop: Callable[[Sequence[str]], bool] | None = None,
        clock: Clock | None = None,
        watch: Watch = lambda _name, _size: None,
    ) -> None:
        self.on = on
        self.root = Path(on.root)
        self._watch = watch
        self.refused = False
        # Why the last `finish` did not store everything, if a server is unavailable.
        self.outage = ""
        # Whether the last `finish` could not open more files.
        self.is_out_of_files = False
        self.left_out: list[LeftOut] = []
        self._blobs = blobs
        self._publish = publish
        self._drop = drop
        self._clock = clock or SystemClock()
        self._seen: dict[str, _Seen] = {}
        # A `step` that still runs on its thread must not overlap with `finish`.
        self._lock = threading.Lock()

    def step(self) -> int:
        """Store files that have been unchanged for 2 s; return their number.

        Problems are not reported: the file is tried again, at the latest by `finish`.
        """
        with self._lock:
            count = self._step()
            self._drop_old()
            return count

    def _step(self) -> int:
        count = 0
        now_s = self._clock.monotonic_s()
        wall_s = self._clock.now().timestamp()
        due = []
        self._watch("the list of its files", 0)
        for name, path in scan_files(self.on).files:
            if self.refused or self._is_in_log_folder(path):
                continue  # a growing log is read in place
            try:
                info = path.stat()
            except OSError:
                continue
            # A time in the future (another clock) must not exclude a file forever.
            age_s = abs(wall_s - max(info.st_mtime, info.st_ctime))
            if age_s >= STABLE_S and self._is_due(name, info, now_s):
                due.append((name, path, info))
        for part in _parts(due):
            stored = self._store(part, [])
            if self.refused or not stored:
                continue
            try:
                self._make_visible(stored)
            except RayjobsError:
                return count
            count += len(stored)
        return count

    def finish(self) -> list[str]:
        """Store everything that is not stored yet; return the problems, one sentence each.

        Idempotent: call it again once there is space. Stored files are visible even if others could
        not be stored.
        """
        with self._lock:
            problems = self._finish()
            self._drop_old()
            return problems

    def _finish(self) -> list[str]:
        self.outage = ""
        self.is_out_of_files = False
        self._watch("the list of its files", 0)
        found = scan_files(self.on)
        self.left_out = found.left_out
        problems: list[str] = []
        due = []
        for name, path in found.files:
            try:
                info = path.stat()
            except OSError as error:
                self._note_cause(error)
                problems.append(f"{name}: {_sentence(error)}")
                continue
            if self._is_due(name, info, None):
                due.append((name, path, info))
        for part in _parts(due):
            if self.refused:
                break
            self._visible_or(problems, self._store(part, problems))
        if len(problems) > NAMED_AT_MOST:
            more = len(problems) - NAMED_AT_MOST
            problems = [
                *problems[:NAMED_AT_MOST],
                f"{counted(more, 'more file')} could not be stored.",
            ]
        return problems

    def _drop_old(self) -> None:
        """Remove stored checkpoints that the script itself has dropped (`keep`).

        Removes only files that this publisher stored for this attempt, and only once a newer
        checkpoint that the job still has is stored completely: a resume always finds one.
        """
        if self._drop is None or self.refused:
            return
        if sum(name.endswith(f"/{MANIFEST}") for name in self._seen) < 2:
            return
        present: dict[str, bool] = {}
        for name, path in scan_files(self.on).files:
            if _OF_STEP.fullmatch(name):
                try:
                    present[name] = not self._is_due(name, path.stat(), None)
                except OSError:
                    present[name] = False  # it has just disappeared; the next round decides
        names = superseded(self._seen, present)
        if not names:
            return
        try:
            if not self._drop(names):
                self.refused = True
        except RayjobsError:
            return  # they are still in `_seen`: tried again
        for name in names:
            del self._seen[name]

    def _visible_or(self, problems: list[str], stored: list[StoredFile]) -> None:
        if stored:
            try:
                self._make_visible(stored)
            except RayjobsError as error:
                self._note_cause(error)
                problems.append(_sentence(error))

    def _note_cause(self, error: Exception) -> None:
        self.is_out_of_files = self.is_out_of_files or open_files.is_exhausted(error)
        if isinstance(error, StoreUnreachableError):
            self.outage = self.outage or _sentence(error)

    def _make_visible(self, files: list[StoredFile]) -> None:
        try:
            if not self._publish(files):
                self.refused = True
        except RayjobsError:
            for one in files:
                self._seen.pop(one.name, None)  # tried again
            raise

    def _is_in_log_folder(self, path: Path) -> bool:
        return path.parent == self.root / "log"

    def _is_due(self, name: str, info: os.stat_result, now_s: float | None) -> bool:
        seen = self._seen.get(name)
        if seen is None:
            return True
        same = (seen.size, seen.changed_ns, seen.inode) == (
            info.st_size,
            info.st_mtime_ns,
            info.st_ino,
        )
        return not same and (now_s is None or now_s - seen.stored_s >= AGAIN_S)

    def _store(self, part: Sequence[_Due], problems: list[str]) -> list[StoredFile]:
        """Store files' contents; return the rows of stored files, and record the problems."""
        name, path, _info = part[0]
        more = f" and {counted(len(part) - 1, 'file')} after it" if len(part) > 1 else ""
        self._watch(f"{name}{more}", sum(_bytes_on_disk(info) for _, _, info in part))
        blobs: Sequence[Blob | Exception]
        if len(part) > 1:
            try:
                blobs = self._blobs.add_files([path for _, path, _ in part])
            except RayjobsError as error:
                self._note_cause(error)
                problems.append(_sentence(error))
                return []
        else:
            try:
                blobs = [self._store_one(name, path)]
            except (RayjobsError, OSError) as error:
                blobs = [error]
        stored = []
        for (name, _, info), blob in zip(part, blobs, strict=True):
            if isinstance(blob, Exception):
                self._note_cause(blob)
                problems.append(f"{name}: {_sentence(blob)}")
                continue
            self._seen[name] = _Seen(
                info.st_size, info.st_mtime_ns, info.st_ino, self._clock.monotonic_s()
            )
            stored.append(
                StoredFile(
                    name=name,
                    attempt=self.on.attempt,
                    size=blob.size,
                    digest=blob.digest,
                    blob=blob.key,
                    stored_at=self._clock.now(),
                )
            )
        return stored

    def _store_one(self, name: str, path: Path) -> Blob:
        if path == AttemptPaths(self.root).log_times:
            with log_times.to_store(AttemptPaths(self.root)) as whole:
                return self._blobs.add_file(whole)
        if not self._is_in_log_folder(path):
            return self._blobs.add_file(path)
        gap = first_gap(path)
        if gap is not None:
            hole = (
                f"{name}: the bytes after {gap} are not stored: the file has a hole there, "
                "which no rank made by printing"
            )
            self.left_out.append(LeftOut(hole, name))
        with compact(path) as whole:
            return self._blobs.add_file(whole)


_Due = tuple[str, Path, os.stat_result]


def superseded(stored: Collection[str], present: dict[str, bool]) -> list[str]:
    """Return the stored files of checkpoints that the job has dropped and no longer needs.

    Args:
        stored: Names that are stored.
        present: Names that the job still has → whether their current content is stored.
    """
    here: dict[str, dict[int, bool]] = {}
    for name, is_stored in present.items():
        match = _OF_STEP.fullmatch(name)
        if match is not None:
            steps, step = here.setdefault(match["at"], {}), int(match["step"])
            steps[step] = steps.get(step, True) and is_stored
    found = []
    for name in stored:
        match = _OF_STEP.fullmatch(name)
        if match is None:
            continue
        steps, step = here.get(match["at"], {}), int(match["step"])
        whole = (
            newer
            for newer, is_stored in steps.items()
            if is_stored and f"{match['at']}step-{newer:012d}/{MANIFEST}" in present
        )
        if step not in steps and step < max(whole, default=-1):
            found.append(name)
    return sorted(found)


def _parts(due: Sequence[_Due]) -> Iterator[Sequence[_Due]]:
    """Yield files in batches: many small ones, or one large one."""
    part: list[_Due] = []
    size = 0
    for one in due:
        _, path, info = one
        # A log may have to be rewritten first.
        if info.st_size > SMALL_BYTES or path.suffix == ".log":
            yield [one]
            continue
        if len(part) >= TOGETHER_FILES or size + info.st_size > TOGETHER_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += info.st_size
    if part:
        yield part


def _bytes_on_disk(info: os.stat_result) -> int:
    return min(info.st_size, info.st_blocks * 512)


def _sentence(error: Exception) -> str:
    text = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return text if text.endswith(".") else f"{text}."


@dataclass
class Batch:
    """Records of one rank that have not been delivered yet."""

    rank: int
    next_offset: int
    points: list[MetricPoint] = field(default_factory=list)
    tags: dict[str, str | None] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)


class MetricFollower:
    """Reads what the ranks of an attempt log, batch by batch.

    A batch counts as delivered once `confirm` was called with it; until then it is repeated. A new
    follower starts at the beginning, which is harmless: the store knows the keys.
    """

    def __init__(self, root: Path, *, attempt: int) -> None:
        self._folder = AttemptPaths(Path(root)).metrics(0).parent
        self._attempt = attempt
        self._offsets: dict[int, int] = {}
        self.left_out: dict[str, str] = {}  # file → why all or part of it is not read

    def batches(self, limit: int = 5000) -> Iterator[Batch]:
        """Yield the current records in batches of at most `limit`; confirm each batch.

        Records appended meanwhile are left for the next call; unreadable files are named in
        `left_out`.
        """
        for rank in self._ranks():
            name = f"{self._folder.name}/rank-{rank}.jsonl"
            path = self._folder / f"rank-{rank}.jsonl"
            size = _size_of(path)
            if not path.is_file() or path.is_symlink():
                self.left_out[name] = problem_of(path) or f"{name} no longer exists"
                continue
            if size > MOST_BYTES:
                self.left_out[name] = f"{name}: only its first {MOST_BYTES} bytes are read"
            while (before := self._offsets.get(rank, 0)) < size:
                try:
                    batch = self._read(rank, before, limit)
                except UnusableFileError as error:
                    self.left_out[name] = str(error)
                    break
                except OSError as error:
                    if open_files.is_exhausted(error):
                        raise  # temporary: nothing is left out
                    self.left_out[name] = f"{name} cannot be read ({error.strerror})"
                    break
                if batch.next_offset == before:
                    break
                yield batch
                if self._offsets.get(rank, 0) == before:
                    break  # not confirmed: the caller tries again later

    def confirm(self, batch: Batch) -> None:
        """Record that a batch was delivered."""
        self._offsets[batch.rank] = max(batch.next_offset, self._offsets.get(batch.rank, 0))

    def _ranks(self) -> list[int]:
        try:
            names = [] if self._folder.is_symlink() else os.listdir(self._folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            folder = f"{self._folder.name}/"
            self.left_out[folder] = f"{folder} cannot be read ({error.strerror})"
            return []
        found = [_RANK_FILE.fullmatch(name) for name in names]
        ranks = sorted(int(one[1]) for one in found if one is not None)
        if len(ranks) > MOST_RANK_FILES:
            folder = f"{self._folder.name}/"
            self.left_out[folder] = f"{folder}: only its first {MOST_RANK_FILES} files are read"
        return ranks[:MOST_RANK_FILES]

    def _read(self, rank: int, offset: int, limit: int) -> Batch:
        path = self._folder / f"rank-{rank}.jsonl"
        records, next_offset = read_batch(str(path), offset, limit)
        batch = Batch(rank, next_offset)
        for record in records:
            kind, name, value = record.kind, record.name, record.value
            if kind in METRIC_KINDS:
                point = point_of(record, attempt=self._attempt, rank=rank)
                if point is not None:
                    batch.points.append(point)
            elif kind == "tag" and name is not None:
                batch.tags[name] = None if value is None else str(value)
            elif kind == "property" and name is not None:
                batch.properties.setdefault(name, str(value))
            elif kind == "fail":
                batch.notes.append((SCRIPT_ERROR, f"the script reported an error: {value}"))
            elif kind == "dropped":
                batch.notes.append(
                    ("metrics_dropped", f"{value} records could not be written (disk full)")
                )
        return batch


def deliver(store: Store, job_id: str, batch: Batch, *, attempt: int) -> None:
    """Write a batch to the store. A repeated call adds only its events again.

    Raises:
        StoreError: the store cannot be written now; retry the same batch.
    """
    if batch.points:
        store.add_metrics(job_id, batch.points)
    if batch.tags:
        store.update(job_id, JobChanges(tags=batch.tags))
    if batch.properties:
        _add_properties(store, job_id, batch, attempt)
    for kind, message in batch.notes:
        store.add_event(job_id, kind, message, attempt=attempt)


def _add_properties(store: Store, job_id: str, batch: Batch, attempt: int) -> None:
    for name, value in batch.properties.items():
        try:
            store.update(job_id, JobChanges(properties={name: value}))
        except UsageError as error:
            # An earlier attempt, or another rank, has set it to something else.
            store.add_event(job_id, "property_refused", str(error), attempt=attempt)


def log_tails(on: AttemptOnNode, *, most_bytes: int = TAIL_BYTES) -> dict[int, bytes]:
    """Return the last output of each rank of this node, by rank."""
    paths = AttemptPaths(Path(on.root))
    return {rank: read_tail(paths.driver_log(rank), most_bytes) for rank in on.ranks}

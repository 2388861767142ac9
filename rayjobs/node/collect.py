"""Collects an attempt's metrics and files from its node into the workspace."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from rayjobs.core.errors import RayjobsError, StoreError, StoreUnreachableError
from rayjobs.core.paths import AttemptPaths
from rayjobs.datastore.progress import Progress as TransferProgress
from rayjobs.datastore.progress import line_of
from rayjobs.injob import open_files
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.events import Restored
from rayjobs.models import requested
from rayjobs.node.collection_threads import CollectionThreads, Progress, on_own_thread
from rayjobs.node.data import NodeData
from rayjobs.node.hosts import record_of
from rayjobs.node.outputs import OutputProblem
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.protocol.calls import StoreProgress
from rayjobs.protocol.collected import Collected, RequestedModel
from rayjobs.results.collect import MetricFollower, Publisher, deliver, log_tails, missing_records
from rayjobs.results.left_out import FileLeftOut, LeftOut
from rayjobs.results.live_logs import Sender
from rayjobs.results.live_logs import folder as live_folder

log = logging.getLogger(__name__)

# How often metrics and files are read while an attempt runs.
METRICS_EVERY_S = 0.25
FILES_EVERY_S = 2.0
# How often a long comparison of input files checks for a cancel.
CANCEL_EVERY_S = 2.0


class _CanceledError(RayjobsError):
    """The job was canceled during the comparison of its input files."""


class Collecting:
    """Collects the results of one node's attempts into their workspaces."""

    def __init__(
        self,
        data: NodeData,
        workspaces: Workspaces,
        changed_environment: Callable[[Path], str] = lambda _root: "",
    ) -> None:
        self._data = data
        self._changed_environment = changed_environment
        self._workspaces = workspaces
        self._publishers: dict[str, Publisher] = {}
        self._metrics: dict[str, MetricFollower] = {}
        self._progress: dict[str, Progress] = {}
        # By key: the progress of a later store, as a line.
        self._storing: dict[str, str] = {}
        self._noted: dict[str, set[str]] = {}
        # By marker: the current path of an attempt's workspace, from the last call about it.
        self._workspace_by_marker: dict[str, str] = {}
        self._senders: dict[str, list[Sender]] = {}
        self._collections = CollectionThreads()

    async def watch(self, on: AttemptOnNode) -> None:
        """Collect metrics and complete files into the workspace while the attempt runs.

        Returns if the workspace moves: the call with its new path then collects everything again,
        since it is unknown which of the earlier results are in the new folder.
        """
        self._workspace_by_marker[on.marker] = on.workspace
        turns_per_files = max(1, round(FILES_EVERY_S / METRICS_EVERY_S))
        turn = 0
        syncing: asyncio.Future[None] | None = None
        sending: asyncio.Future[None] | None = None
        while True:
            await asyncio.sleep(METRICS_EVERY_S)
            if self._workspace_by_marker.get(on.marker) != on.workspace:
                return
            turn += 1
            try:
                if sending is None or sending.done():
                    # Separately: metrics must not wait for the storage of files.
                    sending = asyncio.ensure_future(on_own_thread(self._send_logs, on))
                # On its own thread: one that hangs must not take a thread from the others.
                await on_own_thread(self._bring_metrics, on)
                if turn % turns_per_files == 0:
                    if syncing is None or syncing.done():
                        # Separately: the rest must not wait for the storage of an output.
                        syncing = asyncio.ensure_future(on_own_thread(self._sync_outputs, on))
                    await on_own_thread(self._publisher(on).step)
            except RayjobsError as error:
                log.info("%s: %s", on.job, error)
            except OSError as error:
                log.warning("%s: %s", on.job, error)

    def _send_logs(self, on: AttemptOnNode) -> None:
        try:
            for sender in self._senders_of(on):
                sender.step()
        except (RayjobsError, OSError) as error:
            log.info("logs of %s are sent later: %s", on.job, error)

    def _senders_of(self, on: AttemptOnNode) -> list[Sender]:
        """Return the senders of the logs; empty if all readers can read this node's disk."""
        key = _key(on)
        if key not in self._senders:
            workspace = self._workspaces.of(on)
            if workspace.blobs_address is None:
                self._senders[key] = []
            else:
                self._senders[key] = [
                    Sender(
                        workspace.blobs,
                        AttemptPaths(Path(on.root)).driver_log(rank),
                        live_folder(on.job, on.attempt, rank),
                        time.monotonic,
                    )
                    for rank in on.ranks
                ]
        return self._senders[key]

    def _remove_sent(self, on: AttemptOnNode) -> None:
        """Remove the pieces of completely stored logs; `rayjobs prune` removes the rest."""
        try:
            for sender in self._senders_of(on):
                sender.remove()
        except RayjobsError as error:
            log.info("pieces of logs of %s stay for now: %s", on.job, error)

    def _sync_outputs(self, on: AttemptOnNode) -> None:
        try:
            if self._data.has_mounted_outputs(Path(on.root)) and self._is_current(on):
                self._data.sync_outputs(Path(on.root), note=partial(self._workspaces.note, on))
        except (RayjobsError, OSError, ValueError) as error:
            log.warning("outputs of %s: %s", on.job, error)

    async def collect(self, on: AttemptOnNode) -> Collected:
        """Store the last metrics and every file; return what failed, or where this is stuck.

        See `CollectionThreads.collect` for ``stuck``.
        """
        self._workspace_by_marker[on.marker] = on.workspace
        work = partial(self._collect, on)
        return await self._collections.collect(_key(on), work, self._progress_of(on))

    async def store_late(self, on: AttemptOnNode) -> Collected:
        """Store the outputs of an attempt whose job has ended without them; see `collect`."""
        self._workspace_by_marker[on.marker] = on.workspace
        work = partial(self._store_late, on)
        return await self._collections.collect(_key(on), work, self._progress_of(on))

    def store_progress(self, on: AttemptOnNode) -> StoreProgress:
        """Return the progress of `store_late`."""
        return StoreProgress(self._storing.get(_key(on), ""))

    def _store_late(self, on: AttemptOnNode) -> Collected:
        root = Path(on.root)
        record = record_of(str(root))
        if record is None or not AttemptPaths(root).data.exists():
            gone = f"{root} no longer exists: it was removed, or the node was replaced."
            return Collected(problems=(gone,))
        if record.outcome is not Outcome.COMPLETED:
            return Collected(problems=(f"the script did not succeed ({record.outcome}).",))
        if self._workspaces.of(on).store.job(on.job).attempt != on.attempt:
            return Collected(problems=("a newer attempt of the job owns its outputs.",))
        watch = self._progress_of(on).watch
        watch("the job's outputs", _bytes_below(AttemptPaths(root).written))
        note = partial(self._workspaces.record, on)

        def report(progress: TransferProgress) -> None:
            self._storing[_key(on)] = line_of(progress)

        try:
            problems = self._data.store_outputs(
                root, self._workspaces.of(on), note=note, progress=report
            )
        finally:
            self._storing.pop(_key(on), None)
        self._progress.pop(_key(on), None)
        self._workspace_by_marker.pop(on.marker, None)
        facts = self._data.facts(root)
        if not problems and not facts.refused and AttemptPaths(root).lacks_outputs.exists():
            AttemptPaths(root).stored.touch()  # the folder may be removed now
        sentences = tuple(one.sentence for one in problems)
        is_out_of_files = any(one.is_out_of_files for one in problems)
        return Collected(problems=sentences, data=facts, is_out_of_files=is_out_of_files)

    def _collect(self, on: AttemptOnNode) -> Collected:
        root = Path(on.root)
        watch = self._progress_of(on).watch
        record = record_of(str(root))
        left_out = missing_records(on, record, restored=self._restored(on))
        problems: list[str] = []
        outage: str | None = None
        is_out_of_files = False
        try:
            self._bring_metrics(on)
        except (StoreError, OSError) as error:
            problems.append(f"metrics: {error}.")
            is_out_of_files = open_files.is_exhausted(error)
            if isinstance(error, StoreUnreachableError):
                outage = problems[-1]
        left_out += map(LeftOut, self._metrics[_key(on)].left_out.values())
        self._learn_protection(on)
        publisher = self._publisher(on)
        problems += publisher.finish()
        outage = outage or publisher.outage or None
        left_out += publisher.left_out
        # Before outputs are stored, since that may change the same folder.
        left_out += map(LeftOut, self._compare_inputs(on))
        self._compare_environment(on)
        lacking = self._bring_outputs(on, record)
        watch("the models that the script registers", 0)
        requests: list[RequestedModel] = []
        try:
            requests = requested.read(root, on.node, left_out)
        except OSError as error:
            problems.append(f"models that the script registers: {error.strerror or error}.")
            is_out_of_files = is_out_of_files or open_files.is_exhausted(error)
        watch("the job's history", 0)
        self._note_left_out(on, left_out)
        watch("the end of the logs", 0)
        if not problems and not lacking:
            self._forget(on)
        facts = self._data.facts(root)
        if not problems and not lacking and not facts.refused and root.is_dir():
            AttemptPaths(root).stored.touch()
        elif not problems and lacking and all(one.is_outage for one in lacking):
            AttemptPaths(root).lacks_outputs.touch()
        outages = [one.sentence for one in lacking if one.is_outage]
        return Collected(
            tails=log_tails(on),
            problems=(*problems, *(one.sentence for one in lacking)),
            data=facts,
            models=tuple(requests),
            outage=outage or next(iter(outages), None),
            is_out_of_files=is_out_of_files
            or publisher.is_out_of_files
            or any(one.is_out_of_files for one in lacking),
        )

    def _bring_outputs(self, on: AttemptOnNode, record: ExitRecord | None) -> list[OutputProblem]:
        """Store the outputs of an attempt that may have some; return the problems."""
        root = Path(on.root)
        has_ended_well = record is not None and record.outcome is Outcome.COMPLETED
        if not (has_ended_well or self._data.has_mounted_outputs(root)) or not self._is_current(on):
            return []
        note = partial(self._workspaces.record, on)
        size_bytes = _bytes_below(AttemptPaths(root).written)
        self._progress_of(on).watch("the job's outputs", size_bytes)
        if has_ended_well:
            return [*self._data.store_outputs(root, self._workspaces.of(on), note=note)]
        return [*self._data.flush_outputs(root, note=note)]

    def _note_left_out(self, on: AttemptOnNode, left_out: Iterable[LeftOut]) -> None:
        """Write each record that is not stored into the job's history, once."""
        noted = self._noted.setdefault(_key(on), set())
        for one in left_out:
            if one.sentence not in noted:
                noted.add(one.sentence)
                self._workspaces.note(on, FileLeftOut.KIND, one.sentence, one.data.to_json())

    def _forget(self, on: AttemptOnNode) -> None:
        """Drop the state of an attempt whose files are all stored."""
        self._remove_sent(on)
        for kept in (self._publishers, self._metrics, self._progress, self._noted, self._senders):
            for key in [key for key in [*kept] if key.startswith(f"{on.marker} ")]:
                kept.pop(key, None)
        self._workspace_by_marker.pop(on.marker, None)

    def _restored(self, on: AttemptOnNode) -> str:
        """Return the note of a restore of the store since the attempt began, or ""."""
        if os.path.lexists(on.root):
            return ""
        try:
            events = self._workspaces.of(on).store.events(on.job)
        except StoreError:
            return ""
        found = [one for one in events if one.kind == Restored.KIND and one.attempt == on.attempt]
        return found[-1].message if found else ""

    def _compare_inputs(self, on: AttemptOnNode) -> list[str]:
        """Record which input files changed; return a sentence if they were not compared.

        This records any error in the history; an error never delays a job's end.
        """
        watch = self._progress_of(on).watch
        watch("the files of its inputs", 0)
        looked_s: float | None = None

        def looking(path: str, size_bytes: int) -> None:
            nonlocal looked_s
            if looked_s is None or time.monotonic() - looked_s >= CANCEL_EVERY_S:
                job = self._workspaces.of(on).store.job(on.job)
                if job.cancel_requested_at is not None:
                    raise _CanceledError("the job was canceled")
                looked_s = time.monotonic()
            # Each part separately, to notice within `STILL_S` that a file system does not answer.
            watch(f"the input file {path}", size_bytes)

        note = partial(self._workspaces.note, on)
        try:
            self._data.report_changes(
                Path(on.root),
                note=note,
                looking=looking,
                where=partial(self._workspaces.where_now, on),
            )
        except Exception as error:
            if not isinstance(error, _CanceledError):
                log.warning("inputs of %s", on.job, exc_info=error)
            return [f"the files of its inputs were not compared with those at its start: {error}"]
        return []

    def _compare_environment(self, on: AttemptOnNode) -> None:
        """Record how the attempt's environment changed; this never delays a job's end."""
        self._progress_of(on).watch("the files of its environment", 0)
        try:
            change = self._changed_environment(Path(on.root))
            noted = self._noted.setdefault(_key(on), set())
            if change and change not in noted:
                noted.add(change)
                self._workspaces.note(on, "environment", change, {"step": "changed"})
        except Exception as error:
            log.warning("the environment of %s", on.job, exc_info=error)

    def _is_current(self, on: AttemptOnNode) -> bool:
        """Whether this attempt's files may be stored: no newer attempt owns the job."""
        job = self._workspaces.of(on).store.job(on.job)
        return not job.state.is_final and job.attempt == on.attempt

    def _learn_protection(self, on: AttemptOnNode) -> None:
        """Read from the job's history how its other nodes protected its inputs."""
        job = on.job
        try:
            self._data.learn_protection(on, lambda: self._workspaces.of(on).store.events(job))
        except Exception as error:  # this must not delay the end of a finished job
            log.warning("how other nodes protected the inputs of %s", job, exc_info=error)

    def _bring_metrics(self, on: AttemptOnNode) -> None:
        key = _key(on)
        follower = self._metrics.get(key)
        attempt = on.attempt
        if follower is None:
            follower = MetricFollower(Path(on.root), attempt=attempt)
            self._metrics[key] = follower
        watch = self._progress_of(on).watch
        watch("its metrics", 0)
        for batch in follower.batches():
            watch(f"the metrics of rank {batch.rank}", 0)
            deliver(self._workspaces.of(on).store, on.job, batch, attempt=attempt)
            follower.confirm(batch)

    def _progress_of(self, on: AttemptOnNode) -> Progress:
        return self._progress.setdefault(_key(on), Progress())

    def _publisher(self, on: AttemptOnNode) -> Publisher:
        key = _key(on)
        publisher = self._publishers.get(key)
        if publisher is None:
            workspace = self._workspaces.of(on)
            job, attempt = on.job, on.attempt
            publisher = Publisher(
                on,
                blobs=workspace.blobs,
                publish=lambda files: workspace.store.publish_files(
                    job, attempt=attempt, files=files
                ),
                drop=lambda names: workspace.store.drop_files(job, attempt=attempt, names=names),
                watch=self._progress_of(on).watch,
            )
            self._publishers[key] = publisher
        return publisher


def _bytes_below(folder: Path) -> int:
    """Return the approximate size of the files below a folder; follows no links."""
    size = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                info = Path(at, name).lstat()
            except OSError:
                continue  # it has just gone
            size += min(info.st_size, info.st_blocks * 512)
    return size


def _key(on: AttemptOnNode) -> str:
    return f"{on.marker} {on.workspace}"

"""What an agent does on its node: prepare, launch, follow, collect, settle, clean."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import datastore
import rayjobs
from rayjobs import resuming, snapshots
from rayjobs.collect import MetricFollower, Publisher, deliver, log_tails
from rayjobs.compute.nodedata import NodeData
from rayjobs.compute.nodehosts import (
    exit_record_of_lost_host,
    host_of,
    interpreter,
    read_secrets,
    record_of,
)
from rayjobs.errors import (
    NotFoundError,
    PrepareError,
    RayjobsError,
    SnapshotError,
    StoreError,
)
from rayjobs.launch import hostclient
from rayjobs.launch.leftovers import end_leftovers, find_leftovers
from rayjobs.launch.plan import resume_variables
from rayjobs.paths import AttemptPaths, NodePaths, TargetPaths, short_socket
from rayjobs.safe_delete import OwnFolder, UnsafeDeletionError
from rayjobs.workspace_files import OpenWorkspace, id_of, open_workspace

log = logging.getLogger(__name__)

# How often metrics and files are read while an attempt runs.
METRICS_EVERY_S = 0.25
FILES_EVERY_S = 2.0
WARM_IDLE_S = 1800.0
SETTLE_GRACE_S = 2.0
END_TIMEOUT_S = 60.0
CLEAN_TIMEOUT_S = 60.0
CLEAN_PAUSE_S = 0.05
# How long scratch stays that was kept after its attempt's end.
KEEP_S = 7 * 86400.0


class Node:
    """One node's side of all attempts on it. Its methods run on one event loop."""

    def __init__(self, target: str, home: Path) -> None:
        self.target = target
        self.paths = NodePaths(home / "node")
        self.paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log = TargetPaths.of(target, under=home).log
        self._log.mkdir(parents=True, exist_ok=True)
        self._snapshots = snapshots.NodeSnapshots(self.paths.snapshots)
        self._data = NodeData(self.paths.data_cache)
        self._workspaces: dict[str, OpenWorkspace] = {}
        self._publishers: dict[str, Publisher] = {}
        self._metrics: dict[str, MetricFollower] = {}
        self._warm: asyncio.Task[hostclient.WarmInterpreter] | None = None

    # -- the warm interpreter --------------------------------------------------------------------
    @property
    def warm_socket(self) -> Path:
        """Where this interpreter's warm copy listens."""
        return short_socket("warm", f"{sys.executable}:{sys.version}:{self.paths.root}")

    def warm_up(self, *, again: bool = False) -> asyncio.Task[hostclient.WarmInterpreter]:
        """Return the start of the warm interpreter; `again` when it was seen to be gone."""
        task = self._warm
        if task is None or (task.done() and (again or task.exception() is not None)):
            task = asyncio.ensure_future(self._ensure_warm())
            task.add_done_callback(_note_warm)
            self._warm = task
        return task

    async def _ensure_warm(self) -> hostclient.WarmInterpreter:
        from rayjobs.launch.plan import inherited

        preload = os.environ.get("RAYJOBS_PRELOAD")
        return await hostclient.ensure_warm(
            str(self.warm_socket),
            python=sys.executable,
            env=inherited(os.environ),
            log_file=str(self._log / "warm.log"),
            preload=preload.split(",") if preload else hostclient.DEFAULT_PRELOAD,
            idle_s=float(os.environ.get("RAYJOBS_WARM_IDLE_S", WARM_IDLE_S)),
        )

    def injob_path(self) -> Path:
        """Return a folder that holds nothing but the packages `rayjobs` and `datastore`.

        Appended to a rank's sys.path, it makes ``from rayjobs import Run`` work in any
        environment without shadowing what is installed there. The second one is imported only
        by a script that takes a dataset itself from `run.input_datasets`.
        """
        folder = self.paths.root / "injob"
        folder.mkdir(exist_ok=True)
        for module in (rayjobs, datastore):
            package = Path(str(module.__file__)).resolve().parent
            link = folder / package.name
            if not link.is_symlink() or link.resolve() != package:
                fresh = folder / f".{package.name}.{os.getpid()}"
                fresh.unlink(missing_ok=True)
                fresh.symlink_to(package)
                fresh.replace(link)
        return folder

    # -- prepare ---------------------------------------------------------------------------------
    async def prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Make the attempt's folder: a private copy of the snapshot, room for what it says, data.

        Returns:
            The folder, and as ``variables`` where the script finds its inputs and outputs.

        Raises:
            PrepareError: with its class.
        """
        made = await asyncio.to_thread(self._prepare, order)
        loop = asyncio.get_running_loop()
        variables = await loop.run_in_executor(self._data.pool, self._bring_data, order)
        return {**made, "variables": variables}

    def _bring_data(self, order: Mapping[str, Any]) -> dict[str, str]:
        note = partial(self._note, order)
        return self._data.bring(order, self._workspace(order), note=note)

    def _prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        paths = AttemptPaths(Path(order["plan"]["root"]))
        try:
            # An attempt starts once, in a new folder; what stands here was put back unused.
            self._data.release(paths.root)
            if kept := self._remove(paths.root):
                raise PrepareError("; ".join(kept), failure_class="storage")
            paths.root.mkdir(mode=0o700, parents=True)
            if order["snapshot"] is not None:
                self._unpack(order, paths.work)
            for folder in (
                paths.work / "outputs",
                paths.work / "logs",
                paths.driver_log(0).parent,
                paths.metrics(0).parent,
                paths.tmp,
            ):
                folder.mkdir(parents=True, exist_ok=True)
            self._bring_checkpoint(order, paths.resume)
        except SnapshotError as error:
            raise PrepareError(str(error), failure_class="environment") from error
        except (StoreError, NotFoundError) as error:
            raise PrepareError(str(error), failure_class="storage") from error
        except OSError as error:
            raise PrepareError(
                f"{paths.root} cannot be made: {error.strerror}", failure_class="storage"
            ) from error
        return {"root": str(paths.root)}

    def _unpack(self, order: Mapping[str, Any], work: Path) -> None:
        digest = order["snapshot"]
        workspace = self._workspace(order)
        self._snapshots.ensure(digest, lambda: workspace.blobs.open(snapshots.blob_key(digest)))
        self._snapshots.copy_into(digest, work)

    def _bring_checkpoint(self, order: Mapping[str, Any], folder: Path) -> None:
        if order.get("resume") is None:
            return
        workspace = self._workspace(order)
        brought = resuming.bring(workspace.store, workspace.blobs, order["resume"], folder)
        if brought is not None and int(order["plan"].get("node", 0)) == 0:
            self._note(order, "resumed", brought.sentence)

    # -- launch ----------------------------------------------------------------------------------
    async def launch(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Start the attempt host, warm if it can be; return its identity.

        Raises:
            PrepareError: a secret is missing, or the host could not be started.
        """
        plan = dict(order["plan"])
        plan["python"] = interpreter(plan["python"])
        root = Path(plan["root"])
        plan["env"] = self.environment_of(plan)
        secrets = {**self._data.credentials(root), **read_secrets(order["secrets"])}
        path = AttemptPaths(root).plan
        await asyncio.to_thread(path.write_text, json.dumps(plan))
        try:
            host = await self._start_host(plan, path, secrets)
            await asyncio.to_thread(
                self._data.share_with_host,
                root,
                pid=int(host["pid"]),
                start_time=int(host["start_time"]),
            )
            return host
        except hostclient.WarmError as error:
            found = hostclient.HostConnection.of(str(root))
            if found is not None and hostclient.is_alive(found.identity):
                return {**found.identity.as_dict(), "cold": None}
            raise PrepareError(str(error), failure_class="system") from error

    @staticmethod
    def environment_of(plan: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables of the plan's ranks, with those of a checkpoint that was brought."""
        resume = AttemptPaths(Path(plan["root"])).resume
        return {**plan["env"], **(resume_variables(resume) if resume.is_dir() else {})}

    async def _start_host(
        self, plan: Mapping[str, Any], path: Path, secrets: Mapping[str, str]
    ) -> dict[str, Any]:
        reason = plan["cold"] or await self._why_not_warm(plan)
        if reason is None:
            answer = await hostclient.fork(str(self.warm_socket), str(path), secrets=secrets)
            if answer.identity is not None:
                return {**answer.identity.as_dict(), "cold": None}
            reason = answer.cold or "the warm interpreter refused"
        identity = await hostclient.start_cold(
            str(path), reason=reason, env=hostclient.runtime_environment(), secrets=secrets
        )
        return {**identity.as_dict(), "cold": reason}

    async def _why_not_warm(self, plan: Mapping[str, Any]) -> str | None:
        if Path(plan["python"]) != Path(sys.executable):
            return f"the job has an interpreter of its own ({plan['python']})"
        if plan["kind"] == "command":
            return "the job is a command"
        try:
            await asyncio.shield(self.warm_up())
            # It may have ended since (idle, killed): asked again, started again.
            if await hostclient.ping_warm(str(self.warm_socket)) is None:
                await asyncio.shield(self.warm_up(again=True))
        except RayjobsError as error:
            return f"no warm interpreter: {error}"
        return None

    # -- follow ----------------------------------------------------------------------------------
    async def follow(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for the end; store metrics and files meanwhile. Return the exit record."""
        root = str(order["plan"]["root"])
        # Another agent may have brought its data.
        await asyncio.to_thread(self._data.take_over, Path(root))
        watching = asyncio.ensure_future(self._watch(order))
        try:
            connection = await asyncio.to_thread(host_of, root)
            if connection is None:
                return await self._ended_unheard(order)
            try:
                return await connection.wait()
            except hostclient.HostGone:
                return await self._ended_unheard(order)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, order: Mapping[str, Any]) -> None:
        """Bring metrics and whole files into the workspace while the attempt runs."""
        turns_per_files = max(1, round(FILES_EVERY_S / METRICS_EVERY_S))
        turn = 0
        while True:
            await asyncio.sleep(METRICS_EVERY_S)
            turn += 1
            try:
                await asyncio.to_thread(self._bring_metrics, order)
                if turn % turns_per_files == 0:
                    await asyncio.to_thread(self._publisher(order).step)
            except RayjobsError as error:
                log.info("%s: %s", order["plan"]["job"], error)
            except OSError as error:
                log.warning("%s: %s", order["plan"]["job"], error)

    async def _ended_unheard(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """The host is gone: its record, or proof that nothing is left and a record of that."""
        record = await asyncio.to_thread(record_of, order["plan"]["root"])
        if record is not None:
            return record
        proof = await asyncio.to_thread(
            end_leftovers, order["plan"]["marker"], None, SETTLE_GRACE_S
        )
        return exit_record_of_lost_host(order["plan"], proof)

    async def stop(self, order: Mapping[str, Any], *, reason: str, grace_s: float) -> None:
        """Ask the host to end its attempt; one that is gone already is fine.

        Of an attempt that is being prepared, a transfer of data is ended.
        """
        self._data.stop(order)
        connection = host_of(order["plan"]["root"])
        if connection is None:
            return
        try:
            await connection.cancel(reason, grace_s=grace_s)
        except (hostclient.HostGone, hostclient.HostUnreachable) as error:
            log.info("%s: %s", order["plan"]["job"], error)

    # -- collect ---------------------------------------------------------------------------------
    async def collect(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Store the last metrics and every file. Call it again while it names problems."""
        return await asyncio.to_thread(self._collect, order)

    def _collect(self, order: Mapping[str, Any]) -> dict[str, Any]:
        plan = order["plan"]
        root = Path(plan["root"])
        problems: list[str] = []
        try:
            self._bring_metrics(order)
        except StoreError as error:
            problems.append(f"metrics: {error}.")
        publisher = self._publisher(order)
        problems += publisher.finish()
        record = record_of(str(root))
        if record is not None and record["outcome"] == "completed" and self._is_current(order):
            note = partial(self._note, order)
            problems += self._data.store_outputs(root, self._workspace(order), note=note)
        for sentence in publisher.left_out:
            self._note(order, "left_out", sentence)
        if not problems:
            self._publishers.pop(self._key(order), None)
            self._metrics.pop(self._key(order), None)
        facts = self._data.facts(root)
        return {"tails": log_tails(root, plan), "problems": problems, "data": facts}

    def _is_current(self, order: Mapping[str, Any]) -> bool:
        """Whether what this attempt wrote may be stored: no newer one owns the job."""
        job = self._workspace(order).store.job(order["plan"]["job"])
        return not job.state.is_final and job.attempt == int(order["plan"]["attempt"])

    def _bring_metrics(self, order: Mapping[str, Any]) -> None:
        key = self._key(order)
        follower = self._metrics.get(key)
        attempt = int(order["plan"]["attempt"])
        if follower is None:
            follower = MetricFollower(Path(order["plan"]["root"]), attempt=attempt)
            self._metrics[key] = follower
        for batch in follower.batches():
            deliver(self._workspace(order).store, order["plan"]["job"], batch, attempt=attempt)
            follower.confirm(batch)

    def _publisher(self, order: Mapping[str, Any]) -> Publisher:
        key = self._key(order)
        publisher = self._publishers.get(key)
        if publisher is None:
            workspace = self._workspace(order)
            job, attempt = order["plan"]["job"], int(order["plan"]["attempt"])
            publisher = Publisher(
                Path(order["plan"]["root"]),
                order["plan"],
                blobs=workspace.blobs,
                publish=lambda files: workspace.store.publish_files(
                    job, attempt=attempt, files=files
                ),
            )
            self._publishers[key] = publisher
        return publisher

    def _note(
        self,
        order: Mapping[str, Any],
        kind: str,
        message: str,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        attempt = int(order["plan"]["attempt"])
        try:
            self._workspace(order).store.add_event(
                order["plan"]["job"], kind, message, attempt=attempt, data=data
            )
        except StoreError as error:
            log.info("an event was not written: %s", error)

    # -- what became of an attempt -----------------------------------------------------------------
    async def settle(self, order: Mapping[str, Any], *, end: bool) -> dict[str, Any]:
        """Say ``running``, ``ended`` (with the record) or ``gone``; with `end`, end it first."""
        plan = order["plan"]
        connection = host_of(plan["root"])
        record = await asyncio.to_thread(record_of, plan["root"])
        ended_now = False
        if record is None and connection is not None and hostclient.is_alive(connection.identity):
            if not end:
                return {"state": "running", "proven": False}
            ended_now = True
            record = await self._end_living(connection, plan)
        if record is not None:
            proven = bool(record["leftovers"]["proven_dead"])
            if end and not proven:
                # What could not be ended then may be gone, or can be ended, now.
                again = await asyncio.to_thread(end_leftovers, plan["marker"], None, 0.0)
                proven = again.proven_dead
            return {"state": "ended", "exit": record, "proven": proven, "ended_now": ended_now}
        if end:
            self._data.stop(order)
            proof = await asyncio.to_thread(end_leftovers, plan["marker"], None, SETTLE_GRACE_S)
            if proof.proven_dead:
                await asyncio.to_thread(self._data.release, Path(plan["root"]))
            return {"state": "gone", "proven": proof.proven_dead, "ended_now": True}
        left = await asyncio.to_thread(find_leftovers, plan["marker"])
        return {"state": "gone", "proven": not left}

    async def _end_living(
        self, connection: hostclient.HostConnection, plan: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        try:
            await connection.cancel("its place was lost", grace_s=SETTLE_GRACE_S)
            return await connection.wait(timeout_s=END_TIMEOUT_S)
        except (RayjobsError, TimeoutError, ValueError) as error:
            log.warning("%s: %s", plan["job"], error)
            return None

    async def clean(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the attempt's scratch once nothing of it runs."""
        plan = order["plan"]
        # The host answers before it leaves: it still carries the marker for an instant.
        deadline_s = time.monotonic() + CLEAN_TIMEOUT_S
        while await asyncio.to_thread(find_leftovers, plan["marker"]):
            if time.monotonic() > deadline_s:
                return {"proven": False}
            await asyncio.sleep(CLEAN_PAUSE_S)
        root = Path(plan["root"])
        await asyncio.to_thread(self._data.release, root)
        self._data.forget(order)
        await asyncio.to_thread(self._remove, root)
        # The job's folder goes with its last attempt.
        await asyncio.to_thread(_remove_if_empty, root.parent)
        return {"proven": True}

    def _remove(self, root: Path) -> list[str]:
        """Remove an attempt's folder; return why something of it stays. No link is followed."""
        try:
            with OwnFolder(self.paths.root) as scratch:
                kept = scratch.remove(str(root.relative_to(self.paths.root))).kept
        except (UnsafeDeletionError, ValueError) as error:
            kept = [str(error)]
        for problem in kept:
            log.warning("scratch stays: %s", problem)
        return kept

    def prune(self, keep_s: float = KEEP_S) -> list[Path]:
        """Remove what attempts left that ended long ago; return their folders.

        Scratch stays after an end whose files could not be stored, so that people can save them.
        """
        removed = []
        for root in sorted((self.paths.root / "attempts").glob("*/a*")):
            try:
                changed_s = max(path.lstat().st_mtime for path in (root, *root.glob("*.json")))
                if root.is_symlink() or time.time() - changed_s < keep_s:
                    continue
                connection = host_of(str(root))
                plan = json.loads((root / "plan.json").read_text())
                lives = connection is not None and hostclient.is_alive(connection.identity)
                if lives or find_leftovers(plan["marker"]):
                    continue
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.info("%s stays: %s", root, error)
                continue
            self._data.release(root)
            if not self._remove(root):
                removed.append(root)
                _remove_if_empty(root.parent)
        return removed

    # -- small things ------------------------------------------------------------------------------
    def _workspace(self, order: Mapping[str, Any]) -> OpenWorkspace:
        path = str(order["workspace"])
        workspace = self._workspaces.get(path)
        if workspace is not None and id_of(path) not in (None, workspace.id):
            self._workspaces.pop(path).close()  # another one in the place of a removed one
            workspace = None
        if workspace is None:
            workspace = open_workspace(path, create=False)
            self._workspaces[path] = workspace
        return workspace

    @staticmethod
    def _key(order: Mapping[str, Any]) -> str:
        return str(order["plan"]["marker"])


def _note_warm(task: asyncio.Task[hostclient.WarmInterpreter]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("no warm interpreter: %s", error)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        log.debug("%s is not empty", folder)

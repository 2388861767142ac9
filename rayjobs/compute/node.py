"""What an agent does on its node: prepare, launch, follow, collect, settle, clean."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rayjobs import snapshots
from rayjobs.compute import nodewatch
from rayjobs.compute.localhead import LOCAL
from rayjobs.compute.nodecollect import Collecting
from rayjobs.compute.nodedata import NodeData
from rayjobs.compute.nodeends import KEEP_S, Ends
from rayjobs.compute.nodeenvironments import NodeEnvironments
from rayjobs.compute.nodehold import NodeHold
from rayjobs.compute.nodehosts import host_of_plan, read_secrets
from rayjobs.compute.nodeleases import Launching, require
from rayjobs.compute.nodeprepare import Preparing
from rayjobs.compute.nodescratch import Scratch
from rayjobs.compute.nodesettings import NodeSettings
from rayjobs.compute.nodewarm import NodeWarm
from rayjobs.compute.nodeworkspaces import Workspaces
from rayjobs.compute.remoteworkspace import ask_target, open_remote
from rayjobs.environments import interpreter
from rayjobs.errors import PrepareError
from rayjobs.horovod import required
from rayjobs.injob import openfiles
from rayjobs.injob.lease import Lease
from rayjobs.launch import hostclient, openmpi
from rayjobs.launch.plan import resume_variables
from rayjobs.node.facts import NodeFacts
from rayjobs.node.inputviews import InputViews
from rayjobs.node.secrets import NodeSecrets, are_needed
from rayjobs.node.stopped_hosts import ANSWER_S, StoppedHosts
from rayjobs.node.sweeping import Sweeping, remove_dead_sockets
from rayjobs.paths import AttemptPaths, NodePaths, TargetPaths, runtime_dir

log = logging.getLogger(__name__)


class Node:
    """One node's side of all attempts on it. Its methods run on one event loop."""

    def __init__(self, target: str, home: Path, settings: NodeSettings | None = None) -> None:
        """Act for `target`; without `settings`, as the environment says."""
        settings = settings or NodeSettings.read(target)
        self.target = target
        self.paths = NodePaths(settings.scratch or home / "node")
        self.paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        logs = TargetPaths.of(target, under=home).log
        logs.mkdir(parents=True, exist_ok=True)
        scratch = Scratch(self.paths.root)
        workspaces = Workspaces(partial(open_remote, target), shares_disk=settings.shares_disk)
        raylet = None if target == LOCAL else nodewatch.raylet_of_worker()
        self._warm = NodeWarm(self.paths.root, logs / "warm.log", raylet=raylet)
        self._hold = NodeHold(settings.hold)
        self._views = InputViews(self.paths.root, is_on=settings.input_views)
        self._data = NodeData(self.paths.data_cache, self._views.protection)
        self._environments = NodeEnvironments(self.paths.environments, workspaces)
        self._preparing = Preparing(
            scratch,
            snapshots.NodeSnapshots(self.paths.snapshots),
            self._data,
            workspaces,
            self._environments,
            NodeFacts(self.paths.root / "facts"),
        )
        self._collecting = Collecting(self._data, workspaces)
        self._workspaces = workspaces
        self._secrets = NodeSecrets(target, home, partial(ask_target, target, "secrets"))
        self._ends = Ends(self.paths.root / "attempts", scratch, self._data)
        self._sweeping = Sweeping(self.paths.root / "attempts", scratch, self._data.release)
        self.launching = Launching()
        self._stopped = StoppedHosts(workspaces.note)

    def warm_up(self) -> None:
        """Begin to start the warm interpreter, unless it is known to be up."""
        loop = asyncio.get_running_loop()
        for what_works_here in (self._hold.levels, self._views.protection):
            loop.run_in_executor(None, what_works_here)
        self._warm.warm_up()

    def injob_path(self) -> Path:
        """See `NodeWarm.injob_path`."""
        return self._warm.injob_path()

    async def prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `Preparing.prepare`."""
        if are_needed(order):
            await asyncio.to_thread(self._bring_secrets, order)
        return await self._preparing.prepare(order)

    def _bring_secrets(self, order: Mapping[str, Any]) -> None:
        self._secrets.bring(order, is_far=self._workspaces.is_far(order))

    # -- launch ----------------------------------------------------------------------------------
    async def launch(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Start the attempt host, warm if it can be; return its identity.

        Raises:
            PrepareError: a secret is missing, the host could not be started, or the attempt was
                ended meanwhile, or may have been.
        """
        async with self._ends.fence.starting(order["plan"]["marker"]):
            with self.launching.starting(order["plan"]) as lease:
                return await self._launch(order, lease)

    async def _launch(self, order: Mapping[str, Any], lease: Lease) -> dict[str, Any]:
        plan = dict(order["plan"])
        plan["python"] = interpreter.path_of(plan["python"])
        root = Path(plan["root"])
        plan["env"] = self.environment_of(plan)
        await asyncio.to_thread(openmpi.require, plan)
        await asyncio.to_thread(required.require, plan)
        plan["soft_files"] = openfiles.original()
        plan["hold"] = await asyncio.to_thread(self._hold.levels)
        if are_needed(order):  # another agent may have prepared it
            await asyncio.to_thread(self._bring_secrets, order)
        plan["views"] = await asyncio.to_thread(self._data.views, order)
        secrets = {**self._data.credentials(root), **read_secrets(order["secrets"])}
        try:
            host = await self._start_host(plan, lease, secrets)
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
        """Return the variables of the plan's ranks, with what is known only on the node.

        That is where a checkpoint was brought to, and the programs of the environment.
        """
        resume = AttemptPaths(Path(plan["root"])).resume
        brought = resume_variables(resume) if resume.is_dir() else {}
        return {**interpreter.variables(plan["python"], plan["env"]), **brought}

    async def _start_host(
        self, plan: dict[str, Any], lease: Lease, secrets: Mapping[str, str]
    ) -> dict[str, Any]:
        socket, reason = None, plan["cold"]
        if reason is None:
            socket, reason = await self._warm.ready(plan)
        require(lease)
        plan["lease_since_s"] = lease.since_s
        path = AttemptPaths(Path(plan["root"])).plan
        await asyncio.to_thread(path.write_text, json.dumps(plan))
        if socket is not None:
            answer = await hostclient.fork(str(socket), str(path), secrets=secrets)
            if answer.identity is not None:
                return {**answer.identity.as_dict(), "cold": None}
            reason = answer.cold or "the warm interpreter refused"
        identity = await hostclient.start_cold(
            str(path), reason=reason, env=hostclient.runtime_environment(), secrets=secrets
        )
        return {**identity.as_dict(), "cold": reason}

    # -- follow ----------------------------------------------------------------------------------
    async def follow(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for the end; store metrics and files meanwhile. Return the exit record."""
        # Another agent may have brought its data.
        await asyncio.to_thread(self._data.take_over, Path(str(order["plan"]["root"])))
        watching = asyncio.ensure_future(self._collecting.watch(order))
        try:
            connection = await asyncio.to_thread(host_of_plan, order["plan"])
            if connection is None:
                return await self._ends.ended_unheard(order)
            keeping = asyncio.ensure_future(self._stopped.watch(order, connection))
            try:
                return await connection.wait()
            except hostclient.HostGone:
                return await self._ends.ended_unheard(order)
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def stop(self, order: Mapping[str, Any], *, reason: str, grace_s: float) -> None:
        """Ask the host to end its attempt; one that is gone already is fine.

        Of an attempt that is being prepared, the build of its environment and a transfer of data
        are ended.
        """
        self._environments.stop(order)
        self._data.stop(order)
        connection = host_of_plan(order["plan"])
        if connection is None:
            return
        try:
            await connection.cancel(reason, grace_s=grace_s, timeout_s=ANSWER_S)
        except hostclient.HostGone as error:
            log.info("%s: %s", order["plan"]["job"], error)
        except hostclient.HostUnreachable:
            self._stopped.end(order, connection, "canceled", reason, grace_s=grace_s)

    # -- collect ---------------------------------------------------------------------------------
    async def collect(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Store the last metrics and every file. Call it again while it names problems."""
        # Outputs are stored by what is valid now: hours may have passed, or the agent is another.
        if are_needed(order):
            is_far = self._workspaces.is_far(order)
            await asyncio.to_thread(self._secrets.bring_again, order, is_far=is_far)
        return await self._collecting.collect(order)

    async def settle(self, order: Mapping[str, Any], *, end: bool) -> dict[str, Any]:
        """See `Ends.settle`."""
        return await self._ends.settle(order, end=end)

    async def clean(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `Ends.clean`."""
        return await self._ends.clean(order)

    def uncleaned(self) -> list[dict[str, Any]]:
        """See `Sweeping.uncleaned`."""
        return [asdict(one) for one in self._sweeping.uncleaned()]

    def sweep(self, roots: list[str]) -> int:
        """See `Sweeping.sweep`."""
        return self._sweeping.sweep(roots)

    def prune(self, keep_s: float = KEEP_S) -> list[Path]:
        """See `Ends.prune`."""
        remove_dead_sockets(runtime_dir(create=False))
        return self._ends.prune(keep_s)

"""The agent's work on its node: prepare, launch, follow, collect, settle, clean."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from rayjobs import snapshots
from rayjobs.core import short_tmp
from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.paths import AttemptPaths, NodePaths, TargetPaths, runtime_dir
from rayjobs.core.text import GIB
from rayjobs.environments import interpreter
from rayjobs.environments.horovod import required
from rayjobs.injob import open_files
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.lease import Lease
from rayjobs.injob.outcomes import EndCause, Outcome
from rayjobs.injob.plan import LaunchPlan
from rayjobs.injob.run_token import TOKEN_VARIABLE
from rayjobs.injob.views import Views
from rayjobs.launch import hostclient, openmpi
from rayjobs.launch.plan import resume_variables
from rayjobs.node import run_server, watch
from rayjobs.node.cleaning import Cleaning, remove_dead_sockets
from rayjobs.node.collect import Collecting
from rayjobs.node.containers import NodeContainers
from rayjobs.node.containment import NodeContainment
from rayjobs.node.data import NodeData
from rayjobs.node.ends import KEEP_S, Ends
from rayjobs.node.environments import NodeEnvironments
from rayjobs.node.facts import NodeFacts
from rayjobs.node.hosts import host_on, read_secrets
from rayjobs.node.input_views import InputViews
from rayjobs.node.leases import StartingLeases, require
from rayjobs.node.prepare import Preparing
from rayjobs.node.remote_workspace import ask_target, open_remote
from rayjobs.node.run_calls import token_of
from rayjobs.node.scratch import Scratch
from rayjobs.node.secrets import NodeSecrets
from rayjobs.node.stopped_hosts import ANSWER_S, StoppedHosts
from rayjobs.node.warm import NodeWarm
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import AttemptOnNode, Launched, LaunchRequest
from rayjobs.protocol.calls import StoreProgress
from rayjobs.protocol.collected import Collected
from rayjobs.protocol.nodes import Prepared
from rayjobs.target.local_head import LOCAL
from rayjobs.target.node_settings import NodeSettings

log = logging.getLogger(__name__)

# Where programs written for Azure ML look for the run's token.
AZURE_TOKEN = "AZUREML_RUN_TOKEN"
AZURE_TOKEN_EXPIRY = "AZUREML_RUN_TOKEN_EXPIRY"


class Node:
    """One node's side of all attempts on it. Its methods run on one event loop."""

    def __init__(self, target: str, home: Path, settings: NodeSettings | None = None) -> None:
        """Work for `target`; without `settings`, read them from the environment."""
        settings = settings or NodeSettings.read(target)
        self.target = target
        self.paths = NodePaths(settings.scratch or home / "node")
        self.paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        logs = TargetPaths.of(target, under=home).log
        logs.mkdir(parents=True, exist_ok=True)
        scratch = Scratch(self.paths.root)
        open_far = partial(open_remote, target, scratch=self.paths.root / "downloads")
        workspaces = Workspaces(open_far, shares_disk=settings.shares_disk)
        raylet = None if target == LOCAL else watch.raylet_of_worker()
        self._warm = NodeWarm(self.paths.root, logs / "warm.log", raylet=raylet)
        self._containment = NodeContainment(settings.containment)
        self._views = InputViews(self.paths.root, is_on=settings.input_views)
        self._data = NodeData(self.paths.data_cache, self._views.protection)
        shared = snapshots.NodeSnapshots(self.paths.snapshots)
        self._environments = NodeEnvironments(
            self.paths.environments,
            workspaces,
            shared,
            lambda: not self._views.protection().read_only,
        )
        self._containers = NodeContainers(
            self.paths.images, workspaces, shared, int(settings.image_most_gib * GIB)
        )
        self._preparing = Preparing(
            scratch,
            shared,
            self._data,
            workspaces,
            self._environments,
            self._containers,
            NodeFacts(self.paths.root / "facts"),
        )
        self._collecting = Collecting(self._data, workspaces, self._environments.changed_by)
        self._workspaces = workspaces
        self._secrets = NodeSecrets(target, home, partial(ask_target, target, "secrets"))
        self.ends = Ends(self.paths.root / "attempts", scratch, self._data)
        self.cleaning = Cleaning(self.paths.root / "attempts", scratch, self._data.release)
        self.launching = StartingLeases()
        self._stopped = StoppedHosts(workspaces.note)

    def warm_up(self) -> None:
        """Start the warm interpreter in the background, unless it is running."""
        loop = asyncio.get_running_loop()
        for what_works_here in (self._containment.levels, self._views.protection):
            loop.run_in_executor(None, what_works_here)
        self._warm.warm_up()

    def injob_path(self) -> Path:
        """See `NodeWarm.injob_path`."""
        return self._warm.injob_path()

    async def prepare(self, request: LaunchRequest) -> Prepared:
        """See `Preparing.prepare`."""
        await self._bring_secrets(request.on)
        return await self._preparing.prepare(request)

    async def _bring_secrets(self, on: AttemptOnNode) -> None:
        if on.reads_secrets:
            is_far = self._workspaces.is_far(on)
            await asyncio.to_thread(self._secrets.bring, on, is_far=is_far)

    async def _bring_again(self, on: AttemptOnNode) -> None:
        if on.reads_secrets:
            is_far = self._workspaces.is_far(on)
            await asyncio.to_thread(self._secrets.bring_again, on, is_far=is_far)

    # -- launch ----------------------------------------------------------------------------------
    async def launch(self, request: LaunchRequest) -> Launched:
        """Start the attempt host, warm if possible.

        Raises:
            PrepareError: a secret is missing, the host did not start, or the attempt was or may
                have been ended meanwhile.
        """
        async with self.ends.fence.starting(request.on.marker):
            with self.launching.starting(request.plan) as lease:
                return await self._launch(request, lease)

    async def _launch(self, request: LaunchRequest, lease: Lease) -> Launched:
        on = request.on
        root = Path(on.root)
        await self._bring_secrets(on)  # another agent may have prepared it
        plan, secrets = await asyncio.to_thread(self._node_plan, request)
        try:
            launched = await self._start_host(plan, lease, secrets)
            await asyncio.to_thread(self._data.share_with_host, root, launched.host)
            return launched
        except hostclient.WarmError as error:
            found = hostclient.HostConnection.of(str(root))
            if found is not None and hostclient.is_alive(found.identity):
                return Launched(found.identity)
            raise PrepareError(str(error), failure_class=FailureClass.SYSTEM) from error

    def _with_environment(self, on: AttemptOnNode, views: Views | None) -> Views | None:
        """Return an attempt's views, with all environments of the node read-only if it uses one.

        Their files may be hard links to files of other environments and of the installer's cache.
        """
        if not AttemptPaths(Path(on.root)).environment.exists():
            return views
        if not self._views.protection().read_only:
            return views
        made = views or Views(writable=(on.root, str(Path(on.socket).parent)))
        return replace(made, read_only=(*made.read_only, str(self.paths.environments)))

    def _node_plan(self, request: LaunchRequest) -> tuple[LaunchPlan, dict[str, str]]:
        """Return the plan with the values that only the node knows, and the secrets. Blocks."""
        on = request.on
        request = replace(request, plan=_with_short_tmp(request.plan))
        if request.container is not None:
            plan = self._containers.plan(request, self._data.shown_in_containers(on))
            plan = replace(plan, env={**plan.env, **_brought(plan)})
        else:
            plan = replace(request.plan, python=interpreter.path_of(request.plan.python))
            plan = replace(plan, env=self.environment_of(plan))
            openmpi.require(plan)
            required.require(plan)
            plan = replace(plan, containment=self._containment.levels())
        views = self._with_environment(on, self._data.views(on))
        tokens = dict.fromkeys((TOKEN_VARIABLE, AZURE_TOKEN), token_of(Path(on.root)))
        if plan.max_duration_s is not None:
            # It expires with the attempt; only the latest possible end is known now.
            tokens[AZURE_TOKEN_EXPIRY] = str(int(time.time() + plan.max_duration_s))
        plan = replace(plan, env={**plan.env, **tokens})
        plan = replace(plan, soft_files=open_files.original(), views=views)
        credentials = self._data.credentials(Path(on.root))
        return plan, {**credentials, **read_secrets(request.secrets)}

    @staticmethod
    def environment_of(plan: LaunchPlan) -> dict[str, str]:
        """Return the variables of the plan's ranks, with the values that only the node knows.

        These are the path of the checkpoint and the programs of the environment.
        """
        return {**interpreter.variables(plan.python, plan.env), **_brought(plan)}

    async def _start_host(
        self, plan: LaunchPlan, lease: Lease, secrets: Mapping[str, str]
    ) -> Launched:
        socket, reason = None, plan.cold
        if reason is None:
            socket, reason = await self._warm.ready(plan)
        require(lease)
        plan = replace(plan, lease_since_s=lease.since_s)
        path = AttemptPaths(Path(plan.root)).plan
        await asyncio.to_thread(path.write_text, json.dumps(plan.to_json()))
        if socket is not None:
            answer = await hostclient.fork(str(socket), str(path), secrets=secrets)
            if answer.identity is not None:
                return Launched(answer.identity)
            reason = answer.cold or "the warm interpreter refused"
        identity = await hostclient.start_cold(
            str(path), reason=reason, env=hostclient.runtime_environment(), secrets=secrets
        )
        return Launched(identity, cold=reason)

    # -- follow ----------------------------------------------------------------------------------
    async def follow(self, on: AttemptOnNode) -> ExitRecord:
        """Wait for the end; store metrics and files meanwhile. Return the exit record."""
        # Another agent may have fetched its data, and its secrets.
        await self._bring_again(on)
        await asyncio.to_thread(self._data.take_over, Path(on.root))
        watching = asyncio.ensure_future(self._collecting.watch(on))
        serving = asyncio.ensure_future(self._serve_script(on))
        # If the workspace moves, another `follow` with its new path serves the script. So this one
        # closes its connections, and the script's next call reaches the new server.
        watching.add_done_callback(partial(_end_once_moved, serving))
        try:
            connection = await asyncio.to_thread(host_on, on)
            if connection is None:
                return await self.ends.ended_unheard(on)
            keeping = asyncio.ensure_future(self._stopped.watch(on, connection))
            try:
                return await connection.wait()
            except hostclient.HostGone:
                return await self.ends.ended_unheard(on)
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
        finally:
            for one in (watching, serving):
                one.cancel()
            await asyncio.gather(watching, serving, return_exceptions=True)

    async def _serve_script(self, on: AttemptOnNode) -> None:
        """Give the attempt's script access to its workspace until this is canceled."""
        try:
            async with run_server.serving(on, partial(self._workspaces.of, on)):
                await asyncio.Event().wait()
        except OSError as error:
            log.warning("the script of %s cannot reach its workspace: %s", on.job, error)

    async def stop(self, on: AttemptOnNode, cause: EndCause, *, grace_s: float) -> None:
        """Ask the host to end its attempt; it may have ended already.

        For an attempt in preparation, this stops the build of its environment and its data
        transfers.
        """
        self._environments.stop(on)
        self._containers.stop(on)
        self._data.stop(on)
        connection = host_on(on)
        if connection is None:
            return
        try:
            await connection.cancel(cause, grace_s=grace_s, timeout_s=ANSWER_S)
        except hostclient.HostGone as error:
            log.info("%s: %s", on.job, error)
        except hostclient.HostUnreachable:
            self._stopped.end(
                on,
                connection,
                Outcome.CANCELED,
                cause.sentence,
                grace_s=grace_s,
                end_reason=cause.reason,
            )

    # -- collect ---------------------------------------------------------------------------------
    async def collect(self, on: AttemptOnNode) -> Collected:
        """Store the last metrics and every file. Repeat the call while it returns problems."""
        # Outputs are stored with the current secrets: hours may have passed, or the agent is new.
        await self._bring_again(on)
        return await self._collecting.collect(on)

    async def store_late(self, on: AttemptOnNode) -> Collected:
        """Store outputs that could not be stored at the job's end. Repeatable."""
        await self._bring_again(on)
        return await self._collecting.store_late(on)

    async def store_progress(self, on: AttemptOnNode) -> StoreProgress:
        """Return the progress of `store_late` immediately."""
        return self._collecting.store_progress(on)

    def prune(self, keep_s: float = KEEP_S) -> list[Path]:
        """See `Ends.prune` and `NodeContainers.prune`."""
        remove_dead_sockets(runtime_dir(create=False))
        short_tmp.clean(runtime_dir(create=False))
        removed = self.ends.prune(keep_s)
        self._containers.prune()
        return removed


def _with_short_tmp(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with a temporary folder whose path is short enough for sockets. Blocks."""
    tmp = str(short_tmp.provide(AttemptPaths(Path(plan.root)).tmp))
    return replace(plan, env={**plan.env, "TMPDIR": tmp, "AZ_BATCHAI_JOB_TEMP": tmp})


def _brought(plan: LaunchPlan) -> dict[str, str]:
    """Return the variables that name the checkpoint of an attempt, if it has one."""
    resume = AttemptPaths(Path(plan.root)).resume
    return resume_variables(resume) if resume.is_dir() else {}


def _end_once_moved(serving: asyncio.Future[None], watching: asyncio.Future[None]) -> None:
    """End `serving` if `watching` has returned, which it does when its workspace moves."""
    if not watching.cancelled() and watching.exception() is None:
        serving.cancel()

"""What a node does before an attempt starts: folder, snapshot, checkpoint, environment, data."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rayjobs import resuming, snapshots
from rayjobs.compute import nodegpus
from rayjobs.compute.nodedata import NodeData
from rayjobs.compute.nodeenvironments import NodeEnvironments
from rayjobs.compute.nodescratch import Scratch
from rayjobs.compute.nodeworkspaces import Workspaces
from rayjobs.datastore.digests import digest_of
from rayjobs.environments import interpreter
from rayjobs.errors import NotFoundError, PrepareError, SnapshotError, StoreError
from rayjobs.launch import network
from rayjobs.node.facts import NodeFacts
from rayjobs.paths import AttemptPaths
from rayjobs.queuerecords import RESUMED

log = logging.getLogger(__name__)


class Preparing:
    """Makes attempts ready on one node."""

    def __init__(
        self,
        scratch: Scratch,
        shared: snapshots.NodeSnapshots,
        data: NodeData,
        workspaces: Workspaces,
        environments: NodeEnvironments,
        facts: NodeFacts,
    ) -> None:
        """Unpack snapshots by way of `shared`, where each is unpacked once for all attempts."""
        self._scratch = scratch
        self._snapshots = shared
        self._data = data
        self._workspaces = workspaces
        self._environments = environments
        self._facts = facts
        self._kept: set[tuple[str, str]] = set()  # workspace, digest of a list of packages

    async def prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Make the attempt's folder: a private copy of the snapshot, room for what it says, data.

        Returns:
            The folder, as ``facts`` what the attempt runs on, as ``variables`` where the script
            finds its inputs and outputs, and as ``python`` the interpreter of an environment that
            was asked for by its packages.

        Raises:
            PrepareError: with its class.
        """
        looking = asyncio.ensure_future(self._look_at_gpus(order))
        try:
            made = await asyncio.to_thread(self.make_folder, order)
            python = await self._environments.bring(order)
            loop = asyncio.get_running_loop()
            finding = loop.run_in_executor(None, self._find_facts, order, python)
            variables = await loop.run_in_executor(self._data.pool, self._bring_data, order)
            facts = await finding
            await looking
        finally:
            looking.cancel()
        return {**made, "variables": variables, "python": python, "facts": facts}

    def _find_facts(self, order: Mapping[str, Any], built: str | None) -> dict[str, Any]:
        """Return what the attempt will run on; its list of packages is kept once by digest."""
        plan = order["plan"]
        try:
            python = built or interpreter.path_of(str(plan.get("python") or sys.executable))
            devices = [one for one in plan["env"].get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
            facts = self._facts.of(python, devices)
            packages = facts.pop("packages", None)
            if packages is not None:
                facts["torch"] = dict(packages).get("torch")
                facts["package_count"] = len(packages)
                facts["packages"] = self._keep(order, json.dumps(packages).encode())
            return facts
        except Exception as error:  # a record, which no attempt may fail for
            log.warning("what %s runs on is not known", plan["job"], exc_info=True)
            return {"why": f"not known: {error}"[:300]}

    def _keep(self, order: Mapping[str, Any], content: bytes) -> str:
        digest = digest_of(content)
        key = (str(order["workspace"]), digest)
        if key not in self._kept:
            self._workspaces.of(order).store.catalogue.put_manifest(content)
            self._kept.add(key)
        return digest

    async def _look_at_gpus(self, order: Mapping[str, Any]) -> None:
        devices = order["plan"]["env"].get("CUDA_VISIBLE_DEVICES", "")
        told: list[str] = []
        attempts = Path(order["plan"]["root"]).parents[1]
        given = [one for one in devices.split(",") if one]
        await nodegpus.wait_until_free(given, attempts, told.append)
        for sentence in told:
            await asyncio.to_thread(self._workspaces.note, order, "gpu", sentence)

    def _bring_data(self, order: Mapping[str, Any]) -> dict[str, str]:
        note = partial(self._workspaces.note, order)
        reaches = partial(self._workspaces.reaches, order)
        return self._data.bring(order, self._workspaces.of(order), note=note, reaches=reaches)

    def make_folder(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Make the attempt's folder without its data; see `prepare`. Blocks."""
        paths = AttemptPaths(Path(order["plan"]["root"]))
        try:
            # An attempt starts once, in a new folder; what stands here was put back unused.
            self._data.release(paths.root)
            if kept := self._scratch.remove(paths.root):
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
            if told := network.unknown_interface(order["plan"]):
                self._workspaces.note(order, "network", told)
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
        workspace = self._workspaces.of(order)
        self._snapshots.ensure(digest, lambda: workspace.blobs.open(snapshots.blob_key(digest)))
        self._snapshots.copy_into(digest, work)

    def _bring_checkpoint(self, order: Mapping[str, Any], folder: Path) -> None:
        if order.get("resume") is None:
            return
        workspace = self._workspaces.of(order)
        brought = resuming.bring(workspace.store, workspace.blobs, order["resume"], folder)
        if brought is not None and int(order["plan"].get("node", 0)) == 0:
            self._workspaces.note(order, RESUMED, brought.sentence)

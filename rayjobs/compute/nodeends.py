"""What became of an attempt on its node: proven, ended if need be, and its scratch removed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayjobs.compute.nodedata import NodeData
from rayjobs.compute.nodefence import Fence
from rayjobs.compute.nodehosts import host_of, host_of_plan, record_of, record_of_dead_host
from rayjobs.compute.nodescratch import Scratch, remove_if_empty
from rayjobs.errors import RayjobsError
from rayjobs.injob import exitrecord, recordfiles
from rayjobs.launch import hostclient
from rayjobs.launch.leftovers import end_leftovers, find_leftovers
from rayjobs.rootcause import PLACE_LOST

log = logging.getLogger(__name__)

SETTLE_GRACE_S = 2.0
END_TIMEOUT_S = 60.0
CLEAN_TIMEOUT_S = 60.0
CLEAN_PAUSE_S = 0.05
# How long scratch stays that was kept after its attempt's end.
KEEP_S = 7 * 86400.0


class Ends:
    """Settles and cleans up the attempts of one node."""

    def __init__(self, attempts: Path, scratch: Scratch, data: NodeData) -> None:
        """Look after the attempts in the folder `attempts`, which is below `scratch`."""
        self.fence = Fence()
        self._attempts = attempts
        self._scratch = scratch
        self._data = data

    async def ended_unheard(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """The host is gone: its record, or proof that nothing is left and a record of that."""
        record = await asyncio.to_thread(record_of, order["plan"]["root"])
        if record is not None:
            return record
        proof = await asyncio.to_thread(
            end_leftovers, order["plan"]["marker"], None, SETTLE_GRACE_S
        )
        return await asyncio.to_thread(record_of_dead_host, order["plan"], proof)

    async def settle(self, order: Mapping[str, Any], *, end: bool) -> dict[str, Any]:
        """Say ``running``, ``ended`` (with the record) or ``gone``; with `end`, end it first."""
        plan = order["plan"]
        if end:
            await self.fence.end(plan["marker"])
        connection = host_of_plan(plan)
        record = await asyncio.to_thread(record_of, plan["root"])
        if record is None and connection is not None and hostclient.is_alive(connection.identity):
            if not end:
                return {"state": "running", "proven": False}
            record = await self._end_living(connection, plan)
        if record is not None:
            proven = bool(record["leftovers"]["proven_dead"])
            if end and not proven:
                # What could not be ended then may be gone, or can be ended, now.
                again = await asyncio.to_thread(end_leftovers, plan["marker"], None, 0.0)
                proven = again.proven_dead
            # The record alone tells: a host that was told to end may have been done by itself,
            # and whoever ended it may have died before it could say so.
            ended_now = record.get("reason") == PLACE_LOST
            return {"state": "ended", "exit": record, "proven": proven, "ended_now": ended_now}
        if end:
            self._data.stop(order)
            proof = await asyncio.to_thread(end_leftovers, plan["marker"], None, SETTLE_GRACE_S)
            if exitrecord.read_outcome(str(plan["root"]), str(plan["marker"])) is not None:
                record = await asyncio.to_thread(record_of_dead_host, plan, proof)
                ended_now = record.get("reason") == PLACE_LOST
                proven = proof.proven_dead
                return {"state": "ended", "exit": record, "proven": proven, "ended_now": ended_now}
            if proof.proven_dead:
                await asyncio.to_thread(self._data.release, Path(plan["root"]))
            return {"state": "gone", "proven": proof.proven_dead, "ended_now": True}
        left = await asyncio.to_thread(find_leftovers, plan["marker"])
        return {"state": "gone", "proven": not left}

    async def _end_living(
        self, connection: hostclient.HostConnection, plan: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        try:
            await connection.cancel(PLACE_LOST, grace_s=SETTLE_GRACE_S)
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
        await asyncio.to_thread(self._scratch.remove, root)
        # Of a host that was killed; any other has removed it.
        await asyncio.to_thread(Path(str(plan["socket"])).unlink, missing_ok=True)
        # The job's folder goes with its last attempt.
        await asyncio.to_thread(remove_if_empty, root.parent)
        return {"proven": True}

    def prune(self, keep_s: float = KEEP_S) -> list[Path]:
        """Remove what attempts left that ended long ago; return their folders.

        Scratch stays after an end whose files could not be stored, so that people can save them.
        """
        removed = []
        for root in sorted(self._attempts.glob("*/a*")):
            try:
                changed_s = max(path.lstat().st_mtime for path in (root, *root.glob("*.json")))
                if root.is_symlink() or time.time() - changed_s < keep_s:
                    continue
                connection = host_of(str(root))
                plan = recordfiles.read_json(str(root), "plan.json")
                lives = connection is not None and hostclient.is_alive(connection.identity)
                if lives or find_leftovers(plan["marker"]):
                    continue
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.info("%s stays: %s", root, error)
                continue
            self._data.release(root)
            if not self._scratch.remove(root):
                removed.append(root)
                remove_if_empty(root.parent)
        return removed

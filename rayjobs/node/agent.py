"""The node agent: a detached Ray actor that serves one node while it has attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NodeAgent:
    """Receives Ray's calls for a `NodeService`.

    The target actor names this class to start agents, so its module imports nothing at the top: the
    modules that work on a node (environments, containers, storage) weigh several MiB, and only the
    agents need them.
    """

    def __init__(self, target: str, home: str, node_id: str) -> None:
        from rayjobs.node.service import NodeService

        self._service = NodeService(target, home, node_id)

    async def call(self, method: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a call of `rayjobs.protocol.calls`, by its name and the JSON of its message.

        Raises:
            AgentLeavingError: the agent is leaving and has not begun this.
            MessageError: the message does not have the fields of this call.
        """
        return await self._service.call(method, message)

    async def leave(self) -> None:
        """End this actor, which has refused new work since `NodeService.has_left`."""
        import ray

        if self._service.has_left:
            ray.actor.exit_actor()

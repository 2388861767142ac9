"""Names and sizes that the engine, the agents and the starter share."""

from __future__ import annotations

from rayjobs.protocol import calls

NAMESPACE = "rayjobs"
# The largest part of a file that one call carries: large enough to be fast, and small enough for
# the memory of every process that handles it.
CHUNK_BYTES = 8 << 20


def actor_name(target: str) -> str:
    """Return the name under which Ray knows the target's actor."""
    return f"rayjobs-target-{target}"


def agent_name(target: str, node_id: str) -> str:
    """Return the name under which Ray knows a node's agent that speaks this protocol.

    An agent with an earlier protocol has another name: it continues to follow its attempts, and
    then leaves.
    """
    return f"rayjobs-agent{calls.PROTOCOL}-{target}-{node_id}"

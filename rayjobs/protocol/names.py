"""Names and sizes that the engine, the agents and the starter share."""

from __future__ import annotations

from rayjobs.protocol import calls

NAMESPACE = "rayjobs"
# One call carries so much of a file: large enough to be quick, small in everybody's memory.
CHUNK_BYTES = 8 << 20


def actor_name(target: str) -> str:
    """Return the name under which Ray knows the target's actor."""
    return f"rayjobs-target-{target}"


def agent_name(target: str, node_id: str) -> str:
    """Return the name under which Ray knows a node's agent that speaks this protocol.

    One of an earlier rayjobs has another name: it goes on with what it follows, and then leaves.
    """
    return f"rayjobs-agent{calls.PROTOCOL}-{target}-{node_id}"

"""Forwards mpirun's requests for orted from the first node's host to the other nodes' hosts.

The process that runs the relay may be replaced at any moment: its successor repeats the requests,
and a host that has started its orted does not start another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rayjobs.injob.answers import Answer, refusal
from rayjobs.injob.mpi_messages import MpiRequest, Relayed
from rayjobs.injob.plan import Peer, Relay
from rayjobs.launch.hoststart import ask

log = logging.getLogger(__name__)

ANSWER_S = 60.0
LISTEN_S = 3600.0  # then the relay asks again
PAUSE_S = 0.2

# (another node, orted's command) → whether its host has started it.
Start = Callable[[Peer, str], Awaitable[Answer]]


async def start_daemon(socket: str, command: str) -> Answer:
    """Have the attempt host at `socket` start orted; return its answer, or why there is none."""
    try:
        request = MpiRequest("daemon", command=command)
        return await ask(socket, request, Answer, timeout_s=ANSWER_S)
    except (OSError, TimeoutError, ValueError) as error:
        return refusal(f"the attempt host cannot be asked to start orted: {error!r}")


async def relay(of: Relay, start: Start) -> None:
    """Wait until mpirun has requested all other nodes, have them started, and report to mpirun.

    Returns early if the host ends. This passes refusals of `start` to mpirun, which then ends.
    """
    peers = {peer.node: peer for peer in of.peers}
    while True:
        try:
            requested = await ask(of.socket, MpiRequest("relay"), Relayed, timeout_s=LISTEN_S)
        except (FileNotFoundError, ConnectionRefusedError):
            return  # the host has ended
        except (OSError, TimeoutError, ValueError) as error:
            log.info("mpirun's requests: %r", error)
            await asyncio.sleep(PAUSE_S)
            continue
        commands = requested.commands
        if requested.over or not commands:
            return
        answers = await asyncio.gather(*(start(peers[node], commands[node]) for node in commands))
        errors = {
            node: one.error for node, one in zip(commands, answers, strict=True) if not one.ok
        }
        try:
            done = MpiRequest("relayed", errors=errors)
            await ask(of.socket, done, Answer, timeout_s=ANSWER_S)
        except (OSError, TimeoutError, ValueError) as error:
            log.info("mpirun's requests: %r", error)
        return

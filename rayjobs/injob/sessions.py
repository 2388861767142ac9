"""Processes that a user starts next to a rank, and queries about the attempt's listening ports.

They are children of the attempt's host: they share the rank's environment, folder, namespaces,
limits and end. The node's agent makes their pipes or their terminal, and names them by path.
"""

from __future__ import annotations

import os
import signal
from typing import Dict, List, Optional, Set, Tuple

from rayjobs.injob import helpers
from rayjobs.injob.answers import Answer, refusal
from rayjobs.injob.helpers import Helper
from rayjobs.injob.host_messages import HostRequest, HostSession, PortAnswer
from rayjobs.injob.identity import send_signal
from rayjobs.injob.processes import MARKER_VARIABLE
from rayjobs.injob.rank_forker import RankForker

MOST = 64  # sessions of one attempt on one node
SHELL = ("/bin/sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")
_LISTENING = "0A"
_ANYWHERE = {"00000000": "127.0.0.1", "0" * 32: "::1"}


class Sessions:
    """The sessions of one attempt on one node."""

    def __init__(self, forker: RankForker) -> None:
        """Start sessions with `forker`."""
        self._forker = forker
        self._sessions: Dict[str, Helper] = {}
        self._reported: List[str] = []  # those whose end was reported to the agent, oldest first

    def answer(self, request: HostRequest) -> Optional[Answer]:
        """Answer requests about sessions and ports; None for other requests."""
        if request.op == "exec":
            return self._start(request)
        if request.op == "exec-state":
            found = self._sessions.get(request.session)
            if found is None:
                return refusal("there is no such session")
            if found.has_ended:
                self._forget_after(request.session)
            return HostSession(ended=found.has_ended, exit_code=_code_of(found))
        if request.op == "exec-signal":
            found = self._sessions.get(request.session)
            if found is not None:
                _signal(found, request.number)
            return Answer()
        if request.op == "listens":
            return PortAnswer(addresses=tuple(self._listening(request.number)))
        return None

    def _start(self, request: HostRequest) -> Answer:
        if self._forker.ending.has_begun:
            return refusal("the attempt is being ended")
        rank = next((one for one in self._forker.ranks if one.plan.rank == request.rank), None)
        if rank is None or rank.setup >= 0:
            return refusal(f"rank {request.rank} has not started")
        if rank.has_ended:
            return refusal(f"rank {request.rank} has ended")
        if sum(not one.has_ended for one in self._sessions.values()) >= MOST:
            return refusal(f"this attempt already has {MOST} sessions; end one first")
        plan = self._forker.plan
        environment = plan.rank_env(rank.plan, self._forker.secrets)
        environment[MARKER_VARIABLE] = plan.marker
        if request.terminal:
            environment["TERM"] = request.terminal
        opened: List[int] = []
        try:
            # The agent holds the other ends. If it has been killed, opening must not block: the
            # host has one thread.
            flags = (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)
            for path, flag in zip(request.files, flags):
                flag = os.O_RDWR if request.terminal else flag
                opened.append(os.open(path, flag | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK))
                os.set_blocking(opened[-1], True)  # as the program expects
            helper = helpers.start(
                helpers.Program(
                    "a session", list(request.arguments or SHELL), environment, plan.work
                ),
                log=os.devnull,
                forker=self._forker,
                files=opened,
                is_terminal=bool(request.terminal),
            )
        except OSError as error:
            return refusal(f"the process cannot be started: {error}")
        finally:
            for descriptor in opened:
                os.close(descriptor)
        self._sessions[request.session] = helper
        return HostSession()

    def _forget_after(self, name: str) -> None:
        """Keep the last reported sessions, for agents that ask again; drop older ones."""
        if name not in self._reported:
            self._reported.append(name)
        while len(self._reported) > MOST:
            del self._sessions[self._reported.pop(0)]

    def child_ended(self, pid: int, status: int, at: float) -> None:
        """Handle the end of a child."""
        for one in self._sessions.values():
            if one.identity.pid == pid and not one.has_ended:
                one.status, one.ended_at = status, at

    def end(self) -> None:
        """End all sessions, once the ranks have ended."""
        for one in self._sessions.values():
            if not one.has_ended:
                _signal(one, signal.SIGKILL)

    def _listening(self, port: int) -> List[str]:
        """Return the addresses at which processes of the attempt listen on a port."""
        sockets: Dict[str, str] = {}
        for table in ("tcp", "tcp6"):
            sockets.update(_listeners(f"/proc/net/{table}", port))
        if not sockets:
            return []
        found: Set[str] = set()
        for stat in self._forker.tree.members():
            found |= _sockets_of(stat.pid, sockets)
        return sorted({sockets[inode] for inode in found})


def _listeners(table: str, port: int) -> List[Tuple[str, str]]:
    """Return (inode, address) of each socket that listens on a port."""
    found = []
    try:
        with open(table, encoding="ascii") as file:
            rows = [line.split() for line in file][1:]
    except OSError:
        return []
    for row in rows:
        host, _, number = row[1].partition(":")
        if row[3] == _LISTENING and int(number, 16) == port:
            found.append((row[9], _address(host)))
    return found


def _address(text: str) -> str:
    """Return the address to connect to, from the kernel's hexadecimal words."""
    if text in _ANYWHERE:
        return _ANYWHERE[text]
    import ipaddress

    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def _sockets_of(pid: int, inodes: Dict[str, str]) -> Set[str]:
    folder = f"/proc/{pid}/fd"
    found = set()
    try:
        for name in os.listdir(folder):
            try:
                target = os.readlink(f"{folder}/{name}")
            except OSError:
                continue  # closed meanwhile
            if target.startswith("socket:[") and target[8:-1] in inodes:
                found.add(target[8:-1])
    except OSError:
        return set()  # it has ended
    return found


def _code_of(helper: Helper) -> Optional[int]:
    if not helper.has_ended:
        return None
    return 128 + helper.signal if helper.signal is not None else helper.exit_code


def _signal(helper: Helper, number: int) -> None:
    """Signal a session's process group, or only the process once the group is gone."""
    if helper.has_ended:
        return
    try:
        send_signal(helper.identity, number)
    except PermissionError:
        pass  # it now belongs to another user; others of its group may not
    try:
        os.killpg(helper.identity.pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # its session has ended with it

"""Talks to warm interpreters and attempt hosts: start, ask, cancel, wait, read the exit record.

WarmError        a warm interpreter, or a host at its start, said no or died
HostUnreachable  a host lives but does not answer: *not* a sign that its attempt failed
HostGone         a host is dead; whoever asks must read its exit record, or prove its tree dead
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayjobs.errors import TargetError
from rayjobs.injob import exitrecord
from rayjobs.injob.identity import Identity, is_alive
from rayjobs.injob.processes import MARKER_VARIABLE

__all__ = [
    "ForkAnswer",
    "HostConnection",
    "HostGone",
    "HostUnreachable",
    "Identity",
    "WarmError",
    "WarmInterpreter",
    "ensure_warm",
    "fork",
    "is_alive",
    "ping_warm",
    "read_exit_record",
    "start_cold",
    "stop_warm",
]

# torch._dynamo is what every optimizer of torch imports at its first use. Not pandas: its import
# takes half a second of the first job's wait, and starts a thread of pyarrow's before all forks.
DEFAULT_PRELOAD = ("torch", "torch._dynamo", "torchvision", "numpy")
MARKER_PAD = 160
_LINE_LIMIT = 16 * 1024 * 1024
_RETRY_S = 0.05
_INJOB = Path(exitrecord.__file__).parent


class WarmError(TargetError):
    """A warm interpreter, or a host at its start, said no or died."""


class HostUnreachable(TargetError):
    """A living host does not answer."""


class HostGone(TargetError):
    """The host is dead."""


@dataclass(frozen=True)
class WarmInterpreter:
    """A warm interpreter that answers.

    Attributes:
        preloaded: The modules it has imported.
        not_preloaded: The modules it could not import, with the reason.
        import_s: How long the imports took.
    """

    socket: str
    identity: Identity
    preloaded: tuple[str, ...]
    not_preloaded: Mapping[str, str]
    import_s: float


@dataclass(frozen=True)
class ForkAnswer:
    """What came of a fork: exactly one of the two is set.

    Attributes:
        identity: The attempt host's.
        cold: Why the plan must be started cold instead.
    """

    identity: Identity | None
    cold: str | None


async def ask(socket: str, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Send one request and return the answer.

    Raises:
        OSError: nobody listens there, or the connection broke before the answer.
        TimeoutError: no answer in time.
        ValueError: the answer is not of this protocol.
    """
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_unix_connection(socket, limit=_LINE_LIMIT)
        try:
            writer.write(json.dumps(dict(request)).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
        finally:
            writer.close()
    if not line.endswith(b"\n"):
        raise ConnectionResetError(f"{socket} closed the connection without an answer")
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError(f"{socket} answered {line[:80]!r}, which is no JSON object")
    return answer


async def ping_warm(socket: str, *, timeout_s: float = 10.0) -> WarmInterpreter | None:
    """Return the warm interpreter that answers at `socket`, or None."""
    try:
        answer = await ask(socket, {"op": "ping"}, timeout_s=timeout_s)
        return WarmInterpreter(
            socket,
            Identity.from_dict(answer),
            tuple(answer["preloaded"]),
            dict(answer["not_preloaded"]),
            float(answer["import_s"]),
        )
    except (OSError, TimeoutError, ValueError, KeyError):
        return None


async def ensure_warm(
    socket: str,
    *,
    python: str,
    env: Mapping[str, str],
    log_file: str,
    preload: Sequence[str] = DEFAULT_PRELOAD,
    idle_s: float = 1800.0,
    timeout_s: float = 180.0,
) -> WarmInterpreter:
    """Return the warm interpreter at `socket`, started if there is none. Idempotent.

    Two callers at once are safe: the interpreter locks its socket's name, and both get that one.

    Args:
        env: What its ranks will be started with (PATH, HOME, LANG, …): a job whose variables
            of this kind differ is started cold.
        log_file: Receives what the packages print while they are imported.

    Raises:
        WarmError: it does not come up in time, or dies; says why.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    said = ""
    while True:
        found = await ping_warm(socket)
        if found is not None:
            return found
        if loop.time() > deadline:
            raise WarmError(
                f"the warm interpreter did not come up within {timeout_s:g} s: "
                f"{said or 'no answer'}; see {log_file}. Jobs can still be started cold."
            )
        arguments = [
            *(python, str(_INJOB / "warm.py"), "--socket", socket, "--log", log_file),
            *("--preload", ",".join(preload), "--idle-s", str(idle_s)),
            *("--marker-pad", str(MARKER_PAD)),
        ]
        # OpenBLAS joins its threads at every fork; sleeping ones are joined at once.
        full_env = {"OPENBLAS_THREAD_TIMEOUT": "20", **env, MARKER_VARIABLE: "-" * MARKER_PAD}
        answer = await _start(arguments, full_env, b"", timeout_s=max(deadline - loop.time(), 0.1))
        if not answer.get("ok"):
            said = str(answer.get("error"))
            await asyncio.sleep(_RETRY_S)  # another one is about to serve, or about to leave


async def stop_warm(socket: str, *, timeout_s: float = 10.0) -> None:
    """Ask a warm interpreter to end; attempts it has started go on. Idempotent."""
    try:
        await ask(socket, {"op": "stop"}, timeout_s=timeout_s)
    except OSError:
        return  # there is none


async def fork(
    socket: str, plan: str, *, secrets: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> ForkAnswer:
    """Let the warm interpreter fork the attempt host of the plan file `plan`.

    When this raises WarmError after the request was sent, a host may have been started all the
    same: read host.json before trying again.

    Raises:
        WarmError: the interpreter does not answer, or the host could not start.
    """
    try:
        answer = await ask(
            socket, {"op": "fork", "plan": plan, "secrets": dict(secrets or {})},
            timeout_s=timeout_s,
        )  # fmt: skip
    except (OSError, TimeoutError, ValueError) as error:
        raise WarmError(f"the warm interpreter at {socket} does not answer: {error!r}") from error
    if answer.get("cold"):
        return ForkAnswer(None, str(answer["cold"]))
    if not answer.get("ok"):
        raise WarmError(f"the attempt host could not be forked: {answer.get('error')}")
    return ForkAnswer(Identity.from_dict(answer), None)


async def start_cold(
    plan: str,
    *,
    reason: str,
    env: Mapping[str, str],
    python: str = sys.executable,
    secrets: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Identity:
    """Start a cold attempt host for the plan file `plan`; its ranks use the plan's own python.

    Args:
        reason: Why cold, as it will stand in the exit record.
        env: The host's own environment; ranks do not see it.
        python: The interpreter of the host itself.

    Raises:
        WarmError: the host could not start.
    """
    arguments = [python, str(_INJOB / "host.py"), plan, "--cold-reason", reason]
    full_env = {**env, MARKER_VARIABLE: "-" * MARKER_PAD}
    line = json.dumps(dict(secrets or {})).encode() + b"\n"
    answer = await _start(arguments, full_env, line, timeout_s=timeout_s)
    if not answer.get("ok"):
        raise WarmError(f"the attempt host could not be started cold: {answer.get('error')}")
    return Identity.from_dict(answer)


async def _start(
    arguments: Sequence[str], env: Mapping[str, str], text: bytes, *, timeout_s: float
) -> dict[str, Any]:
    """Run a program that detaches itself, and return the line it prints before."""
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            env=dict(env),
            cwd="/",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return {"ok": False, "error": f"{arguments[0]} cannot be started: {error}"}
    try:
        async with asyncio.timeout(timeout_s):
            output, complaints = await process.communicate(text)
    except TimeoutError:
        process.kill()
        await process.wait()
        return {"ok": False, "error": f"nothing was heard within {timeout_s:g} s"}
    try:
        answer = json.loads(output)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    last = complaints.decode("utf-8", "replace").strip().splitlines()[-3:]
    return {"ok": False, "error": f"exit code {process.returncode}: {' / '.join(last)}"}


def read_exit_record(root: str) -> dict[str, Any] | None:
    """Return the exit record below an attempt's directory, or None while there is none.

    Raises:
        ValueError: the file is there but is no record.
    """
    return exitrecord.read(root)


class HostConnection:
    """Asks one attempt host, over a new connection each time, so that either side may restart."""

    def __init__(self, socket: str, root: str, identity: Identity) -> None:
        """Talk to the host `identity`, at `socket`, whose attempt directory is `root`."""
        self.socket = socket
        self.root = root
        self.identity = identity

    @staticmethod
    def of(root: str) -> HostConnection | None:
        """Return the connection to the host that wrote `root`/host.json; None before that.

        Raises:
            ValueError: the file is torn or of another kind.
        """
        try:
            values = json.loads((Path(root) / "host.json").read_text())
        except FileNotFoundError:
            return None
        try:
            return HostConnection(str(values["socket"]), root, Identity.from_dict(values))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{root}/host.json names no host: {error!r}") from error

    async def status(self, *, timeout_s: float = 10.0) -> dict[str, Any]:
        """Return what the host says about its ranks.

        Raises:
            HostGone: the host is dead.
            HostUnreachable: it lives and does not answer in time.
        """
        return await self._ask({"op": "status"}, timeout_s=timeout_s)

    async def cancel(
        self, reason: str = "canceled", *, grace_s: float | None = None, timeout_s: float = 10.0
    ) -> bool:
        """Ask the host to end its attempt; False when it has ended already. Idempotent.

        Raises:
            HostGone: the host is dead and left no exit record.
            HostUnreachable: it lives and does not answer in time.
        """
        request: dict[str, Any] = {"op": "cancel", "reason": reason}
        if grace_s is not None:
            request["grace_s"] = grace_s
        try:
            answer = await self._ask(request, timeout_s=timeout_s)
        except HostGone:
            if self._record() is None:
                raise
            return False
        return answer.get("state") != "ended"

    async def wait(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the exit record once the attempt has ended; reconnects as often as needed.

        Raises:
            HostGone: the host is dead and left no exit record.
            TimeoutError: the attempt has not ended within `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                # In this order: a host that ends between the two looks has written its record.
                lives = is_alive(self.identity)
                record = self._record()
                if record is not None:
                    return record
                if not lives:
                    raise self._gone()
                answer = await self._wait_once()
                if answer is not None:
                    return answer
                await asyncio.sleep(_RETRY_S)

    async def _wait_once(self) -> dict[str, Any] | None:
        """Hold one connection until the record comes; None when the connection broke."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.socket, limit=_LINE_LIMIT)
        except OSError:
            return None
        try:
            writer.write(b'{"op": "wait"}\n')
            line = await reader.readline()
            answer = json.loads(line) if line.endswith(b"\n") else None
            return answer if isinstance(answer, dict) and "outcome" in answer else None
        except (OSError, ValueError):
            return None
        finally:
            writer.close()

    async def _ask(self, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                return await ask(self.socket, request, timeout_s=max(deadline - loop.time(), 0.05))
            except (OSError, ValueError, TimeoutError) as error:
                if not is_alive(self.identity):
                    raise self._gone() from error
                if loop.time() >= deadline:
                    raise HostUnreachable(
                        f"the attempt host (pid {self.identity.pid}) lives, but did not answer "
                        f"within {timeout_s:g} s: {error!r}. Its attempt goes on; ask again.",
                    ) from error
            await asyncio.sleep(_RETRY_S)

    def _record(self) -> dict[str, Any] | None:
        """Return the exit record; one that its script has spoilt is none (the host writes it)."""
        try:
            return read_exit_record(self.root)
        except (OSError, ValueError):
            return None

    def _gone(self) -> HostGone:
        return HostGone(
            f"the attempt host (pid {self.identity.pid}) is dead. Read {self.root}/exit.json; "
            "without one, end its leftovers before anything else is placed there."
        )


def runtime_environment() -> dict[str, str]:
    """Return the variables of this process that a host itself needs."""
    names = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
    return {name: os.environ[name] for name in names if name in os.environ}

"""Starts attempt hosts, cold or forked by a warm interpreter, which is started if needed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rayjobs.core.errors import TargetError
from rayjobs.core.text import duration_text
from rayjobs.injob import exit_record, record_files
from rayjobs.injob.answers import Answer, StartAnswer
from rayjobs.injob.identity import Identity, is_alive
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message, MessageError
from rayjobs.injob.processes import MARKER_VARIABLE
from rayjobs.injob.warm_messages import WarmRequest, WarmStatus

log = logging.getLogger(__name__)

# torch's optimizers import torch._dynamo at their first use. Not pandas: its import adds half a
# second to the first job's wait and starts a pyarrow thread before all forks.
DEFAULT_PRELOAD = ("torch", "torch._dynamo", "torchvision", "numpy")
MARKER_PAD = 160
LINE_LIMIT = 16 * 1024 * 1024
RETRY_S = 0.05
HELD_S = 5.0  # for a process that is about to serve or to exit
_INJOB = Path(exit_record.__file__).parent
PING = WarmRequest("ping")

One = TypeVar("One", bound=Message)


class WarmError(TargetError):
    """A warm interpreter or a starting host refused or died."""


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
    """The result of a fork: exactly one of the two is set.

    Attributes:
        identity: The attempt host's.
        cold: Why the plan needs a cold start instead.
    """

    identity: Identity | None
    cold: str | None


async def ask(socket: str, request: Message, kind: type[One], *, timeout_s: float) -> One:
    """Send one request and return the answer, which is of class `kind`.

    Raises:
        OSError: no process listens there, or the connection broke before the answer.
        TimeoutError: no answer in time.
        ValueError: the answer is not of this protocol.
    """
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_unix_connection(socket, limit=LINE_LIMIT)
        try:
            writer.write(json.dumps(request.to_json()).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
        finally:
            writer.close()
    if not line.endswith(b"\n"):
        raise ConnectionResetError(f"{socket} closed the connection without an answer")
    try:
        return kind.from_json(record_files.parse_json(line))
    except MessageError as error:
        raise ValueError(f"{socket} answered {line[:80]!r}: {error}") from error


async def ping_warm(
    socket: str, request: WarmRequest = PING, *, timeout_s: float = 5.0
) -> WarmInterpreter | None:
    """Return the warm interpreter that answers at `socket`, or None.

    Args:
        request: A ping; an agent's ping names the raylet that the interpreter must not outlive.
    """
    try:
        answer = await ask(socket, request, WarmStatus, timeout_s=timeout_s)
    except (OSError, TimeoutError, ValueError):
        return None
    if not answer.ok:
        return None
    return WarmInterpreter(
        socket, answer.identity, answer.preloaded, answer.not_preloaded, answer.import_s
    )


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
    """Return the warm interpreter at `socket`; start it if it is not running. Idempotent.

    Concurrent callers are safe: the interpreter locks its socket's name, and all get the same one.
    This waits for an interpreter that is still importing, but only a few seconds for a lock whose
    holder does not answer.

    Args:
        env: The variables of its ranks (PATH, HOME, LANG, …): a job whose variables of this kind
            differ gets a cold start.
        log_file: Receives what the packages print during their import.

    Raises:
        WarmError: it does not start in time or dies; the message says why.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    failure = ""
    held_since: float | None = None
    while True:
        found = await ping_warm(socket)
        if found is not None:
            return found
        if loop.time() > deadline:
            raise WarmError(
                f"the warm interpreter did not come up within {duration_text(timeout_s)}: "
                f"{failure or 'no answer'}; see {log_file}. Jobs can still start cold."
            )
        arguments = [
            *(python, str(_INJOB / "warm.py"), "--socket", socket, "--log", log_file),
            *("--preload", ",".join(preload), "--idle-s", str(idle_s)),
            *("--marker-pad", str(MARKER_PAD)),
        ]
        # OpenBLAS joins its threads at every fork; joining sleeping threads takes no time.
        full_env = {"OPENBLAS_THREAD_TIMEOUT": "20", **env, MARKER_VARIABLE: "-" * MARKER_PAD}
        answer = await _start(arguments, full_env, b"", timeout_s=max(deadline - loop.time(), 0.1))
        if not answer.ok:
            failure = answer.error
            if not answer.held or _is_importing(socket):
                held_since = None
            elif held_since is None:
                held_since = loop.time()
            elif loop.time() - held_since > HELD_S:
                raise WarmError(
                    f"{failure}, and no process answers at {socket}. Jobs can still start cold; "
                    f"end that process (see `fuser {socket}.lock`) to have them start warm again."
                )
            await asyncio.sleep(RETRY_S)


def _is_importing(socket: str) -> bool:
    """Whether the holder of the lock is alive but does not listen yet."""
    try:
        holder = Identity.from_json(json.loads(Path(socket + ".lock").read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return is_alive(holder) and not Path(socket).exists()


async def stop_warm(socket: str, *, timeout_s: float = 10.0) -> None:
    """Ask a warm interpreter to end; attempts that it started continue. Idempotent.

    One that does not answer, or whose answer cannot be read, may stay until it has been idle.
    """
    try:
        await ask(socket, WarmRequest("stop"), Answer, timeout_s=timeout_s)
    except (TimeoutError, ValueError) as error:
        log.warning("the warm interpreter at %s may not end: %r", socket, error)
    except OSError:
        return  # it is not running


async def fork(
    socket: str, plan: str, *, secrets: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> ForkAnswer:
    """Have the warm interpreter fork the attempt host of the plan file `plan`.

    If this raises WarmError after it sent the request, a host may be running nevertheless: read
    host.json before you try again.

    Raises:
        WarmError: the interpreter does not answer, or the host could not start.
    """
    try:
        request = WarmRequest("fork", plan=plan, secrets=secrets or {})
        answer = await ask(socket, request, StartAnswer, timeout_s=timeout_s)
    except (OSError, TimeoutError, ValueError) as error:
        raise WarmError(f"the warm interpreter at {socket} does not answer: {error!r}") from error
    if answer.cold:
        return ForkAnswer(None, answer.cold)
    if not answer.ok:
        raise WarmError(f"the attempt host could not be forked: {answer.error}")
    return ForkAnswer(answer.identity, None)


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
        reason: Why the start is cold, for the exit record.
        env: The host's own environment; ranks do not see it.
        python: The interpreter of the host itself.

    Raises:
        WarmError: the host could not start.
    """
    arguments = [python, str(_INJOB / "coldhost.py"), plan, "--cold-reason", reason]
    full_env = {**env, MARKER_VARIABLE: "-" * MARKER_PAD}
    line = json.dumps(dict(secrets or {})).encode() + b"\n"
    answer = await _start(arguments, full_env, line, timeout_s=timeout_s)
    if not answer.ok:
        raise WarmError(f"the attempt host could not be started cold: {answer.error}")
    return answer.identity


async def _start(
    arguments: Sequence[str], env: Mapping[str, str], text: bytes, *, timeout_s: float
) -> StartAnswer:
    """Run a program that detaches itself; return the answer that it prints."""
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
        return StartAnswer.refused(f"{arguments[0]} cannot be started: {error}")
    try:
        async with asyncio.timeout(timeout_s):
            output, complaints = await process.communicate(text)
    except TimeoutError:
        process.kill()
        await process.wait()
        return StartAnswer.refused(f"no answer came within {duration_text(timeout_s)}")
    try:
        return StartAnswer.from_json(json.loads(output))
    except ValueError:
        last = complaints.decode("utf-8", "replace").strip().splitlines()[-3:]
        return StartAnswer.refused(f"exit code {process.returncode}: {' / '.join(last)}")


def runtime_environment() -> dict[str, str]:
    """Return the variables of this process that a host itself needs."""
    names = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
    return {name: os.environ[name] for name in names if name in os.environ}

"""One step of a build: runs a program, logs it, and ends it on cancellation."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import functools
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import IO, Any

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.paths import BUILD_LOG
from rayjobs.core.text import duration_text
from rayjobs.environments import tied
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.processes import MARKER_VARIABLE
from rayjobs.launch.leftovers import end_leftovers

log = logging.getLogger(__name__)

MOST_LINES = 12
POLL_S = 0.1
DRAIN_S = 2.0
_CHUNK = 65_536
_LONGEST = 400  # characters of a cause in a message; the log has the full text
_PASSWORD = re.compile(r"(://)[^/@\s]+@")
_NO_SOLUTION = "No solution found when resolving"  # uv's error
_FULL = ("No space left on device", "os error 28", "Disk quota exceeded", "os error 122")
_BEGIN = ("error:", "×", "  ×")


class StoppedError(PrepareError):
    """The job's end was requested while its environment was built."""


@dataclass
class Control:
    """Cancels a build, and identifies its owner.

    Attributes:
        marker: The attempt's marker, by which processes of the build are found.
        deadline_s: When to give up, on the event loop's clock; None means no limit.
        limit_s: The total limit, for the message.
    """

    marker: str
    deadline_s: float | None = None
    limit_s: float | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self) -> None:
        """Raise when the build must end.

        Raises:
            StoppedError: the job's end was requested.
            PrepareError: class ``time_limit``.
        """
        if self.stopped.is_set():
            raise StoppedError("the job's end was requested while its environment was built")
        if self.deadline_s is not None and asyncio.get_running_loop().time() >= self.deadline_s:
            raise PrepareError(
                "the environment was not ready within the job's limit of "
                f"{duration_text(self.limit_s, exact=True)}; "
                f"raise it with --max-duration",
                failure_class=FailureClass.TIME_LIMIT,
            )

    async def pause(self) -> None:
        """Wait briefly. Raises the same errors as `check`."""
        await asyncio.sleep(POLL_S)
        self.check()


class BuildLog:
    """The log of one attempt's build, without the passwords in addresses."""

    def __init__(self, path: Path, secrets: Sequence[str] = ()) -> None:
        """Append to `path`, replacing the values in `secrets` everywhere."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("a", encoding="utf-8", errors="backslashreplace")
        self._secrets = [one for one in secrets if one]
        self.path = path

    def write(self, text: str) -> None:
        """Write text, of whole lines."""
        text = hidden(text, self._secrets)
        self._file.write(text if text.endswith("\n") else text + "\n")
        self._file.flush()

    def write_if_possible(self, text: str) -> None:
        """Write text like `write`; a full disk must not stop the build's other output."""
        with contextlib.suppress(OSError):
            self.write(text)

    def close(self) -> None:
        """Close the file. Idempotent; on a full disk, the rest of the text is lost."""
        with contextlib.suppress(OSError):
            self._file.close()


def hidden(text: str, secrets: Sequence[str]) -> str:
    """Return a text without user names and passwords in addresses, and without `secrets`."""
    for secret in secrets:
        text = text.replace(secret, "****")
    return _PASSWORD.sub(r"\1****@", text)


class ProgramFailedError(PrepareError):
    """A program of a build ended with an exit code other than 0.

    Attributes:
        status: The exit code.
    """

    def __init__(self, message: str, *, status: int, **values: Any) -> None:
        super().__init__(message, **values)
        self.values["status"] = status
        self.status = status


async def run(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    build_log: BuildLog,
    control: Control,
    doing: str,
    shown: str | None = None,
) -> None:
    """Run a program to its end and log its output.

    The program is ended with all its child processes when `control` requests it, and by the kernel
    when this process dies.

    Args:
        doing: What failed if the program does, as in "the packages cannot be resolved".
        shown: Its name in the log; None: its arguments; "": nothing.

    Raises:
        StoppedError, PrepareError: see `Control.check`.
        ProgramFailedError: class ``environment``, with the relevant lines.
        PrepareError: class ``storage`` for a full disk; ``system`` if it was killed.
    """
    control.check()
    if shown is None:
        shown = f"$ {' '.join(arguments)}"
    if shown:
        build_log.write(shown)
    last = _Tail()
    process = await asyncio.create_subprocess_exec(
        *tied_to_this_process(arguments),
        env={**env, MARKER_VARIABLE: control.marker},
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    reading = asyncio.ensure_future(_copy(process.stdout, build_log, last.add))
    ending = asyncio.ensure_future(process.wait())
    try:
        while not ending.done():
            await asyncio.wait({ending}, timeout=POLL_S)
            if not ending.done():
                control.check()
    except BaseException:
        await _end(control.marker, ending)
        raise
    finally:
        # Its children may keep the pipe open; they end with the attempt.
        await asyncio.wait({reading}, timeout=DRAIN_S)
        reading.cancel()
    code = ending.result()
    if code:
        raise _failed(code, last.lines, doing)


def tied_to_this_process(arguments: Sequence[str]) -> list[str]:
    """Return the command of a program that the kernel ends together with this process.

    With `setpriv` of util-linux this takes 2 ms, with a Python interpreter 15 ms.
    """
    if (setpriv := _setpriv()) is not None:
        return [setpriv, "--pdeathsig", "KILL", *arguments]
    return [sys.executable, "-I", "-S", tied.__file__, str(os.getpid()), *arguments]


@functools.cache
def _setpriv() -> str | None:
    """Return the path of a `setpriv` that has `--pdeathsig`; Busybox's and old versions lack it."""
    path = shutil.which("setpriv", path="/usr/bin:/bin")
    if path is None:
        return None
    tried = subprocess.run([path, "--pdeathsig", "KILL", "true"], capture_output=True, check=False)
    return None if tried.returncode else path


async def _end(marker: str, ending: asyncio.Future[int]) -> None:
    proof = await asyncio.to_thread(end_leftovers, marker, None, 0.0)
    if proof.proven_dead:
        await ending
    else:
        log.warning("a build cannot be ended: %s", proof.remaining)


async def _copy(
    stream: asyncio.StreamReader, build_log: BuildLog, note: Callable[[str], None]
) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    held = ""
    while chunk := await stream.read(_CHUNK):
        held += decoder.decode(chunk)
        *lines, held = held.split("\n")
        if len(held) > _CHUNK:  # one line without an end
            lines, held = [*lines, held], ""
        for line in lines:
            note(line)
            build_log.write_if_possible(line)
    if held:
        note(held)
        build_log.write_if_possible(held)


class _Tail:
    """The last lines of a program's output."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        if line.strip():
            self.lines = [*self.lines[-199:], line.rstrip()[:2_000]]


def _failed(code: int, lines: Sequence[str], doing: str) -> PrepareError:
    relevant = matter(lines)
    if code < 0:
        message = f"{doing}: the program that did it was killed (signal {-code})"
        return PrepareError(message, failure_class=FailureClass.SYSTEM, lines=relevant)
    if any(word in line for line in lines for word in _FULL):
        message = f"{doing}: the disk of the node's scratch or of uv's cache is full"
        return PrepareError(message, failure_class=FailureClass.STORAGE, lines=relevant)
    message = f"{doing}: {sentence(relevant) or f'exit code {code}'}. Full log: {BUILD_LOG}"
    # Another attempt would find the same missing package or the same conflict.
    is_permanent = any(_NO_SOLUTION in line for line in lines)
    return ProgramFailedError(
        message,
        status=code,
        failure_class=FailureClass.ENVIRONMENT,
        lines=relevant,
        is_permanent=is_permanent,
    )


def matter(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines with the cause: from the start of the last error on."""
    begin = next(
        (at for at in range(len(lines) - 1, -1, -1) if lines[at].lstrip().startswith(_BEGIN)),
        max(0, len(lines) - MOST_LINES),
    )
    return tuple(hidden(line, ()) for line in lines[begin : begin + MOST_LINES])


def sentence(lines: Sequence[str]) -> str:
    """Condense an error's lines to one: what failed, and the last cause."""
    words = " ".join(" ".join(line.strip(" \t×╰─▶│├·") for line in lines).split())
    what, _, causes = words.removeprefix("error:").strip().partition(" cause: ")
    first, _, cause = causes.rpartition("cause: ")
    if first.startswith("Failed to fetch"):  # the address matters more than the number of tries
        what = first.partition(" cause: ")[0].strip()
    if not cause or what.startswith("No solution found"):
        text = cause or what
    else:
        text = f"{what}: {cause}"
    return (text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…").rstrip(".")

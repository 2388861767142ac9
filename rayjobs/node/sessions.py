"""Sessions of clients on this node: processes next to ranks, and connections to ports of jobs.

A session buffers the output of its process or connection until the client has received it, and
stops reading while the buffer is full. It ends with its process, with the attempt, or when the
client is silent.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import logging
import os
import pty
import signal
import struct
import tempfile
import termios
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from rayjobs.injob import session_steps as steps
from rayjobs.injob.answers import Answer
from rayjobs.injob.host_messages import HostRequest, HostSession, PortAnswer
from rayjobs.injob.session_steps import SessionEvent, SessionReply, SessionStep
from rayjobs.launch import hostclient
from rayjobs.node.hosts import host_on
from rayjobs.protocol.attempts import AttemptOnNode

log = logging.getLogger(__name__)

MOST_BUFFERED = 1 << 20
PIECE = 64 << 10
LONGEST_WAIT_S = 10.0
SILENT_S = 60.0  # a living client sends requests all the time
MOST = 256
KILL_AFTER_S = 1.0
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.02, 0.5
_REST_S = 0.3  # wait for output after the process has ended: others may hold its pipes


_One = TypeVar("_One", bound=Answer)


class _RefusedError(Exception):
    """A step cannot be carried out; the message is a sentence."""


class Sessions:
    """All sessions of one node."""

    def __init__(self, silent_s: float = SILENT_S) -> None:
        self._silent_s = silent_s
        self._open: dict[str, _Session] = {}

    async def step(self, on: AttemptOnNode, step: SessionStep) -> SessionReply:
        """Carry out one step of a client."""
        try:
            if step.op in (steps.EXEC, steps.PORT):
                return await self._begin(on, step)
            found = self._open.get(step.session)
            if found is None or found.on.marker != on.marker:
                return SessionReply(
                    error="this session does not exist, or its client was silent for too long"
                )
            found.seen_s = time.monotonic()
            return await found.step(step)
        except _RefusedError as refused:
            return SessionReply(error=str(refused))

    async def _begin(self, on: AttemptOnNode, step: SessionStep) -> SessionReply:
        if len(step.session) < 16:
            raise _RefusedError("the name of a session must have at least 16 characters")
        if step.session in self._open:
            if self._open[step.session].on.marker != on.marker:
                raise _RefusedError("another session has this name")
            return SessionReply()  # the answer to the same request was lost
        if len(self._open) >= MOST:
            raise _RefusedError(f"this node already has {MOST} sessions")
        made: _Session = _Process(on, step) if step.op == steps.EXEC else _Tunnel(on, step)
        self._open[step.session] = made
        try:
            await made.start()
        except BaseException:
            del self._open[step.session]
            raise
        made.keeping = asyncio.ensure_future(self._keep(step.session, made))
        return SessionReply()

    async def _keep(self, name: str, session: _Session) -> None:
        """Remove a session when its client has received everything, or is silent."""
        try:
            while time.monotonic() - session.seen_s < self._silent_s and not session.is_done:
                await asyncio.sleep(min(1.0, self._silent_s / 4))
        finally:
            self._open.pop(name, None)
            await session.end()


class _Session(ABC):
    """The buffered events of one session."""

    def __init__(self, on: AttemptOnNode, step: SessionStep) -> None:
        self.on = on
        self.name = step.session
        self.seen_s = time.monotonic()
        self.keeping: asyncio.Future[None] | None = None
        self._opening = step
        self._events: deque[SessionEvent] = deque()
        self._first = 0  # number of the first event in `_events`
        self._buffered = 0
        self._changed = asyncio.Condition()
        self._taken = 0  # bytes of input that were passed on
        self._writing = asyncio.Lock()
        self._ended = False

    @property
    def is_done(self) -> bool:
        """Whether the session has ended and the client has received all events."""
        return self._ended and not self._events

    @abstractmethod
    async def start(self) -> None:
        """Start the process or connection."""

    @abstractmethod
    async def end(self) -> None:
        """Release everything; idempotent."""

    @abstractmethod
    async def _write(self, data: bytes) -> None:
        """Pass on input; return when it was accepted."""

    @abstractmethod
    def _finish_input(self) -> None:
        """Signal the end of the input."""

    async def step(self, step: SessionStep) -> SessionReply:
        """Carry out one step."""
        if step.op == steps.READ:
            return await self._read(step)
        if step.op == steps.WRITE:
            return await self._take(step)
        if step.op == steps.END:
            await self.end()
            self._events.clear()
        elif step.op == steps.RESIZE and step.size is not None:
            self._resize(*step.size)
        elif step.op == steps.SIGNAL:
            await self._signal(step.number)
        else:
            raise _RefusedError(f"unknown step {step.op!r:.40}")
        return SessionReply()

    def _resize(self, rows: int, columns: int) -> None:
        """Change the terminal's size."""
        raise _RefusedError(f"this session has no terminal to resize to {rows} × {columns}")

    async def _signal(self, number: int) -> None:
        """Send the process a signal."""
        raise _RefusedError(f"this session has no process that could get the signal {number}")

    async def _read(self, step: SessionStep) -> SessionReply:
        async with self._changed:
            while self._first < step.at and self._events:
                self._buffered -= len(self._events.popleft().data)
                self._first += 1
                self._changed.notify_all()
            wait_s = min(max(step.wait_s, 0.0), LONGEST_WAIT_S)
            if not self._events and not self._ended:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(
                        self._changed.wait_for(lambda: bool(self._events)), wait_s
                    )
            return SessionReply(events=tuple(self._events))

    async def _take(self, step: SessionStep) -> SessionReply:
        async with self._writing:
            data = base64.b64decode(step.data)
            if step.at > self._taken:
                raise _RefusedError(f"the input continues at byte {self._taken}, not {step.at}")
            rest = data[self._taken - step.at :]
            if rest:
                try:
                    await self._write(rest)
                except OSError:
                    pass  # the reader is gone: the end of the session says why
                self._taken += len(rest)
            if step.is_last:
                self._finish_input()
            return SessionReply(at=self._taken)

    async def _give(self, stream: int, data: bytes) -> None:
        """Add an event as soon as the buffer has space."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._buffered < MOST_BUFFERED or self._ended)
            if self._ended:
                return
            self._add(SessionEvent(stream, base64.b64encode(data).decode()))

    async def _give_end(self, sentence: str = "", exit_code: int | None = None) -> None:
        async with self._changed:
            if not self._ended:
                self._add(SessionEvent(0, sentence, exit_code))
                self._ended = True
                self._changed.notify_all()

    def _add(self, event: SessionEvent) -> None:
        self._events.append(event)
        self._buffered += len(event.data)
        self._changed.notify_all()


class _Tunnel(_Session):
    """A connection to a port on which the attempt listens."""

    def __init__(self, on: AttemptOnNode, step: SessionStep) -> None:
        super().__init__(on, step)
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Future[None] | None = None

    async def start(self) -> None:
        port = self._opening.number
        answer = await _ask(self.on, HostRequest("listens", number=port), PortAnswer)
        if not answer.addresses:
            raise _RefusedError(f"no process of the job listens on port {port}")
        problem = ""
        for address in answer.addresses:
            try:
                reader, self._writer = await asyncio.wait_for(
                    asyncio.open_connection(address, port), 5.0
                )
            except (OSError, TimeoutError) as error:
                problem = str(error) or "no answer"
                continue
            self._reading = asyncio.ensure_future(self._forward(reader))
            return
        raise _RefusedError(f"port {port} of the job cannot be reached: {problem}")

    async def _forward(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(PIECE):
                await self._give(1, data)
        except OSError as error:
            await self._give_end(str(error))
        finally:
            await self._give_end()

    async def _write(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)
        await self._writer.drain()

    def _finish_input(self) -> None:
        assert self._writer is not None
        if self._writer.can_write_eof():
            with contextlib.suppress(OSError):
                self._writer.write_eof()

    async def end(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
        await self._give_end()


class _Process(_Session):
    """A process next to a rank, with pipes or a terminal."""

    def __init__(self, on: AttemptOnNode, step: SessionStep) -> None:
        super().__init__(on, step)
        self._input = -1
        self._outputs: dict[int, int] = {}  # stream → descriptor
        self._tasks: list[asyncio.Future[None]] = []
        self._host: hostclient.HostConnection | None = None

    async def start(self) -> None:
        self._host = await asyncio.to_thread(host_on, self.on)
        with tempfile.TemporaryDirectory(
            prefix="session-", dir=Path(self.on.socket).parent
        ) as folder:
            theirs, files = self._make_files(Path(folder))
            try:
                step = self._opening
                await _ask(
                    self.on,
                    HostRequest(
                        "exec",
                        session=self.name,
                        rank=step.rank,
                        arguments=step.arguments,
                        files=files,
                        terminal=step.terminal,
                    ),
                    HostSession,
                )
                if not self._opening.terminal:
                    # The process has opened it by now, so closing it here gives the process EOF.
                    self._input = os.open(files[0], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except BaseException:
                self._close()
                raise
            finally:
                for descriptor in theirs:
                    os.close(descriptor)
        readers = [
            asyncio.ensure_future(self._forward(stream, descriptor))
            for stream, descriptor in self._outputs.items()
        ]
        self._tasks = [*readers, asyncio.ensure_future(self._watch(readers))]

    def _make_files(self, folder: Path) -> tuple[list[int], tuple[str, ...]]:
        """Return descriptors to close after the start, and the paths for the process."""
        if self._opening.terminal:
            master, slave = pty.openpty()
            os.set_blocking(master, False)
            self._input, self._outputs = master, {1: master}
            if self._opening.size is not None:
                self._resize(*self._opening.size)
            return [slave], (os.ttyname(slave),) * 3
        paths = [str(folder / name) for name in ("in", "out", "err")]
        for path in paths:
            os.mkfifo(path, 0o600)
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        for stream in (1, 2):
            self._outputs[stream] = os.open(paths[stream], os.O_RDONLY | flags)
        return [os.open(paths[0], os.O_RDWR | flags)], tuple(paths)

    async def _forward(self, stream: int, descriptor: int) -> None:
        while True:
            await _ready(descriptor)
            try:
                data = os.read(descriptor, PIECE)
            except BlockingIOError:
                continue
            except OSError:  # no process has the terminal open any more
                return
            if not data:
                return
            await self._give(stream, data)

    async def _watch(self, readers: Sequence[asyncio.Future[None]]) -> None:
        """Report the end when the process has ended and its output was read."""
        pause_s = _FIRST_LOOK_S
        while True:
            waiting = [one for one in readers if not one.done()]
            if waiting:
                await asyncio.wait(waiting, timeout=pause_s)
            else:
                await asyncio.sleep(min(pause_s, 10 * _FIRST_LOOK_S))
            pause_s = min(_LONGEST_LOOK_S, 2 * pause_s)
            ended, code, sentence = await self._state()
            if ended:
                break
        if waiting := [one for one in readers if not one.done()]:
            await asyncio.wait(waiting, timeout=_REST_S)
        await self._give_end(sentence, code)

    async def _state(self) -> tuple[bool, int | None, str]:
        try:
            answer = await _ask(self.on, HostRequest("exec-state", session=self.name), HostSession)
        except _RefusedError:
            if self._host is not None and hostclient.is_alive(self._host.identity):
                return False, None, ""
            return True, 128 + signal.SIGKILL, "the attempt has ended, and the command with it"
        return answer.ended, answer.exit_code, ""

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._input < 0:
                raise BrokenPipeError
            try:
                view = view[os.write(self._input, view) :]
            except BlockingIOError:
                await _ready(self._input, writable=True)

    def _finish_input(self) -> None:
        if not self._opening.terminal and self._input >= 0:
            os.close(self._input)
            self._input = -1

    def _resize(self, rows: int, columns: int) -> None:
        if self._opening.terminal and self._input >= 0:
            size = struct.pack("HHHH", rows & 0xFFFF, columns & 0xFFFF, 0, 0)
            fcntl.ioctl(self._input, termios.TIOCSWINSZ, size)

    async def _signal(self, number: int) -> None:
        await _ask(
            self.on, HostRequest("exec-signal", session=self.name, number=number), HostSession
        )

    async def end(self) -> None:
        for number, pause_s in ((signal.SIGHUP, KILL_AFTER_S), (signal.SIGKILL, 0.0)):
            if self._ended:
                break
            try:
                await self._signal(number)
            except _RefusedError:
                break  # its host has ended, and the process with it
            watching = self._tasks[-1:]
            if watching and pause_s:
                await asyncio.wait(watching, timeout=pause_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close()
        await self._give_end(exit_code=128 + signal.SIGHUP)

    def _close(self) -> None:
        for descriptor in {self._input, *self._outputs.values()} - {-1}:
            os.close(descriptor)
        self._input, self._outputs = -1, {}


async def _ready(descriptor: int, *, writable: bool = False) -> None:
    """Wait until a descriptor can be read, or written."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def found() -> None:
        if not ready.done():
            ready.set_result(None)

    # A separate descriptor: a terminal's descriptor is read and written at the same time.
    own = os.dup(descriptor)
    try:
        (loop.add_writer if writable else loop.add_reader)(own, found)
        await ready
    finally:
        (loop.remove_writer if writable else loop.remove_reader)(own)
        os.close(own)


async def _ask(on: AttemptOnNode, request: HostRequest, kind: type[_One]) -> _One:
    """Return the host's answer.

    Raises:
        _RefusedError: it refuses, does not answer, or has ended.
    """
    connection = await asyncio.to_thread(host_on, on)
    if connection is None:
        raise _RefusedError("the attempt has ended, or has not started on its node")
    try:
        answer = await connection.ask(request, kind, timeout_s=10.0)
    except (hostclient.HostGone, hostclient.HostUnreachable) as error:
        raise _RefusedError(str(error)) from error
    if not answer.ok:
        raise _RefusedError(answer.error)
    return answer

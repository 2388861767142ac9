"""The socket in an attempt's folder through which its script calls the node's agent."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rayjobs.injob import control, run_calls
from rayjobs.injob.run_calls import RunAnswer
from rayjobs.node.collection_threads import on_own_thread
from rayjobs.node.run_calls import RunCalls
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.workspace.folder import OpenWorkspace

log = logging.getLogger(__name__)

MAX_LINE_BYTES = run_calls.MAX_LINE_BYTES
CALLS_AT_ONCE = 8  # per attempt; further calls wait


@asynccontextmanager
async def serving(
    on: AttemptOnNode, open_workspace: Callable[[], OpenWorkspace]
) -> AsyncIterator[None]:
    """Answer the calls of an attempt's script during the block, and not afterwards."""
    calls = RunCalls(on, open_workspace)
    turns = asyncio.Semaphore(CALLS_AT_ONCE)
    open_ones: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # a connection's callback runs in a task
        open_ones.add(task)
        try:
            await _serve(calls, turns, reader, writer)
        finally:
            open_ones.discard(task)
            writer.close()

    folder = os.open(on.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # A socket's path may have at most 107 bytes; a descriptor's path is short.
        listener = control.listen(f"/proc/self/fd/{folder}/{run_calls.SOCKET}")
    finally:
        os.close(folder)
    own = _identity(on.root)
    server = await asyncio.start_unix_server(serve, sock=listener, limit=MAX_LINE_BYTES)
    try:
        yield
    finally:
        server.close()
        for task in tuple(open_ones):
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
        if _identity(on.root) == own:  # otherwise the next server has replaced it
            with suppress(OSError):
                Path(on.root, run_calls.SOCKET).unlink()


def _identity(root: str) -> tuple[int, int] | None:
    try:
        info = Path(root, run_calls.SOCKET).stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino


async def _serve(
    calls: RunCalls,
    turns: asyncio.Semaphore,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    with suppress(ConnectionError):  # the script has gone
        while line := await _line(reader):
            try:
                async with turns:
                    # Not in the loop's pool: the node's other jobs need its threads.
                    answer = await on_own_thread(calls.answer, line)
            except Exception as error:
                # A bug in rayjobs must not look like a lost agent to the script.
                log.exception("a call of a script failed")
                answer = RunAnswer(None, f"{type(error).__name__}: {error}", "SystemError")
            writer.write(_encoded(answer))
            await writer.drain()


def _encoded(answer: RunAnswer) -> bytes:
    line = json.dumps(answer.to_json()).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        text = (
            f"the answer has {len(line)} bytes, but at most {MAX_LINE_BYTES} can be sent; request "
            f"less, such as one metric by its name"
        )
        line = json.dumps(RunAnswer(None, text, "UsageError").to_json()).encode() + b"\n"
    return line


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return b""

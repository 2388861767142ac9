"""Threads of the server, in several pools: what waits in one of them does not block the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

TOKENS = anyio.CapacityLimiter(8)  # reads of tokens, before anything else
RECORDS = anyio.CapacityLimiter(32)  # reads and writes of the store
FILES = anyio.CapacityLimiter(24)  # bytes of blobs and datastores, which may hang
TARGETS = anyio.CapacityLimiter(16)  # questions to targets


async def in_thread(
    call: Callable[_Arguments, _Result],
    *arguments: _Arguments.args,
    **more: _Arguments.kwargs,
) -> _Result:
    """Return what `call` returns, in a thread for records."""
    return await _run(RECORDS, partial(call, *arguments, **more))


async def with_files(
    call: Callable[_Arguments, _Result],
    *arguments: _Arguments.args,
    **more: _Arguments.kwargs,
) -> _Result:
    """Return what `call` returns, in a thread for bytes of storage."""
    return await _run(FILES, partial(call, *arguments, **more))


async def with_target(
    call: Callable[_Arguments, _Result],
    *arguments: _Arguments.args,
    **more: _Arguments.kwargs,
) -> _Result:
    """Return what `call` returns, in a thread for questions to targets."""
    return await _run(TARGETS, partial(call, *arguments, **more))


async def with_token(
    call: Callable[_Arguments, _Result],
    *arguments: _Arguments.args,
    **more: _Arguments.kwargs,
) -> _Result:
    """Return what `call` returns, in a thread for tokens."""
    return await _run(TOKENS, partial(call, *arguments, **more))


async def _run(limiter: anyio.CapacityLimiter, call: Callable[[], _Result]) -> _Result:
    return await anyio.to_thread.run_sync(call, limiter=limiter)

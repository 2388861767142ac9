"""Threads of the server, in several pools, so that waiting in one does not block the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Pool:
    """Calls functions in a bounded number of threads.

    Args:
        most: How many of its calls run at the same time; others wait.
    """

    def __init__(self, most: int) -> None:
        self._limiter = anyio.CapacityLimiter(most)

    async def __call__(
        self,
        call: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **more: _Arguments.kwargs,
    ) -> _Result:
        """Return the result of `call`."""
        whole = partial(call, *arguments, **more)
        return await anyio.to_thread.run_sync(whole, limiter=self._limiter)


with_token = Pool(8)  # reads of tokens, before anything else
in_thread = Pool(32)  # reads and writes of the store
with_files = Pool(24)  # transfers of blobs and datastores, which may hang
with_target = Pool(16)  # requests to targets

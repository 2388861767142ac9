"""An attempt that was ended on a node is not started there afterwards."""

from __future__ import annotations

import asyncio

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.node.ends import REMEMBERED, Fence


def test_a_start_after_the_end_is_refused() -> None:
    async def scene() -> None:
        fence = Fence()
        async with fence.starting("other"):
            await fence.end("one")
        with pytest.raises(PrepareError, match="was ended before its host started"):
            async with fence.starting("one"):
                pytest.fail("it was started")
        async with fence.starting("two"):
            pass

    asyncio.run(scene())


def test_an_end_waits_for_the_start_that_had_begun() -> None:
    async def scene() -> None:
        fence, order = Fence(), []
        may_go = asyncio.Event()

        async def start() -> None:
            async with fence.starting("one"):
                await may_go.wait()
                order.append("started")

        async def end() -> None:
            await fence.end("one")
            order.append("ended")

        starting = asyncio.ensure_future(start())
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(end())
        await asyncio.sleep(0)
        assert order == []
        may_go.set()
        await asyncio.gather(starting, ending)
        assert order == ["started", "ended"]

    asyncio.run(scene())


def test_an_end_waits_for_the_second_of_two_starts_as_well() -> None:
    async def scene() -> None:
        fence, order = Fence(), []
        may_go = [asyncio.Event(), asyncio.Event()]

        async def start(number: int) -> None:
            async with fence.starting("one"):
                await may_go[number].wait()
                order.append(f"started {number}")

        async def end() -> None:
            await fence.end("one")
            order.append("ended")

        first, second = (asyncio.ensure_future(start(number)) for number in range(2))
        await asyncio.sleep(0)
        may_go[0].set()
        await first
        await asyncio.sleep(0)  # the second has begun
        ending = asyncio.ensure_future(end())
        for _ in range(5):
            await asyncio.sleep(0)
        assert order == ["started 0"]
        may_go[1].set()
        await asyncio.gather(second, ending)
        assert order == ["started 0", "started 1", "ended"]
        assert not fence._locks

    asyncio.run(scene())


def test_fence_memory_is_bounded() -> None:
    async def scene() -> None:
        fence = Fence()
        for number in range(REMEMBERED + 1):
            await fence.end(str(number))
        async with fence.starting("0"):
            pass
        with pytest.raises(PrepareError):
            async with fence.starting(str(REMEMBERED)):
                pass

    asyncio.run(scene())

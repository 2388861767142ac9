"""What Ray says of a call to an agent, in our own errors. Ray is imported by the tests alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from rayjobs.compute.cluster import AgentFaultError, AgentLostError
from rayjobs.errors import PrepareError


class Handle:
    """An actor's handle whose every call fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, _name: str) -> Handle:
        return self

    def options(self, **_more: Any) -> Handle:
        return self

    def remote(self, *_given: Any, **_more: Any) -> Handle:
        return self

    def future(self) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_exception(self._error)
        return done


Make = Callable[[Any], Exception]


def called(make: Make) -> None:
    from ray import exceptions

    from rayjobs.compute.raycluster import RayAgent

    order = {"plan": {"job": "j", "attempt": 1}}
    asyncio.run(RayAgent(Handle(make(exceptions))).follow(order))


@pytest.mark.parametrize(
    "make",
    [
        lambda ray: ray.ActorDiedError(),
        lambda ray: ray.ActorUnavailableError("busy", None),
        lambda ray: ray.GetTimeoutError("slow"),
        lambda ray: ray.RaySystemError("the control service restarts"),
        lambda ray: ray.OwnerDiedError("00" * 28, None, ""),
    ],
    ids=["died", "unavailable", "slow", "system", "owner"],
)
def test_a_call_that_ray_lost_says_nothing_of_the_attempt(make: Make) -> None:
    with pytest.raises(AgentLostError):
        called(make)


def test_our_own_errors_come_as_they_were() -> None:
    ours = PrepareError("no", failure_class="data")
    with pytest.raises(PrepareError) as caught:
        called(lambda ray: ray.RayTaskError("f", "tb", ours))
    assert caught.value.failure_class == "data"


def test_others_are_a_fault_of_the_agent_and_not_its_loss() -> None:
    with pytest.raises(AgentFaultError, match="oh"):
        called(lambda ray: ray.RayTaskError("f", "tb", KeyError("oh")))

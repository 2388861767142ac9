"""The attempts in progress: a separate task runs each attempt's supervisor until its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any

from rayjobs.core.errors import StoreError
from rayjobs.engine.attempt.record import ReplacedError
from rayjobs.engine.attempt.supervisor import AttemptSupervisor
from rayjobs.engine.board import Served

log = logging.getLogger(__name__)


class AttemptsInProgress(Collection[str]):
    """The supervised attempts of a target, by the keys of their jobs (`Served.key`)."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """Start without attempts.

        Args:
            ended: Called after each end of an attempt.
        """
        self._ended = ended
        self._running: dict[str, tuple[AttemptSupervisor, asyncio.Task[None]]] = {}

    def __contains__(self, key: object) -> bool:
        """Whether the job of this key has a supervised attempt."""
        return key in self._running

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self._running)

    def __len__(self) -> int:
        """Return how many attempts there are."""
        return len(self._running)

    def get(self, key: str) -> AttemptSupervisor | None:
        """Return the supervisor of a job's attempt, or None."""
        found = self._running.get(key)
        return None if found is None else found[0]

    @property
    def supervisors(self) -> list[AttemptSupervisor]:
        """The supervisors of all attempts."""
        return [supervisor for supervisor, _task in self._running.values()]

    def adopt(self, supervisor: AttemptSupervisor, work: Coroutine[Any, Any, None]) -> None:
        """Run a supervisor's coroutine in a task until it ends."""
        task = asyncio.ensure_future(self._run(supervisor, work))
        # A task that is canceled before its first step never awaits the coroutine.
        task.add_done_callback(lambda _: work.close())
        self._running[supervisor.key] = (supervisor, task)

    def cancel(self, *, of: Served | None = None) -> list[asyncio.Task[None]]:
        """Stop supervising: cancel tasks and return them. The attempts' hosts continue.

        Args:
            of: Only attempts of this workspace; None: all.
        """
        tasks = [
            task
            for supervisor, task in self._running.values()
            if of is None or supervisor.record.served is of
        ]
        for task in tasks:
            task.cancel()
        return tasks

    async def _run(self, supervisor: AttemptSupervisor, work: Coroutine[Any, Any, None]) -> None:
        record = supervisor.record
        try:
            await work
        except asyncio.CancelledError:
            raise
        except ReplacedError as error:
            log.warning("%s", error)
            supervisor.allocation.forget()
        except StoreError as error:
            log.warning("attempt %d of %s: %s", record.number, record.job.id, error)
            await supervisor.ending.let_go()
        except Exception as error:
            try:
                await supervisor.ending.abandon(error)
            except Exception:
                log.exception(
                    "attempt %d of %s is no longer supervised", record.number, record.job.id
                )
                await supervisor.ending.let_go()
        finally:
            self._running.pop(supervisor.key, None)
            self._ended()

"""Steps of builds on one node: their locks and programs, which may run inside an image."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.files import locked, locked_if_free
from rayjobs.environments import settings
from rayjobs.environments.building import run
from rayjobs.environments.cache import Cache
from rayjobs.environments.inside import portable
from rayjobs.environments.work import Work
from rayjobs.injob.lazy_dataclass import dataclass

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def cannot_be_kept(root: Path, error: OSError) -> PrepareError:
    """Return the error of a build whose files cannot be written below `root`."""
    return PrepareError(
        f"the environment cannot be stored in {root}: {error.strerror}",
        failure_class=FailureClass.STORAGE if error.errno in _DISK_FULL else FailureClass.SYSTEM,
    )


def cannot_be_used(root: Path, error: OSError) -> PrepareError:
    """Return the error of a folder of environments that cannot be read, or not be made."""
    return PrepareError(
        f"the environments in {root} cannot be used: {error.strerror or error} "
        f"({error.filename or root}); check that the folder and its disk can be read and written, "
        f"or name another folder with RAYJOBS_SCRATCH",
        failure_class=FailureClass.STORAGE if error.errno in _DISK_FULL else FailureClass.SYSTEM,
    )


@dataclass(frozen=True)
class Steps:
    """Runs the steps of builds in the cache of one node."""

    cache: Cache

    async def run(
        self,
        arguments: list[str],
        work: Work,
        doing: str,
        *,
        reads: Sequence[Path] = (),
        writes: Sequence[Path] = (),
        on_node: bool = False,
        quietly: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Run a program, inside the image if the environment is for an image.

        Args:
            reads: Paths of the node that it needs in the image.
            writes: Paths that it writes to.
            quietly: Log nothing if it succeeds, so that there is no log of a build.
            variables: Variables of the program, in addition to the build's.
        """
        tmp = work.paths.tmp
        env = {**work.env, "TMPDIR": str(tmp), **(variables or {})}
        with ExitStack() as stack:
            arguments = settings.of_uv_pip(arguments, env)
            words, shown = arguments, None
            if work.image is not None and not on_node:
                uv = Path(settings.find_uv()).resolve()  # a link may lead outside the image
                reads = [*reads, uv, self.cache.sources, self.cache.programs]
                words = arguments
                if Path(arguments[0]).resolve() == uv:
                    words = await asyncio.to_thread(portable, uv, self.cache.programs)
                    words = [*words, *arguments[1:]]
                words = stack.enter_context(
                    work.image.command(words, env, tmp, read_only=reads, writable=writes)
                )
                shown = f"(in {work.image.name}) $ {' '.join(arguments)}"
            build_log = stack.enter_context(work.quiet_log()) if quietly else work.log()
            await run(
                words,
                env=env,
                cwd=tmp,
                build_log=build_log,
                control=work.control,
                doing=doing,
                shown="" if quietly else shown,
            )

    @asynccontextmanager
    async def building(self) -> AsyncIterator[None]:
        """Hold the shared lock of builds, which keeps a prune from removing build files."""
        with ExitStack() as stack:
            lock = locked(self.cache.builds, shared=True)
            await asyncio.to_thread(stack.enter_context, lock)
            yield

    @asynccontextmanager
    async def alone(self, name: str, work: Work) -> AsyncIterator[None]:
        """Hold the lock of an environment or a request; waits for other holders."""
        while True:
            work.control.check()
            with ExitStack() as stack:
                if stack.enter_context(locked_if_free(self.cache.lock_of(name))):
                    yield
                    return
            if not work.has_waited:
                work.has_waited = True
                work.tell("waiting for another attempt that builds it", {"step": "wait"})
            await work.control.pause()

"""One attempt's request to its node's environments, and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

from rayjobs.core.paths import AttemptPaths
from rayjobs.environments.building import BuildLog, Control
from rayjobs.environments.inside import Image
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec import requirements

Tell = Callable[[str, Mapping[str, Any]], None]
"""Reports progress to users: a sentence, and data."""


@dataclass(frozen=True)
class Realised:
    """An environment that is ready for use.

    Attributes:
        python: Its interpreter.
        key: Its name on this node.
        lock: Its packages with their hashes.
        built: Whether this attempt built it.
    """

    python: str
    key: str
    lock: str
    built: bool


@dataclass
class Work:
    """One attempt's request for an environment, while it is processed.

    Attributes:
        control: Cancels it.
        tell: Called with messages for users.
        known_lock: The lock of an earlier attempt of the same job, or None.
        first_lock: On a job's other nodes: returns the lock of its first node, once it exists.
            All nodes of a job use the same lock.
        publish: On the first of several nodes: called with the lock.
        name: The display name of the environment.
        image: The image in which it is built and whose packages it extends; None: the node itself.
        uses_horovod: Build Horovod if the environment has its own torch.
    """

    paths: AttemptPaths
    control: Control
    tell: Tell
    known_lock: str | None = None
    first_lock: Callable[[], str | None] | None = None
    publish: Callable[[str], None] = lambda _lock: None
    name: str | None = None
    image: Image | None = None
    uses_horovod: bool = False
    env: dict[str, str] = field(default_factory=dict)
    has_waited: bool = False
    opened_log: BuildLog | None = None

    def log(self) -> BuildLog:
        """Return the log, created on first use: an existing environment needs none."""
        if self.opened_log is None:
            self.opened_log = self._log_at(self.paths.build_log)
        return self.opened_log

    @contextmanager
    def quiet_log(self) -> Iterator[BuildLog]:
        """Yield a log that becomes part of the build's log if the step fails."""
        path = self.paths.tmp / "quiet.log"
        step_log = self._log_at(path)
        try:
            yield step_log
        except BaseException:
            self.log().write(path.read_text(errors="replace"))
            raise
        finally:
            step_log.close()
            path.unlink(missing_ok=True)

    def _log_at(self, path: Path) -> BuildLog:
        names = [name for name in self.env if name.startswith(requirements.SECRET_PREFIX)]
        return BuildLog(path, [self.env[name] for name in names])

    def close(self) -> None:
        """Close the log; a later use continues it. Idempotent."""
        if self.opened_log is not None:
            self.opened_log.close()
            self.opened_log = None

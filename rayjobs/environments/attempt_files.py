"""The files of an attempt that name what it uses of its node's environments.

The agent that prepares the attempt writes them. Later agents read them, and so does every process
that removes or rebuilds environments.
"""

from __future__ import annotations

import json

from rayjobs.core.files import write_atomic
from rayjobs.core.paths import AttemptPaths
from rayjobs.injob import record_files
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


@dataclass(frozen=True)
class UsedEnvironment(Message):
    """The content of ``environment.json``: the environment that an attempt uses.

    Attributes:
        key: Its name in the node's cache.
        python: Path of its interpreter.
    """

    key: str
    python: str

    @staticmethod
    def read(paths: AttemptPaths) -> UsedEnvironment | None:
        """Return the environment that an attempt uses; None if it uses none.

        Raises:
            MessageError, OSError: see `record_files.read_message`.
        """
        return record_files.read_message(str(paths.root), paths.environment.name, UsedEnvironment)

    def write(self, paths: AttemptPaths) -> None:
        """Write the file atomically."""
        write_atomic(paths.environment, json.dumps(self.to_json()))


@dataclass(frozen=True)
class UsedHorovod(Message):
    """The content of ``horovod.json``: the Horovod that was built for an attempt's image.

    Attributes:
        key: Its name in the node's cache of environments.
        packages: The folder from which the ranks import it.
    """

    key: str
    packages: str

    @staticmethod
    def read(paths: AttemptPaths) -> UsedHorovod | None:
        """Return the Horovod that an attempt uses; None if it uses none of the node's.

        Raises:
            MessageError, OSError: see `record_files.read_message`.
        """
        return record_files.read_message(str(paths.root), paths.horovod.name, UsedHorovod)

    def write(self, paths: AttemptPaths) -> None:
        """Write the file atomically."""
        write_atomic(paths.horovod, json.dumps(self.to_json()))

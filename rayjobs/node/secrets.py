"""The target's secrets on a node: fetched when an attempt needs them, kept only in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from rayjobs.core.errors import PrepareError, RayjobsError
from rayjobs.core.failures import FailureClass
from rayjobs.datastore import credentials
from rayjobs.protocol.attempts import AttemptOnNode

log = logging.getLogger(__name__)

Ask = Callable[[], Mapping[str, str]]


class NodeSecrets:
    """Gives this process the target's current secrets."""

    def __init__(self, target: str, home: Path, ask: Ask) -> None:
        """Read the target's file if this node has it; otherwise `ask` the target."""
        self._target = target
        self._home = home
        self._ask = ask

    def bring(self, on: AttemptOnNode, *, is_far: bool) -> None:
        """Read the secrets again if the attempt may need any. Blocks.

        Raises:
            PrepareError: class ``storage``: the target does not answer; class ``environment``: its
                file cannot be used.
        """
        if not on.reads_secrets:
            return
        if is_far:
            try:
                values = dict(self._ask())
            except RayjobsError as error:
                raise PrepareError(
                    f"the target's secrets cannot be fetched: {error}",
                    failure_class=FailureClass.STORAGE,
                ) from error
        else:
            from rayjobs.target.secrets import TargetSecrets

            try:
                values = TargetSecrets(self._target, home=self._home).values()
            except RayjobsError as error:
                raise PrepareError(
                    str(error), failure_class=FailureClass.ENVIRONMENT, is_permanent=True
                ) from error
        credentials.give(values)

    def bring_again(self, on: AttemptOnNode, *, is_far: bool) -> None:
        """Do the same, but keep the values of an earlier `bring` if this fails."""
        try:
            self.bring(on, is_far=is_far)
        except PrepareError as error:
            log.warning("%s; using the secrets that were read before", error)

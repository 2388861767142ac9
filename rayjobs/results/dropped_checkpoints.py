"""Takes those checkpoints out of a job's stored files that the job itself has dropped (`keep`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rayjobs.core.errors import RayjobsError
from rayjobs.injob.checkpoint import MANIFEST
from rayjobs.results.collect import Publisher, scan_files

_OF_STEP = re.compile(r"(?P<at>(?:node-\d+/)?outputs/checkpoints/)step-(?P<step>\d+)/(?P<name>.+)")


class CheckpointPublisher(Publisher):
    """A publisher that follows a script's `keep` in the storage too.

    Only what this publisher stored of this attempt goes, and only once a newer checkpoint that
    the job still has is stored whole: there is never a moment with none to go on from.
    """

    def __init__(self, *given: Any, drop: Callable[[Sequence[str]], bool], **more: Any) -> None:
        """Publish as `Publisher` does.

        Args:
            drop: Given names, takes their rows out of storage (``store.drop_files``).
        """
        super().__init__(*given, **more)
        self._drop = drop

    def _step(self) -> int:
        count = super()._step()
        self._drop_old()
        return count

    def _finish(self) -> list[str]:
        problems = super()._finish()
        self._drop_old()
        return problems

    def _drop_old(self) -> None:
        if self.refused or sum(name.endswith(f"/{MANIFEST}") for name in self._seen) < 2:
            return
        present: dict[str, bool] = {}
        for name, path in scan_files(self.on).files:
            if _OF_STEP.fullmatch(name):
                try:
                    present[name] = not self._is_due(name, path.stat(), None)
                except OSError:
                    present[name] = False  # it has just gone: the next look tells
        names = superseded(self._seen, present)
        if not names:
            return
        try:
            if not self._drop(names):
                self.refused = True
        except RayjobsError:
            return  # they are still in `_seen`: tried again
        for name in names:
            del self._seen[name]


def superseded(stored: Collection[str], present: dict[str, bool]) -> list[str]:
    """Return the stored files of checkpoints that the job has dropped, and needs no more.

    Args:
        stored: Names that are stored.
        present: Names that the job still has → whether they are stored as they are now.
    """
    here: dict[str, dict[int, bool]] = {}
    for name, is_stored in present.items():
        match = _OF_STEP.fullmatch(name)
        if match is not None:
            steps, step = here.setdefault(match["at"], {}), int(match["step"])
            steps[step] = steps.get(step, True) and is_stored
    found = []
    for name in stored:
        match = _OF_STEP.fullmatch(name)
        if match is None:
            continue
        steps, step = here.get(match["at"], {}), int(match["step"])
        whole = (
            newer
            for newer, is_stored in steps.items()
            if is_stored and f"{match['at']}step-{newer:012d}/{MANIFEST}" in present
        )
        if step not in steps and step < max(whole, default=-1):
            found.append(name)
    return sorted(found)

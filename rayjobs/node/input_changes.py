"""Which files of an attempt's inputs changed while it ran, and what is known of who did it.

An attempt for which the files were read-only wrote to none of them;
it may have renamed a folder above them. Of any other attempt it cannot be proven: that a file
changed within its span says when, not who. So a change is named in the job's history with what is
known, and never fails the job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayjobs.core.files import write_atomic
from rayjobs.core.text import counted
from rayjobs.datastore.looks import Change, Looking, Seen, changes

NAMED = 5
"""So many changed files of an input are named one by one."""


class InputChanges:
    """How the inputs of a node's attempts looked when they started.

    It stands outside of the attempts' folders, where no script can replace it.
    """

    def __init__(self, folder: Path) -> None:
        """Keep it in `folder`, one file for each attempt."""
        self._folder = folder

    def keep(self, root: Path, inputs: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what `compare` needs of the attempt in `root`, whole or not at all.

        Args:
            inputs: By name: ``seen`` (`Seen.to_json` of each folder), ``version``, and
                ``why_open``: why its files are not read-only for the attempt, or "".
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self._file_of(root), json.dumps(inputs))

    def compare(
        self,
        root: Path,
        looking: Looking = lambda _path, _size_bytes: None,
        *,
        where: Callable[[str], str] = str,
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return a sentence and the facts for each input whose files changed since `keep`.

        An input with files that cannot be looked at is returned, too; its ``count`` of changed
        files may be 0. Nothing is returned for an attempt that `forget` was called for, or that has
        no local data.

        Args:
            looking: See `Looking`.
            where: Returns where a folder is now; one that was moved with its workspace did not
                change.

        Raises:
            OSError, ValueError: what `keep` wrote cannot be read.
        """
        try:
            kept = json.loads(self._file_of(root).read_text())
        except FileNotFoundError:
            return []
        told = []
        for name, one in kept.items():
            found = [
                change
                for each in one["seen"]
                for change in changes(_at(Seen.from_json(each), where), looking=looking)
            ]
            if found:
                told.append((_sentence(name, one, found), _facts(name, one, found)))
        return told

    def learn(self, root: Path, nodes: Mapping[int, Mapping[str, str]], *, node_count: int) -> None:
        """Add what the other nodes of the attempt reported of how they protected its inputs.

        Args:
            nodes: By number and by name of an input: ``why_open``, as in `keep`.
            node_count: Of the attempt; one that reported nothing may have protected nothing.
        """
        try:
            kept = json.loads(self._file_of(root).read_text())
        except FileNotFoundError:
            return
        was_learned = False
        for name, one in kept.items():
            for node in range(1, node_count):
                why = nodes.get(node, {}).get(name, "how it protected its inputs is not known")
                if why and not one["why_open"]:
                    one["why_open"] = f"node {node}: {why}"
                    was_learned = True
        if was_learned:
            self.keep(root, kept)

    def forget(self, root: Path) -> None:
        """Drop what was kept of an attempt. Doing it twice is harmless."""
        self._file_of(root).unlink(missing_ok=True)

    def sweep(self, attempts: Path) -> None:
        """Drop what was kept of attempts whose folder is gone from `attempts`."""
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            job, _, attempt = path.name.removesuffix(".json").rpartition("@")
            if not (attempts / job / attempt).is_dir():
                path.unlink(missing_ok=True)

    def _file_of(self, root: Path) -> Path:
        return self._folder / f"{root.parent.name}@{root.name}.json"


def _at(seen: Seen, where: Callable[[str], str]) -> Seen:
    return replace(seen, root=where(seen.root))


def _sentence(name: str, one: Mapping[str, Any], found: Sequence[Change]) -> str:
    changed = [change for change in found if not change.trouble]
    unknown = [change for change in found if change.trouble]
    told = []
    if changed:
        told.append(f"{_listed(changed, 'changed while the job ran')}. {_who(one, changed)}")
    if unknown:
        told.append(f"{_listed(unknown, 'cannot be compared with what was there before')}.")
    return f"input {name!r}: {' '.join(told)}"


def _listed(found: Sequence[Change], what: str) -> str:
    shown = "; ".join(change.sentence for change in found[:NAMED])
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"{counted(len(found), 'file')} {what}: {shown}{more}"


def _was_written(changed: Sequence[Change]) -> bool:
    """Whether the very files were written to: a replaced or missing one has another inode.

    A read-only file cannot be written to, but a folder above it can be renamed.
    """
    return all(each.now is not None and each.now[2] == each.before[2] for each in changed)


def _who(one: Mapping[str, Any], changed: Sequence[Change]) -> str:
    if one["why_open"]:
        who = (
            f"The job could not write through its input, but could by another path; the writer "
            f"is unknown ({one['why_open']})"
        )
    elif not _was_written(changed):
        who = (
            "The files were read-only for the job, but a folder above them may have been renamed "
            "or removed, by the job or by something else"
        )
    else:
        who = "Something else did it: for this job they were read-only"
    version = ""
    if ":" in one["version"] and not one["version"].startswith("sha256:"):
        version = f" {one['version']} is damaged; jobs that read it fail and say how to restore it."
    return f"{who}.{version}"


def _facts(name: str, one: Mapping[str, Any], found: Sequence[Change]) -> dict[str, Any]:
    changed = [change for change in found if not change.trouble]
    unknown = [change for change in found if change.trouble]
    is_certain = not one["why_open"] and _was_written(changed)
    return {
        "name": name,
        "version": one["version"],
        "by_job": False if is_certain else None,
        "count": len(changed),
        "changed": [
            {
                "path": change.path,
                "before": change.before,
                "now": change.now,
                "digest": change.digest,
                "digest_now": change.digest_now,
            }
            for change in changed[:NAMED]
        ],
        "unknown_count": len(unknown),
        "unknown": [{"path": each.path, "why": each.trouble} for each in unknown[:NAMED]],
    }

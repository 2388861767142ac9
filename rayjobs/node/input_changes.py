"""Detects which input files changed during an attempt, and reports what is known about the writer.

An attempt that had read-only files wrote to none of them; it may have renamed a folder above them.
For any other attempt there is no proof: the time of a change says when, not who. So a change is
reported in the job's history with the known facts, and never fails the job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from rayjobs.core.files import write_atomic
from rayjobs.core.text import counted
from rayjobs.data.events import ChangedFile, InputChanged, UnknownFile
from rayjobs.datastore.looks import Change, Looking, Seen, changes
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message, read_value

NAMED = 5
"""How many changed files of an input are listed by name."""


@dataclass(frozen=True)
class KeptInput(Message):
    """The state of an input when an attempt started.

    Attributes:
        seen: Its folders.
        version: The version of the dataset; empty: it has none.
        why_open: Why its files are not read-only for the attempt; empty: they are.
    """

    READS_VERSION: ClassVar[int | None] = None
    seen: tuple[Seen, ...]
    version: str = ""
    why_open: str = ""

    @classmethod
    def upgraded(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Name the parts of folders that an earlier version wrote as lists."""
        names, seen = ("root", "files", "digests"), values.get("seen")
        if not isinstance(seen, list) or not all(isinstance(one, list) for one in seen):
            return values
        return {**values, "seen": [dict(zip(names, one, strict=False)) for one in seen]}


class InputChanges:
    """The state of the inputs of a node's attempts when these started.

    It is stored outside the attempts' folders, where no script can replace it.
    """

    def __init__(self, folder: Path) -> None:
        """Keep the state in `folder`, one file for each attempt."""
        self._folder = folder

    def keep(self, root: Path, inputs: Mapping[str, KeptInput]) -> None:
        """Store what `compare` needs for the attempt in `root`, atomically.

        Args:
            inputs: By name.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        values = {name: one.to_json() for name, one in inputs.items()}
        write_atomic(self._file_of(root), json.dumps(values))

    def _kept(self, root: Path) -> dict[str, KeptInput]:
        """Return the inputs that `keep` stored, by name; none after `forget`.

        Raises:
            OSError, ValueError: its file cannot be read.
        """
        try:
            values = json.loads(self._file_of(root).read_text())
        except FileNotFoundError:
            return {}
        found: dict[str, KeptInput] = read_value(dict[str, KeptInput], values)
        return found

    def compare(
        self,
        root: Path,
        looking: Looking = lambda _path, _size_bytes: None,
        *,
        where: Callable[[str], str] = str,
    ) -> list[tuple[str, InputChanged]]:
        """Return a sentence and the facts for each input whose files changed since `keep`.

        This includes inputs with files that cannot be examined; their `count` of changed files
        may be 0. The result is empty for an attempt that `forget` was called for, or that has no
        local data.

        Args:
            looking: See `Looking`.
            where: Returns the current path of a folder; one that moved with its workspace counts as
                unchanged.

        Raises:
            OSError, ValueError: the file of `keep` cannot be read.
        """
        reports = []
        for name, one in self._kept(root).items():
            found = [
                change for each in one.seen for change in changes(_at(each, where), looking=looking)
            ]
            if found:
                reports.append((_sentence(name, one, found), _facts(name, one, found)))
        return reports

    def learn(self, root: Path, nodes: Mapping[int, Mapping[str, str]], *, node_count: int) -> None:
        """Add the reports of the attempt's other nodes on how they protected its inputs.

        Args:
            nodes: By number and by name of an input: `KeptInput.why_open`.
            node_count: The attempt's nodes; one without a report may have protected nothing.

        Raises:
            OSError, ValueError: the file of `keep` cannot be read.
        """
        kept = self._kept(root)
        learned: dict[str, KeptInput] = {}
        for name, one in kept.items():
            for node in range(1, node_count):
                why = nodes.get(node, {}).get(name, "it did not report how it protects its inputs")
                if why and not one.why_open and name not in learned:
                    learned[name] = replace(one, why_open=f"node {node}: {why}")
        if learned:
            self.keep(root, {**kept, **learned})

    def forget(self, root: Path) -> None:
        """Drop what `keep` stored for an attempt. Idempotent."""
        self._file_of(root).unlink(missing_ok=True)

    def clean(self, attempts: Path) -> None:
        """Drop what `keep` stored for attempts whose folder is gone from `attempts`."""
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


def _sentence(name: str, one: KeptInput, found: Sequence[Change]) -> str:
    changed = [change for change in found if not change.trouble]
    unknown = [change for change in found if change.trouble]
    sentences = []
    if changed:
        sentences.append(f"{_listed(changed, 'changed while the job ran')}. {_who(one, changed)}")
    if unknown:
        sentences.append(f"{_listed(unknown, 'cannot be compared with what was there before')}.")
    return f"input {name!r}: {' '.join(sentences)}"


def _listed(found: Sequence[Change], what: str) -> str:
    shown = "; ".join(change.sentence for change in found[:NAMED])
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"{counted(len(found), 'file')} {what}: {shown}{more}"


def _was_written(changed: Sequence[Change]) -> bool:
    """Whether a write changed the files themselves: a replaced file has another inode.

    A read-only file cannot be written to, but a folder above it can be renamed.
    """
    return all(each.now is not None and each.now[2] == each.before[2] for each in changed)


def _who(one: KeptInput, changed: Sequence[Change]) -> str:
    if one.why_open:
        who = (
            f"The job could not write through its input, but could by another path; the writer "
            f"is unknown ({one.why_open})"
        )
    elif not _was_written(changed):
        who = (
            "The files were read-only for the job, but a folder above them may have been renamed "
            "or removed, by the job or by something else"
        )
    else:
        who = "Something else changed them: they were read-only for this job"
    version = ""
    if ":" in one.version and not one.version.startswith("sha256:"):
        version = f" {one.version} is damaged; jobs that read it fail and say how to restore it."
    return f"{who}.{version}"


def _facts(name: str, one: KeptInput, found: Sequence[Change]) -> InputChanged:
    changed = [change for change in found if not change.trouble]
    unknown = [change for change in found if change.trouble]
    is_certain = not one.why_open and _was_written(changed)
    return InputChanged(
        name=name,
        version=one.version,
        by_job=False if is_certain else None,
        count=len(changed),
        changed=tuple(
            ChangedFile(
                path=change.path,
                before=change.before,
                now=change.now,
                digest=change.digest,
                digest_now=change.digest_now,
            )
            for change in changed[:NAMED]
        ),
        unknown_count=len(unknown),
        unknown=tuple(UnknownFile(each.path, each.trouble) for each in unknown[:NAMED]),
    )

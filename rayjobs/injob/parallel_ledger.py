"""Tracks the mini-batches of a parallel run, and keeps the rows of each exactly once.

Rank 0 keeps the ledger. A journal records finished mini-batches; from time to time it is saved as a
checkpoint, so that the job's next attempt continues from there.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import threading
import time
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

from rayjobs.injob import checkpoint
from rayjobs.injob.files import replacing
from rayjobs.injob.parallel_messages import Assignment, MiniBatch, SettledBatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rayjobs.injob.parallel_settings import Settings

JOURNAL = "mini-batches.jsonl"
CHECKPOINT_EVERY_S = 10.0
WAIT_S = 1.0


class Ledger:
    """The mini-batches of one attempt; its methods may be called by several threads.

    Args:
        batches: All mini-batches, in order.
        settings: The run's settings.
        folder: Where the journal is written.
        say: Called with a level and a message.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        batches: Sequence[MiniBatch],
        settings: Settings,
        folder: str,
        say: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._batches = batches
        self._settings = settings
        self._say = say
        self._clock = clock
        self._journal_path = os.path.join(folder, JOURNAL)
        self._journal = open(self._journal_path, "w+b")
        self._spans: Dict[int, Tuple[int, int]] = {}  # mini-batch → place and size in the journal
        self._failed: Dict[int, int] = {}  # mini-batch given up → its items
        self._short = 0  # items that are missing in the results of mini-batches
        self._tries: Dict[int, int] = collections.Counter()
        self._held: Dict[int, Any] = {}
        self._changed = threading.Condition()
        self._saved_at_s = clock()
        self.stop_reason: Optional[str] = None
        self._resume()
        self._queue: Deque[int] = collections.deque(
            number for number in range(len(batches)) if not self._is_settled(number)
        )

    @property
    def identity(self) -> str:
        """The identity of the list of mini-batches: another list needs another ledger."""
        listed = [one.to_json() for one in self._batches]
        for values in listed:  # the order implies the number
            del values["number"]
        text = json.dumps(listed, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def failed_items(self) -> int:
        """Items that count as failed."""
        return self._short + sum(self._failed.values())

    @property
    def is_complete(self) -> bool:
        """Whether each mini-batch is done or given up."""
        return len(self._spans) + len(self._failed) == len(self._batches)

    # -- for the workers ---------------------------------------------------------------------------
    def take(self, holder: Any) -> Assignment:
        """Return what to do next.

        Returns:
            An assignment with one entry. It is `wait` if others still work on all remaining
            mini-batches after at most `WAIT_S` seconds.
        """
        with self._changed:
            if not self._queue and not self._is_over:
                self._changed.wait(WAIT_S)
            if self.stop_reason is not None:
                return Assignment(stop=self.stop_reason)
            if self.is_complete:
                return Assignment(end=True)
            if not self._queue:
                return Assignment(wait=True)
            number = self._queue.popleft()
            self._held[number] = holder
            self._tries[number] += 1
            return Assignment(batch=self._batches[number])

    def done(self, number: int, rows: Sequence[str], count: int) -> None:
        """Record the result of a mini-batch; a second result is ignored."""
        with self._changed:
            self._held.pop(number, None)
            if self._is_settled(number):
                return
            if number in self._queue:
                self._queue.remove(number)
            self._write(SettledBatch(number, count, tuple(rows)))
            missing = self._items(number) - count
            if missing > 0:
                self._say("WARNING", f"mini-batch {number}: {missing} of its items failed")
            self._check_limits()
            self._changed.notify_all()
            self._save_now_and_then()

    def failed(self, number: int, reason: str) -> None:
        """Record a failed try: the mini-batch is tried again, or given up."""
        with self._changed:
            self._held.pop(number, None)
            if self._is_settled(number) or number in self._queue:
                return
            tries, most = self._tries[number], self._settings.run_max_try
            self._say("WARNING", f"mini-batch {number}, try {tries} of {most}: {reason}")
            if tries < most:
                self._queue.append(number)
            else:
                self._write(SettledBatch(number, failed=True))
                self._check_limits()
            self._changed.notify_all()

    def lost(self, holder: Any) -> None:
        """Take back the mini-batches of a worker whose process has ended."""
        with self._changed:
            for number in [number for number, one in self._held.items() if one is holder]:
                self.failed(number, "its process has ended")

    def stop(self, reason: str) -> None:
        """Stop assigning mini-batches."""
        with self._changed:
            self.stop_reason = self.stop_reason or reason
            self._changed.notify_all()

    # -- at the end --------------------------------------------------------------------------------
    def write_rows(self, path: str) -> None:
        """Write the rows of all mini-batches in order, one line each, atomically."""
        with replacing(path) as draft, open(draft, "w", encoding="utf-8", newline="\n") as out:
            for number in range(len(self._batches)):
                for row in self._rows(number):
                    out.write(row + "\n")
            out.flush()
            os.fsync(out.fileno())

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def summary(self) -> str:
        """Return one sentence about all items."""
        items = sum(self._items(number) for number in range(len(self._batches)))
        return (
            f"{_batches_text(len(self._batches))} of {_items_text(items)}: "
            f"{items - self.failed_items} succeeded, {self.failed_items} failed"
        )

    # -- inside ------------------------------------------------------------------------------------
    @property
    def _is_over(self) -> bool:
        return self.is_complete or self.stop_reason is not None

    def _items(self, number: int) -> int:
        return self._batches[number].items

    def _is_settled(self, number: int) -> bool:
        return number in self._spans or number in self._failed

    def _rows(self, number: int) -> List[str]:
        if number not in self._spans:
            return []
        at, size = self._spans[number]
        self._journal.seek(at)
        return list(SettledBatch.from_json(json.loads(self._journal.read(size))).rows)

    def _write(self, entry: SettledBatch) -> None:
        self._journal.seek(0, os.SEEK_END)
        line = json.dumps(entry.to_json()).encode() + b"\n"
        at = self._journal.tell()
        self._journal.write(line)
        self._journal.flush()
        self._count(entry, at, len(line))

    def _count(self, entry: SettledBatch, at: int, size: int) -> None:
        number = entry.number
        if entry.failed:
            self._failed[number] = self._items(number)
            return
        self._spans[number] = (at, size)
        self._short += max(0, self._items(number) - entry.count)

    def _check_limits(self) -> None:
        settings = self._settings
        if 0 <= settings.error_threshold < self.failed_items:
            self.stop_reason = (
                f"{_items_text(self.failed_items)} failed, and the error threshold is "
                f"{settings.error_threshold}"
            )
        most = settings.allowed_failed_count
        if most is not None and len(self._failed) > most:
            self.stop_reason = f"{_batches_text(len(self._failed))} failed; at most {most} may fail"
        share = settings.allowed_failed_percent
        if share is not None and len(self._failed) * 100 > share * len(self._batches):
            self.stop_reason = (
                f"{len(self._failed)} of {len(self._batches)} mini-batches failed; at most "
                f"{share:g} % may fail"
            )

    # -- attempts ----------------------------------------------------------------------------------
    def _save_now_and_then(self) -> None:
        """Save a checkpoint, since the journal is lost with its attempt."""
        if not self._settings.appends or self._clock() - self._saved_at_s < CHECKPOINT_EVERY_S:
            return
        self._saved_at_s = self._clock()
        settled = len(self._spans) + len(self._failed)
        checkpoint.save(
            settled,
            {JOURNAL: self._journal_path},
            keep=2,
            metadata={"mini_batches": self.identity},
        )

    def _resume(self) -> None:
        found = checkpoint.latest() if self._settings.appends else None
        if found is None or JOURNAL not in found.names:
            return
        if found.metadata.get("mini_batches") != self.identity:
            self._say(
                "WARNING", "the inputs have changed since the checkpoint: all items run again"
            )
            return
        with open(found.file(JOURNAL), "rb") as file:
            for line in file:
                entry = SettledBatch.from_json(json.loads(line))
                if not entry.failed:  # failed mini-batches get all their tries again
                    self._write(entry)
        was = "was" if len(self._spans) == 1 else "were"
        self._say("INFO", f"{_batches_text(len(self._spans))} {was} done by an earlier attempt")


def _batches_text(number: int) -> str:
    return f"{number} mini-batch{'' if number == 1 else 'es'}"


def _items_text(number: int) -> str:
    return f"{number} item{'' if number == 1 else 's'}"

"""Allocations: recorded before they exist, assigned by one conditional update."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from rayjobs.core.errors import UsageError
from rayjobs.jobs.records import Allocation
from rayjobs.store.part import Part
from rayjobs.store.rows import allocation_of, to_json

ADD = """
INSERT INTO allocations (name, target, shape, state, nodes, gpus, changed_at)
VALUES (:name, :target, :shape, 'creating', '[]', '[]', :now)
RETURNING *
"""

PLACE = """
UPDATE allocations SET state = 'idle', nodes = :nodes, gpus = :gpus, changed_at = :now
WHERE name = :name AND state = 'creating'
"""

HOLD = """
UPDATE allocations SET state = 'held', job = :job, attempt = :attempt, changed_at = :now
WHERE name = :name AND state = 'idle'
"""

FREE = """
UPDATE allocations SET state = 'idle', job = NULL, attempt = NULL, changed_at = :now
WHERE name = :name AND state = 'held' AND job = :job AND attempt = :attempt
"""

DRAIN = """
UPDATE allocations SET state = 'draining', changed_at = :now
WHERE name = :name AND state = 'held' AND job = :job AND attempt = :attempt
"""  # keeps the job whose ranks may still run there

RELEASE = """
UPDATE allocations SET state = 'released', changed_at = :now
WHERE name = :name AND state <> 'released'
"""

OF_TARGET = """
SELECT * FROM allocations WHERE target = :target AND (:released OR state <> 'released')
ORDER BY serial
"""


class AllocationsPart(Part):
    """Rows of placement groups."""

    def add_allocation(self, name: str, *, target: str, shape: Mapping[str, Any]) -> Allocation:
        """See `Store.add_allocation`. Raises UsageError when the name was used before."""
        values = {
            "name": name,
            "target": target,
            "shape": to_json(dict(shape)),
            "now": self._now(),
        }
        with self._database.write() as connection:
            try:
                row = connection.execute(ADD, values).fetchone()
            except sqlite3.IntegrityError as error:
                raise UsageError(
                    f"an allocation {name!r} is already recorded; give each a new name"
                ) from error
            return allocation_of(row)

    def place_allocation(
        self, name: str, *, nodes: Sequence[str], gpus: Sequence[Sequence[str]]
    ) -> bool:
        """See `Store.place_allocation`."""
        return self._update(
            PLACE, name=name, nodes=to_json([*nodes]), gpus=to_json([[*ids] for ids in gpus])
        )

    def hold_allocation(self, name: str, *, job: str, attempt: int) -> bool:
        """See `Store.hold_allocation`."""
        return self._update(HOLD, name=name, job=job, attempt=attempt)

    def free_allocation(self, name: str, *, job: str, attempt: int, proven: bool) -> bool:
        """See `Store.free_allocation`."""
        return self._update(FREE if proven else DRAIN, name=name, job=job, attempt=attempt)

    def release_allocation(self, name: str) -> bool:
        """See `Store.release_allocation`."""
        return self._update(RELEASE, name=name)

    def allocations(self, target: str, *, released: bool = False) -> list[Allocation]:
        """See `Store.allocations`."""
        with self._database.read() as connection:
            rows = connection.execute(
                OF_TARGET, {"target": target, "released": released}
            ).fetchall()
        return [allocation_of(row) for row in rows]

    def _update(self, statement: str, **values: Any) -> bool:
        with self._database.write() as connection:
            return connection.execute(statement, {**values, "now": self._now()}).rowcount == 1

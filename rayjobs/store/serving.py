"""Claims of targets: which actor serves a store, and from where; its signs of life; wake-ups.

A file is used by one machine, and the last actor that claims a target owns it. In PostgreSQL a
target belongs to the home that claimed it first: an actor of another home is refused, whatever
happened to the first one, until a user overrides it (`take_over`).
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from typing import Any

from rayjobs.core.errors import ServedElsewhereError, UsageError
from rayjobs.jobs.serving import Claimant, Serving, StoreFacts
from rayjobs.store.part import Part
from rayjobs.store.schema import VERSION

CLAIM = """
INSERT INTO targets (name, number, epoch, claimed_at) VALUES (:target, 1, :epoch, :now)
ON CONFLICT (name) DO UPDATE SET number = targets.number + 1, epoch = excluded.epoch,
    claimed_at = excluded.claimed_at
RETURNING number
"""
# Prefixes of keys in `meta`; the target's name follows.
SERVES, ALIVE = "serves ", "alive "
NOTE = """
INSERT INTO meta (key, value) VALUES (:key, :value)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""
READ = "SELECT value FROM meta WHERE key = :key"
CLOCK = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


class ServingPart(Part):
    """Rows of targets, and the store's records of the actors that serve them."""

    def claim_target(self, target: str, *, epoch: str, claimant: Claimant | None = None) -> int:
        """See `Store.claim_target`."""
        with self._database.write(durable=True) as connection:
            if claimant is not None and self._database.is_shared:
                found = self._serving(connection, target)
                if found is not None and found.claimant.owner != claimant.owner:
                    raise ServedElsewhereError(found.sentence)
                self._note(connection, target, claimant, epoch)
                alive = json.dumps({"epoch": epoch, "at": _clock(connection)})
                connection.execute(NOTE, {"key": ALIVE + target, "value": alive})
            values = {"target": target, "epoch": epoch, "now": self._now()}
            return int(connection.execute(CLAIM, values).fetchone()["number"])

    def target_epoch(self, target: str) -> tuple[int, str] | None:
        """See `Store.target_epoch`."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT number, epoch FROM targets WHERE name = :target", {"target": target}
            ).fetchone()
        return None if row is None else (row["number"], row["epoch"])

    def serving(self, target: str) -> Serving | None:
        """See `Store.serving`."""
        if not self._database.is_shared:
            return None
        with self._database.read() as connection:
            return self._serving(connection, target)

    def take_over(self, target: str, claimant: Claimant) -> Serving | None:
        """See `Store.take_over`."""
        if not self._database.is_shared:
            raise UsageError(
                f"the store {self._database.where} is a file, which only targets of its own "
                "machine use: there is nothing to take over"
            )
        with self._database.write(durable=True) as connection:
            found = self._serving(connection, target)
            if found is not None and found.claimant.owner == claimant.owner:
                return found
            if found is not None and found.is_live:
                raise UsageError(
                    f"{found.sentence}: stop it there first (`rayjobs target stop {target}`)"
                )
            self._note(connection, target, claimant, "")
            connection.execute("DELETE FROM meta WHERE key = :key", {"key": ALIVE + target})
            # An actor with the old claim that wakes up again, for example on a suspended machine,
            # is fenced.
            connection.execute(CLAIM, {"target": target, "epoch": "", "now": self._now()})
            return found

    def facts(self) -> StoreFacts:
        """See `Store.facts`."""
        if not self._database.is_shared:
            server = f"SQLite {sqlite3.sqlite_version}"
            return StoreFacts(server=server, schema=VERSION, clock_s=time.time())
        with self._database.read() as connection:
            version = connection.execute("SHOW server_version").fetchone()[0]
            server = f"PostgreSQL {version.split()[0]}"
            return StoreFacts(server=server, schema=VERSION, clock_s=_clock(connection))

    def wake_target(self, target: str) -> None:
        """See `Store.wake_target`."""
        self._database.notify(target)

    def watch_wakes(self, target: str, *, epoch: str, wake: Callable[[], None]) -> None:
        """See `Store.watch_wakes`."""
        self._database.watch(target, key=ALIVE + target, epoch=epoch, wake=wake)

    def _serving(self, connection: Any, target: str) -> Serving | None:
        row = connection.execute(READ, {"key": SERVES + target}).fetchone()
        if row is None:
            return None
        values = json.loads(row[0])
        alive = connection.execute(READ, {"key": ALIVE + target}).fetchone()
        silent_s = None
        if alive is not None:
            silent_s = max(0.0, _clock(connection) - float(json.loads(alive[0])["at"]))
        return Serving(
            target=target,
            claimant=Claimant(**{name: values[name] for name in Claimant.__dataclass_fields__}),
            epoch=values["epoch"],
            silent_s=silent_s,
        )

    def _note(self, connection: Any, target: str, claimant: Claimant, epoch: str) -> None:
        value = json.dumps({**vars(claimant), "epoch": epoch})
        connection.execute(NOTE, {"key": SERVES + target, "value": value})


def _clock(connection: Any) -> float:
    """Return the time of the database server, since the machines' clocks differ."""
    return float(connection.execute(CLOCK).fetchone()[0])

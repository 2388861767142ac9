"""The contract of every store: one protocol per concept, composed into `Store`.

**Truth.** A store holds the records of one workspace. What it does not contain has not happened.

**Transactions.** Each method blocks and is one transaction: it makes all its changes or none.
Methods that say *durably* return after fsync. Other changes survive the death of every process, but
not necessarily a power failure.

**Threads and processes.** All methods are thread-safe. Several processes may have the same
store open.

**Ownership.** A job's newest attempt owns its record. Methods that take an `attempt` change the
job only if that is its newest attempt, in the same statement; otherwise they change nothing and
return False (or None). The same holds for the newest claim of a sweep, and for the last target
actor that claimed a target. A caller that gets False is late and must stop.

**Values.** Arguments and results are frozen records or JSON data. A record is a copy: it does not
follow later changes, and changing a mapping in it does not change the store.

**Errors.** Every method may raise these; methods list only what they raise in addition:
    StoreBusyError: another process kept the lock for longer than the busy timeout.
    StoreFullError: the disk is full; nothing was changed.
    StoreVersionError: the store's schema is newer than this code.
    StoreError: the store cannot be read or written.
    NotFoundError: there is no job (sweep, model) with the given id. Methods that take several
        ids leave unknown ones out instead.

Callers take the whole `Store`; the protocols divide this contract, and its tests, into concepts.
"""

from __future__ import annotations

from typing import Protocol

from rayjobs.jobs.serving import StoreFacts
from rayjobs.store.contract.attempts import AllocationStore, AttemptStore
from rayjobs.store.contract.jobs import ArrayStore, JobStore
from rayjobs.store.contract.parents import PipelineStore, SweepStore
from rayjobs.store.contract.queue import QueueStore
from rayjobs.store.contract.registries import DataStore, EnvironmentStore, ModelStore
from rayjobs.store.contract.runs import InteractiveStore, RunStore
from rayjobs.store.contract.targets import PruneStore, SettingsStore, TargetStore


class Store(
    JobStore,
    ArrayStore,
    AttemptStore,
    InteractiveStore,
    AllocationStore,
    RunStore,
    QueueStore,
    SweepStore,
    PipelineStore,
    ModelStore,
    EnvironmentStore,
    SettingsStore,
    DataStore,
    PruneStore,
    TargetStore,
    Protocol,
):
    """All records of one workspace. The module's docstring is the contract."""

    def facts(self) -> StoreFacts:
        """Return facts about the store's server or library."""

    def close(self) -> None:
        """Release the connections. The store must not be used afterwards."""

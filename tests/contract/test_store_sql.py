"""The SQLite store keeps every promise, in a file and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.store.base import Store
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import StoreContract, TurnedClock
from tests.contract.store_records_contract import StoreRecordsContract


class TestStoreInAFile(StoreContract, StoreRecordsContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = SqlStore(tmp_path / "store.db", clock=TurnedClock(), busy_timeout_s=60)
        yield store
        store.close()


class TestStoreInMemory(StoreContract, StoreRecordsContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = SqlStore(":memory:", clock=TurnedClock(), busy_timeout_s=60)
        yield store
        store.close()

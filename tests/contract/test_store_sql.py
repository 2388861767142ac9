"""The SQL store fulfills its contract in a file, in memory and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.store.base import Store
from rayjobs.store.sql import SqlStore
from tests.contract.store_contract import StoreContract, TurnedClock
from tests.contract.store_records_contract import StoreRecordsContract


class TestSqlStore(StoreContract, StoreRecordsContract):
    @pytest.fixture
    def store(self, where: str | Path) -> Iterator[Store]:
        store = SqlStore(where, clock=TurnedClock(), busy_timeout_s=60)
        yield store
        store.close()

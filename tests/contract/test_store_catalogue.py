"""The catalogue in the store fulfills the contract of a catalogue, and persists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.datastore.catalogue import Catalogue, DatastoreRecord
from rayjobs.store.sql import SqlStore
from tests.contract.test_datastore_catalogue import CatalogueContract, a_dataset


class TestStoreCatalogue(CatalogueContract):
    @pytest.fixture
    def catalogue(self, where: str | Path) -> Iterator[Catalogue]:
        store = SqlStore(where, busy_timeout_s=60)
        yield store.catalogue
        store.close()


def test_records_persist_across_reopening(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "store.db")
    record = DatastoreRecord("images", "s3", {"bucket": "b"})
    store.catalogue.add_datastore(record)
    store.catalogue.set_default_datastore("images")
    digest = store.catalogue.put_manifest(b"files" * 100)
    kept = store.catalogue.add_dataset(a_dataset())
    store.close()
    again = SqlStore(tmp_path / "store.db")
    assert again.catalogue.datastore("images") == record
    assert again.catalogue.default_datastore() == "images"
    assert again.catalogue.manifest(digest) == b"files" * 100
    assert again.catalogue.dataset("digits") == kept
    again.catalogue.remove_datastore("images")
    assert again.catalogue.default_datastore() == "workspaceblobstore"
    again.close()

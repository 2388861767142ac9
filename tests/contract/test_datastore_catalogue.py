"""The contract of catalogues of datastores and datasets; a store's test class inherits it."""

import pickle
import threading

import pytest

from rayjobs.datastore.catalogue import (
    DEFAULT_DATASTORE,
    Catalogue,
    DatasetRecord,
    DatastoreRecord,
    MemoryCatalogue,
)
from rayjobs.datastore.errors import (
    DatasetExists,
    DatasetNotFound,
    DatastoreExists,
    DatastoreNotFound,
)


def a_dataset(name: str = "digits", id: str = "id-1") -> DatasetRecord:
    return DatasetRecord(
        id=id, name=name, kind="file", definition="{}", manifest="sha256:" + "0" * 64
    )


class CatalogueContract:
    """The inheriting class provides `catalogue`."""

    def test_implementation_is_a_catalogue(self, catalogue: Catalogue) -> None:
        assert isinstance(catalogue, Catalogue)

    def test_a_datastore_is_found_by_its_name(self, catalogue: Catalogue) -> None:
        record = DatastoreRecord("images", "s3", {"bucket": "b", "endpoint": "http://here"})
        catalogue.add_datastore(record)
        assert catalogue.datastore("images") == record
        assert record in catalogue.datastores()

    def test_unknown_datastore_error_lists_the_known_ones(self, catalogue: Catalogue) -> None:
        catalogue.add_datastore(DatastoreRecord("images", "local", {"root": "/data"}))
        with pytest.raises(DatastoreNotFound, match="images"):
            catalogue.datastore("imagse")

    def test_a_taken_name_is_refused_unless_overwritten(self, catalogue: Catalogue) -> None:
        first = DatastoreRecord("images", "local", {"root": "/data"})
        other = DatastoreRecord("images", "local", {"root": "/other"})
        catalogue.add_datastore(first)
        catalogue.add_datastore(first)
        with pytest.raises(DatastoreExists):
            catalogue.add_datastore(other)
        assert catalogue.datastore("images") == first
        catalogue.add_datastore(other, overwrite=True)
        assert catalogue.datastore("images") == other

    def test_a_removed_datastore_is_gone(self, catalogue: Catalogue) -> None:
        catalogue.add_datastore(DatastoreRecord("images", "local", {"root": "/data"}))
        catalogue.remove_datastore("images")
        with pytest.raises(DatastoreNotFound):
            catalogue.datastore("images")
        with pytest.raises(DatastoreNotFound):
            catalogue.remove_datastore("images")

    def test_the_default_is_fixed_until_set(self, catalogue: Catalogue) -> None:
        assert catalogue.default_datastore() == DEFAULT_DATASTORE
        with pytest.raises(DatastoreNotFound):
            catalogue.set_default_datastore("images")
        catalogue.add_datastore(DatastoreRecord("images", "local", {"root": "/data"}))
        catalogue.set_default_datastore("images")
        assert catalogue.default_datastore() == "images"

    def test_a_manifest_is_kept_by_its_digest(self, catalogue: Catalogue) -> None:
        digest = catalogue.put_manifest(b"files")
        assert catalogue.put_manifest(b"files") == digest
        assert catalogue.manifest(digest) == b"files"
        with pytest.raises(DatasetNotFound):
            catalogue.manifest("sha256:" + "f" * 64)

    def test_versions_count_from_one(self, catalogue: Catalogue) -> None:
        assert catalogue.add_dataset(a_dataset(id="a")).version == 1
        second = catalogue.add_dataset(a_dataset(id="b"), create_new_version=True)
        assert second.version == 2
        assert catalogue.dataset("digits").id == "b"
        assert catalogue.dataset("digits", 1).id == "a"
        assert [record.version for record in catalogue.dataset_versions("digits")] == [1, 2]

    def test_the_first_version_needs_no_flag_and_may_have_it(self, catalogue: Catalogue) -> None:
        assert catalogue.add_dataset(a_dataset(), create_new_version=True).version == 1

    def test_a_taken_dataset_name_is_refused(self, catalogue: Catalogue) -> None:
        catalogue.add_dataset(a_dataset(id="a"))
        with pytest.raises(DatasetExists, match="create_new_version"):
            catalogue.add_dataset(a_dataset(id="b"))
        assert catalogue.dataset("digits").id == "a"

    def test_unknown_version_error_lists_the_known_ones(self, catalogue: Catalogue) -> None:
        catalogue.add_dataset(a_dataset())
        with pytest.raises(DatasetNotFound, match="it has: 1"):
            catalogue.dataset("digits", 7)
        with pytest.raises(DatasetNotFound, match="digits"):
            catalogue.dataset("digit")
        assert catalogue.dataset_versions("digit") == []

    def test_a_version_is_found_by_its_id(self, catalogue: Catalogue) -> None:
        kept = catalogue.add_dataset(a_dataset(id="a"))
        assert catalogue.dataset_by_id("a") == kept
        with pytest.raises(DatasetNotFound):
            catalogue.dataset_by_id("b")

    def test_the_latest_versions_are_listed_by_name(self, catalogue: Catalogue) -> None:
        catalogue.add_dataset(a_dataset("b", "1"))
        catalogue.add_dataset(a_dataset("a", "2"))
        catalogue.add_dataset(a_dataset("b", "3"), create_new_version=True)
        assert [(r.name, r.version) for r in catalogue.datasets()] == [("a", 1), ("b", 2)]

    def test_tags_can_be_replaced(self, catalogue: Catalogue) -> None:
        catalogue.add_dataset(a_dataset(id="a"))
        assert dict(catalogue.set_dataset_tags("a", {"kind": "toy"}).tags) == {"kind": "toy"}
        assert dict(catalogue.dataset("digits").tags) == {"kind": "toy"}

    def test_removed_versions_leave_their_numbers_used(self, catalogue: Catalogue) -> None:
        catalogue.add_dataset(a_dataset(id="a"))
        catalogue.remove_dataset("digits")
        with pytest.raises(DatasetNotFound):
            catalogue.dataset("digits")
        assert catalogue.add_dataset(a_dataset(id="b")).version == 2

    def test_one_version_can_be_removed(self, catalogue: Catalogue) -> None:
        for id in "abc":
            catalogue.add_dataset(a_dataset(id=id), create_new_version=True)
        catalogue.remove_dataset("digits", 3)
        assert catalogue.dataset("digits").version == 2
        catalogue.remove_dataset("digits", 1)
        assert [one.version for one in catalogue.dataset_versions("digits")] == [2]
        with pytest.raises(DatasetNotFound):
            catalogue.dataset_by_id("a")
        assert catalogue.add_dataset(a_dataset(id="d"), create_new_version=True).version == 4

    def test_writers_at_once_get_different_versions(self, catalogue: Catalogue) -> None:
        def write(number: int) -> None:
            record = a_dataset(id=f"id-{number}")
            versions.append(catalogue.add_dataset(record, create_new_version=True).version)

        versions: list[int] = []
        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(versions) == list(range(1, 9))


class TestMemoryCatalogue(CatalogueContract):
    @pytest.fixture
    def catalogue(self) -> Catalogue:
        return MemoryCatalogue()


def test_records_travel_between_processes() -> None:
    record = DatastoreRecord("images", "s3", {"bucket": "b"})
    assert pickle.loads(pickle.dumps(record)) == record
    assert DatastoreRecord.from_json(record.to_json()) == record

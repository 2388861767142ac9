"""Registrations of Azure storage lead to existing data, or report a remedy."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rayjobs.datastore import Datastore, MemoryCatalogue, azure_names
from rayjobs.datastore.backends import open_backend
from rayjobs.datastore.errors import InvalidReference, NotSupported


@pytest.fixture
def catalogue() -> MemoryCatalogue:
    return MemoryCatalogue()


def register(catalogue: MemoryCatalogue, **more: Any) -> Datastore:
    return Datastore.register_azure_blob_container(
        workspace=catalogue,
        datastore_name="mydata",
        container_name="digits",
        account_name="acme",
        skip_validation=True,
        overwrite=True,
        **more,
    )


def without_adlfs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        azure_names.importlib.util,  # type: ignore[attr-defined]
        "find_spec",
        lambda name: None if name == "adlfs" else found(name),
    )


def test_datastore_of_the_name_is_used(catalogue: MemoryCatalogue, tmp_path: Path) -> None:
    Datastore.register_folder(catalogue, "mydata", tmp_path)
    store = register(catalogue, account_key="secret")
    assert store.record.settings == {"root": str(tmp_path)}


def test_storage_of_fsspec_under_the_name_is_used(
    catalogue: MemoryCatalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_adlfs(monkeypatch)
    Datastore.register_fsspec(catalogue, "mydata", "memory://digits", skip_validation=True)
    assert register(catalogue).record.settings["url"] == "memory://digits"


def test_mapped_address_is_used(
    catalogue: MemoryCatalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "digits").mkdir()
    urls = {"https://acme.blob.core.windows.net/": str(tmp_path)}
    monkeypatch.setenv("RAYJOBS_URLS", json.dumps(urls))
    store = register(catalogue)
    assert store.record.settings["root"] == str(tmp_path / "digits")
    assert (store.account_name, store.container_name) == ("acme", "digits")
    assert (store.is_sas, store.account_key) == (False, None)
    open_backend(store.record).check()
    with pytest.raises(InvalidReference, match="not a folder"):
        (tmp_path / "digits").rmdir()
        catalogue.remove_datastore("mydata")
        register(catalogue)


def test_with_adlfs_it_is_the_real_container_and_keeps_no_secret(
    catalogue: MemoryCatalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        azure_names.importlib.util,  # type: ignore[attr-defined]
        "find_spec",
        lambda name: object(),
    )
    monkeypatch.setenv("AZURE_MYDATA_ACCOUNT_KEY", "")
    store = register(catalogue, account_key="very-secret")
    assert "very-secret" not in json.dumps(store.record.to_json())
    assert os.environ["AZURE_MYDATA_ACCOUNT_KEY"] == "very-secret" == store.account_key
    assert (store.account_name, store.container_name) == ("acme", "digits")
    assert store.record.settings["url"] == "abfs://digits"
    with pytest.raises(NotSupported, match="filesystem"):
        _ = store.blob_service


def test_missing_adlfs_is_reported_in_one_sentence(
    catalogue: MemoryCatalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_adlfs(monkeypatch)
    with pytest.raises(NotSupported, match=r"rayjobs datastore add mydata FOLDER.*install adlfs"):
        register(catalogue)
    with pytest.raises(NotSupported, match=r"acme\.file\.core\.windows\.net/share"):
        Datastore.register_azure_file_share(catalogue, "files", "share", "acme")
    with pytest.raises(NotSupported, match=r"lake\.dfs\.core"):
        Datastore.register_azure_data_lake_gen2(catalogue, "lake", "fs", "lake")
    with pytest.raises(NotSupported, match=r"old\.azuredatalakestore\.net"):
        Datastore.register_azure_data_lake(catalogue, "old", "old")
    assert catalogue.datastores() == []

"""Azure's storage by name: maps registrations of Azure ML to available storage.

A registration resolves, in this order, to other storage already registered under the name, to a
folder that a mapping names for the storage's address, or to the real storage, which requires the
package adlfs.

Source: Azure ML SDK v1, `azureml.core.Datastore.register_azure_blob_container` and its siblings.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from rayjobs.datastore.backends.fsspec import ENV_OPTIONS, OPTIONS
from rayjobs.datastore.catalogue import Catalogue, DatastoreRecord
from rayjobs.datastore.errors import DatastoreNotFound, InvalidReference, NotSupported
from rayjobs.datastore.refs import check_datastore_name
from rayjobs.injob.url_map import map_url

log = logging.getLogger("rayjobs.datastore")

SUFFIX = "core.windows.net"
AZURE_PROTOCOLS = ("abfs", "abfss", "az")
BLOB, FILES, LAKE, LAKE_GEN1 = "blob", "file", "dfs", "azuredatalakestore"


def record_of(
    catalogue: Catalogue,
    name: str,
    kind: str,
    *,
    account: str,
    container: str,
    secrets: Mapping[str, str | None],
    endpoint: str | None = None,
) -> DatastoreRecord:
    """Return the record that a registration of Azure's storage resolves to, and log which it is.

    Args:
        kind: `BLOB`, `FILES`, `LAKE` or `LAKE_GEN1`.
        account: Name of the storage account or store.
        container: Container, file share or file system; "" for a first-generation store.
        secrets: Options of adlfs (`account_key`, `sas_token`, …) that hold secrets. Variables of
            this process keep the values; the record holds only the variables' names.
        endpoint: Azure's suffix, if not the public one.

    Raises:
        NotSupported: no available storage replaces it.
        InvalidReference: the name or the mapping is invalid.
    """
    check_datastore_name(name)
    url = _url(kind, account, container, endpoint or SUFFIX)
    try:
        known = catalogue.datastore(name)
    except DatastoreNotFound:
        known = None
    if known is not None and _is_replacement(known):
        where = known.settings.get("root") or known.settings.get("url")
        where = where or f"s3://{known.settings.get('bucket')}"
        log.warning("datastore %s (%s) is %s here", name, url, where)
        return known
    folder = map_url(url)
    if folder is not None:
        if not Path(folder).is_dir():
            raise InvalidReference(f"{url} is mapped to {folder}, which is not a folder.")
        log.warning("datastore %s (%s) is the folder %s here", name, url, folder)
        facts = {"root": folder, "account_name": account, "container_name": container}
        return DatastoreRecord(name, "local", facts)
    if kind in (BLOB, LAKE) and importlib.util.find_spec("adlfs") is not None:
        given = {option: value for option, value in secrets.items() if value}
        return DatastoreRecord(
            name,
            "fsspec",
            {
                "url": f"abfs://{container}",
                OPTIONS: json.dumps({"account_name": account, **_anonymous(given)}),
                ENV_OPTIONS: json.dumps(_in_variables(name, given), sort_keys=True),
            },
        )
    real = ", or install adlfs to use the real one" if kind in (BLOB, LAKE) else ""
    raise NotSupported(
        f"{url} cannot be used as datastore {name!r}. Register its replacement once: "
        f"`rayjobs datastore add {name} FOLDER` (or s3://BUCKET/PREFIX){real}."
    )


def _is_replacement(known: DatastoreRecord) -> bool:
    if known.kind == "fsspec":
        # An address of Azure is the real storage: this registration may bring a new key for it.
        return known.settings.get("url", "").partition("://")[0] not in AZURE_PROTOCOLS
    return known.kind in ("local", "s3")


def _url(kind: str, account: str, container: str, suffix: str) -> str:
    if kind == LAKE_GEN1:
        return f"https://{account}.{LAKE_GEN1}.net"
    return f"https://{account}.{kind}.{suffix}/{container}"


def _anonymous(secrets: Mapping[str, str]) -> dict[str, bool]:
    # Without this option adlfs searches for credentials, which for a public container is slow and
    # fails.
    return {} if secrets else {"anon": True}


def _in_variables(name: str, secrets: Mapping[str, str]) -> dict[str, str]:
    """Store secrets in variables of this process; return the variables by option."""
    found = {}
    for option, value in secrets.items():
        variable = f"AZURE_{re.sub(r'[^A-Za-z0-9]', '_', name)}_{option}".upper()
        os.environ[variable] = value
        found[option] = variable
    return found

"""Storage and data: datastores, references, datasets. Independent of jobs.

Names are imported on first use, so that importing this package is cheap: it loads no S3 client,
pyarrow or pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ == "datastore":
    # The checkout's folder under its old name is an alias, never a second copy.
    from rayjobs.core.aliases import alias

    alias(__name__)

if TYPE_CHECKING:
    from rayjobs.datastore.cache import NodeCache
    from rayjobs.datastore.catalogue import (
        Catalogue,
        DatasetRecord,
        DatastoreRecord,
        MemoryCatalogue,
    )
    from rayjobs.datastore.data_input import DataInput
    from rayjobs.datastore.dataset_factory import Dataset, DatasetConsumptionConfig
    from rayjobs.datastore.datasets import FileDataset
    from rayjobs.datastore.errors import DatastoreError
    from rayjobs.datastore.materialise import Materialised
    from rayjobs.datastore.outputs import OutputFileDatasetConfig
    from rayjobs.datastore.refs import DataPath, DataPathComputeBinding, DataReference
    from rayjobs.datastore.stores import Datastore
    from rayjobs.datastore.tabular import TabularDataset

_HOME = {
    "Catalogue": "catalogue",
    "DataInput": "data_input",
    "DataPath": "refs",
    "DataPathComputeBinding": "refs",
    "DataReference": "refs",
    "Dataset": "dataset_factory",
    "DatasetConsumptionConfig": "dataset_factory",
    "DatasetRecord": "catalogue",
    "Datastore": "stores",
    "DatastoreError": "errors",
    "DatastoreRecord": "catalogue",
    "FileDataset": "datasets",
    "Materialised": "materialise",
    "MemoryCatalogue": "catalogue",
    "NodeCache": "cache",
    "OutputFileDatasetConfig": "outputs",
    "TabularDataset": "tabular",
}

__all__ = [
    "Catalogue",
    "DataInput",
    "DataPath",
    "DataPathComputeBinding",
    "DataReference",
    "Dataset",
    "DatasetConsumptionConfig",
    "DatasetRecord",
    "Datastore",
    "DatastoreError",
    "DatastoreRecord",
    "FileDataset",
    "Materialised",
    "MemoryCatalogue",
    "NodeCache",
    "OutputFileDatasetConfig",
    "TabularDataset",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rayjobs.datastore' has no attribute {name!r}")
    value = getattr(import_module(f"rayjobs.datastore.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""Storage and data: datastores, references, datasets. Knows nothing of jobs.

Names are looked up when they are first used, so that importing this package costs nothing: neither
an S3 client nor pyarrow nor pandas comes with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datastore.cache import NodeCache
    from datastore.catalogue import Catalogue, DatasetRecord, DatastoreRecord, MemoryCatalogue
    from datastore.consumption import DatasetConsumptionConfig
    from datastore.dataset_factory import Dataset
    from datastore.datasets import FileDataset
    from datastore.errors import DatastoreError
    from datastore.inputs import DataInput
    from datastore.materialise import Materialised
    from datastore.outputs import OutputFileDatasetConfig
    from datastore.refs import DataPath, DataPathComputeBinding, DataReference
    from datastore.stores import Datastore
    from datastore.tabular import TabularDataset

_HOME = {
    "Catalogue": "catalogue",
    "DataInput": "inputs",
    "DataPath": "refs",
    "DataPathComputeBinding": "refs",
    "DataReference": "refs",
    "Dataset": "dataset_factory",
    "DatasetConsumptionConfig": "consumption",
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
        raise AttributeError(f"module 'datastore' has no attribute {name!r}")
    value = getattr(import_module(f"datastore.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

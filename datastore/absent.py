"""Names of Azure ML that this package lacks: each raises an error that names an alternative.

Source: Azure ML SDK v1, `azureml.data` and `azureml.core.Datastore`. After an AttributeError, a
program's author would have to guess whether the name is mistyped or the installation is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from rayjobs.core.refusing import REFUSED
from rayjobs.datastore.errors import NotSupported

_Class = TypeVar("_Class")

_BY_URL = (
    "use Datastore.register_fsspec with its URL, or Datastore.register_folder for a file system "
    "that every node mounts"
)
_FETCHED = "export the rows to CSV or Parquet files, and use those"
_PROFILE = "use to_pandas_dataframe().describe()"
_SPARK = "rayjobs does not run Spark: use as_mount or as_download"
_STREAMS = (
    "table columns do not hold files here: make a file dataset of the same path, and use its "
    "download or mount"
)
_READ_LATER = "use Dataset.Tabular.{} on the destination once the job has ended"

# Absent methods and their alternatives, by the name that programs use for the class.
_ABSENT = {
    "Datastore": {
        "register_azure_sql_database": _FETCHED,
        "register_azure_postgre_sql": _FETCHED,
        "register_azure_my_sql": _FETCHED,
        "register_hdfs": _BY_URL,
        "register_dbfs": _BY_URL,
    },
    "Dataset": {
        "update": "a version never changes: register the dataset again with "
        "create_new_version=True, or use add_tags",
    },
    "FileDataset": {
        "as_cache": "use as_mount or as_download: the node keeps files that it fetched",
        "hydrate": "use as_mount or as_download: the node keeps files that it fetched",
        "as_hdfs": _SPARK,
    },
    "TabularDataset": {
        "download": _STREAMS,
        "mount": _STREAMS,
        "get_profile": _PROFILE,
        "get_profile_runs": _PROFILE,
        "submit_profile_run": _PROFILE,
        "to_dask_dataframe": "use to_parquet_files and dask.read_parquet",
        "to_spark_dataframe": "use to_parquet_files and spark.read.parquet",
    },
    "DatasetConsumptionConfig": {"as_hdfs": _SPARK},
    "Dataset.Tabular": {
        "from_sql_query": _FETCHED,
        "register_dask_dataframe": "write it with to_parquet, and use from_parquet_files",
        "register_spark_dataframe": "write it as Parquet, and use from_parquet_files",
    },
    "OutputFileDatasetConfig": {
        "read_delimited_files": _READ_LATER.format("from_delimited_files"),
        "read_parquet_files": _READ_LATER.format("from_parquet_files"),
    },
}


def with_absent(known_as: str) -> Callable[[type[_Class]], type[_Class]]:
    """Return a decorator that adds a class's absent methods, which refuse every call.

    Args:
        known_as: The name that programs use for the class.
    """

    def add(cls: type[_Class]) -> type[_Class]:
        for name, instead in _ABSENT[known_as].items():
            # Real attributes instead of `__getattr__`: programs call some on the class itself.
            setattr(cls, name, staticmethod(_refusal(f"{known_as}.{name}", instead)))
        return cls

    return add


def _refusal(name: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupported(f"{name} is not supported; {instead}.")

    refuse.__name__ = name.rpartition(".")[2]
    setattr(refuse, REFUSED, instead)
    refuse.__doc__ = f"Not supported; {instead}."
    return refuse

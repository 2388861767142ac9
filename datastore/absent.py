"""What Azure ML has and this package has not: each name says so, and what to do instead.

Source: Azure ML SDK v1, `azureml.data` and `azureml.core.Datastore`. An AttributeError would leave
a program's author to guess whether the name is mistyped, or the installation broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from rayjobs.datastore.errors import NotSupported


def absent(name: str, instead: str) -> Callable[..., NoReturn]:
    """Return a function that refuses any call with one sentence."""

    def refuse(*_given: Any, **_more: Any) -> NoReturn:
        raise NotSupported(f"{name} is not supported; {instead}.")

    refuse.__name__ = name.rpartition(".")[2]
    refuse.__doc__ = f"Not supported; {instead}."
    return refuse


_FRAME = "use to_pandas_dataframe() and select the rows of the frame"
_S3 = (
    "use Datastore.register_s3 for object storage, or Datastore.register_folder for a file system "
    "that every node mounts"
)
_FETCHED = "export the rows to CSV or Parquet files, and use those"


class AbsentOfDatastore:
    """Of `Datastore`: storages that only Azure has."""

    register_azure_blob_container = staticmethod(
        absent("Datastore.register_azure_blob_container", _S3)
    )
    register_azure_file_share = staticmethod(absent("Datastore.register_azure_file_share", _S3))
    register_azure_data_lake = staticmethod(absent("Datastore.register_azure_data_lake", _S3))
    register_azure_data_lake_gen2 = staticmethod(
        absent("Datastore.register_azure_data_lake_gen2", _S3)
    )
    register_azure_sql_database = staticmethod(
        absent("Datastore.register_azure_sql_database", _FETCHED)
    )
    register_azure_postgre_sql = staticmethod(
        absent("Datastore.register_azure_postgre_sql", _FETCHED)
    )
    register_azure_my_sql = staticmethod(absent("Datastore.register_azure_my_sql", _FETCHED))


class AbsentOfDataset:
    """Of every dataset."""

    update = staticmethod(
        absent(
            "Dataset.update",
            "a version never changes: register the dataset again with create_new_version=True, or "
            "use add_tags",
        )
    )


class AbsentOfFileDataset(AbsentOfDataset):
    """Of `FileDataset`."""

    filter = staticmethod(
        absent("FileDataset.filter", "choose files by a glob in from_files, or by take and skip")
    )


class AbsentOfTabularDataset(AbsentOfDataset):
    """Of `TabularDataset`."""

    filter = staticmethod(absent("TabularDataset.filter", _FRAME))
    with_timestamp_columns = staticmethod(absent("TabularDataset.with_timestamp_columns", _FRAME))
    time_before = staticmethod(absent("TabularDataset.time_before", _FRAME))
    time_after = staticmethod(absent("TabularDataset.time_after", _FRAME))
    time_between = staticmethod(absent("TabularDataset.time_between", _FRAME))
    time_recent = staticmethod(absent("TabularDataset.time_recent", _FRAME))
    partition_by = staticmethod(
        absent("TabularDataset.partition_by", "use to_pandas_dataframe().groupby and write parts")
    )
    to_dask_dataframe = staticmethod(
        absent("TabularDataset.to_dask_dataframe", "use to_parquet_files and dask.read_parquet")
    )
    to_spark_dataframe = staticmethod(
        absent("TabularDataset.to_spark_dataframe", "use to_parquet_files and spark.read.parquet")
    )


class AbsentOfTables:
    """Of `Dataset.Tabular`."""

    from_sql_query = staticmethod(absent("Dataset.Tabular.from_sql_query", _FETCHED))


class AbsentOfOutput:
    """Of `OutputFileDatasetConfig`."""

    as_input = staticmethod(
        absent(
            "OutputFileDatasetConfig.as_input",
            "register_on_complete(NAME) and let the next job, submitted to run after this one, "
            "read dataset:NAME, or give it the destination's path as an input",
        )
    )
    read_delimited_files = staticmethod(
        absent(
            "OutputFileDatasetConfig.read_delimited_files",
            "use Dataset.Tabular.from_delimited_files on the destination once the job has ended",
        )
    )
    read_parquet_files = staticmethod(
        absent(
            "OutputFileDatasetConfig.read_parquet_files",
            "use Dataset.Tabular.from_parquet_files on the destination once the job has ended",
        )
    )

"""`Dataset`: makes datasets, and finds them by name, version or id.

Source: Azure ML SDK v1, `azureml.core.Dataset` and `azureml.data.dataset_factory`.
"""

from __future__ import annotations

from rayjobs.core.refusing import refuses
from rayjobs.datastore.abstract_dataset import (
    AbstractDataset,
    DatasetConsumptionConfig,
    dataset_of,
    rebuild,
    registered_dataset,
)
from rayjobs.datastore.catalogue import Catalogue
from rayjobs.datastore.datasets import FileDataset, FileDatasetFactory
from rayjobs.datastore.stores import HasCatalogue, catalogue_of
from rayjobs.datastore.tabular import TabularDataset, TabularDatasetFactory

# Import functions that turn a record into a dataset from here: this module has every kind.
__all__ = ["Dataset", "DatasetConsumptionConfig", "dataset_of", "rebuild"]


@refuses(
    "old datasets",
    "archive",
    "auto_read_files",
    "compare_profiles",
    "create_snapshot",
    "delete_snapshot",
    "deprecate",
    "diff",
    "from_binary_files",
    "from_delimited_files",
    "from_excel_files",
    "from_json_files",
    "from_pandas_dataframe",
    "from_parquet_files",
    "from_sql_query",
    "generate_profile",
    "get",
    "get_all_snapshots",
    "get_definition",
    "get_definitions",
    "get_profile",
    "get_snapshot",
    "head",
    "list",
    "reactivate",
    "register",
    "sample",
    "to_pandas_dataframe",
    "to_spark_dataframe",
    "update",
    "update_definition",
    properties=(
        "definition",
        "definition_version",
        "description",
        "id",
        "is_visible",
        "name",
        "state",
        "tags",
        "workspace",
    ),
)
class Dataset:
    """Makes datasets (`Dataset.File`, `Dataset.Tabular`) and finds them."""

    File = FileDatasetFactory
    Tabular = TabularDatasetFactory

    @staticmethod
    def get_by_name(
        workspace: Catalogue | HasCatalogue, name: str, version: int | str = "latest"
    ) -> FileDataset | TabularDataset:
        """Return a registered dataset, with exactly the files that were registered.

        Raises:
            DatasetNotFound: no such dataset or version.
        """
        return _known(registered_dataset(workspace, name, version))

    @staticmethod
    def get_by_id(workspace: Catalogue | HasCatalogue, id: str) -> FileDataset | TabularDataset:
        """Return the registered version with this id.

        Raises:
            DatasetNotFound: there is none.
        """
        catalogue = catalogue_of(workspace)
        return _known(dataset_of(catalogue.dataset_by_id(id), catalogue))

    @staticmethod
    def get_all(
        workspace: Catalogue | HasCatalogue,
    ) -> dict[str, FileDataset | TabularDataset]:
        """Return the latest version of every registered dataset, by name."""
        catalogue = catalogue_of(workspace)
        return {one.name: _known(dataset_of(one, catalogue)) for one in catalogue.datasets()}


AbstractDataset.factory = Dataset


def _known(dataset: object) -> FileDataset | TabularDataset:
    """Return a dataset as one of the two kinds."""
    assert isinstance(dataset, FileDataset | TabularDataset)
    return dataset

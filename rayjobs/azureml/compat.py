"""Small parts of ``azureml``: column types, resource configurations and `get_run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayjobs.datastore import Dataset

if TYPE_CHECKING:
    from rayjobs.api.experiment import Experiment
    from rayjobs.api.run import JobRun

TabularDatasetFactory = Dataset.Tabular
FileDatasetFactory = Dataset.File


class DataType:
    """Types of a table's columns, for ``set_column_types``.

    Source: ``azureml.data.DataType``.
    """

    @staticmethod
    def to_string() -> str:
        """Return the type of strings."""
        return "string"

    @staticmethod
    def to_long() -> str:
        """Return the type of integers."""
        return "int"

    @staticmethod
    def to_float(decimal_mark: str = ".") -> str:
        """Return the type of floating-point numbers."""
        return "float"

    @staticmethod
    def to_bool() -> str:
        """Return the type of Boolean values."""
        return "bool"

    @staticmethod
    def to_stream(workspace: Any, escaped: bool = False) -> str:
        """Return the type of paths into datastores, which stay strings."""
        return "string"

    @staticmethod
    def to_datetime(formats: Any = None) -> str:
        """Return the type of dates and times."""
        return "datetime"


class ResourceConfiguration:
    """The resources for serving a model; unused, since rayjobs does not serve models."""

    def __init__(
        self, cpu: float | None = None, memory_in_gb: float | None = None, gpu: int | None = None
    ) -> None:
        self.cpu = cpu
        self.memory_in_gb = memory_in_gb
        self.gpu = gpu

    def serialize(self) -> dict[str, float | int | None]:
        """Return the values as plain data."""
        return {"cpu": self.cpu, "memoryInGB": self.memory_in_gb, "gpu": self.gpu}


def get_run(
    experiment: Experiment, run_id: str, rehydrate: bool = True, clean_up: bool = True
) -> JobRun:
    """Return a run of the experiment's workspace by its id."""
    return experiment.workspace.get_run(run_id)

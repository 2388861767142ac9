"""How a job uses a dataset: under which name, in which mode, at which path.

Source: Azure ML SDK v1, `azureml.data.dataset_consumption_config`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rayjobs.datastore.errors import InvalidReference
from rayjobs.datastore.refs import check_mode, check_name

if TYPE_CHECKING:
    from rayjobs.datastore.datasets import AbstractDataset

MODES = ("direct", "mount", "download")


@dataclass(frozen=True, eq=False)
class DatasetConsumptionConfig:
    """A dataset as a job's input. `dataset` may also be `(workspace, name[, version])`.

    `str(config)` is `$AZUREML_DATAREFERENCE_<name>`, which a job's arguments expand to the path
    (in direct mode, to the dataset's id).
    """

    name: str
    dataset: Any
    mode: str = "direct"
    path_on_compute: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "input name")
        check_mode(self.mode, allowed=MODES)
        if isinstance(self.dataset, tuple):
            from rayjobs.datastore.dataset_factory import Dataset

            object.__setattr__(self, "dataset", Dataset.get_by_name(*self.dataset))
        if not hasattr(self.dataset, "manifest"):
            raise InvalidReference(
                f"{self.dataset!r} is not a dataset; give one, or (workspace, name)."
            )
        if self.mode != "direct" and self.dataset.kind != "file":
            raise InvalidReference(
                f"a {self.dataset.kind} dataset cannot be used in {self.mode} mode: it is a table, "
                "not files. Use it as a named input and read run.input_datasets[name], or make a "
                "file dataset of the same path."
            )

    @property
    def definition(self) -> AbstractDataset:
        """The dataset itself."""
        dataset: AbstractDataset = self.dataset
        return dataset

    @property
    def environment_variable(self) -> str:
        """The variable that holds the local path in the job."""
        return f"AZUREML_DATAREFERENCE_{self.name}"

    def __str__(self) -> str:
        return f"${self.environment_variable}"

    def as_mount(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return this input mounted.

        Raises:
            InvalidReference: the dataset is a table.
        """
        return replace(self, mode="mount", path_on_compute=path_on_compute)

    def as_download(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return this input downloaded.

        Raises:
            InvalidReference: the dataset is a table.
        """
        return replace(self, mode="download", path_on_compute=path_on_compute)

    def as_direct(self) -> DatasetConsumptionConfig:
        """Return this input as the dataset object itself."""
        return replace(self, mode="direct", path_on_compute=None)

"""Data objects among a job's arguments, and what they become in its spec.

Source: Azure ML v1: a DataReference, Datastore, DatasetConsumptionConfig or
OutputFileDatasetConfig in `arguments`, `script_params` or `inputs` becomes an input or output of
the run, and ``$AZUREML_DATAREFERENCE_<name>`` takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import UsageError

if TYPE_CHECKING:
    from rayjobs.datastore.dataset_factory import DatasetConsumptionConfig
    from rayjobs.datastore.outputs import OutputFileDatasetConfig
    from rayjobs.datastore.refs import DataReference

SAVED = "saved:"
Keep = Callable[[bytes], str]
"""Stores bytes in the workspace's catalogue and returns their digest."""


def is_data(item: Any) -> bool:
    """Return whether an object represents data, so that it becomes an input or output."""
    if isinstance(item, (str, bool, int, float, Path)) or item is None:
        return False
    from rayjobs.datastore.abstract_dataset import AbstractDataset, DatasetConsumptionConfig
    from rayjobs.datastore.outputs import OutputAsInput, OutputFileDatasetConfig
    from rayjobs.datastore.refs import (
        DataPath,
        DataPathComputeBinding,
        DataReference,
        DataReferenceConfiguration,
    )
    from rayjobs.datastore.stores import Datastore

    if isinstance(item, tuple):
        return (
            len(item) == 2
            and isinstance(item[0], DataPath)
            and isinstance(item[1], DataPathComputeBinding)
        )
    kinds = (
        AbstractDataset,
        DataPath,
        DataReference,
        DataReferenceConfiguration,
        DatasetConsumptionConfig,
        Datastore,
        OutputAsInput,
        OutputFileDatasetConfig,
    )
    return isinstance(item, kinds)


class DataArguments:
    """The inputs and outputs of one job, gathered from its arguments.

    Attributes:
        inputs: Name → fields of `spec.Input`.
        outputs: Name → fields of `spec.Output`.
    """

    def __init__(self, keep: Keep | None = None) -> None:
        self.inputs: dict[str, dict[str, Any]] = {}
        self.outputs: dict[str, dict[str, Any]] = {}
        self._keep = keep
        self._unnamed: dict[str, str] = {}

    def add(self, item: Any, *, name: str | None = None) -> str:
        """Add a data object and return its name in the job.

        Args:
            name: The name to use if the object has none.

        Raises:
            UsageError: another object has the name, or the object cannot be an input or output.
        """
        from rayjobs.datastore.abstract_dataset import AbstractDataset, DatasetConsumptionConfig
        from rayjobs.datastore.datasets import FileDataset
        from rayjobs.datastore.errors import DatastoreError
        from rayjobs.datastore.outputs import OutputAsInput, OutputFileDatasetConfig
        from rayjobs.datastore.refs import DataPath, DataReference, DataReferenceConfiguration
        from rayjobs.datastore.stores import Datastore

        try:
            if isinstance(item, DataReferenceConfiguration):
                item = DataReference.from_json({"name": name, **item.to_json()})
            elif isinstance(item, Datastore):
                item = item.as_mount()
            elif isinstance(item, DataPath):
                item = item.create_data_reference(name)
            elif isinstance(item, tuple):
                item = item[0].create_data_reference(name, item[1])
            elif isinstance(item, FileDataset):
                item = item.as_mount()
            elif isinstance(item, AbstractDataset):
                item = DatasetConsumptionConfig(name, item, "direct")
            if isinstance(item, DataReference):
                return self._reference(item)
            if isinstance(item, DatasetConsumptionConfig):
                return self._dataset(item)
            if isinstance(item, OutputFileDatasetConfig):
                return self._output(item)
        except DatastoreError as error:
            raise UsageError(f"{item!r:.120}: {error}") from error
        if isinstance(item, OutputAsInput):
            raise UsageError(
                f"only steps of the pipeline that writes it can read {item.name!r}; another job "
                f"reads a dataset (register_on_complete(NAME)), or an output by the job's id "
                f"(--input NAME=output:JOB/OUTPUT)"
            )
        raise UsageError(
            f"a {type(item).__name__} ({item!r:.80}) cannot be an input or output of a job"
        )

    def text(self, item: Any) -> str:
        """Add a data object; return the variable reference that a job expands to its path."""
        return f"$AZUREML_DATAREFERENCE_{self.add(item)}"

    def _reference(self, reference: DataReference) -> str:
        location = f"{reference.datastore_name}/{reference.path_on_datastore or ''}"
        if reference.mode == "upload":
            fields: dict[str, Any] = {"destination": location, "overwrite": reference.overwrite}
            kept = self.outputs
        else:
            fields = {"source": location, "mode": reference.mode}
            kept = self.inputs
        fields["path_on_compute"] = reference.path_on_compute
        return self._put(kept, reference.data_reference_name, fields)

    def _dataset(self, config: DatasetConsumptionConfig) -> str:
        dataset = config.definition
        if dataset.name:
            source = f"dataset:{dataset.name}:{dataset.version}"
        else:
            source = self._save(config)
        fields = {"source": source, "mode": config.mode, "path_on_compute": config.path_on_compute}
        return self._put(self.inputs, config.name or self._numbered(fields), fields)

    def _numbered(self, fields: dict[str, Any]) -> str:
        """Return the name of an input without one: `input_1` for the job's first, and so on."""
        same = json.dumps(fields, sort_keys=True)
        if same not in self._unnamed:
            taken = {*self.inputs, *self.outputs}
            numbers = (f"input_{number}" for number in count(1))
            self._unnamed[same] = next(one for one in numbers if one not in taken)
        return self._unnamed[same]

    def _save(self, config: DatasetConsumptionConfig) -> str:
        from rayjobs.datastore.abstract_dataset import FIRST_INPUT
        from rayjobs.datastore.data_input import DataInput

        if self._keep is None:
            raise UsageError(
                f"the dataset of input {config.name or FIRST_INPUT!r} is not registered, and "
                f"there is no workspace here to store it in; register it (dataset.register), or "
                f"submit the configuration by Experiment.submit"
            )
        dataset = config.definition
        whole = DataInput(
            # The node sets the input's name in the job, so unnamed inputs can share a record.
            name=config.name or FIRST_INPUT,
            mode=config.mode,
            records=tuple(record for _, record in sorted(dataset.records.items())),
            manifest=dataset.manifest,
            definition=dataset.definition(),
        )
        return SAVED + self._keep(json.dumps(whole.to_json(), sort_keys=True).encode())

    def _output(self, config: OutputFileDatasetConfig) -> str:
        store = config.datastore
        fields: dict[str, Any] = {
            "destination": f"{store if isinstance(store, str) else store.name}"
            f"/{config.path_template}",
            "mode": config.mode,
            "overwrite": config.overwrite,
            "path_on_compute": config.source,
            "source_globs": list(config.source_globs),
        }
        if config.register_as is not None:
            name, description, tags = config.register_as
            fields["register_as"] = {
                "name": name,
                "description": description or "",
                "tags": dict(tags),
            }
        return self._put(self.outputs, str(config.name), fields)

    def _put(self, kept: dict[str, dict[str, Any]], name: str, fields: dict[str, Any]) -> str:
        other = self.outputs if kept is self.inputs else self.inputs
        if name in other or kept.setdefault(name, fields) != fields:
            raise UsageError(
                f"two different data objects are called {name!r}; give one of them another name "
                f"(path(..., data_reference_name=...), as_named_input(...))"
            )
        return name

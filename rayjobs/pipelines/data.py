"""Data that steps pass to each other, and values that each run may set.

Source: ``azureml.pipeline.core``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rayjobs.core.errors import UsageError
from rayjobs.datastore.refs import DataPath, DataReference, datastore_name_of

if TYPE_CHECKING:
    from rayjobs.pipelines.steps import StepBase

NAME = re.compile(r"^[A-Za-z0-9_]+$")
GIVEN_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_ -]*$")
OUTPUT_MODES = ("mount", "upload", "direct", "hdfs")
INPUT_MODES = ("mount", "download", "direct")
_OUTPUTS, _INPUTS = ", ".join(OUTPUT_MODES), ", ".join(INPUT_MODES)
DEFAULT_PATH = "azureml/{run-id}/{output-name}"


Described = TypeVar("Described")


def _with(one: Described, **changes: Any) -> Described:
    """Return a copy of an object with changed attributes."""
    changed = copy.copy(one)
    vars(changed).update(changes)
    return changed


class TrainingOutput:
    """An additional result of a training step: ``Metrics`` or the best ``Model``.

    Args:
        type: ``Metrics`` or ``Model``.
        iteration: Not supported: it belongs to automated ML.
        metric: Not supported: it belongs to automated ML.
        model_file: The file or folder of the best trial, such as ``outputs/model.pt``.
    """

    def __init__(
        self,
        type: str,
        iteration: int | None = None,
        metric: str | None = None,
        model_file: str | None = None,
    ) -> None:
        if type not in ("Metrics", "Model"):
            raise UsageError(f"TrainingOutput type is {type!r}; use 'Metrics' or 'Model'")
        if iteration is not None or metric is not None:
            raise UsageError(
                "TrainingOutput takes iteration and metric for automated ML only, which rayjobs "
                "does not have; give model_file, a file of the best trial"
            )
        if type == "Metrics" and model_file is not None:
            raise UsageError("TrainingOutput('Metrics') takes no model_file")
        self.type = type
        self.iteration = iteration
        self.metric = metric
        self.model_file = model_file

    @property
    def result(self) -> str:
        """The output of a sweep, see `rayjobs.pipelines.spec.SweepPart`."""
        return "metrics" if self.type == "Metrics" else f"best:{self.model_file or 'outputs'}"


class PipelineData:
    """A file or folder that one step writes and other steps read.

    It is stored in a datastore below the id of the step's run, and stays there.

    Args:
        name: Letters, digits and underscores.
        datastore: The datastore that stores it; None means the pipeline's default datastore.
        output_name: Its name among the step's outputs; None means `name`.
        output_mode: ``mount`` or ``upload``; both store it when the step's script has succeeded.
        output_path_on_compute: Its path in the step; None means below the step's own folder.
        output_overwrite: Replace files that are already stored at the destination.
        data_type: Accepted but unused.
        is_directory: True: a folder exists when the step starts. False or None: the step's
            script creates a file or a folder at the path. With `output_path_on_compute`, a folder
            always exists.
        pipeline_output_name: Its name as an output of the whole pipeline.
        training_output: The result of a sweep: its metrics, or a file of its best trial.
    """

    def __init__(
        self,
        name: str,
        datastore: Any = None,
        output_name: str | None = None,
        output_mode: str = "mount",
        output_path_on_compute: str | None = None,
        output_overwrite: bool | None = None,
        data_type: str | None = None,
        is_directory: bool | None = None,
        pipeline_output_name: str | None = None,
        training_output: TrainingOutput | None = None,
    ) -> None:
        for label, text in (("name", name), ("output_name", output_name)):
            if text is not None and (not isinstance(text, str) or NAME.match(text) is None):
                raise UsageError(
                    f"the {label} of a PipelineData is {text!r}; use letters, digits and "
                    f"underscores"
                )
        if output_mode not in OUTPUT_MODES:
            raise UsageError(f"output_mode is {output_mode!r}; use one of: {_OUTPUTS}")
        if training_output is not None and not isinstance(training_output, TrainingOutput):
            raise UsageError(
                f"training_output is a {type(training_output).__name__}; give a TrainingOutput"
            )
        self._name = name
        self._output_name = output_name or name
        self.datastore = datastore
        self._output_mode = output_mode
        self._path_on_compute = output_path_on_compute
        self._overwrite = bool(output_overwrite)
        self._data_type = data_type
        self._is_directory = is_directory
        self._pipeline_output_name = pipeline_output_name
        self._training_output = training_output
        self._producer: StepBase | None = None
        self.registration: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def data_type(self) -> str | None:
        """Its type; stored but unused."""
        return self._data_type

    @property
    def environment_variable(self) -> str:
        """The variable that holds its local path in a job."""
        return f"AZUREML_DATAREFERENCE_{self._output_name}"

    def __str__(self) -> str:
        """Return the placeholder that becomes the path in a job's arguments."""
        return f"${self.environment_variable}"

    def __repr__(self) -> str:
        """Return the name."""
        return f"PipelineData({self._name!r})"

    def as_input(self, input_name: str | None = None) -> InputPortBinding:
        """Return it as an input under another name."""
        return InputPortBinding(input_name or self._name, self)

    def as_mount(self, input_name: str | None = None) -> InputPortBinding:
        """Return it as a mounted input, under another name if one is given."""
        return self.create_input_binding(input_name, "mount")

    def create_input_binding(
        self,
        input_name: str | None = None,
        mode: str | None = None,
        path_on_compute: str | None = None,
        overwrite: bool | None = None,
    ) -> InputPortBinding:
        """Return it as an input in a mode: ``mount`` or ``download``."""
        return InputPortBinding(
            input_name or self._name, self, mode or "mount", path_on_compute, overwrite
        )

    def get_env_variable_name(self) -> str:
        """Return the variable that holds its local path in a job."""
        return self.environment_variable

    def as_download(
        self,
        input_name: str | None = None,
        path_on_compute: str | None = None,
        overwrite: bool | None = None,
    ) -> InputPortBinding:
        """Return it as a downloaded input: a private copy."""
        return self.create_input_binding(input_name, "download", path_on_compute, overwrite)

    def as_dataset(self) -> PipelineDataset:
        """Return it as a dataset that exists once its step has completed."""
        return PipelineDataset(self)

    def output_fields(self, default_datastore: str) -> dict[str, Any]:
        """Return the fields of the output in the step's job."""
        store = datastore_name_of(self.datastore) if self.datastore is not None else None
        return {
            "destination": f"{store or default_datastore}/{DEFAULT_PATH}",
            # Never in place: files of a failed attempt are not the step's output.
            "mode": "upload",
            "overwrite": self._overwrite,
            "path_on_compute": self._path_on_compute,
            "is_folder": bool(self._is_directory),
            "register_as": self.registration,
        }


class InputPortBinding:
    """A `PipelineData` (or other data) as an input of a step, under a name and in a mode.

    Source: ``azureml.pipeline.core.InputPortBinding``.
    """

    def __init__(
        self,
        name: str | None = None,
        bind_object: Any = None,
        bind_mode: str = "mount",
        path_on_compute: str | None = None,
        overwrite: bool | None = None,
        is_resource: bool = False,
        additional_transformations: Any = None,
        **kwargs: Any,
    ) -> None:
        if bind_mode not in INPUT_MODES:
            raise UsageError(f"bind_mode is {bind_mode!r}; use one of: {_INPUTS}")
        name = name or getattr(bind_object, "name", None)
        if not isinstance(name, str) or NAME.match(name) is None:
            raise UsageError(
                f"the name of an input is {name!r}; use letters, digits and underscores"
            )
        self.name = name
        self.bind_object = bind_object
        self.bind_mode = bind_mode
        self.path_on_compute = path_on_compute
        self.overwrite = overwrite

    @property
    def data(self) -> Any:
        """The bound object."""
        return self.bind_object

    @property
    def data_reference_name(self) -> str:
        """Its name, as in a DataReference."""
        return self.name

    @property
    def data_type(self) -> str | None:
        """The type of the bound object, if it has one."""
        found: str | None = getattr(self.bind_object, "data_type", None)
        return found

    def get_bind_object_name(self) -> str | None:
        """Return the name of the bound object."""
        return getattr(self.bind_object, "name", None) or getattr(
            self.bind_object, "data_reference_name", None
        )

    @property
    def environment_variable(self) -> str:
        """The variable that holds its local path in a job."""
        return f"AZUREML_DATAREFERENCE_{self.name}"

    def __str__(self) -> str:
        """Return the placeholder that becomes the path in a job's arguments."""
        return f"${self.environment_variable}"

    def as_input(self, input_name: str) -> InputPortBinding:
        """Return the same data under another name."""
        return _with(self, name=input_name)

    def as_mount(self) -> InputPortBinding:
        """Return the same data mounted."""
        return _with(self, bind_mode="mount")

    def as_download(self, path_on_compute: str | None = None) -> InputPortBinding:
        """Return the same data downloaded."""
        return _with(self, bind_mode="download", path_on_compute=path_on_compute)


class PipelineDataset:
    """A step's output as a dataset in the pipeline; steps that read it get its files.

    Source: ``azureml.pipeline.core.PipelineDataset``.
    """

    def __init__(self, data: PipelineData) -> None:
        self._data = data
        self._name = data.name
        self._mode = "mount"
        self._path_on_compute: str | None = None
        self._registration: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """Its name as an input."""
        return self._name

    @property
    def data(self) -> PipelineData:
        """The output."""
        return self._data

    def as_named_input(self, name: str) -> PipelineDataset:
        """Return it under another name."""
        if NAME.match(name) is None:
            raise UsageError(f"{name!r} is not a name; use letters, digits and underscores")
        return _with(self, _name=name)

    def as_mount(self, path_on_compute: str | None = None) -> PipelineDataset:
        """Return it mounted."""
        return _with(self, _mode="mount", _path_on_compute=path_on_compute)

    def as_download(self, path_on_compute: str | None = None) -> PipelineDataset:
        """Return it downloaded."""
        return _with(self, _mode="download", _path_on_compute=path_on_compute)

    def as_direct(self) -> PipelineDataset:
        """Return it as files: the table of a step is unknown before the step has run."""
        return self.as_mount()

    def register(
        self,
        name: str,
        create_new_version: bool = True,
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        use_latest_definition: bool = True,
    ) -> PipelineDataset:
        """Register the output as a version of a dataset once its step has completed."""
        values = {"name": name, "description": description or "", "tags": dict(tags or {})}
        self._data.registration = values
        return self

    def binding(self) -> InputPortBinding:
        """Return it as an input of a step."""
        return InputPortBinding(
            self._name, self._data, bind_mode=self._mode, path_on_compute=self._path_on_compute
        )

    def __str__(self) -> str:
        """Return the placeholder that becomes the path in a job's arguments."""
        return f"$AZUREML_DATAREFERENCE_{self._name}"


class PipelineParameter:
    """A value that each run of a pipeline may set.

    Args:
        name: Letters, digits, underscores, spaces and dashes; the first is a letter or an
            underscore. It is the key of `pipeline_parameters`.
        default_value: A string, a number, a bool, a DataPath, or a dataset.

    Raises:
        UsageError: the name or the default is not valid.
    """

    def __init__(self, name: str, default_value: Any) -> None:
        if not isinstance(name, str) or GIVEN_NAME.match(name) is None:
            raise UsageError(
                f"the name of a PipelineParameter is {name!r}; begin with a letter or an "
                f"underscore, and use letters, digits, underscores, spaces and dashes"
            )
        self.name = name
        self.default_value = default_value
        if not (self.is_plain or self.is_data):
            raise UsageError(
                f"the default of PipelineParameter {name!r} is a "
                f"{type(default_value).__name__}; give a string, a number, a bool, a DataPath or a "
                f"dataset"
            )

    @property
    def is_plain(self) -> bool:
        """Whether its value is a string, a number or a bool."""
        return isinstance(self.default_value, str | int | float | bool)

    @property
    def is_data(self) -> bool:
        """Whether its values name data."""
        return is_data_value(self.default_value)

    @property
    def key(self) -> str:
        """Its name in the stored pipeline."""
        return self.name.replace(" ", "_")

    @property
    def placeholder(self) -> str:
        """The placeholder of its value in a stored pipeline."""
        return f"${{{{parameters.{self.key}}}}}"

    def __str__(self) -> str:
        """Return the placeholder of its value."""
        return self.placeholder

    def __repr__(self) -> str:
        """Return name and default."""
        return f"PipelineParameter(name={self.name!r}, default_value={self.default_value!r:.80})"


def is_data_value(value: Any) -> bool:
    """Return whether a value of a parameter names data."""
    from rayjobs.datastore.abstract_dataset import AbstractDataset

    return isinstance(value, DataPath | DataReference | AbstractDataset)


def default_of(value: Any) -> Any:
    """Return a parameter's default; any other value unchanged."""
    return value.default_value if isinstance(value, PipelineParameter) else value

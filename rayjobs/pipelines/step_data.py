"""Collects the inputs and outputs of one step from its arguments and lists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import UsageError
from rayjobs.data.arguments import DataArguments, Keep, is_data
from rayjobs.datastore.abstract_dataset import AbstractDataset
from rayjobs.datastore.outputs import OutputAsInput, OutputFileDatasetConfig
from rayjobs.datastore.refs import DataPathComputeBinding, DataReference
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.pipelines.data import (
    InputPortBinding,
    PipelineData,
    PipelineDataset,
    PipelineParameter,
)
from rayjobs.pipelines.spec import Parameter, step_source, type_of

if TYPE_CHECKING:
    from rayjobs.api.workspace import Workspace
    from rayjobs.pipelines.steps import StepBase


PARAM_NAME = re.compile(r"\w+", re.ASCII)


@dataclass
class Building:
    """A pipeline while it is converted to its stored form.

    Attributes:
        names: `id` of a step → its key in the pipeline.
        default_datastore: Name of the datastore for outputs that name none.
        keep: Stores a dataset that is not registered.
        workspace: Resolves names of compute targets; may be None.
        default_source_directory: Source directory of steps that name none, or None.
        producers: Output of a step → the steps that write it, and its name in each.
        parameters: The parameters that steps have named so far.
        defaults: Their objects, to distinguish parameters of the same name.
    """

    names: dict[int, str]
    default_datastore: str
    keep: Keep
    workspace: Workspace | None = None
    default_source_directory: str | None = None
    producers: dict[int, list[tuple[StepBase, str]]] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)

    def parameter(self, one: PipelineParameter) -> str:
        """Add a parameter; return the placeholder of its value.

        Raises:
            UsageError: another parameter of this name has a different default.
        """
        known = self.defaults.setdefault(one.key, one.default_value)
        if known is not one.default_value and known != one.default_value:
            raise UsageError(
                f"two PipelineParameters are called {one.name!r}, with the defaults {known!r:.80} "
                f"and {one.default_value!r:.80}; use one object, or two names"
            )
        if one.key not in self.parameters:
            if one.is_data:
                self.parameters[one.key] = Parameter(
                    default=self.data_text(one.default_value), type="data"
                )
            else:
                self.parameters[one.key] = Parameter(
                    default=one.default_value,
                    type=type_of(one.default_value),
                )
        return one.placeholder

    def data_text(self, value: Any) -> str:
        """Return the source of an input that a parameter's value names.

        Raises:
            UsageError: the value does not name data.
        """
        if isinstance(value, str):
            return value
        data = DataArguments(self.keep)
        if isinstance(value, AbstractDataset):
            value = value.as_named_input("data")
        name = data.add(value, name="data")
        return str(data.inputs[name]["source"])

    def add_producer(self, step: StepBase, output: Any, name: str) -> None:
        """Record that a step writes an output, under a name in its job."""
        self.producers.setdefault(_identity(output), []).append((step, name))

    def producer_of(self, item: Any) -> tuple[str, str] | None:
        """Return the step that writes an item, and the item's name there; None if no step does.

        Raises:
            UsageError: several steps write it.
        """
        found = self.producers.get(_identity(item), [])
        names = list(dict.fromkeys(self.names[id(step)] for step, _ in found))
        if len(names) > 1:
            raise UsageError(
                f"steps {', '.join(map(repr, names))} all write {item.name!r}, which another step "
                f"reads; give each its own output"
            )
        return (names[0], found[0][1]) if found else None


def _identity(item: Any) -> int:
    """Return an id that all copies of one output share."""
    return id(item.origin if isinstance(item, OutputFileDatasetConfig) else item)


@dataclass
class StepData:
    """Collects the inputs and outputs of one step.

    Attributes:
        step: The step.
        building: The pipeline that it is built into.
        inputs: Name → fields of the input.
        outputs: Name → fields of the output.
    """

    step: StepBase
    building: Building
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def text(self, item: Any) -> Any:
        """Return an argument in its stored form, with placeholders for data and parameters.

        Raises:
            UsageError: it is data that the step neither writes nor reads.
        """
        if isinstance(item, PipelineParameter):
            if item.is_data:
                return f"$AZUREML_DATAREFERENCE_{self.add(item)}"
            return self.building.parameter(item)
        if self.is_data(item):
            return f"$AZUREML_DATAREFERENCE_{self.add(item)}"
        return item

    @staticmethod
    def is_data(item: Any) -> bool:
        """Return whether an object represents data of a step."""
        if isinstance(item, PipelineData | InputPortBinding | PipelineDataset):
            return True
        if _parameter_pair(item) is not None:
            return True
        return is_data(item)

    def add_output(self, item: Any) -> str:
        """Add an output; return its name."""
        if isinstance(item, PipelineData):
            fields = item.output_fields(self.building.default_datastore)
            return self._put(self.outputs, item._output_name, fields)
        if isinstance(item, OutputFileDatasetConfig):
            return self._plain(item)
        if isinstance(item, DataReference):
            return self._plain(item.as_upload() if item.mode != "upload" else item)
        raise UsageError(
            f"step {self.step.name!r}: outputs has a {type(item).__name__}; give PipelineData, "
            f"OutputFileDatasetConfig, or a DataReference"
        )

    def add(self, item: Any) -> str:
        """Add data that the step names; return its name in the step's job.

        Raises:
            UsageError: no step writes it, or it is not data.
        """
        if isinstance(item, PipelineDataset):
            item = item.binding()
        if isinstance(item, PipelineData):
            if any(item is one for one in self.step.output_objects):
                return self.add_output(item)
            item = item.as_input()
        if isinstance(item, InputPortBinding) and not isinstance(item.bind_object, PipelineData):
            return self._bound(item)
        if isinstance(item, InputPortBinding):
            return self._made(item.name, item.bind_object, item.bind_mode, item.path_on_compute)
        if isinstance(item, OutputAsInput):
            return self._made(item.name, item.output, item.mode, item.path_on_compute)
        pair = _parameter_pair(item)
        if pair is not None:
            return self._parameter(*pair)
        if isinstance(item, PipelineParameter) and item.is_data:
            return self._parameter(item.key, item, "mount", None)
        return self._plain(item)

    def _bound(self, item: InputPortBinding) -> str:
        bound = item.bind_object
        if isinstance(bound, PipelineParameter):
            return self._parameter(item.name, bound, item.bind_mode, item.path_on_compute)
        arguments = DataArguments(self.building.keep)
        added = arguments.add(bound, name=item.name)
        fields = {**arguments.inputs[added], "mode": item.bind_mode}
        if item.path_on_compute is not None:
            fields["path_on_compute"] = item.path_on_compute
        return self._put(self.inputs, item.name, fields)

    def _made(self, name: str, data: Any, mode: str, path_on_compute: str | None) -> str:
        """Add an input that another step writes."""
        producer = self.building.producer_of(data)
        if producer is None:
            raise UsageError(
                f"step {self.step.name!r} reads {getattr(data, 'name', name)!r}, which no step of "
                f"the pipeline produces; list it in the `outputs` of the step that writes it"
            )
        if producer[0] == self.building.names[id(self.step)]:
            raise UsageError(
                f"step {self.step.name!r} reads {getattr(data, 'name', name)!r}, its own output"
            )
        fields = {
            "source": step_source(*producer),
            "mode": "mount" if mode == "direct" else mode,
            "path_on_compute": path_on_compute,
        }
        return self._put(self.inputs, name, fields)

    def _parameter(
        self, name: str, parameter: PipelineParameter, mode: str, path_on_compute: str | None
    ) -> str:
        fields = {
            "source": self.building.parameter(parameter),
            "mode": mode,
            "path_on_compute": path_on_compute,
        }
        return self._put(self.inputs, name, fields)

    def _plain(self, item: Any) -> str:
        data = DataArguments(self.building.keep)
        try:
            name = data.add(item)
        except UsageError as error:
            raise UsageError(f"step {self.step.name!r}: {error}") from error
        if name in data.outputs:
            return self._put(self.outputs, name, data.outputs[name])
        return self._put(self.inputs, name, data.inputs[name])

    def _put(self, kept: dict[str, dict[str, Any]], name: str, fields: dict[str, Any]) -> str:
        other = self.outputs if kept is self.inputs else self.inputs
        if name in other or kept.setdefault(name, fields) != fields:
            raise UsageError(
                f"step {self.step.name!r} has two different data objects called {name!r}; rename "
                f"one of them (as_input('other_name'))"
            )
        return name


def _parameter_pair(item: Any) -> tuple[str, PipelineParameter, str, str | None] | None:
    """Return a DataPath or dataset parameter and its binding; None if `item` is not one."""
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], PipelineParameter):
        parameter, binding = item
        if isinstance(binding, DataPathComputeBinding) and parameter.is_data:
            return parameter.key, parameter, binding.mode, binding.path_on_compute
    parameter = getattr(item, "dataset", None)
    if isinstance(parameter, PipelineParameter):
        return item.name, parameter, item.mode, item.path_on_compute
    return None


def params_of(step: str, values: Mapping[str, Any], building: Building) -> dict[str, Any]:
    """Return the `params` of a step, with placeholders for the pipeline's parameters.

    Raises:
        UsageError: one cannot become the variable ``AML_PARAMETER_<NAME>``.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str) or PARAM_NAME.fullmatch(key) is None:
            raise UsageError(
                f"step {step!r}: params has the name {key!r}, which cannot be part of the variable "
                f"AML_PARAMETER_<NAME>; use letters, digits and underscores"
            )
        if isinstance(value, PipelineParameter):
            found[key] = building.parameter(value)
        elif value is None or isinstance(value, str | int | float | bool):
            found[key] = value
        else:
            raise UsageError(
                f"step {step!r}: params[{key!r}] is a {type(value).__name__}; give a string, a "
                f"number, a bool, or a PipelineParameter"
            )
    return found


def plain_values(values: Mapping[str, Any], building: Building) -> dict[str, Any]:
    """Return a mapping with placeholders for its parameters."""
    return {
        str(key): building.parameter(value) if isinstance(value, PipelineParameter) else value
        for key, value in values.items()
    }

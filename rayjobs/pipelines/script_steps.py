"""Steps that run a script, a command, an estimator or a sweep.

Signatures: ``azureml.pipeline.steps`` 1.62.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rayjobs.api.configs import ScriptRunConfig
from rayjobs.api.estimators import Estimator
from rayjobs.core.errors import UsageError
from rayjobs.pipelines.data import PipelineData
from rayjobs.pipelines.spec import StepSpec, SweepPart
from rayjobs.pipelines.step_data import Building
from rayjobs.pipelines.steps import ScriptStep, StepBase, applied_parameters, settings_of


class PythonScriptStep(ScriptStep):
    """A step that runs a Python script.

    Args:
        script_name: The script, relative to `source_directory`.
        name: The step's name; None: the script's.
        arguments: The script's arguments: strings, data, and parameters.
        compute_target: Its target; None means that of `runconfig`, else the default target.
        runconfig: Its configuration: environment, variables, distribution.
        runconfig_pipeline_params: Counts of the run configuration that each run may set.
        inputs: Data that it reads.
        outputs: Data that it writes.
        params: Values of the variables ``AML_PARAMETER_<NAME>``.
        source_directory: Folder with the script; None means the pipeline's default.
        allow_reuse: Reuse the results of an earlier run if nothing has changed.
        version: Change it when the step's behavior changes, so that it runs again.
        hash_paths: Only changes of these files count as changes.
    """

    def __init__(
        self,
        script_name: str,
        name: str | None = None,
        arguments: Sequence[Any] | None = None,
        compute_target: Any = None,
        runconfig: Any = None,
        runconfig_pipeline_params: Mapping[str, Any] | None = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        params: Mapping[str, Any] | None = None,
        source_directory: str | Path | None = None,
        allow_reuse: bool = True,
        version: str | None = None,
        hash_paths: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(script_name, str) or not script_name:
            raise UsageError(f"script_name is {script_name!r}; name the script to run")
        super().__init__(
            name or script_name,
            inputs,
            outputs,
            arguments=arguments,
            allow_reuse=allow_reuse,
            version=version,
            hash_paths=hash_paths,
        )
        self.script_name = script_name
        self.params = dict(params or {})
        self.source_directory = None if source_directory is None else str(source_directory)
        self._settings = applied_parameters(
            settings_of(runconfig, compute_target), runconfig_pipeline_params
        )


class CommandStep(ScriptStep):
    """A step that runs a shell command, once on each node or once for each MPI process.

    Args:
        command: A shell command, or a list of strings and data.
        name: The step's name; None: the command's first word.
        compute_target: Its target; None means that of `runconfig`, else the default target.
        runconfig: Its configuration; a ScriptRunConfig also provides the command, or a script.
        runconfig_pipeline_params: Counts of the run configuration that each run may set.
        inputs: Data that it reads.
        outputs: Data that it writes.
        params: Values of the variables ``AML_PARAMETER_<NAME>``.
        source_directory: Folder to pack; None: the pipeline's default.
        allow_reuse: Reuse the results of an earlier run if nothing has changed.
        version: Change it when the step's behavior changes, so that it runs again.
    """

    def __init__(
        self,
        command: Any = None,
        name: str | None = None,
        compute_target: Any = None,
        runconfig: Any = None,
        runconfig_pipeline_params: Mapping[str, Any] | None = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        params: Mapping[str, Any] | None = None,
        source_directory: str | Path | None = None,
        allow_reuse: bool = True,
        version: str | None = None,
    ) -> None:
        script = runconfig if isinstance(runconfig, ScriptRunConfig) else None
        self._script: str | None = None
        arguments: list[Any] = []
        if command is None and script is not None:
            command = script.command
            if command is None:
                self._script, arguments = script.script, list(script.arguments)
        if command is None and self._script is None:
            raise UsageError("give a command to run, or a runconfig that has one")
        if source_directory is None and script is not None:
            source_directory = script.source_directory
        words = [command] if isinstance(command, str) else list(command or [self._script])
        super().__init__(
            name or str(words[0]).split()[0],
            inputs,
            outputs,
            arguments=[*words] if self._script is None else arguments,
            allow_reuse=allow_reuse,
            version=version,
        )
        self.params = dict(params or {})
        self.source_directory = None if source_directory is None else str(source_directory)
        self._settings = applied_parameters(
            settings_of(runconfig, compute_target), runconfig_pipeline_params
        )

    def build(self, building: Building) -> StepSpec:
        """See `StepBase.build`."""
        data = self._gather(building)
        job = self._job(
            building,
            data,
            self._settings,
            source_directory=self.source_directory,
            script=self._script,
            command=None if self._script is not None else self.arguments,
        )
        return self._spec(building, data, job, params=self.params)


class EstimatorStep(ScriptStep):
    """A step that runs an estimator.

    Args:
        name: The step's name.
        estimator: The estimator to run.
        estimator_entry_script_arguments: The script's arguments; they replace the estimator's.
        runconfig_pipeline_params: Counts of the run configuration that each run may set.
        inputs: Data that it reads.
        outputs: Data that it writes.
        compute_target: Its target; None means the estimator's.
        allow_reuse: Reuse the results of an earlier run if nothing has changed.
        version: Change it when the step's behavior changes, so that it runs again.
    """

    def __init__(
        self,
        name: str | None = None,
        estimator: Any = None,
        estimator_entry_script_arguments: Sequence[Any] | None = None,
        runconfig_pipeline_params: Mapping[str, Any] | None = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        compute_target: Any = None,
        allow_reuse: bool = True,
        version: str | None = None,
    ) -> None:
        if not isinstance(estimator, Estimator):
            raise UsageError(
                f"EstimatorStep: estimator is a {type(estimator).__name__}; give an estimator"
            )
        config = estimator.to_script_run_config()
        given = estimator_entry_script_arguments
        super().__init__(
            name or str(config.script),
            [*config.inputs, *(inputs or ())],
            outputs,
            arguments=config.arguments if given is None else given,
            allow_reuse=allow_reuse,
            version=version,
        )
        self._config = config
        self._settings = applied_parameters(
            settings_of(config, compute_target), runconfig_pipeline_params
        )

    def build(self, building: Building) -> StepSpec:
        """See `StepBase.build`."""
        data = self._gather(building)
        job = self._job(
            building,
            data,
            self._settings,
            source_directory=self._config.source_directory,
            script=self._config.script,
            resume_from=self._config.resume_from,
        )
        return self._spec(building, data, job)


class HyperDriveStep(ScriptStep):
    """A step that runs a sweep.

    Outputs with a `TrainingOutput` get the metrics, or a file of the best trial; other outputs come
    from the best trial.

    Args:
        name: The step's name.
        hyperdrive_config: The sweep.
        estimator_entry_script_arguments: The script's arguments; they replace the estimator's.
        inputs: Data that every trial reads.
        outputs: Data that is stored when the sweep has ended.
        metrics_output: Destination of the metrics of all trials, as JSON.
        allow_reuse: Reuse the results of an earlier run if nothing has changed.
        version: Change it when the step's behavior changes, so that it runs again.
        hyperdrive_run_config: The older name of `hyperdrive_config`.
    """

    def __init__(
        self,
        name: str | None = None,
        hyperdrive_config: Any = None,
        estimator_entry_script_arguments: Sequence[Any] | None = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        metrics_output: Any = None,
        allow_reuse: bool = True,
        version: str | None = None,
        hyperdrive_run_config: Any = None,
    ) -> None:
        from rayjobs.tuning.config import HyperDriveConfig

        if hyperdrive_run_config is not None:
            if hyperdrive_config is not None:
                raise UsageError(
                    "HyperDriveStep: hyperdrive_run_config is the older name of "
                    "hyperdrive_config; give one of them"
                )
            hyperdrive_config = hyperdrive_run_config
        if not isinstance(hyperdrive_config, HyperDriveConfig):
            raise UsageError(
                f"HyperDriveStep: hyperdrive_config is a {type(hyperdrive_config).__name__}; give "
                f"a HyperDriveConfig"
            )
        base = hyperdrive_config.base
        if hasattr(base, "to_script_run_config"):
            base = base.to_script_run_config()
        if not isinstance(base, ScriptRunConfig):
            raise UsageError(
                f"HyperDriveStep: a {type(base).__name__} cannot be swept; give "
                f"run_config=ScriptRunConfig(...) or an estimator"
            )
        given = estimator_entry_script_arguments
        listed = [*(outputs or ()), *([] if metrics_output is None else [metrics_output])]
        super().__init__(
            name or "hyperdrive",
            [*base.inputs, *(inputs or ())],
            listed,
            arguments=base.arguments if given is None else given,
            allow_reuse=allow_reuse,
            version=version,
        )
        self._config = hyperdrive_config
        self._base = base
        self._metrics_output = metrics_output
        self._settings = settings_of(base, None)

    def build(self, building: Building) -> StepSpec:
        """See `StepBase.build`."""
        data = self._gather(building)
        job = self._job(
            building,
            data,
            self._settings,
            source_directory=self._base.source_directory,
            script=self._base.script,
            resume_from=self._base.resume_from,
        )
        results = {}
        for one in self.outputs:
            what = self._result(one)
            if what is not None:
                fields = data.outputs.pop(one._output_name)
                results[one._output_name] = {"what": what, "destination": fields["destination"]}
        sweep = self._config.sweep_spec({"script": self._base.script}, name="sweep")
        definition = sweep.model_dump(mode="json", exclude={"job", "name"})
        if self._config.hyperparameter_sampling.is_seed_drawn:
            # Each run draws its own: a seed drawn here would make every program's step differ.
            del definition["sampling"]["seed"]
        definition["results"] = results
        return self._spec(building, data, job, sweep=SweepPart(definition=definition))

    def _result(self, output: Any) -> str | None:
        """Return the result of the sweep for an output; None if it comes from the best trial."""
        if not isinstance(output, PipelineData):
            return None
        if output._training_output is not None:
            return output._training_output.result
        return "metrics" if output is self._metrics_output else None


def _refuse(name: str, instead: str) -> NoReturn:
    raise UsageError(f"rayjobs has no {name}: {instead}")


class ModuleStep(StepBase):
    """Not supported: modules exist only in Azure's service."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse.

        Raises:
            UsageError: always.
        """
        _refuse("ModuleStep", "use PythonScriptStep with the module's script and source directory")

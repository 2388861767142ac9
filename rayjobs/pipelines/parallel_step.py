"""ParallelRunStep: runs a script over all files or rows of its inputs, in mini-batches.

Signatures: ``azureml.pipeline.steps`` 1.62 (ParallelRunConfig, ParallelRunStep).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayjobs.api.configs import RunConfiguration
from rayjobs.core.errors import Problem, SpecError, UsageError
from rayjobs.core.numbers import is_number, is_whole
from rayjobs.datastore.outputs import OutputFileDatasetConfig
from rayjobs.injob.parallel_settings import table_bytes_of
from rayjobs.pipelines.data import PipelineData, PipelineParameter, default_of
from rayjobs.pipelines.spec import StepSpec
from rayjobs.pipelines.step_data import Building
from rayjobs.pipelines.steps import ScriptStep, settings_of

OUTPUT_ACTIONS = ("append_row", "summary_only")
LEVELS = ("DEBUG", "INFO", "WARNING")
# Azure ML's rule: 3 to 32 characters.
STEP_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{1,30}[a-z0-9]$")


class ParallelRunConfig:
    """How to run a script over many items.

    Args:
        environment: The script's environment; None means the target's own Python.
        entry_script: The script, with `init()` and `run(mini_batch)`, relative to
            `source_directory`.
        error_threshold: How many items (files, or rows of a table) of the whole input may fail
            before the step fails; -1 means any number.
        output_action: ``append_row``: the results of `run` become the rows of one file.
            ``summary_only``: they are only counted, and the script stores its own results.
        compute_target: Its target.
        node_count: Nodes.
        process_count_per_node: Processes on each node; None means one.
        mini_batch_size: Files per mini-batch (default: 10), or the approximate bytes of a table:
            ``1024``, ``10KB``, ``10MB``, ``1GB`` (default: 1MB).
        source_directory: Folder with the script; None means the pipeline's default.
        description: Accepted but unused.
        logging_level: ``DEBUG``, ``INFO`` or ``WARNING``.
        run_invocation_timeout: Time limit of one call of `run`, in seconds.
        run_max_try: Number of tries for a mini-batch that fails or takes too long.
        append_row_file_name: The name of the file of rows.
        **kwargs: allowed_failed_count: number of mini-batches that may fail (default: any);
            allowed_failed_percent: percentage of mini-batches that may fail. Both, and
            `error_threshold`, may be a PipelineParameter, whose value is checked for each run.

    Raises:
        SpecError: an argument is wrong; lists all problems.
    """

    def __init__(
        self,
        environment: Any = None,
        entry_script: str | None = None,
        error_threshold: Any = None,
        output_action: str | None = None,
        compute_target: Any = None,
        node_count: Any = None,
        process_count_per_node: Any = None,
        mini_batch_size: Any = None,
        source_directory: str | Path | None = None,
        description: str | None = None,
        logging_level: Any = "INFO",
        run_invocation_timeout: Any = 60,
        run_max_try: Any = 3,
        append_row_file_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        partition_keys = kwargs.pop("partition_keys", None)
        allowed_failed_count = kwargs.pop("allowed_failed_count", None)
        allowed_failed_percent = kwargs.pop("allowed_failed_percent", None)
        required = {
            "entry_script": entry_script,
            "error_threshold": error_threshold,
            "output_action": output_action,
            "compute_target": compute_target,
            "node_count": node_count,
        }
        problems = [
            Problem(key, "is missing.", f"ParallelRunConfig needs it: {key}=...")
            for key, value in required.items()
            if value is None
        ]
        problems += [
            Problem(key, "is not an argument of ParallelRunConfig.", "Remove it.") for key in kwargs
        ]
        if partition_keys is not None:
            problems.append(
                Problem(
                    "partition_keys",
                    "is not supported: mini-batches are made by size.",
                    "Leave it out, and group the items in the script.",
                )
            )
        problems += _wrong(
            error_threshold=(error_threshold, -1),
            node_count=(node_count, 1),
            process_count_per_node=(process_count_per_node, 1),
            run_max_try=(run_max_try, 1),
            run_invocation_timeout=(run_invocation_timeout, 1),
            allowed_failed_count=(allowed_failed_count, 0),
        )
        percent = default_of(allowed_failed_percent)
        if percent is not None and not (is_number(percent) and 0 <= percent <= 100):
            problems.append(
                Problem("allowed_failed_percent", f"{percent!r:.80} is not a number from 0 to 100.")
            )
        for key, value, known in (
            ("output_action", output_action, OUTPUT_ACTIONS),
            ("logging_level", default_of(logging_level), LEVELS),
        ):
            if value is not None and value not in known:
                problems.append(
                    Problem(key, f"{value!r:.80} is not valid.", f"Use: {', '.join(known)}.")
                )
        if mini_batch_size is not None and not _is_size(default_of(mini_batch_size)):
            problems.append(
                Problem(
                    "mini_batch_size",
                    f"{default_of(mini_batch_size)!r:.80} is not a size.",
                    "Give a number of files, or bytes of a table such as 10MB.",
                )
            )
        if problems:
            raise SpecError(problems=problems)
        self.environment = environment
        self.entry_script = entry_script
        self.error_threshold = error_threshold
        self.output_action = output_action
        self.compute_target = compute_target
        self.node_count = node_count
        self.process_count_per_node = process_count_per_node
        self.mini_batch_size = mini_batch_size
        self.source_directory = None if source_directory is None else str(source_directory)
        self.description = description
        self.logging_level = logging_level
        self.run_invocation_timeout = run_invocation_timeout
        self.run_max_try = run_max_try
        self.append_row_file_name = append_row_file_name
        self.allowed_failed_count = allowed_failed_count
        self.allowed_failed_percent = allowed_failed_percent


class ParallelRunStep(ScriptStep):
    """A step that runs a script over all files or rows of its inputs.

    One process runs each mini-batch; if it dies, another one runs the mini-batch again. The rows of
    ``append_row`` are in the order of the mini-batches: by input as listed, then by file name.

    Args:
        name: The step's name: 3 to 32 lowercase letters, digits, ``_`` and ``-``.
        parallel_run_config: How to run the script.
        inputs: The data to split into mini-batches.
        output: Destination of the rows; with ``summary_only``, a folder for the script.
        side_inputs: Data that every call can read completely.
        arguments: The script's arguments; `init()` finds them in `sys.argv`.
        allow_reuse: Reuse the results of an earlier run if nothing has changed.

    Raises:
        UsageError: an argument is wrong.
    """

    def __init__(
        self,
        name: str,
        parallel_run_config: Any,
        inputs: Sequence[Any],
        output: Any = None,
        side_inputs: Sequence[Any] | None = None,
        arguments: Sequence[Any] | None = None,
        allow_reuse: bool = True,
    ) -> None:
        if not isinstance(name, str) or STEP_NAME.match(name) is None:
            raise UsageError(
                f"the name of a ParallelRunStep is {name!r}; use 3 to 32 lowercase letters, "
                f"digits, '_' and '-', with a letter or a digit at both ends"
            )
        if not isinstance(parallel_run_config, ParallelRunConfig):
            raise UsageError(
                f"parallel_run_config is a {type(parallel_run_config).__name__}; give a "
                f"ParallelRunConfig"
            )
        if not isinstance(inputs, list | tuple) or not inputs:
            raise UsageError(f"inputs is {inputs!r:.80}; give a list with at least one input")
        if output is not None and not isinstance(output, PipelineData | OutputFileDatasetConfig):
            raise UsageError(
                f"output is a {type(output).__name__}; give a PipelineData or an "
                f"OutputFileDatasetConfig"
            )
        if output is None and parallel_run_config.output_action == "append_row":
            raise UsageError("output_action is 'append_row', so the step needs an output")
        if isinstance(output, PipelineData) and output._is_directory is None:
            output._is_directory = True
        super().__init__(
            name,
            [*inputs, *(side_inputs or ())],
            [] if output is None else [output],
            arguments=arguments,
            allow_reuse=allow_reuse,
        )
        self._handed_out = list(inputs)
        self._config = parallel_run_config
        settings = RunConfiguration()
        settings.environment = parallel_run_config.environment or settings.environment
        self._settings = settings_of(settings, parallel_run_config.compute_target)

    def build(self, building: Building) -> StepSpec:
        """See `StepBase.build`."""
        config = self._config
        data = self._gather(building)
        (output,) = data.outputs or (None,)
        job = self._job(
            building,
            data,
            copy.copy(self._settings),
            source_directory=config.source_directory,
            script=config.entry_script,
        )
        job["parallel_run"] = {
            "inputs": [data.add(one) for one in self._handed_out],
            "output": output,
            "error_threshold": _stored(config.error_threshold, building),
            "output_action": config.output_action,
            "run_invocation_timeout_s": _stored(config.run_invocation_timeout, building),
            "run_max_try": _stored(config.run_max_try, building),
            "allowed_failed_count": _stored(config.allowed_failed_count, building),
            "allowed_failed_percent": _stored(config.allowed_failed_percent, building),
            "logging_level": _stored(config.logging_level, building),
        }
        if config.mini_batch_size is not None:
            job["parallel_run"]["mini_batch_size"] = _stored(config.mini_batch_size, building)
        if config.append_row_file_name is not None:
            job["parallel_run"]["append_row_file_name"] = config.append_row_file_name
        nodes, processes = config.node_count, config.process_count_per_node or 1
        is_one = nodes == processes == 1
        job["distribution"] = {
            "nodes": _stored(nodes, building),
            "processes_per_node": _stored(processes, building),
            "backend": "none" if is_one else "gloo",
        }
        return self._spec(building, data, job)


def _stored(value: Any, building: Building) -> Any:
    return building.parameter(value) if isinstance(value, PipelineParameter) else value


def _is_size(value: Any) -> bool:
    try:
        return table_bytes_of(value) >= 1
    except ValueError:
        return False


def _wrong(**counts: tuple[Any, int]) -> list[Problem]:
    return [
        Problem(key, f"{default_of(value)!r:.80} is not a whole number, {least} or more.")
        for key, (value, least) in counts.items()
        if value is not None and not is_whole(default_of(value), at_least=least)
    ]

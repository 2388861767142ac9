"""The classes of runs as a script sees them: ``Run.get_context()`` and all logging calls.

Signatures follow Azure ML SDK v1 (``azureml.core.Run``).
"""

from __future__ import annotations

import json
import warnings
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Type, TypeVar

from rayjobs.injob import log_values, model_requests
from rayjobs.injob.azureml.exceptions import (
    RunEnvironmentException,
    WrongTypeError,
    WrongValueError,
)
from rayjobs.injob.metrics_file import combine


class RunNotSupportedError(RuntimeError, RunEnvironmentException):
    """The call is invalid here or not supported; the message says what to do."""


class Run:
    """A run: a script logs to it; outside jobs it is a handle to a submitted job.

    Inside a job ``Run.get_context()`` needs only the standard library. Logged values appear in
    ``rayjobs metrics ID`` while the job runs.
    """

    # Set by rayjobs.api.run_context: makes the handle for ``Run(experiment, run_id)``.
    _handle: Optional[Callable[..., Type["Run"]]] = None
    # Set by rayjobs.injob.run, which knows the kinds of runs: returns the run of this process.
    _context: Callable[[bool], "LoggingRun"]

    id: str

    def __new__(cls, *args: Any, **kwargs: Any) -> "Run":
        """Make ``Run(experiment, run_id)`` a handle to that job."""
        if cls is Run:
            if Run._handle is None or not (args or kwargs):
                raise TypeError(
                    "do not create a Run directly: inside a job call Run.get_context(); "
                    "elsewhere Run(experiment, run_id)"
                )
            return object.__new__(Run._handle(*args, **kwargs))
        return object.__new__(cls)

    # -- context ------------------------------------------------------------------------
    @classmethod
    def get_context(cls, allow_offline: bool = True, **kwargs: Any) -> "LoggingRun":
        """Return the run of the job that this process belongs to.

        Outside jobs: one run per process that prints what it logs and keeps it in memory; with
        ``allow_offline=False`` an error.

        Raises:
            RunNotSupportedError: this process is not part of a job, and `allow_offline` is False.
        """
        return Run._context(allow_offline)

    @staticmethod
    def get(workspace: Any, run_id: str) -> Any:
        """Return the handle of a run by its id; not inside a job."""
        return _handle_class().get(workspace, run_id)

    @staticmethod
    def list(experiment: Any, **filters: Any) -> Any:
        """Yield the handles of an experiment's runs, newest first; not inside a job."""
        return _handle_class().list(experiment, **filters)

    @staticmethod
    def list_by_compute(
        compute: Any,
        type: Optional[str] = None,
        tags: Any = None,
        properties: Any = None,
        status: Optional[str] = None,
    ) -> Any:
        """Yield the unfinished runs of a compute target; not inside a job."""
        return _handle_class().list_by_compute(compute, type, tags, properties, status)

    @staticmethod
    def add_type_provider(runtype: str, run_factory: Callable[..., Any]) -> None:
        """Register a factory for the handles of all runs of a type; not inside a job."""
        _handle_class().add_type_provider(runtype, run_factory)

    @classmethod
    def get_submitted_run(cls, **kwargs: Any) -> "LoggingRun":
        """Return ``get_context(allow_offline=False)`` (the older name)."""
        return cls.get_context(allow_offline=False)


AnyRun = TypeVar("AnyRun", bound="LoggingRun")


class LoggingRun(Run):
    """The logging calls of a run; subclasses store them in `_put` and `_keep_image`."""

    type = "azureml.scriptrun"

    def __init__(self, run_id: str) -> None:
        """Make the run called `run_id`."""
        self.id = run_id
        self._tags: Dict[str, Optional[str]] = {}
        self._properties: Dict[str, str] = {}

    def _put(self, kind: str, name: str, value: Any, step: Optional[int] = None) -> None:
        raise NotImplementedError

    def heartbeat(self) -> None:
        """Signal that the script is alive, for ``--stall-timeout``, while it logs nothing.

        A heartbeat of one rank is enough for the whole job. Outside a job it does nothing.
        """

    # -- metrics ---------------------------------------------------------------------------
    def log(self, name: str, value: Any, description: str = "", step: Optional[int] = None) -> None:
        """Log one number (or text) under `name`; call it again for the next value.

        `value` may be a scalar of numpy or torch; NaN and infinities are kept. A full or lost disk
        raises no error; the first loss is reported on stderr.

        Raises:
            TypeError: `value` is a list, range, generator, mapping, bytes or None, or `step` is not
                a whole number.
            ValueError: the name or a text is too long.
        """
        self._put(
            "metric",
            log_values.name_of(name),
            log_values.scalar_of(value, "the value"),
            log_values.step_of(step),
        )

    def log_list(self, name: str, value: Iterable[Any], description: str = "") -> None:
        """Log a list of numbers at once."""
        self._put("list", log_values.name_of(name), log_values.list_of(value, "the list"))

    def log_row(self, name: str, description: Optional[str] = None, **kwargs: Any) -> None:
        """Log one row of named columns: ``log_row("fit", x=1, y=2.5)``."""
        self._put("row", log_values.name_of(name), log_values.row_of(kwargs, "the row"))

    def log_table(self, name: str, value: Mapping[str, Any], description: str = "") -> None:
        """Log a table: column name → a scalar, or a list; all lists have the same length."""
        self._put("table", log_values.name_of(name), log_values.table_of(value, "the table"))

    def log_image(
        self, name: str, path: Optional[str] = None, plot: Any = None, description: str = ""
    ) -> None:
        """Log an image file, or a figure of matplotlib (anything with ``savefig``).

        Raises:
            TypeError: neither or both of `path` and `plot` were given.
        """
        name = log_values.name_of(name)
        if (path is None) == (plot is None):
            raise WrongTypeError("log_image takes either path= or plot=")
        self._put("image", name, self._keep_image(name, path, plot))

    def _keep_image(self, name: str, path: Optional[str], plot: Any) -> str:
        raise NotImplementedError

    def log_confusion_matrix(self, name: str, value: Any, description: str = "") -> None:
        """Log a confusion matrix (a dict or JSON text with schema_type, version and data)."""
        self._chart(name, value, "confusion_matrix")

    def log_accuracy_table(self, name: str, value: Any, description: str = "") -> None:
        """Log an accuracy table (as `log_confusion_matrix`)."""
        self._chart(name, value, "accuracy_table")

    def log_residuals(self, name: str, value: Any, description: str = "") -> None:
        """Log residuals (as `log_confusion_matrix`)."""
        self._chart(name, value, "residuals")

    def log_predictions(self, name: str, value: Any, description: str = "") -> None:
        """Log predictions (as `log_confusion_matrix`)."""
        self._chart(name, value, "predictions")

    def _chart(self, name: str, value: Any, what: str) -> None:
        if isinstance(value, str):
            value = json.loads(value)
        if not isinstance(value, Mapping):
            raise WrongTypeError("log_%s takes a dict or its JSON text" % what)
        self._put("chart", log_values.name_of(name), log_values.json_of(value, "the value"))

    def flush(self, timeout_seconds: float = 300) -> None:
        """Do nothing: every call writes its record before it returns."""

    def get_metrics(
        self,
        name: Optional[str] = None,
        recursive: bool = False,
        run_type: Optional[str] = None,
        populate: bool = False,
    ) -> Dict[str, Any]:
        """Return the logged values: a scalar if logged once, else a list; rows as columns."""
        pairs = [pair for pair in self._logged() if name is None or pair[0] == name]
        return combine(pairs)

    def _logged(self) -> List[Tuple[str, Any]]:
        raise NotImplementedError

    # -- tags and properties -----------------------------------------------------------------
    @property
    def tags(self) -> Dict[str, Optional[str]]:
        """The run's tags as far as this process knows them."""
        return self.get_tags()

    @property
    def properties(self) -> Dict[str, str]:
        """The run's properties as far as this process knows them."""
        return self.get_properties()

    def get_tags(self) -> Dict[str, Optional[str]]:
        """Return the tags that this process has set; a tag without a value is None."""
        return dict(self._tags)

    def get_properties(self) -> Dict[str, str]:
        """Return the properties that this process has added."""
        return dict(self._properties)

    def tag(self, key: str, value: Any = None) -> None:
        """Set one tag; a tag without a value is only a label."""
        key = log_values.name_of(key)
        text = "" if value is None else str(log_values.scalar_of(value, "the tag's value"))
        self._put("tag", key, text)
        self._tags[key] = text or None

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set several tags."""
        for key, value in tags.items():
            self.tag(key, value)

    def remove_tags(self, tags: Iterable[str]) -> Dict[str, Optional[str]]:
        """Remove tags by key; return the remaining ones."""
        for key in [tags] if isinstance(tags, str) else tags:
            self._put("tag", log_values.name_of(key), None)
            self._tags.pop(key, None)
        return self.get_tags()

    def add_properties(self, properties: Mapping[str, Any]) -> None:
        """Add properties; an existing one keeps its value.

        Raises:
            ValueError: a key already has another value.
        """
        ready = {}
        for key, value in properties.items():
            text = str(log_values.scalar_of(value, "the property's value"))
            known = self._properties.get(log_values.name_of(key))
            if known is not None and known != text:
                raise WrongValueError(
                    "the property %r is %r and cannot be changed to %r; properties can only be "
                    "added; use a tag for changing values" % (key, known, text)
                )
            ready[key] = text
        for key, text in ready.items():
            self._put("property", key, text)
            self._properties[key] = text

    # -- end ---------------------------------------------------------------------------------
    def __enter__(self: "AnyRun") -> "AnyRun":
        """Return the run."""
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        """End the run, if the script can end it; ``SystemExit(0)`` is not an error."""
        is_exit = isinstance(error, SystemExit) and error.code in (None, 0)
        self._leave(None if is_exit else error)

    def _leave(self, error: Optional[BaseException]) -> None:
        """Do nothing: a submitted run ends with its script."""

    def start(self) -> None:
        """Do nothing: the run has started."""

    def complete(self, **kwargs: Any) -> None:
        """Do nothing to a submitted run: it is complete when its script exits with 0."""

    def fail(self, error_details: Any = None, error_code: Any = None, **kwargs: Any) -> None:
        """Mark the job as Failed once its script ends, even with exit code 0."""
        text = str(error_details if error_details is not None else error_code or "")
        self._put("fail", "error", text[: log_values.MAX_TEXT])

    def cancel(self) -> None:
        """Warn that a script must end itself."""
        warnings.warn(
            "a run cannot cancel itself; it continues. Leave the script with sys.exit(), or use "
            "`rayjobs cancel`",
            stacklevel=2,
        )

    # -- models ------------------------------------------------------------------------------
    def register_model(
        self,
        model_name: str,
        model_path: Optional[str] = None,
        tags: Optional[Mapping[str, Any]] = None,
        properties: Optional[Mapping[str, Any]] = None,
        model_framework: Optional[str] = None,
        model_framework_version: Optional[str] = None,
        description: Optional[str] = None,
        datasets: Any = None,
        sample_input_dataset: Any = None,
        sample_output_dataset: Any = None,
        resource_configuration: Any = None,
        **kwargs: Any,
    ) -> model_requests.ModelRequest:
        """Request that a file or folder become a model's next version when the run completes.

        The file's content at the run's end counts. A run that does not complete registers nothing.
        A second request with the same name and path replaces the first.

        Args:
            model_path: A file or folder below ``outputs/``, or one that was uploaded; None takes
                the model's name.
            datasets: Pairs of purpose and registered dataset, stored in the lineage in addition to
                the run's inputs.
            sample_input_dataset: Stored in the lineage, as is `sample_output_dataset`.
            resource_configuration: Resources for a deployment; stored in the lineage as text.
            kwargs: None are accepted.

        Returns:
            The request; its version is None until the run has completed.

        Raises:
            FileNotFoundError: there is no such file or folder yet.
            TypeError: an argument is of the wrong kind, or unknown.
            ValueError: the model's name is not valid, a dataset is not registered, or the run will
                not store that path.
            OSError: the request could not be written.
        """
        if kwargs:
            raise WrongTypeError("register_model does not accept %s" % ", ".join(sorted(kwargs)))
        name = model_requests.name_of(model_name)
        record = model_requests.record_of(
            name,
            self._model_path(name if model_path is None else model_path),
            tags=tags,
            properties=properties,
            description=description,
            framework=(model_framework, model_framework_version),
            datasets=model_requests.datasets_of(
                datasets, sample_input=sample_input_dataset, sample_output=sample_output_dataset
            ),
            resources=resource_configuration,
        )
        self._ask_for_model(record)
        return model_requests.ModelRequest(self.id, record)

    def _model_path(self, path: Any) -> str:
        raise NotImplementedError

    def _ask_for_model(self, record: model_requests.ModelRecord) -> None:
        raise NotImplementedError


def _handle_class() -> Any:
    if Run._handle is None:
        raise RunNotSupportedError("import Run from rayjobs itself, not from one of its modules")
    return Run._handle()

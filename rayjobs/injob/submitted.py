"""The run of the job that this process belongs to: its records are lines of one local file."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from rayjobs.injob import log_values, model_requests
from rayjobs.injob.attempt_runs import AttemptRun, refuse_datastore
from rayjobs.injob.attempt_workspace import RunExperiment, RunWorkspace
from rayjobs.injob.channel import Channel, own_channel
from rayjobs.injob.inputs import InputDatasets, read_record
from rayjobs.injob.metrics_file import (
    METRIC_KINDS,
    NUMBER_LINE,
    Appender,
    LoggedRecord,
    combine,
    read_all,
    stored_value,
)
from rayjobs.injob.run_token import has_token
from rayjobs.injob.uploads import UploadArea, clean_name, paired


class SubmittedRun(AttemptRun):
    """The run of the job that this process belongs to."""

    def __init__(self, run_id: str, metrics_dir: str, rank: int) -> None:
        """Make the run whose records go to `metrics_dir`."""
        super().__init__(run_id)
        environment = os.environ
        self.rank = rank
        self.attempt = int(environment.get("RAYJOBS_ATTEMPT") or 1)
        self.experiment = RunExperiment(environment.get("RAYJOBS_EXPERIMENT", ""), open_workspace)
        self._metrics_dir = metrics_dir
        root = environment.get("RAYJOBS_ATTEMPT_DIR") or os.path.dirname(metrics_dir)
        record = read_record(root)
        self.input_datasets: Mapping[str, Any] = (
            InputDatasets(record.inputs)
            if record is not None
            else paths_by_name("AZUREML_DATAREFERENCE_", "RAYJOBS_INPUT_")
        )
        self.output_datasets: Dict[str, str] = {
            name: entry.path for name, entry in (record.outputs if record else {}).items()
        }
        self._area = UploadArea(os.path.join(root, "uploads"))
        self._file = Appender(os.path.join(metrics_dir, "rank-%d.jsonl" % rank))
        self._names: Dict[str, str] = {}
        self._removed: Set[str] = set()  # tags that this process removed
        self._models_file = os.path.join(root, "models", "rank-%d.jsonl" % rank)
        self._models: Set[Tuple[str, str]] = set()

    def _channel(self) -> Channel:
        return own_channel()

    @property
    def status(self) -> str:
        """``Running``."""
        return "Running"

    def get_status(self) -> str:
        """Return ``Running``."""
        return "Running"

    def log(self, name: str, value: Any, description: str = "", step: Optional[int] = None) -> None:
        """Log one number (or text) under `name`, see `LoggingRun.log`."""
        # The common case without json.dumps, in a third of its time.
        if type(value) is float and value - value == 0.0 and (step is None or type(step) is int):
            shown = self._names.get(name) if type(name) is str else None
            if shown is None:
                name = log_values.name_of(name)
                shown = json.dumps(name)
                if len(self._names) < 10000:
                    self._names[name] = shown
            log_values.step_of(step)
            line = NUMBER_LINE % (shown, value, "null" if step is None else step, time.time())
            self._file.append(line.encode("ascii"))
            return
        super().log(name, value, description, step)

    def heartbeat(self) -> None:
        """See `LoggingRun.heartbeat`."""
        self._file.touch()

    def _put(self, kind: str, name: str, value: Any, step: Optional[int] = None) -> None:
        line = LoggedRecord(kind, value, name, step, time.time()).line()
        if len(line) > log_values.MAX_RECORD:
            raise ValueError(
                "the record %r has %d bytes; %d are allowed. Write it to a file below outputs/, "
                "or log it in parts" % (name, len(line), log_values.MAX_RECORD)
            )
        self._file.append(line)

    def _own_metrics(self, name: Optional[str]) -> Dict[str, Any]:
        # Everything that this process has logged, including values not stored yet.
        return combine(pair for pair in self._logged() if name is None or pair[0] == name)

    def get_tags(self) -> Dict[str, Optional[str]]:
        """Return the run's tags, including this process's changes.

        A process without the attempt's token knows only the tags that it has set itself.
        """
        known = self._facts().tags if has_token() else {}
        stored = {key: value or None for key, value in known.items()}
        left = {key: one for key, one in stored.items() if key not in self._removed}
        return {**left, **self._tags}

    def tag(self, key: str, value: Any = None) -> None:
        """Set one tag; a tag without a value is only a label."""
        super().tag(key, value)
        self._removed.discard(key)

    def remove_tags(self, tags: Iterable[str]) -> Dict[str, Optional[str]]:
        """Remove tags by key; return the remaining ones."""
        keys = [tags] if isinstance(tags, str) else list(tags)
        self._removed.update(keys)
        return super().remove_tags(keys)

    def get_properties(self) -> Dict[str, str]:
        """Return the run's properties, including those that this process has added.

        A process without the attempt's token knows only the properties that it has added itself.
        """
        known = self._facts().properties if has_token() else {}
        return {**known, **self._properties}

    def _logged(self) -> List[Tuple[str, Any]]:
        return [
            (record.name, stored_value(record.kind, record.value))
            for record in read_all(self._file.path)
            if record.kind in METRIC_KINDS and record.name is not None
        ]

    # -- files -------------------------------------------------------------------------------
    def upload_file(
        self, name: str, path_or_stream: Any, datastore_name: Optional[str] = None
    ) -> str:
        """Store a file (path or binary stream) with the run under `name`; return the name.

        Raises:
            FileExistsError: a file of this name was already uploaded.
            ValueError: `name` leads out of the run.
            OSError: the file cannot be read, or there is no space for its copy.
        """
        refuse_datastore(datastore_name)
        stored = self._area.add(name, path_or_stream)
        self._put("upload", stored, None)
        return stored

    def upload_files(
        self,
        names: Iterable[str],
        paths: Iterable[str],
        return_artifacts: bool = False,
        timeout_seconds: Optional[float] = None,
        datastore_name: Optional[str] = None,
    ) -> List[str]:
        """Store several files, see `upload_file`; all copies exist when this returns."""
        refuse_datastore(datastore_name)
        return [self.upload_file(name, path) for name, path in paired(names, paths)]

    def upload_folder(
        self, name: str, path: str, datastore_name: Optional[str] = None
    ) -> List[str]:
        """Store all files below a folder under `name`/…; return their names."""
        refuse_datastore(datastore_name)
        if not os.path.isdir(path):
            raise NotADirectoryError("%s is not a folder" % path)
        stored = []
        for relative, full in self._area.files_below(path):
            stored.append(self.upload_file("%s/%s" % (name.rstrip("/"), relative), full))
        return stored

    def get_file_names(self) -> List[str]:
        """Return the names of the run's files: those uploaded here, those stored, and logs."""
        stored = super().get_file_names() if has_token() else []
        return sorted({*self._area.names(), *stored})

    def download_file(self, name: str, output_file_path: Any = None) -> None:
        """Write one of the run's files to `output_file_path`; see `AttemptRun.download_file`."""
        here = os.path.join(self._area.root, *clean_name(name).split("/"))
        if not os.path.isfile(here):
            super().download_file(name, output_file_path)
            return
        target = os.fspath(output_file_path or os.path.basename(name))
        if os.path.isdir(target) or target.endswith("/"):
            target = os.path.join(target, os.path.basename(name))
        os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
        shutil.copyfile(here, target)

    def _keep_image(self, name: str, path: Optional[str], plot: Any) -> str:
        try:
            return self._area.add_image(name, path, plot)
        except OSError as exc:
            self._file.dropped += 1
            self._file.warn(exc)
            return ""

    def _get_outputs_datapath(self) -> str:
        return os.environ.get("RAYJOBS_OUTPUTS", os.path.abspath("outputs"))

    # -- models ------------------------------------------------------------------------------
    def _model_path(self, path: Any) -> str:
        return model_requests.find(path, self._get_outputs_datapath(), self._area.names())

    def _ask_for_model(self, record: model_requests.ModelRecord) -> None:
        key = (record.name, record.path)
        if key not in self._models and len(self._models) >= model_requests.MOST_MODELS:
            raise ValueError(
                "this run has already requested %d models, the largest number allowed; register "
                "whole folders, or register the rest later with `rayjobs model register`"
                % model_requests.MOST_MODELS
            )
        model_requests.append(self._models_file, record)
        self._models.add(key)


def open_workspace() -> Any:
    """Return the workspace of this process's job: a `rayjobs.Workspace` if it can be imported.

    Otherwise, and always without the attempt's token, a `RunWorkspace`, which needs only the
    standard library. Without the token, it knows only its name and refuses all calls.
    """
    if not has_token():
        return RunWorkspace(os.environ.get("RAYJOBS_WORKSPACE_NAME", ""))
    channel = own_channel()
    basic = RunWorkspace(os.environ.get("RAYJOBS_WORKSPACE_NAME", ""), channel)
    if sys.version_info < (3, 11):
        return basic
    try:
        # Imported on use: by default a job's code needs only the standard library.
        module = importlib.import_module("rayjobs.api.attempt_workspace")
    except ImportError:
        return basic
    return module.workspace_of(channel)


def paths_by_name(by_name: str, by_upper: str) -> Dict[str, str]:
    """Return the job's inputs (name → path) from the variables that begin with a prefix."""
    found = {
        name[len(by_name) :]: value
        for name, value in os.environ.items()
        if name.startswith(by_name) and len(name) > len(by_name)
    }
    known = {"".join(c if c.isalnum() else "_" for c in name).upper() for name in found}
    for name, value in os.environ.items():
        short = name[len(by_upper) :]
        if name.startswith(by_upper) and short and short.upper() not in known:
            found[short] = value
    return found

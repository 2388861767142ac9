"""The run of a script outside any job: it prints what it logs, and keeps it in memory."""

from __future__ import annotations

import os
import shutil
import uuid
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from rayjobs.injob import model_requests
from rayjobs.injob.attempt_runs import children_tags
from rayjobs.injob.attempt_workspace import RunExperiment, RunWorkspace
from rayjobs.injob.log_values import number_of
from rayjobs.injob.logging_run import LoggingRun
from rayjobs.injob.metrics_file import METRIC_KINDS, stored_value
from rayjobs.injob.submitted import paths_by_name
from rayjobs.injob.uploads import UploadArea, clean_name, paired


class OfflineRun(LoggingRun):
    """A run without a job: the whole API, in this process's memory."""

    def __init__(self, parent: Optional["OfflineRun"] = None, name: Optional[str] = None) -> None:
        """Make a run called ``OfflineRun_<uuid>``."""
        super().__init__("OfflineRun_%s" % uuid.uuid4())
        self.parent = parent
        self.name = name or self.id
        self.status = "Running"
        self.display_name = self.name
        self.description = ""
        self.number = 0
        self.experiment = RunExperiment("offline", RunWorkspace("offline"))
        self.input_datasets = paths_by_name("AZUREML_DATAREFERENCE_", "RAYJOBS_INPUT_")
        self.output_datasets: Dict[str, str] = {}
        self.children: List["OfflineRun"] = []
        self._records: List[Tuple[str, Any]] = []
        self._files: Dict[str, str] = {}

    def _put(self, kind: str, name: str, value: Any, step: Optional[int] = None) -> None:
        at = "" if step is None else " (step %d)" % step
        if kind in METRIC_KINDS:
            self._records.append((name, stored_value(kind, value)))
            print("%s: %s%s" % (name, _short(number_of(value)), at))
        else:
            print("%s %s: %s" % (kind, name, _short(value)))

    def _logged(self) -> List[Tuple[str, Any]]:
        return list(self._records)

    def get_status(self) -> str:
        """Return ``Running``, ``Completed``, ``Failed`` or ``Canceled``."""
        return self.status

    # -- files -------------------------------------------------------------------------------
    def upload_file(self, name: str, path_or_stream: Any, **kwargs: Any) -> str:
        """Record a file under `name`; it is not copied, since there is no job to store it with."""
        stored = clean_name(name)
        if stored in self._files:
            raise FileExistsError("the run already has a file %r" % stored)
        is_stream = hasattr(path_or_stream, "read")
        path = "" if is_stream else os.path.abspath(os.fspath(path_or_stream))
        if path and not os.path.isfile(path):
            raise FileNotFoundError("there is no file %s to upload" % path)
        self._files[stored] = path
        print("upload %s: %s" % (stored, path or "a stream"))
        return stored

    def upload_files(self, names: Iterable[str], paths: Iterable[str], **kwargs: Any) -> List[str]:
        """Record several files, see `upload_file`."""
        return [self.upload_file(name, path) for name, path in paired(names, paths)]

    def upload_folder(self, name: str, path: str, **kwargs: Any) -> List[str]:
        """Record all files below a folder."""
        if not os.path.isdir(path):
            raise NotADirectoryError("%s is not a folder" % path)
        return [
            self.upload_file("%s/%s" % (name.rstrip("/"), relative), full)
            for relative, full in UploadArea(path).files_below(path)
        ]

    def get_file_names(self) -> List[str]:
        """Return the names of the files recorded so far."""
        return sorted(self._files)

    def download_file(self, name: str, output_file_path: Optional[str] = None) -> None:
        """Copy a recorded file to `output_file_path`; None: its base name."""
        source = self._files.get(clean_name(name))
        if not source:
            raise FileNotFoundError(
                "the run has no file %r; it has: %s" % (name, ", ".join(self._files) or "none")
            )
        shutil.copyfile(source, output_file_path or os.path.basename(name))

    # -- models ------------------------------------------------------------------------------
    def _model_path(self, path: Any) -> str:
        return model_requests.find(path, os.path.abspath("outputs"), self._files)

    def _ask_for_model(self, record: model_requests.ModelRecord) -> None:
        print("model %s: %s (no job, so nothing is registered)" % (record.name, record.path))

    def _keep_image(self, name: str, path: Optional[str], plot: Any) -> str:
        return os.fspath(path) if path is not None else "a figure"

    # -- children and end --------------------------------------------------------------------
    def child_run(self, name: Any = None, run_id: Any = None, outputs: Any = None) -> "OfflineRun":
        """Return a new offline child run."""
        child = OfflineRun(self, name)
        self.children.append(child)
        return child

    def create_children(
        self,
        count: Optional[int] = None,
        tag_key: Optional[str] = None,
        tag_values: Optional[Iterable[Any]] = None,
    ) -> List["OfflineRun"]:
        """Return several new offline child runs, see `JobRun.create_children`."""
        made = []
        for key, value in children_tags(count, tag_key, tag_values):
            child = self.child_run()
            child._tags[key] = value
            made.append(child)
        return made

    def get_children(
        self,
        recursive: bool = False,
        tags: Any = None,
        properties: Any = None,
        type: Optional[str] = None,
        status: Optional[str] = None,
    ) -> List["OfflineRun"]:
        """Return the runs made by `child_run` that meet all filters."""
        found: List[OfflineRun] = []
        for child in self.children:
            if (
                type in (None, child.type)
                and status in (None, child.status)
                and _has(child.get_tags(), tags)
                and _has(child.get_properties(), properties)
            ):
                found.append(child)
            if recursive:
                found += child.get_children(True, tags, properties, type, status)
        return found

    def complete(self, **kwargs: Any) -> None:
        """Mark the run as completed."""
        self.status = "Completed"

    def fail(self, error_details: Any = None, error_code: Any = None, **kwargs: Any) -> None:
        """Mark the run as failed."""
        super().fail(error_details, error_code)
        self.status = "Failed"

    def cancel(self) -> None:
        """Mark the run as canceled."""
        self.status = "Canceled"

    def _leave(self, error: Optional[BaseException]) -> None:
        """Set Completed, or Failed after an error."""
        if error is None:
            self.complete()
        else:
            self.status = "Failed"


def _has(known: Mapping[str, Any], wanted: Any) -> bool:
    pairs = {wanted: None} if isinstance(wanted, str) else dict(wanted or {})
    return all(
        key in known and (value is None or known[key] == str(value)) for key, value in pairs.items()
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 500 else text[:500] + "…"

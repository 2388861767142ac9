"""Runs as a job's script sees them: its own run, and the child runs that it starts.

Every call goes through the node's agent (`channel`) and needs only the standard library.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
import warnings
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from rayjobs.injob import log_values, model_requests, run_calls
from rayjobs.injob.azureml.exceptions import WrongValueError
from rayjobs.injob.channel import Channel
from rayjobs.injob.logging_run import LoggingRun, RunNotSupportedError
from rayjobs.injob.metrics_file import METRIC_KINDS, combine
from rayjobs.injob.run_calls import Request, RunDetails, RunRecord, Value
from rayjobs.injob.secrets import secret_of
from rayjobs.injob.uploads import UploadArea, clean_name, paired

MOST_CHILDREN = 100  # children per call. Source: azureml-core 1.61, `Run.create_children`
ARTIFACT_STORE = "workspaceartifactstore"  # Azure ML's name for the storage of run files
FINAL = ("Completed", "Failed", "Canceled")


class AttemptRun(LoggingRun):
    """A run that a script reaches through its node's agent."""

    experiment: Any

    def _ask(self, request: Request[Value]) -> Value:
        return self._channel().call(request)

    def _channel(self) -> Channel:
        raise NotImplementedError

    # -- identity ----------------------------------------------------------------------------
    def _facts(self) -> RunDetails:
        return self._ask(run_calls.Details(self.id))

    @property
    def name(self) -> str:
        """The run's name."""
        return self._facts().name

    @property
    def number(self) -> int:
        """The run's number in the order of submission."""
        return self._facts().number

    @property
    def display_name(self) -> str:
        """The run's display name."""
        return self.name

    @display_name.setter
    def display_name(self, name: str) -> None:
        self._ask(run_calls.Change(self.id, display_name=str(name)))

    @property
    def description(self) -> str:
        """The run's description."""
        return self._facts().description

    @description.setter
    def description(self, text: str) -> None:
        self._ask(run_calls.Change(self.id, description=str(text)))

    @property
    def parent(self) -> "Optional[AttemptRun]":
        """The run that this one belongs to; None if it belongs to none."""
        parent = self._facts().parent
        return None if parent is None else self._run_of(self._ask(run_calls.Details(parent)))

    def _run_of(self, facts: RunRecord) -> "AttemptRun":
        return OtherRun(self._channel(), facts.id, self.experiment, facts.type)

    def get_details(self) -> Dict[str, Any]:
        """Return all details of the run, under Azure ML's keys."""
        return dict(self._facts().details)

    def get_details_with_logs(self) -> Dict[str, Any]:
        """Return `get_details` with the logs' text in place of their addresses."""
        found = self.get_details()
        found["logFiles"] = {name: self._text_of(name) for name in found["logFiles"]}
        return found

    def get_detailed_status(self) -> Dict[str, Any]:
        """Return the state with its reason."""
        facts = self._facts()
        return {"status": facts.status, "details": facts.reason}

    def get_portal_url(self) -> str:
        """Return the run's address: ``rayjobs://WORKSPACE/RUN``."""
        return "rayjobs://%s/%s" % (os.environ.get("RAYJOBS_WORKSPACE_NAME", ""), self.id)

    def get_snapshot_id(self) -> Optional[str]:
        """Return the id (the digest) of the run's snapshot; None if it has none."""
        return self._facts().snapshot

    def get_secret(self, name: str) -> str:
        """Return a secret that the job was given; see `secret_of`. Raises KeyError."""
        return secret_of(name)

    def get_secrets(self, secrets: Iterable[str]) -> Dict[str, str]:
        """Return several secrets by name. Raises KeyError."""
        return {name: secret_of(name) for name in secrets}

    def get_environment(self) -> Any:
        """Return the environment requested by the job's spec; needs rayjobs in the job's Python.

        Raises:
            RunNotSupportedError: the job's Python cannot import rayjobs.
        """
        return self._handle_here("get_environment").get_environment()

    def clean(self) -> List[str]:
        """Refuse: the files of a running job are in use.

        Raises:
            RunNotSupportedError: always.
        """
        raise RunNotSupportedError(
            "the files of a running job are in use; they are removed when it ends"
        )

    def wait_for_completion(
        self,
        show_output: bool = False,
        wait_post_processing: bool = False,
        raise_on_error: bool = True,
    ) -> Dict[str, Any]:
        """Wait for the end of another run, and return `get_details`.

        Raises:
            RunNotSupportedError: a script cannot wait for the end of its own run.
            RuntimeError: the run failed, and `raise_on_error` is on.
        """
        if self.id == self._channel().run:
            raise RunNotSupportedError("a script cannot wait for its own end; let it exit")
        while self._facts().status not in FINAL:
            time.sleep(0.5)
        found = self.get_details()
        if raise_on_error and found["status"] == "Failed":
            raise RuntimeError("run %s failed: %s" % (self.id, self._facts().reason))
        return found

    # -- children ----------------------------------------------------------------------------
    def get_children(
        self,
        recursive: bool = False,
        tags: Any = None,
        properties: Any = None,
        type: Optional[str] = None,
        status: Optional[str] = None,
    ) -> "List[AttemptRun]":
        """Return the runs that belong to this one, newest first; see `JobRun.get_children`."""
        call = run_calls.Children(
            self.id,
            recursive,
            run_calls.conditions_of(tags),
            run_calls.conditions_of(properties),
            type,
            status,
        )
        return [self._run_of(facts) for facts in self._ask(call)]

    def child_run(self, name: Any = None, run_id: Any = None, outputs: Any = None) -> "OtherRun":
        """Start a child run that this script logs to.

        It ends with `complete`, `fail` or its ``with`` block, and at the latest with this attempt.

        Args:
            name: Its name; None: one is generated.
            run_id: Its id; None: one is generated.
            outputs: Folder whose files are stored on completion; None: store none.

        Raises:
            ChannelError: the id is taken, or the attempt has ended.
        """
        child = self._start_child(name=name, run_id=run_id)
        child.outputs = None if not outputs else os.path.abspath(os.fspath(outputs))
        return child

    def create_children(
        self,
        count: Optional[int] = None,
        tag_key: Optional[str] = None,
        tag_values: Optional[Iterable[Any]] = None,
    ) -> "List[OtherRun]":
        """Start several child runs: `count`, or one for each of `tag_values`.

        Raises:
            ValueError: neither or both were given, or they request more than 100 runs.
        """
        return [
            self._start_child(tags={key: value})
            for key, value in children_tags(count, tag_key, tag_values)
        ]

    def _start_child(
        self, name: Any = None, run_id: Any = None, tags: Optional[Mapping[str, str]] = None
    ) -> "OtherRun":
        # The id is chosen here, so that a repeated call does not start another run.
        made = "%s_%d_%s" % (self.id.rsplit("_", 2)[0], time.time(), uuid.uuid4().hex[:8])
        call = run_calls.Start(
            str(run_id or made), self.id, "" if name is None else str(name), dict(tags or {})
        )
        facts = self._ask(call)
        return OtherRun(self._channel(), facts.id, self.experiment, facts.type)

    def submit_child(self, config: Any, tags: Any = None, **kwargs: Any) -> Any:
        """Submit a child job; needs rayjobs in the job's Python.

        Raises:
            RunNotSupportedError: the job's Python cannot import rayjobs.
        """
        return self._handle_here("submit_child").submit_child(config, tags=tags, **kwargs)

    def _handle_here(self, what: str) -> Any:
        """Return a handle of this run in the full workspace."""
        workspace = self.experiment.workspace
        if not hasattr(workspace, "get_run"):
            raise RunNotSupportedError(
                "%s needs rayjobs in the job's Python; add it to the job's environment" % what
            )
        return workspace.get_run(self.id)

    # -- metrics and tags --------------------------------------------------------------------
    def get_metrics(
        self,
        name: Optional[str] = None,
        recursive: bool = False,
        run_type: Optional[str] = None,
        populate: bool = False,
    ) -> Dict[str, Any]:
        """Return the logged values: a scalar if logged once, else a list; rows as columns.

        With `recursive`, return a mapping by run id that includes the children (of type
        `run_type`).

        Raises:
            RunNotSupportedError: `populate` is set, but images are files here.
        """
        if populate:
            raise RunNotSupportedError("an image is a file here; use download_file(name)")
        if not recursive:
            return self._own_metrics(name)
        runs: List[AttemptRun] = [self, *self.get_children(recursive=True)]
        return {run.id: run._own_metrics(name) for run in runs if run_type in (None, run.type)}

    def _own_metrics(self, name: Optional[str]) -> Dict[str, Any]:
        pairs = self._ask(run_calls.Metrics(self.id, name))
        return combine(pairs)

    # -- files -------------------------------------------------------------------------------
    def download_file(self, name: str, output_file_path: Any = None) -> None:
        """Write one of the run's stored files to `output_file_path`.

        Args:
            output_file_path: None: the file's base name, in the working directory.

        Raises:
            ChannelError: the run has no such file; the message lists its files.
        """
        target = os.fspath(output_file_path or os.path.basename(name))
        if os.path.isdir(target) or target.endswith("/"):
            target = os.path.join(target, os.path.basename(name))
        self._channel().take(self._ask(run_calls.Fetch(self.id, name)), target)

    def download_files(
        self,
        prefix: Optional[str] = None,
        output_directory: Any = None,
        output_paths: Optional[Sequence[Any]] = None,
        batch_size: int = 100,
        append_prefix: bool = True,
        timeout_seconds: Optional[float] = None,
    ) -> None:
        """Write the run's files whose names begin with `prefix` below a folder.

        Raises:
            FileNotFoundError: no file name begins with `prefix`.
            ValueError: there are more or fewer `output_paths` than files.
            TimeoutError: the time limit has passed; the files fetched so far are complete.
        """
        wanted = prefix or ""
        names = [name for name in self.get_file_names() if name.startswith(wanted)]
        if not names:
            raise FileNotFoundError("run %s has no file that begins with %r" % (self.id, wanted))
        folder = os.fspath(output_directory or os.getcwd())
        cut = 0 if append_prefix else len(wanted)
        targets = [
            os.path.join(folder, *clean_name(name[cut:].lstrip("/") or name).split("/"))
            for name in names
        ]
        if output_paths is not None:
            targets = [os.fspath(path) for path in output_paths]
        if len(targets) != len(names):
            raise WrongValueError("%d output_paths for %d files" % (len(targets), len(names)))
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for name, target in zip(names, targets):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("not all files were fetched in %g s" % (timeout_seconds or 0))
            self.download_file(name, target)

    def get_file_names(self) -> List[str]:
        """Return the names of the run's files, including logs."""
        names = self._ask(run_calls.Files(self.id))
        return list(names)

    def get_all_logs(self, destination: Optional[str] = None) -> List[str]:
        """Write all logs below a folder; return their paths."""
        folder = destination or self.id
        written = []
        for name in self.get_details()["logFiles"]:
            path = os.path.join(folder, *clean_name(name).split("/"))
            self.download_file(name, path)
            written.append(path)
        return written

    def _text_of(self, name: str) -> str:
        path = self._channel().new_file()
        self.download_file(name, path)
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read()
        finally:
            os.unlink(path)

    def restore_snapshot(self, snapshot_id: Optional[str] = None, path: Any = None) -> str:
        """Write the run's code as a zip file; return its path.

        Args:
            snapshot_id: Another snapshot; None: the run's own.
            path: The zip file, or an existing folder for it; None: the working directory.
        """
        digest = snapshot_id or self.get_snapshot_id()
        target = os.fspath(path or os.getcwd())
        if path is None or os.path.isdir(target):
            target = os.path.join(target, "%s.zip" % str(digest).replace(":", "-")[:19])
        self._channel().take(self._ask(run_calls.Snapshot(self.id, snapshot_id)), target)
        return target

    def take_snapshot(self, file_or_folder_path: Any) -> str:
        """Refuse: the code of a job is stored when it is submitted.

        Raises:
            RunNotSupportedError: always.
        """
        raise RunNotSupportedError(
            "run %s has the snapshot of its job; store further files with upload_folder" % self.id
        )


class OtherRun(AttemptRun):
    """A run other than the job's own, reached by its id: a child or the parent.

    Values that are logged to it are stored immediately.
    """

    outputs: Optional[str] = None  # its files are stored on completion

    def __init__(self, channel: Channel, run_id: str, experiment: Any, kind: str) -> None:
        """Make a handle for the run `run_id`."""
        self.id = run_id
        self.type = kind
        self.experiment = experiment
        self._way = channel
        self._last = 0

    def _channel(self) -> Channel:
        return self._way

    def __repr__(self) -> str:
        """Return its id."""
        return "Run(Id: %s, Type: %s)" % (self.id, self.type)

    @property
    def status(self) -> str:
        """The state's name, e.g. ``Running``."""
        return self._facts().status

    def get_status(self) -> str:
        """Return the state's name."""
        return self.status

    # -- logging -----------------------------------------------------------------------------
    def _put(self, kind: str, name: str, value: Any, step: Optional[int] = None) -> None:
        if kind not in METRIC_KINDS:
            return
        now = time.time_ns()
        self._last = max(self._last + 1, now)
        point = run_calls.Point(kind, name, value, step, self._last, now / 1e9)
        self._ask(run_calls.Log(self.id, (point,)))

    def get_tags(self) -> Dict[str, Optional[str]]:
        """Return the run's tags; one without a value is None."""
        return {key: value or None for key, value in self._facts().tags.items()}

    def get_properties(self) -> Dict[str, str]:
        """Return the run's properties."""
        return dict(self._facts().properties)

    def tag(self, key: str, value: Any = None) -> None:
        """Set one tag; a tag without a value is only a label."""
        self.set_tags({key: value})

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set several tags."""
        ready = {
            log_values.name_of(key): ""
            if value is None
            else str(log_values.scalar_of(value, "the tag's value"))
            for key, value in tags.items()
        }
        self._ask(run_calls.Change(self.id, tags=ready))

    def remove_tags(self, tags: Iterable[str]) -> Dict[str, Optional[str]]:
        """Remove tags by key; return the remaining ones."""
        keys = [tags] if isinstance(tags, str) else list(tags)
        self._ask(run_calls.Change(self.id, tags=dict.fromkeys(keys)))
        return self.get_tags()

    def add_properties(self, properties: Mapping[str, Any]) -> None:
        """Add properties. Raises ChannelError if one already has another value."""
        ready = {log_values.name_of(key): str(value) for key, value in properties.items()}
        self._ask(run_calls.Change(self.id, properties=ready))

    # -- files -------------------------------------------------------------------------------
    def upload_file(self, name: str, path_or_stream: Any, datastore_name: Any = None) -> str:
        """Store a file (path or binary stream) with the run under `name`; return the name."""
        refuse_datastore(datastore_name)
        stored = clean_name(name)
        path = self._channel().new_file()
        area = UploadArea(os.path.dirname(path))
        area.add(os.path.basename(path), path_or_stream)
        self._ask(run_calls.Keep(self.id, (stored,), (os.path.basename(path),)))
        return stored

    def upload_files(
        self,
        names: Iterable[str],
        paths: Iterable[Any],
        return_artifacts: bool = False,
        timeout_seconds: Optional[float] = None,
        datastore_name: Any = None,
    ) -> List[str]:
        """Store several files with the run: all of them, or none."""
        refuse_datastore(datastore_name)
        pairs = [(clean_name(name), os.fspath(path)) for name, path in paired(names, paths)]
        stored, files = [name for name, _ in pairs], []
        for _, path in pairs:
            files.append(self._channel().new_file())
            shutil.copyfile(path, files[-1])
        names_here = tuple(os.path.basename(path) for path in files)
        self._ask(run_calls.Keep(self.id, tuple(stored), names_here))
        return stored

    def upload_folder(self, name: str, path: Any, datastore_name: Any = None) -> List[str]:
        """Store all files below a folder under `name`/…; return their names."""
        if not os.path.isdir(path):
            raise NotADirectoryError("%s is not a folder" % path)
        below = list(UploadArea(os.fspath(path)).files_below(os.fspath(path)))
        return self.upload_files(
            ["%s/%s" % (name.rstrip("/"), relative) for relative, _full in below],
            [full for _relative, full in below],
            datastore_name=datastore_name,
        )

    def _keep_image(self, name: str, path: Optional[str], plot: Any) -> str:
        made = self._channel().new_file()
        os.mkdir(made)
        stored = UploadArea(made).add_image(name, path, plot)
        try:
            return self.upload_file(stored, os.path.join(made, stored))
        finally:
            shutil.rmtree(made)

    def _logged(self) -> List[Tuple[str, Any]]:
        pairs = self._ask(run_calls.Metrics(self.id, None))
        return list(pairs)

    def _model_path(self, path: Any) -> str:
        raise RunNotSupportedError(
            "a model is registered by the job's own run (Run.get_context()), or outside the job"
        )

    def _ask_for_model(self, record: model_requests.ModelRecord) -> None:
        raise RunNotSupportedError("a child run registers no model; use the job's own run")

    # -- end ---------------------------------------------------------------------------------
    def complete(self, **kwargs: Any) -> None:
        """End the run as Completed; files of its outputs folder are stored first."""
        if self.outputs is not None and os.path.isdir(self.outputs):
            known = set(self.get_file_names())
            below = [
                ("outputs/" + relative, full)
                for relative, full in UploadArea(self.outputs).files_below(self.outputs)
                if "outputs/" + relative not in known
            ]
            if below:
                self.upload_files([name for name, _ in below], [full for _, full in below])
        self._end("completed")

    def fail(self, error_details: Any = None, error_code: Any = None, **kwargs: Any) -> None:
        """End the run as Failed, with a text or an exception."""
        if isinstance(error_details, BaseException):
            text = "%s: %s" % (type(error_details).__name__, error_details)
        else:
            text = "" if error_details is None else str(error_details)
        if error_code is not None:
            text = "%s: %s" % (error_code, text) if text else str(error_code)
        lines = text.splitlines() or ["run.fail() was called"]
        self._end("failed", lines[0], tuple(lines[1:]))

    def cancel(self) -> None:
        """End the run as Canceled."""
        self._end("canceled", "canceled by its script")

    def _end(self, outcome: str, message: str = "", lines: Tuple[str, ...] = ()) -> None:
        state = self._ask(run_calls.End(self.id, outcome, message, lines))
        if state.lower() != outcome:
            warnings.warn(
                "run %s has already ended as %s; its state does not change" % (self.id, state),
                stacklevel=3,
            )

    def _leave(self, error: Optional[BaseException]) -> None:
        """Complete the run, or fail it after an error."""
        if error is None:
            self.complete()
        else:
            self.fail(error_details=error)


def children_tags(
    count: Optional[int], tag_key: Optional[str], tag_values: Optional[Iterable[Any]]
) -> List[Tuple[str, str]]:
    """Return the tag of each run that `create_children` starts.

    Source: azureml-core 1.61, ``Run.create_children``.

    Raises:
        ValueError: neither or both of `count` and (`tag_key`, `tag_values`) were given, or they
            request too many runs.
    """
    if count is None and (tag_key is None or tag_values is None):
        raise WrongValueError("give create_children either count, or tag_key and tag_values")
    if count is not None and (tag_key is not None or tag_values is not None):
        raise WrongValueError(
            "give create_children either count, or tag_key and tag_values; not both"
        )
    values: List[Any] = list(range(count) if count is not None else tag_values or ())
    if len(values) > MOST_CHILDREN:
        raise WrongValueError(
            "a call of create_children can create at most %d runs, not %d"
            % (MOST_CHILDREN, len(values))
        )
    key = "azureml.batch_child_number" if tag_key is None else str(tag_key)
    return [(key, str(value)) for value in values]


def refuse_datastore(name: Any) -> None:
    """Refuse a datastore other than the one of run files. Raises ValueError."""
    if name not in (None, ARTIFACT_STORE):
        raise WrongValueError(
            "files of a run are stored with the run, not in datastore %r; leave out "
            "datastore_name, or use Datastore.upload_files" % (name,)
        )

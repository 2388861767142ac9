"""A script's requests to register models: checked at once, carried out when its run completes.

Each request is one JSON line, a `ModelRecord`, appended to a file of the attempt.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from dataclasses import field
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from rayjobs.injob import checkpoint, log_values
from rayjobs.injob.azureml.exceptions import WrongTypeError, WrongValueError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.uploads import PART, clean_name

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
MOST_MODELS = 100  # of one run, by name and path
CHECKPOINTS = "outputs/checkpoints/step-"
NAMED_AT_MOST = 10


@dataclass(frozen=True)
class ModelDataset(Message):
    """A registered dataset that the lineage of a model names.

    Attributes:
        purpose: What it is for, such as ``training`` or ``sample_input``.
        dataset: Its name and version, such as ``words:2``.
        dataset_id: The id of that version.
    """

    purpose: str
    dataset: str
    dataset_id: str

    def row(self) -> Dict[str, str]:
        """Return its entry in the ``data`` of a lineage."""
        return {
            "name": self.purpose,
            "source": "dataset:" + self.dataset,
            "version": self.dataset,
            "dataset": self.dataset,
            "dataset_id": self.dataset_id,
        }


@dataclass(frozen=True)
class ModelRecord(Message):
    """A rank's request for a model, as written to its file.

    Attributes:
        path: Stored name of the run's file or folder that becomes the model.
        framework: The framework, such as ``PyTorch``; empty: not named.
        datasets: Datasets for the lineage, in addition to the run's inputs.
        resources: Resources for a deployment, as text; only the lineage keeps them.
        t: When it was written, in seconds since 1970.
        k: The kind of line.
    """

    name: str
    path: str
    tags: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    description: Optional[str] = None
    framework: str = ""
    framework_version: str = ""
    datasets: Tuple[ModelDataset, ...] = ()
    resources: str = ""
    t: float = 0.0
    k: str = "model"


class ModelRequest:
    """A model that is registered when, and only when, its run completes.

    Its version is unknown until then: `version` and `id` of this object stay None.

    Attributes:
        path: The run's file or folder that becomes the model.
    """

    def __init__(self, run_id: str, record: ModelRecord) -> None:
        """Represent a request of the run `run_id`."""
        self.name = record.name
        self.version: Optional[int] = None
        self.id: Optional[str] = None
        self.run_id = run_id
        self.path = record.path
        self.tags: Dict[str, str] = dict(record.tags)
        self.properties: Dict[str, str] = dict(record.properties)
        self.description = record.description or ""
        self.model_framework = record.framework
        self.model_framework_version = record.framework_version

    def __repr__(self) -> str:
        """Return name, path and run, and when it will be registered."""
        return "ModelRequest(name=%s, path=%s, run_id=%s: registered when the run completes)" % (
            self.name,
            self.path,
            self.run_id,
        )

    def __getattr__(self, name: str) -> Any:
        """Explain why an attribute of registered models is missing."""
        raise AttributeError(
            "the model %r has no %r yet: it is registered when the run completes. Then use "
            "Model(workspace, %r), or `rayjobs model show`"
            % (self.__dict__.get("name"), name, self.__dict__.get("name"))
        )


def record_of(
    name: Any,
    path: str,
    *,
    tags: Any = None,
    properties: Any = None,
    description: Any = None,
    framework: Tuple[Any, Any] = (None, None),
    datasets: Tuple[ModelDataset, ...] = (),
    resources: Any = None,
) -> ModelRecord:
    """Return a request in its written form.

    Args:
        framework: The framework's name and version, each may be None.
        resources: Resources for a deployment; written as text.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: The name is not valid for a model, or a text is too long.
    """
    record = ModelRecord(
        name_of(name),
        path,
        tags=_texts(tags, "tags"),
        properties=_texts(properties, "properties"),
        description=_text(description, "description"),
        framework=_text(framework[0], "model_framework") or "",
        framework_version=_text(framework[1], "model_framework_version") or "",
        datasets=datasets,
        resources="" if resources is None else str(resources),
        t=time.time(),
    )
    size = len(json.dumps(record.to_json()))
    if size > log_values.MAX_RECORD:
        raise WrongValueError(
            "the request for the model %r has %d bytes; %d are allowed. Write long text to a file "
            "below outputs/" % (name, size, log_values.MAX_RECORD)
        )
    return record


def datasets_of(
    datasets: Any, *, sample_input: Any = None, sample_output: Any = None
) -> Tuple[ModelDataset, ...]:
    """Return the datasets that a registration gives to the lineage of its model.

    Args:
        datasets: Pairs of purpose and registered dataset, or None. Instead of a dataset, an entry
            of `RunWorkspace.datasets` is accepted, also for the samples.
        sample_input: A registered dataset, or None; `sample_output` likewise.

    Raises:
        TypeError: an item is not a pair, or names no dataset.
        ValueError: a dataset is not registered.
    """
    found: List[ModelDataset] = []
    pairs: List[Tuple[Any, Any]] = []
    for pair in _listed(datasets):
        try:
            purpose, dataset = pair
        except (TypeError, ValueError):
            raise WrongTypeError(
                "%.120r is not a pair of purpose and dataset; give [('training', dataset)]"
                % (pair,)
            ) from None
        pairs.append((purpose, dataset))
    for purpose, dataset in (("sample_input", sample_input), ("sample_output", sample_output)):
        if dataset is not None:
            pairs.append((purpose, dataset))
    for purpose, dataset in pairs:
        try:
            name, version, version_id = (_fact(dataset, one) for one in ("name", "version", "id"))
        except (AttributeError, KeyError):
            raise WrongTypeError(
                "the dataset for %r is %.120r, which is not a dataset; give a registered one, such "
                "as Dataset.get_by_name(workspace, NAME)" % (purpose, dataset)
            ) from None
        if not name:
            raise WrongValueError(
                "the dataset for %r is not registered, so the lineage cannot refer to it; register "
                "it first" % (purpose,)
            )
        found.append(ModelDataset(str(purpose), "%s:%s" % (name, version), str(version_id)))
    return tuple(found)


def _listed(datasets: Any) -> List[Any]:
    try:
        return [] if datasets is None else list(datasets)
    except TypeError:
        return [datasets]


def _fact(dataset: Any, name: str) -> Any:
    return dataset[name] if isinstance(dataset, Mapping) else getattr(dataset, name)


def name_of(name: Any) -> str:
    """Return a model's name. Raises TypeError or ValueError when it is not valid."""
    if not isinstance(name, str):
        raise WrongTypeError("a model's name must be text, not a %s" % type(name).__name__)
    if not NAME.fullmatch(name):
        raise WrongValueError(
            "a model cannot be called %r; use letters, digits, '.', '_' and '-', and begin with a "
            "letter or digit" % name
        )
    return name


def _texts(values: Any, what: str) -> Dict[str, str]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise WrongTypeError("%s is a %s; give a mapping of texts" % (what, type(values).__name__))
    return {
        log_values.name_of(key): str(log_values.scalar_of(value, "%s[%r]" % (what, key)))
        for key, value in values.items()
    }


def _text(value: Any, what: str) -> Optional[str]:
    if value is None:
        return None
    if not isinstance(value, str):
        raise WrongTypeError("%s is a %s; give a text" % (what, type(value).__name__))
    return str(log_values.scalar_of(value, what))


def find(path: Any, outputs: str, uploaded: Iterable[str]) -> str:
    """Return the name under which the run will store an existing file or folder.

    A leading ``./`` is removed, ``outputs/`` may be left out, and an absolute path must be below
    `outputs`.

    Args:
        outputs: The attempt's folder of outputs.
        uploaded: Names of the files uploaded so far.

    Raises:
        TypeError: `path` is not a path.
        ValueError: it leads out of the run, or is an empty folder or an incomplete checkpoint.
        FileNotFoundError: there is no such file or folder.
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise WrongTypeError("model_path must be text, not %s" % type(text).__name__)
    if os.path.isabs(text):
        text = _below(text, outputs)
    clean = clean_name(text)
    names = list(uploaded)
    for name in (clean, "outputs/" + clean):
        if any(one == name or one.startswith(name + "/") for one in names):
            return name
        if name == "outputs" or name.startswith("outputs/"):
            full = os.path.join(outputs, *name.split("/")[1:])
            if os.path.lexists(full):
                _check(name, full, outputs)
                return name
    known = sorted([*names, *_some_of(outputs)])[:NAMED_AT_MOST]
    raise FileNotFoundError(
        "there is no file or folder %r below outputs/, nor was it uploaded (available: %s); save "
        "the model there, then register it" % (text, ", ".join(known) or "nothing")
    )


def _below(path: str, outputs: str) -> str:
    relative = os.path.relpath(os.path.realpath(path), os.path.realpath(outputs))
    if relative.split(os.sep)[0] == "..":
        raise WrongValueError(
            "%r is not below the run's outputs, %s; save the model there, since only that "
            "is stored with the run" % (path, outputs)
        )
    return "outputs" if relative == "." else "outputs/" + relative.replace(os.sep, "/")


def _check(name: str, full: str, outputs: str) -> None:
    """Refuse a path that the run would not store, or that is incomplete."""
    inside = os.path.realpath(os.path.dirname(outputs))
    real = os.path.realpath(full)
    if real != inside and not real.startswith(inside + os.sep):
        raise WrongValueError(
            "%r is a link to %s, outside the job's directory, so it is not stored with the run; "
            "copy the file to outputs/" % (name, real)
        )
    if os.path.isdir(full):
        if not any(True for _ in _files_below(full)):
            raise WrongValueError(
                "%r is an empty folder; save the model's files there first" % name
            )
        is_step = name.startswith(CHECKPOINTS) and name.count("/") == CHECKPOINTS.count("/")
        if is_step and not checkpoint.is_whole(full):
            raise WrongValueError("%r is an incomplete checkpoint; register another" % name)
    elif not os.path.isfile(full):
        raise WrongValueError("%r is neither a file nor a folder" % name)


def _files_below(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for one in sorted(files):
            if not one.startswith(PART):
                yield os.path.join(parent, one)


def _some_of(outputs: str) -> Iterator[str]:
    for count, full in enumerate(_files_below(outputs)):
        if count >= NAMED_AT_MOST:
            return
        yield "outputs/" + os.path.relpath(full, outputs).replace(os.sep, "/")


def append(path: str, record: ModelRecord) -> None:
    """Append a request to the attempt's file, whole or not at all.

    Raises:
        OSError: it could not be written: unlike a lost metric, a lost model is an error.
    """
    # The leading newline ends a partial line that a full disk may have left.
    line = b"\n" + json.dumps(record.to_json(), separators=(",", ":")).encode("ascii") + b"\n"
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.write(descriptor, line) != len(line):
            why = "the model's request could not be written: the disk is full"
            raise OSError(errno.ENOSPC, why, path)
    finally:
        os.close(descriptor)

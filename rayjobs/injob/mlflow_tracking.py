"""Answers MLflow's tracking requests with rayjobs' runs.

A call is a method, a path below ``/api/2.0/mlflow/`` and a JSON body; the answer is JSON. Every
experiment name maps to an existing experiment, so that ``mlflow.set_experiment`` inside a job
selects the job's run.

Source: MLflow's REST API, https://mlflow.org/docs/latest/rest-api.html.
"""

from __future__ import annotations

import json
import operator
import re
import threading
import time
import uuid
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

Json = Dict[str, Any]

_FILTER = re.compile(
    r"""\s*(?:(\w+)\.)?[`"]?([^`"=!<>\s]+)[`"]?\s*"""
    r"""(=|!=|<=|>=|<|>|LIKE|ILIKE)\s*(?:'([^']*)'|"([^"]*)"|([-+.\w]+))\s*\Z""",
    re.IGNORECASE,
)
_ORDER = re.compile(
    r"""\s*(?:(\w+)\.)?(?:`([^`]+)`|"([^"]+)"|([^\s`"]+))(?:\s+(ASC|DESC))?\s*\Z""", re.IGNORECASE
)
_KINDS = ("metric", "param", "parameter", "tag", "attribute", "attr", "run")
# The comparisons of metrics and times, and of everything else, as in MLflow's search.
_NUMERIC: Mapping[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXTUAL = ("=", "!=", "LIKE", "ILIKE")
_ENDED = ("FINISHED", "FAILED", "KILLED")
MOST_RUNS = 1000


class TrackingError(Exception):
    """An error answer: HTTP status, MLflow's error code, and a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def not_found(message: str) -> TrackingError:
    """Return the error for something that does not exist."""
    return TrackingError(404, "RESOURCE_DOES_NOT_EXIST", message)


def _wrong(message: str) -> TrackingError:
    return TrackingError(400, "INVALID_PARAMETER_VALUE", message)


class Sink:
    """Stores runs.

    Every method returns only once its change is written: killing the process does not lose it.
    """

    def experiment_id(self, name: str, *, create: bool) -> Optional[str]:
        """Return the id of an experiment; None if it does not exist and `create` is off."""
        raise NotImplementedError

    def experiment(self, experiment_id: str) -> Json:
        """Return an experiment: ``experiment_id, name, artifact_location``.

        Raises:
            TrackingError: there is no such experiment.
        """
        raise NotImplementedError

    def experiments(self) -> List[Json]:
        """Return all experiments."""
        raise NotImplementedError

    def create_run(
        self, experiment_id: str, name: str, tags: Mapping[str, str]
    ) -> Tuple[str, str, str]:
        """Begin a run; return its id, name and artifact folder as a URI."""
        raise NotImplementedError

    def find_run(self, run_id: str) -> Optional["RunState"]:
        """Return a run that this server did not begin; None: there is none."""
        raise NotImplementedError

    def run_ids(self, experiment_id: str) -> List[str]:
        """Return the ids of an experiment's runs that `find_run` knows, newest first."""
        raise NotImplementedError

    def metric(self, run: "RunState", key: str, value: float, step: int) -> None:
        """Store one value."""
        raise NotImplementedError

    def param(self, run: "RunState", key: str, value: str) -> None:
        """Store a parameter, which can be written only once."""
        raise NotImplementedError

    def tag(self, run: "RunState", key: str, value: Optional[str]) -> None:
        """Set a tag; None removes it."""
        raise NotImplementedError

    def end_run(self, run: "RunState", status: str) -> None:
        """Write the end of a run: FINISHED, FAILED or KILLED."""
        raise NotImplementedError

    def artifact_sizes(self, run_id: str) -> Dict[str, int]:
        """Return the sizes in bytes of a run's files, by name."""
        raise NotImplementedError

    def read_artifact(self, run_id: str, name: str) -> Iterator[bytes]:
        """Yield a file's bytes. Raises TrackingError if there is no such file."""
        raise NotImplementedError

    def write_artifact(self, run_id: str, name: str, content: Any) -> None:
        """Store a file, read from a stream."""
        raise NotImplementedError


class RunState:
    """A run as clients see it."""

    def __init__(self, run_id: str, experiment_id: str, name: str, artifacts: str) -> None:
        self.run_id = run_id
        self.experiment_id = experiment_id
        self.name = name
        self.artifacts = artifacts
        self.status = "RUNNING"
        self.start_ms = int(time.time() * 1000)
        self.end_ms: Optional[int] = None
        self.params: Dict[str, str] = {}
        self.tags: Dict[str, str] = {}
        self.metrics: Dict[str, List[Json]] = {}
        self.models: List[Json] = []

    @property
    def info(self) -> Json:
        """Return MLflow's ``RunInfo``."""
        found: Json = {
            "run_id": self.run_id,
            "run_uuid": self.run_id,
            "run_name": self.name,
            "experiment_id": self.experiment_id,
            "user_id": self.tags.get("mlflow.user", ""),
            "status": self.status,
            "start_time": self.start_ms,
            "artifact_uri": self.artifacts,
            "lifecycle_stage": "active",
        }
        if self.end_ms is not None:
            found["end_time"] = self.end_ms
        return found

    def to_json(self) -> Json:
        """Return MLflow's ``Run``."""
        return {
            "info": self.info,
            "data": {
                "metrics": [points[-1] for points in self.metrics.values() if points],
                "params": _pairs(self.params),
                "tags": _pairs({**self.tags, "mlflow.runName": self.name}),
            },
            "inputs": {},
            "outputs": {"model_outputs": self.models},
        }


class Tracking:
    """All runs of one server. Thread-safe."""

    def __init__(self, sink: Sink, journal: Optional[Callable[[Json], None]] = None) -> None:
        """Store runs in `sink`.

        Args:
            journal: Saves each change before the answer; `replay` repeats them.
        """
        self._sink = sink
        self._journal = journal
        self._lock = threading.RLock()
        self._runs: Dict[str, RunState] = {}
        self._models: Dict[str, Json] = {}
        self._is_replaying = False
        self._own = ""

    def add_run(self, run: RunState) -> None:
        """Adopt a run; it also gets the models that clients log without a run."""
        with self._lock:
            self._runs[run.run_id] = run
            self._own = run.run_id

    @property
    def sink(self) -> Sink:
        """The storage of runs."""
        return self._sink

    def artifacts(self, path: str) -> Json:
        """List the direct entries of a folder ``RUN/FOLDER`` of a run's files."""
        run_id, _, folder = path.strip("/").partition("/")
        top = folder + "/" if folder else ""
        found: Dict[str, Json] = {}
        for name, size in self._sink.artifact_sizes(run_id).items():
            if name.startswith(top):
                inside, _, below = name[len(top) :].partition("/")
                found[inside] = {"path": inside, "is_dir": bool(below)}
                if not below:
                    found[inside]["file_size"] = size
        return {"files": [found[name] for name in sorted(found)]}

    def replay(self, changes: List[Json]) -> None:
        """Repeat the changes of an earlier process; the sink already has them."""
        with self._lock:
            self._is_replaying = True
            try:
                for change in changes:
                    self.call(change["method"], change["path"], change["body"], _given=change)
            finally:
                self._is_replaying = False

    def call(self, method: str, path: str, body: Json, *, _given: Optional[Json] = None) -> Json:
        """Answer a call. `path` is what follows ``/api/2.0/mlflow/``.

        Raises:
            TrackingError: the answer is an error.
        """
        name = path.strip("/")
        if name.startswith("logged-models"):
            return self._logged_models(method, name, body, _given)
        work = getattr(self, "_" + re.sub(r"\W", "_", name), None)
        if work is None or not re.fullmatch(r"[a-z-]+/[a-z-]+", name):
            raise TrackingError(
                404,
                "ENDPOINT_NOT_FOUND",
                "rayjobs answers MLflow's tracking calls for experiments, runs and logged models; "
                "%s is not one of them. Models are registered by run.register_model or `rayjobs "
                "model register`." % name,
            )
        with self._lock:
            answer: Json = work(body) or {}
            if name in _CHANGES:
                self._keep({"method": method, "path": name, "body": body})
            return answer

    def _keep(self, change: Json) -> None:
        if self._journal is not None and not self._is_replaying:
            self._journal(change)

    def _run(self, body: Json) -> RunState:
        run_id = str(body.get("run_id") or body.get("run_uuid") or "")
        run = self._runs.get(run_id)
        if run is None:
            run = self._sink.find_run(run_id)
            if run is None:
                raise not_found("there is no run %r." % run_id)
        return run

    # -- experiments ---------------------------------------------------------------------------
    def _experiments_get_by_name(self, body: Json) -> Json:
        name = str(body.get("experiment_name") or "")
        found = self._sink.experiment_id(name, create=False)
        if found is None:
            raise not_found("there is no experiment %r." % name)
        return {"experiment": _experiment({**self._sink.experiment(found), "name": name})}

    def _experiments_get(self, body: Json) -> Json:
        return {"experiment": _experiment(self._sink.experiment(str(body.get("experiment_id"))))}

    def _experiments_create(self, body: Json) -> Json:
        return {"experiment_id": self._sink.experiment_id(str(body.get("name")), create=True)}

    def _experiments_search(self, body: Json) -> Json:
        return {"experiments": [_experiment(one) for one in self._sink.experiments()]}

    def _experiments_set_experiment_tag(self, body: Json) -> Json:
        return {}  # experiments have no tags here, but autologging sets some

    # -- runs ----------------------------------------------------------------------------------
    def _runs_create(self, body: Json) -> Json:
        if "_created" in body:  # replayed: the sink has it
            run_id, name, artifacts = body["_created"]
        else:
            tags = {one["key"]: str(one.get("value", "")) for one in body.get("tags") or ()}
            name = str(body.get("run_name") or tags.get("mlflow.runName") or "")
            experiment = str(body.get("experiment_id") or "0")
            run_id, name, artifacts = self._sink.create_run(experiment, name, tags)
            body["_created"] = [run_id, name, artifacts]
        run = RunState(run_id, str(body.get("experiment_id") or "0"), name, artifacts)
        run.start_ms = int(body.get("start_time") or run.start_ms)
        self._runs[run_id] = run
        for one in body.get("tags") or ():
            self._set(run, one)
        return {"run": run.to_json()}

    def _runs_get(self, body: Json) -> Json:
        return {"run": self._run(body).to_json()}

    def _runs_update(self, body: Json) -> Json:
        run = self._run(body)
        run.name = str(body.get("run_name") or run.name)
        status = str(body.get("status") or run.status)
        if status in _ENDED and run.status not in _ENDED and not self._is_replaying:
            self._sink.end_run(run, status)
        run.status = status
        run.end_ms = int(body["end_time"]) if body.get("end_time") else run.end_ms
        return {"run_info": run.info}

    def _runs_log_metric(self, body: Json) -> Json:
        self._measure(self._run(body), body)
        return {}

    def _runs_log_parameter(self, body: Json) -> Json:
        self._fix(self._run(body), body)
        return {}

    def _runs_set_tag(self, body: Json) -> Json:
        self._set(self._run(body), body)
        return {}

    def _runs_delete_tag(self, body: Json) -> Json:
        run, key = self._run(body), str(body.get("key"))
        if run.tags.pop(key, None) is None:
            raise not_found("run %s has no tag %r." % (run.run_id, key))
        if not self._is_replaying:
            self._sink.tag(run, key, None)
        return {}

    def _runs_log_batch(self, body: Json) -> Json:
        run = self._run(body)
        for one in body.get("params") or ():
            self._check_fixed(run, one)
        for one in body.get("metrics") or ():
            self._measure(run, one)
        for one in body.get("params") or ():
            self._fix(run, one)
        for one in body.get("tags") or ():
            self._set(run, one)
        return {}

    def _runs_log_model(self, body: Json) -> Json:
        run = self._run(body)
        known = json.loads(run.tags.get("mlflow.log-model.history") or "[]")
        known.append(json.loads(body.get("model_json") or "{}"))
        self._set(run, {"key": "mlflow.log-model.history", "value": json.dumps(known)})
        return {}

    def _runs_log_inputs(self, body: Json) -> Json:
        run = self._run(body)
        for one in body.get("datasets") or ():
            dataset = one.get("dataset") or {}
            text = "%s %s" % (dataset.get("name", ""), dataset.get("digest", ""))
            self._set(run, {"key": "mlflow.dataset", "value": text.strip()})
        return {}

    def _runs_outputs(self, body: Json) -> Json:
        self._run(body).models.extend(body.get("models") or ())
        return {}

    def _metrics_get_history(self, body: Json) -> Json:
        return {"metrics": self._run(body).metrics.get(str(body.get("metric_key")), [])}

    def _runs_search(self, body: Json) -> Json:
        wanted = [str(one) for one in body.get("experiment_ids") or ()]
        found = [run for run in self._runs.values() if run.experiment_id in wanted]
        known = {run.run_id for run in found}
        for experiment in wanted:
            for run_id in self._sink.run_ids(experiment)[:MOST_RUNS]:
                run = None if run_id in known else self._sink.find_run(run_id)
                if run is not None:
                    found.append(run)
        matches = _filter(str(body.get("filter") or ""))
        kept = [run for run in found if matches(run)]
        kept.sort(key=lambda run: run.start_ms, reverse=True)
        for clause in reversed([str(one) for one in body.get("order_by") or ()]):
            _sort(kept, clause)
        most = int(body.get("max_results") or MOST_RUNS)
        return {"runs": [run.to_json() for run in kept[:most]]}

    # -- values --------------------------------------------------------------------------------
    def _measure(self, run: RunState, one: Json) -> None:
        key, step = str(one.get("key")), int(one.get("step") or 0)
        try:
            value = float(one.get("value", 0.0))
        except (TypeError, ValueError) as error:
            text = "the metric %r is %r, which is not a number." % (key, one.get("value"))
            raise _wrong(text) from error
        point = {"key": key, "value": one.get("value", 0.0), "step": step}
        point["timestamp"] = int(one.get("timestamp") or time.time() * 1000)
        if one.get("model_id") and point in run.metrics.get(key, ()):
            return  # the clients of MLflow 3 log a run's metrics again for each model that it logs
        if not self._is_replaying:
            self._sink.metric(run, key, value, step)
        run.metrics.setdefault(key, []).append(point)

    def _check_fixed(self, run: RunState, one: Json) -> None:
        key, value = str(one.get("key")), str(one.get("value", ""))
        if run.params.get(key, value) != value:
            raise _wrong(
                "the parameter %r of run %s is %r and cannot become %r: parameters are written "
                "once." % (key, run.run_id, run.params[key], value)
            )

    def _fix(self, run: RunState, one: Json) -> None:
        self._check_fixed(run, one)
        key, value = str(one.get("key")), str(one.get("value", ""))
        if key not in run.params:
            if not self._is_replaying:
                self._sink.param(run, key, value)
            run.params[key] = value

    def _set(self, run: RunState, one: Json) -> None:
        key, value = str(one.get("key")), str(one.get("value", ""))
        if key == "mlflow.runName":
            run.name = value
        if not self._is_replaying:
            self._sink.tag(run, key, value)
        run.tags[key] = value

    # -- logged models -------------------------------------------------------------------------
    def _logged_models(self, method: str, name: str, body: Json, given: Optional[Json]) -> Json:
        parts = name.split("/")[1:]
        with self._lock:
            if not parts:
                return self._create_model(method, body, given)
            if parts[0] == "search":
                return {"models": list(self._models.values())}
            model = self._models.get(parts[0])
            if model is None:
                raise not_found("there is no logged model %r." % parts[0])
            if method == "GET":
                return {"model": model}
            if parts[1:] == ["params"]:
                model["data"]["params"].extend(body.get("params") or ())
            elif parts[1:] == ["tags"]:
                model["info"]["tags"].extend(body.get("tags") or ())
            elif "status" in body:
                model["info"]["status"] = body["status"]
            self._keep({"method": method, "path": name, "body": body})
            return {"model": model}

    def _create_model(self, method: str, body: Json, given: Optional[Json]) -> Json:
        if not body.get("source_run_id") and not self._own:
            raise _wrong("start a run first: a model is stored with the files of a run.")
        run = self._run({"run_id": body.get("source_run_id") or self._own})
        model_id = str((given or {}).get("model_id") or "m-" + uuid.uuid4().hex)
        now = int(time.time() * 1000)
        self._models[model_id] = {
            "info": {
                "model_id": model_id,
                "experiment_id": run.experiment_id,
                "name": body.get("name") or "model",
                "creation_timestamp_ms": now,
                "last_updated_timestamp_ms": now,
                # Among the run's files, under the name that the script gave it.
                "artifact_uri": "%s/%s" % (run.artifacts, body.get("name") or "model"),
                "status": "LOGGED_MODEL_PENDING",
                "model_type": body.get("model_type") or "",
                "source_run_id": run.run_id,
                "tags": list(body.get("tags") or ()),
            },
            "data": {"params": list(body.get("params") or ())},
        }
        change = {"method": method, "path": "logged-models", "body": body, "model_id": model_id}
        self._keep(change)
        return {"model": self._models[model_id]}


_CHANGES = frozenset(
    {
        "runs/create",
        "runs/update",
        "runs/log-metric",
        "runs/log-parameter",
        "runs/set-tag",
        "runs/delete-tag",
        "runs/log-batch",
        "runs/log-model",
        "runs/log-inputs",
        "runs/outputs",
    }
)


def _pairs(values: Mapping[str, str]) -> List[Json]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _experiment(given: Json) -> Json:
    return {"lifecycle_stage": "active", "artifact_location": "", "tags": [], **given}


def _filter(text: str) -> Callable[[RunState], bool]:
    """Return a predicate for a search filter.

    Raises:
        TrackingError: the text is not a list of comparisons joined by ``and``, or a value cannot
            be compared in this way.
    """
    tests = []
    for part in re.split(r"\s+and\s+", text.strip(), flags=re.IGNORECASE) if text.strip() else ():
        match = _FILTER.match(part)
        if match is None:
            raise _wrong("the search filter %r is not understood." % part)
        kind, key, sign = _kind(match[1], part), match[2], match[3].upper()
        wanted = next((one for one in match.groups()[3:] if one is not None), "")
        if sign not in (_NUMERIC if _is_numeric(kind, key) else _TEXTUAL):
            raise _wrong("%r: %s cannot be compared by %s." % (part, key, sign))
        if _is_numeric(kind, key) and not _is_number(wanted):
            raise _wrong("%r: %s is compared with a number." % (part, key))
        tests.append((kind, key, sign, wanted))
    return lambda run: all(_is_so(run, *test) for test in tests)


def _kind(text: Optional[str], clause: str) -> str:
    """Return what a clause is about, in the singular.

    Raises:
        TrackingError: it is about something that MLflow's runs do not have.
    """
    kind = (text or "attribute").lower()
    kind = kind[:-1] if kind.endswith("s") else kind
    if kind not in _KINDS:
        known = "metrics, params, tags and attributes"
        raise _wrong("%r is about %r; runs have %s." % (clause, text, known))
    return kind


def _sort(runs: List[RunState], clause: str) -> None:
    """Sort runs by one clause, such as ``metrics.loss DESC``; those without the value come last.

    The order of equal runs does not change.

    Raises:
        TrackingError: the clause is not understood.
    """
    match = _ORDER.match(clause)
    if match is None:
        raise _wrong("the order %r is not understood; write `metrics.loss DESC`." % clause)
    kind = _kind(match[1], clause)
    key = next(one for one in match.groups()[1:4] if one is not None)
    values = [(_value(run, kind, key), run) for run in runs]
    have = [pair for pair in values if pair[0] is not None]
    have.sort(key=lambda pair: pair[0], reverse=(match[5] or "").upper() == "DESC")
    runs[:] = [run for _, run in have] + [run for value, run in values if value is None]


def _value(run: RunState, kind: str, key: str) -> Any:
    """Return a run's metric (None for NaN too), parameter, tag or attribute; None without one."""
    if kind == "metric":
        points = run.metrics.get(key)
        value = float(points[-1]["value"]) if points else None
        return None if value != value else value
    if kind in ("param", "parameter"):
        return run.params.get(key)
    if kind == "tag":
        return {**run.tags, "mlflow.runName": run.name}.get(key)
    return run.info.get({"Created": "start_time", "created": "start_time"}.get(key, key))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_numeric(kind: str, key: str) -> bool:
    is_attribute = kind in ("attribute", "attr", "run")
    return kind == "metric" or (is_attribute and key in ("start_time", "end_time"))


def _is_so(run: RunState, kind: str, key: str, sign: str, wanted: str) -> bool:
    found = _value(run, kind, key)
    if found is None:
        return False
    if _is_numeric(kind, key):
        return _NUMERIC[sign](float(found), float(wanted))
    text = str(found)
    if sign in ("LIKE", "ILIKE"):
        pattern = ".*".join(re.escape(one) for one in wanted.split("%"))
        flags = re.IGNORECASE if sign == "ILIKE" else 0
        return re.fullmatch(pattern, text, flags) is not None
    return (text == wanted) is (sign == "=")

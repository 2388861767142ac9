"""Shell completions, from the workspace, the home and the tables of the job file.

Each source is a function of the call's settings and the typed text. No source imports ray;
`offered` catches their errors, which would garble the shell's prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store.requests import JobFilter

if TYPE_CHECKING:
    from rayjobs.cli.settings import Settings
    from rayjobs.store.base import Store

MOST = 200
Candidates = Iterable[tuple[str, str]]  # value, and what a shell may show next to it
Source = Callable[["Settings", str], Candidates]

FILE, FOLDER = "file", "dir"  # completed by the shell itself
FILES_OF_JOB = "files"  # depends on the job that was typed before
LOGS = "jobs with logs"  # depends on whether --follow was typed before
UNFINISHED = [state for state in JobState if state not in FINAL]

# The source of an option's values in every command; a key `COMMAND --option` is for that one only.
OPTIONS: Mapping[str, str] = {
    "--after": "after",
    "--alias": "aliases",
    "--backend": "backends",
    "--columns": "columns",
    "--dockerfile": FILE,
    "--env": FILE,
    "--experiment": "experiments",
    "--file": FILE,
    "--filter": "columns",
    "--ignore": "metrics",
    "--input": "inputs",
    "--metric": "metrics",
    "--node-type": "node types",
    "--output": FILE,
    "submit --output": "outputs",
    "verify-resume --output": "outputs",
    "--parent": "parents",
    "--plot": FILE,
    "--resume-from": "jobs",
    "--retries": "retries",
    "--run": "jobs",
    "--secret": "secrets",
    "--sort": "columns",
    "--script": FILE,
    "--source": FOLDER,
    "--tag": "tags",
    "--target": "targets",
    "--token-file": FILE,
    "--untag": "tag names",
    "--workspace": FOLDER,
    "--tls-cert": FILE,
    "--tls-key": FILE,
}
# The source of the values of a command's arguments, unless their type provides them.
ARGUMENTS: Mapping[str, str] = {
    "cancel jobs": "unfinished jobs",
    "update job": "unfinished jobs",
    "stacks job": "running jobs",
    "simulate-eviction job": "running jobs",
    "why job": "unfinished jobs",
    "logs names": LOGS,
    "metrics names": "metrics",
    "files names": FILES_OF_JOB,
    "download names": FILES_OF_JOB,
    "model alias alias": "aliases",
    "model ls name": "models",
    "model register name": "models",
    "sweep best sweep_id": "sweeps",
    "sweep cancel sweep_ids": "unfinished sweeps",
    "sweep plot sweep_id": "sweeps",
    "sweep show sweep_id": "sweeps",
    "pipeline cancel run": "unfinished pipelines",
    "pipeline resume run": "pipelines",
    "pipeline show run": "pipelines",
    "pipeline watch run": "unfinished pipelines",
    "pipeline why-rerun run": "pipelines",
    "sweep watch sweep_id": "unfinished sweeps",
    "data get source": "data paths",
    "data ls reference": "data paths",
    "data put destination": "data paths",
    "data register name": "dataset names",
    "data register sources": "data paths",
    "data rm name": "datasets",
    "data show name": "datasets",
    "target limits name": "targets",
    "simulate trace": FILE,
}


def _store(read: Callable[[Store], Candidates]) -> Source:
    def source(settings: Settings, _typed: str) -> Candidates:
        with settings.open() as workspace:
            return list(read(workspace.store))

    return source


def _jobs(kinds: tuple[str, ...] | None = None, states: Iterable[JobState] | None = None) -> Source:
    """Return a source of jobs of these kinds and in these states (None: any), newest first."""
    wanted = None if states is None else list(states)

    def source(settings: Settings, typed: str) -> Candidates:
        with settings.open() as workspace:
            found = workspace.store.job_lines(JobFilter(states=wanted, limit=MOST, members=False))
        for job in found:
            if kinds is not None and job.kind not in kinds:
                continue
            tail = job.id.rpartition("_")[2]
            name = job.display_name or job.name
            text = f"{job.state} {name}"
            if typed and not job.id.startswith(typed) and tail.startswith(typed):
                yield tail, text
            elif typed and not job.id.startswith(typed) and name.startswith(typed):
                yield name, f"{job.state} {job.id}"
            else:
                yield job.id, text

    return source


def _experiments(store: Store) -> Candidates:
    return [(name, "") for name in dict.fromkeys(job.experiment for job in _lines(store))]


def _tags(store: Store) -> Candidates:
    pairs = (f"{key}={value}" for job in _lines(store) for key, value in job.tags.items())
    return [(text, "") for text in dict.fromkeys(pairs)]


def _lines(store: Store) -> Iterable[Any]:
    return store.job_lines(JobFilter(limit=MOST))


def _columns(store: Store) -> Candidates:
    from rayjobs.results.values import FIELDS, named_arguments

    for name in store.metric_names(most=MOST):
        yield name, "metric"
    lines = store.job_lines(JobFilter(limit=MOST))
    arguments = store.job_arguments([job.serial for job in lines])
    for name in dict.fromkeys(key for one in arguments.values() for key in named_arguments(one)):
        yield name, "argument"
    for name in dict.fromkeys(key for job in lines for key in job.tags):
        yield name, "tag"
    for name in FIELDS:
        yield name, "field"


def _tag_names(store: Store) -> Candidates:
    return [(key, "") for key in dict.fromkeys(key for job in _lines(store) for key in job.tags)]


def _with_logs(settings: Settings, typed: str, params: Mapping[str, Any]) -> Candidates:
    """Offer jobs whose logs can be printed; with --follow, only jobs that have not ended."""
    return SOURCES["unfinished jobs" if params.get("follow") else "jobs"](settings, typed)


def _files_of_job(settings: Settings, params: Mapping[str, Any]) -> Candidates:
    """Offer the stored files of the job that was typed before."""
    job = params.get("job")
    if isinstance(job, (tuple, list)):
        job = job[0] if job else None
    if not job:
        return []
    with settings.open() as workspace:
        found = workspace.store.files(workspace.store.find(str(job), newest=True).id)
    return [(one.name, "") for one in found]


def _metrics(store: Store) -> Candidates:
    return [(name, "") for name in store.metric_names(most=MOST)]


def _published(store: Store) -> Candidates:
    return [(one.id, one.name) for one in store.published_pipelines()]


def _models(store: Store) -> Candidates:
    return [(name, "") for name in dict.fromkeys(one.name for one in store.models())]


def _model_versions(store: Store) -> Candidates:
    known = store.models()
    for name in dict.fromkeys(one.name for one in known):
        yield name, "newest version"
    for one in known:
        yield f"{one.name}:{one.version}", ""
    for one in known:
        for alias in one.aliases:
            yield f"{one.name}@{alias}", f"version {one.version}"


def _aliases(store: Store) -> Candidates:
    found = (alias for one in store.models() for alias in one.aliases)
    return [(alias, "") for alias in dict.fromkeys(found)]


def _dataset_names(store: Store) -> Candidates:
    """Offer each dataset, and each of its versions."""
    for one in store.catalogue.datasets():
        yield one.name, f"newest version: {one.version}"
        for version in store.catalogue.dataset_versions(one.name):
            yield f"{one.name}:{version.version}", version.kind


def _dataset_versions(store: Store) -> Candidates:
    for name, text in _dataset_names(store):
        yield f"dataset:{name}", text


def _datastores(store: Store) -> Candidates:
    return [(one.name, one.kind) for one in store.catalogue.datastores()]


def _paths(store: Store) -> Candidates:
    """Offer the completions of a path or dataset."""
    yield from ((f"{name}/", kind) for name, kind in _datastores(store))
    yield from _dataset_versions(store)


def _inputs(settings: Settings, typed: str) -> Candidates:
    name, separator, _ = typed.partition("=")
    if not separator:
        return []
    with settings.open() as workspace:
        return [(f"{name}={value}", text) for value, text in _paths(workspace.store)]


def _outputs(settings: Settings, typed: str) -> Candidates:
    name, separator, _ = typed.partition("=")
    if not separator:
        return []
    with settings.open() as workspace:
        return [(f"{name}={value}/", kind) for value, kind in _datastores(workspace.store)]


def _targets(_settings: Settings, _typed: str) -> Candidates:
    from rayjobs.core.paths import home
    from rayjobs.target.record import all_targets

    return [(record.name, record.address or "this machine") for record in all_targets(home=home())]


def _node_types(_settings: Settings, _typed: str) -> Candidates:
    from rayjobs.core.paths import home
    from rayjobs.target.record import all_targets

    for record in all_targets(home=home()):
        for one in record.node_types.types if record.node_types is not None else ():
            yield one.name, f"{record.name}: {one.vm_size}"


def _after(settings: Settings, typed: str) -> Candidates:
    job, separator, _ = typed.rpartition(":")
    if separator:
        return [(f"{job}:ok", "it has completed"), (f"{job}:any", "it has ended")]
    return list(_jobs()(settings, typed))


def _retries(_settings: Settings, _typed: str) -> Candidates:
    from rayjobs.core.failures import FailureClass

    return [(f"{one}=", "") for one in FailureClass]


def _backends(_settings: Settings, _typed: str) -> Candidates:
    from rayjobs.cli.spec_options import BACKENDS

    return [(one, "") for one in BACKENDS]


def _secrets(_settings: Settings, typed: str) -> Candidates:
    name, separator, _ = typed.partition("=")
    return [(f"{name}=env:", ""), (f"{name}=file:", "")] if separator else []


SOURCES: Mapping[str, Source] = {
    "jobs": _jobs(),
    LOGS: _jobs(),  # with --follow: see `_with_logs`
    "unfinished jobs": _jobs(states=UNFINISHED),
    "running jobs": _jobs(states=[JobState.RUNNING]),
    "sweeps": _jobs(("sweep",)),
    "unfinished sweeps": _jobs(("sweep",), states=UNFINISHED),
    "pipelines": _jobs(("pipeline",)),
    "unfinished pipelines": _jobs(("pipeline",), states=UNFINISHED),
    "parents": _jobs(("sweep", "array", "pipeline")),
    "after": _after,
    "experiments": _store(_experiments),
    "tags": _store(_tags),
    "tag names": _store(_tag_names),
    "columns": _store(_columns),
    "metrics": _store(_metrics),
    "models": _store(_models),
    "schedules": _store(
        lambda store: [(one.id, one.name) for one in store.schedules(active=False)]
    ),
    "published pipelines": _store(_published),
    "model versions": _store(_model_versions),
    "aliases": _store(_aliases),
    "datasets": _store(_dataset_names),
    "dataset versions": _store(_dataset_versions),
    "dataset names": _store(lambda store: [(one.name, "") for one in store.catalogue.datasets()]),
    "datastores": _store(_datastores),
    "data paths": _store(_paths),
    "inputs": _inputs,
    "outputs": _outputs,
    "targets": _targets,
    "node types": _node_types,
    "retries": _retries,
    "backends": _backends,
    "secrets": _secrets,
}


def offered(
    source: str, settings: Settings, typed: str, params: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return the values of a source that begin with what was typed, with their help.

    Args:
        params: The values of the command's parameters that were typed before.
    """
    from rayjobs.core.errors import RayjobsError
    from rayjobs.datastore.errors import DatastoreError

    try:
        if source == FILES_OF_JOB:
            found = list(_files_of_job(settings, params))
        elif source == LOGS:
            found = list(_with_logs(settings, typed, params))
        else:
            found = list(SOURCES[source](settings, typed))
    except (RayjobsError, DatastoreError, OSError):
        return []
    first: dict[str, str] = {}  # a value of two kinds, such as a metric and a tag, is offered once
    for value, text in found:
        first.setdefault(value, text)
    return [(value, text) for value, text in first.items() if value.startswith(typed)][:MOST]

"""The HTTP API's operations on records: one table for the server, the client and OpenAPI.

A row names a method of the store or the catalogue. The method's signature defines its arguments and
its answer, so the server's routes, the client's methods and the document cannot differ. Methods
outside the table cannot be called: only the target uses methods of attempts, allocations, claims
and pruning.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import make_dataclass
from functools import cache
from typing import Any, Literal, cast, get_origin

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.store.base import Store
from rayjobs.workspace import plain
from rayjobs.workspace.users import Role

RECORDS = ("new", "draft")
MadeRecord = Literal["published_pipeline", "schedule", "model"]
VIEWER, SUBMITTER, ADMIN = Role.VIEWER, Role.SUBMITTER, Role.ADMIN


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        verb: GET for reads with short arguments, POST for others, PUT and DELETE as in HTTP.
        path: Arguments in braces are part of the path; the rest are in the query (GET, DELETE) or
            the body.
        role: Who may call it.
        method: The method of the store, or of its catalogue (``catalogue.…``).
        user: The argument that the server sets to the user's name; of an argument in `RECORDS`, it
            sets the field ``user``.
        own: The argument (or ``argument.field``) that names a job, or a list of jobs, which
            submitters may only change if they own them; the value None names no job.
        spec: The argument with a job's spec, which must be valid where the server runs.
        kind: The required kind of the job that `own` names, such as ``interactive``; empty: any.
        maker: The kind of record that the path names and whose maker (`created_by`) counts:
            submitters may only change records that they made, and those without a maker. All
            submitters share objects without such a record (docs/guides/team.md).
        repeats: A second call has no further effect.
        page: The maximum number of list items in one answer.
    """

    verb: str
    path: str
    role: Role
    method: str
    user: str = ""
    own: str = ""
    kind: str = ""
    spec: str = ""
    maker: MadeRecord | None = None
    repeats: bool = True
    page: int = 500

    @property
    def is_paged(self) -> bool:
        """Whether the answer is a list, which is returned in pages."""
        return get_origin(hints_of(self.method)["return"]) is list

    @property
    def has_pages(self) -> bool:
        """Whether the store itself returns the list in parts."""
        return "page" in signature_of(self.method).parameters

    @property
    def name(self) -> str:
        """The method's name without ``catalogue.``."""
        return self.method.rpartition(".")[2]

    @property
    def in_path(self) -> tuple[str, ...]:
        """The arguments in the path."""
        return tuple(re.findall(r"{(\w+)", self.path))

    @property
    def in_body(self) -> bool:
        """Whether the other arguments are in the body."""
        return self.verb in ("POST", "PUT")


def _reads(*rows: tuple[str, str]) -> tuple[Operation, ...]:
    return tuple(Operation("GET", path, VIEWER, method) for path, method in rows)


def _searches(*rows: tuple[str, str]) -> tuple[Operation, ...]:
    return tuple(Operation("POST", path, VIEWER, method) for path, method in rows)


OPERATIONS: tuple[Operation, ...] = (
    *_reads(
        ("/v1/jobs/{job_id}", "job"),
        ("/v1/jobs/{job_id}/revision", "revision"),
        ("/v1/jobs/{job_id}/attempts", "attempts"),
        ("/v1/jobs/{job_id}/events", "events"),
        ("/v1/jobs/{job_id}/files", "files"),
        ("/v1/jobs/{job_id}/step", "step_of"),
        ("/v1/jobs/{array_id}/members/{index}", "member"),
        ("/v1/job-names/{text}", "find"),
        ("/v1/job-counts", "counts"),
        ("/v1/metric-names", "metric_names"),
        ("/v1/changes", "change"),
        ("/v1/targets/{target}/live", "live"),
        ("/v1/targets/{target}/durations", "usual_durations"),
        ("/v1/sweeps", "sweeps"),
        ("/v1/sweeps/{sweep_id}", "sweep"),
        ("/v1/sweeps/{sweep_id}/trials", "trials"),
        ("/v1/sweeps/{sweep_id}/judged", "judged_trials"),
        ("/v1/pipelines", "pipelines"),
        ("/v1/pipelines/{pipeline_id}", "pipeline"),
        ("/v1/pipelines/{pipeline_id}/steps", "steps"),
        ("/v1/reusable-steps/{key}", "reusable_steps"),
        ("/v1/earlier-steps/{pipeline_name}/{step}", "earlier_step"),
        ("/v1/published-pipelines", "published_pipelines"),
        ("/v1/published-pipelines/{text}", "published_pipeline"),
        ("/v1/schedules", "schedules"),
        ("/v1/schedules/{text}", "schedule"),
        ("/v1/endpoints", "endpoint_versions"),
        ("/v1/models", "models"),
        ("/v1/models/{name}", "model"),
        ("/v1/environments", "environments"),
        ("/v1/environments/{name}", "environment"),
        ("/v1/datastores", "catalogue.datastores"),
        ("/v1/datastores/{name}", "catalogue.datastore"),
        ("/v1/default-datastore", "catalogue.default_datastore"),
        ("/v1/datasets", "catalogue.datasets"),
        ("/v1/datasets/{name}", "catalogue.dataset"),
        ("/v1/datasets/{name}/versions", "catalogue.dataset_versions"),
        ("/v1/dataset-ids/{id}", "catalogue.dataset_by_id"),
        ("/v1/manifests/{digest}", "catalogue.manifest"),
        ("/v1/program-setting", "program_setting"),
        ("/v1/program-settings", "program_settings"),
        ("/v1/run-writers", "run_writers"),
    ),
    *_searches(
        ("/v1/jobs:list", "job_lines"),
        ("/v1/jobs:states", "job_states"),
        ("/v1/jobs:arguments", "job_arguments"),
        ("/v1/jobs:member-counts", "member_counts"),
        ("/v1/jobs:last-metrics", "last_metrics"),
        ("/v1/jobs:checkpoint-times", "checkpoint_times"),
        ("/v1/jobs:durations", "durations"),
        ("/v1/jobs:earlier-runs", "earlier_runs"),
        ("/v1/jobs:unseen-ends", "unseen_ends"),
        ("/v1/jobs:newest-lock", "newest_lock"),
        ("/v1/datastores:located", "catalogue.located"),
    ),
    Operation("GET", "/v1/jobs/{job_id}/metrics", VIEWER, "metrics", page=5000),
    Operation("GET", "/v1/reports/queue", VIEWER, "queue_history", page=1000),
    Operation("GET", "/v1/reports/usage", VIEWER, "usage", page=1000),
    Operation("POST", "/v1/jobs:read", VIEWER, "jobs", page=100),
    Operation("POST", "/v1/jobs:serials", VIEWER, "jobs_of", page=100),
    Operation("POST", "/v1/jobs", SUBMITTER, "submit", user="new"),
    Operation("POST", "/v1/arrays", SUBMITTER, "submit_array", user="new"),
    Operation("POST", "/v1/sweeps", SUBMITTER, "put_sweep", user="new"),
    Operation("POST", "/v1/pipelines", SUBMITTER, "put_pipeline", user="new"),
    Operation("POST", "/v1/jobs/{job_id}/cancel", SUBMITTER, "request_cancel", "by", "job_id"),
    Operation("POST", "/v1/jobs/{job_id}/update", SUBMITTER, "update", own="job_id"),
    Operation("POST", "/v1/jobs/{job_id}/hold", SUBMITTER, "hold", own="job_id"),
    Operation("POST", "/v1/jobs/{job_id}/release", SUBMITTER, "release", own="job_id"),
    Operation("POST", "/v1/jobs/{job_id}/fail", SUBMITTER, "request_fail", "by", "job_id"),
    Operation("POST", "/v1/jobs:revise", SUBMITTER, "revise", own="read.id", spec="spec"),
    Operation("POST", "/v1/runs", SUBMITTER, "start_run", user="new"),
    Operation("POST", "/v1/runs:end-orphans", SUBMITTER, "end_orphans", own="runs"),
    *(
        Operation("POST", path, SUBMITTER, method, own=own, kind="interactive")
        for path, method, own in (
            ("/v1/runs/{run_id}/end", "end_run", "run_id"),
            ("/v1/runs/{run_id}/snapshot", "set_run_snapshot", "run_id"),
            ("/v1/runs/{job_id}/metrics", "add_metrics", "job_id"),
            ("/v1/runs/{job_id}/files", "publish_files", "job_id"),
            ("/v1/runs/{job_id}/dropped-files", "drop_files", "job_id"),
        )
    ),
    Operation(
        "POST", "/v1/published-pipelines", SUBMITTER, "publish_pipeline", "user", repeats=False
    ),
    Operation(
        "POST",
        "/v1/published-pipelines/{pipeline_id}/active",
        SUBMITTER,
        "set_published_active",
        maker="published_pipeline",
    ),
    Operation("PUT", "/v1/schedules", SUBMITTER, "put_schedule"),
    Operation("DELETE", "/v1/schedules/{schedule}", SUBMITTER, "drop_schedule", maker="schedule"),
    Operation(
        "POST", "/v1/endpoints/{name}/versions", SUBMITTER, "add_endpoint_version", repeats=False
    ),
    Operation("POST", "/v1/endpoints/{name}/rename", SUBMITTER, "rename_endpoint", repeats=False),
    Operation("POST", "/v1/endpoints/{name}/active", SUBMITTER, "set_endpoint_active"),
    Operation("POST", "/v1/endpoints/{name}/default", SUBMITTER, "set_endpoint_default"),
    Operation("POST", "/v1/environments/{name}", SUBMITTER, "put_environment", user="user"),
    Operation("PUT", "/v1/manifests", SUBMITTER, "catalogue.put_manifest"),
    Operation("PUT", "/v1/datasets", SUBMITTER, "catalogue.add_dataset", repeats=False),
    Operation("PUT", "/v1/dataset-ids/{id}/tags", SUBMITTER, "catalogue.set_dataset_tags"),
    Operation("POST", "/v1/models:register", SUBMITTER, "put_model", "draft", "run"),
    Operation("PUT", "/v1/program-setting", SUBMITTER, "put_program_setting"),
    Operation("PUT", "/v1/models/{name}/aliases/{alias}", SUBMITTER, "set_model_alias"),
    Operation(
        "POST", "/v1/models/{name}/update/{version}", SUBMITTER, "update_model", maker="model"
    ),
    Operation("PUT", "/v1/environments/{name}/labels/{label}", ADMIN, "set_environment_label"),
    Operation("DELETE", "/v1/models/{name}/versions/{version}", ADMIN, "delete_model"),
    Operation("DELETE", "/v1/datasets/{name}", ADMIN, "catalogue.remove_dataset"),
    Operation("PUT", "/v1/datastores", ADMIN, "catalogue.add_datastore"),
    Operation("DELETE", "/v1/datastores/{name}", ADMIN, "catalogue.remove_datastore"),
    Operation("PUT", "/v1/default-datastore", ADMIN, "catalogue.set_default_datastore"),
)

BY_METHOD = {one.method: one for one in OPERATIONS}


def method_of(method: str) -> Callable[..., Any]:
    """Return the method of the contract that an operation calls."""
    part, _, name = method.rpartition(".")
    if part:
        from rayjobs.datastore.catalogue import Catalogue

        return cast(Callable[..., Any], getattr(Catalogue, name))
    return cast(Callable[..., Any], getattr(Store, name))


@cache
def hints_of(method: str) -> dict[str, Any]:
    """Return the types of a method's arguments and of its result."""
    return plain.hints_of(method_of(method))


@cache
def answer_of(operation: Operation) -> Any:
    """Return the type of an operation's answer: its method's result, or a page of it."""
    result = hints_of(operation.method)["return"]
    if not operation.is_paged:
        return result
    fields = [("items", result), ("next", str | None)]
    return make_dataclass("Page", fields, repr=False, eq=False)


@cache
def signature_of(method: str) -> inspect.Signature:
    """Return the signature of an operation's method, without ``self``."""
    found = inspect.signature(method_of(method))
    return found.replace(parameters=list(found.parameters.values())[1:])


def others(operation: Operation) -> Iterator[inspect.Parameter]:
    """Yield the arguments of an operation that are neither in its path nor set by the server."""
    hidden = {*operation.in_path, "" if operation.user in RECORDS else operation.user}
    if operation.has_pages:
        hidden.add("page")
    for parameter in signature_of(operation.method).parameters.values():
        if parameter.name not in hidden:
            yield parameter

"""The contract of parents that run nothing themselves: sweeps and pipeline runs.

Parts of `rayjobs.store.base.Store`, whose general contract also applies here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from rayjobs.jobs.records import (
    ChildNews,
    EndpointVersion,
    Pipeline,
    PublishedRecord,
    ScheduleRecord,
    StepRow,
    Sweep,
    TrialRow,
)
from rayjobs.store.requests import (
    NewPipeline,
    NewSweep,
    Page,
)


class SweepStore(Protocol):
    """Sweeps and their trials."""

    def put_sweep(self, new: NewSweep) -> tuple[Sweep, bool]:
        """Write a sweep durably; return it and whether it is new.

        The sweep is a job of kind ``sweep``. It is Running from the start, and no target starts
        it. It is canceled by `request_cancel`, and ended by its driver through `move` and
        `finish`, with the number of the driver's claim as the attempt. If its idempotency key is
        known, the sweep of the first call is returned, and the flag is False.

        Raises:
            UsageError: the base spec is an array's; the id or the key belongs to another job; a
                dataset version that the trials read was deleted.
        """

    def sweep(self, sweep_id: str) -> Sweep:
        """Return a sweep.

        Raises:
            NotFoundError: there is no such job, or it is not a sweep.
        """

    def sweeps(self, *, experiment: str | None = None, limit: int | None = None) -> list[Sweep]:
        """Return sweeps, newest first."""

    def sweeps_to_drive(self, target: str) -> list[tuple[str, str]]:
        """Return the id and the driver of each unfinished sweep of a target."""

    def claim_sweep(self, sweep_id: str) -> int | None:
        """Make the caller the only driver of a sweep; return the number of the claim.

        Numbers grow, and writes with an older number are refused. None if the sweep has ended.
        """

    def put_trials(self, sweep_id: str, *, claim: int, trials: Sequence[TrialRow]) -> bool:
        """Write new and changed rows of the trial table durably.

        The parameters of an existing row never change. False if there is a newer claim, also if
        there is nothing to write.
        """

    def trials(self, sweep_id: str, *, page: Page | None = None) -> list[TrialRow]:
        """Return the trial table, in order of number."""

    def child_news(
        self, parent: str, *, metric: str, cursors: Mapping[str, Mapping[str, Any]]
    ) -> list[ChildNews]:
        """Return the states of children, and the points of a metric since the last call.

        Only new points are read.

        Args:
            parent: The sweep.
            metric: Name of the metric.
            cursors: Job id → cursor of the last call, ``{}`` for the first.
        """


class PipelineStore(Protocol):
    """Pipeline runs and their steps."""

    def put_pipeline(self, new: NewPipeline) -> tuple[Pipeline, bool]:
        """Write a pipeline run durably with all its steps; return it and whether it is new.

        The run is a job of kind ``pipeline``. It is Running from the start, and no target starts
        it; it ends with its last step, in the same transaction. A step is a job (or sweep) with the
        run as parent. A step that reuses results is Completed from the start. If the idempotency
        key is known, the run of the first call is returned, and the flag is False.

        Raises:
            UsageError: it has no steps; an id is taken; a job whose results a step reuses, or a
                dataset version that a step reads, was deleted.
        """

    def pipeline(self, pipeline_id: str) -> Pipeline:
        """Return a pipeline run.

        Raises:
            NotFoundError: there is no such job, or it is not a pipeline.
        """

    def pipelines(
        self, *, experiment: str | None = None, limit: int | None = None
    ) -> list[Pipeline]:
        """Return pipeline runs, newest first."""

    def steps(self, pipeline_id: str) -> list[StepRow]:
        """Return the steps of a pipeline run, in order of number."""

    def step_of(self, job_id: str) -> StepRow | None:
        """Return the step that a job is; None if it is not a step."""

    def reusable_steps(self, key: str, *, most: int = 5) -> list[StepRow]:
        """Return completed steps with this key that did not reuse results, newest first."""

    def earlier_step(
        self, pipeline_name: str, step: str, *, before: str | None = None
    ) -> StepRow | None:
        """Return the newest completed step of this name in such a pipeline that reused no results.

        Args:
            before: Only steps that were submitted before this job; None: any.
        """

    def publish_pipeline(
        self,
        spec: Mapping[str, Any],
        *,
        name: str,
        version: str | None = None,
        description: str = "",
        user: str = "",
    ) -> PublishedRecord:
        """Store a pipeline durably, so that it can be run by its id. Its code is never pruned."""

    def published_pipelines(self, *, active: bool = True) -> list[PublishedRecord]:
        """Return published pipelines, newest first; unless `active`, including disabled ones."""

    def published_pipeline(self, text: str) -> PublishedRecord:
        """Return the published pipeline with this id, a start of it (8 characters or more) or name.

        Of several with a name, it is the newest active one, else the newest.

        Raises:
            NotFoundError: there is none.
        """

    def set_published_active(self, pipeline_id: str, *, active: bool) -> None:
        """Enable or disable a published pipeline durably.

        Raises:
            NotFoundError: there is none.
        """

    def put_schedule(self, record: ScheduleRecord) -> None:
        """Write a schedule durably: a new one, or all fields of an existing one."""

    def settle_schedule(
        self,
        schedule: str,
        *,
        due: datetime,
        next_at: datetime | None,
        note: str,
        failed_start: str = "",
        seen: Mapping[str, str] | None = None,
        run: str | None = None,
    ) -> bool:
        """Durably record what a due time of a schedule led to; False if the schedule was changed.

        Args:
            schedule: Its id.
            due: The due time that the caller has read.
            next_at: When it is next due; None: never.
            note: What happened, for people.
            failed_start: Why the run could not be started and stays due; empty: nothing prevented
                it.
            seen: The watched files; None leaves them unchanged.
            run: The started run; None leaves the last one.
        """

    def schedules(self, *, active: bool = True) -> list[ScheduleRecord]:
        """Return schedules, newest first; unless `active`, including disabled ones."""

    def schedule(self, text: str) -> ScheduleRecord:
        """Return the schedule with this id or prefix of one, or with this name.

        Raises:
            NotFoundError: there is none.
            UsageError: several match; the message lists their ids.
        """

    def drop_schedule(self, schedule: str) -> None:
        """Remove a schedule durably; its runs stay.

        Raises:
            NotFoundError: there is none.
        """

    def add_endpoint_version(
        self, name: str, pipeline_id: str, *, description: str = "", is_default: bool = False
    ) -> EndpointVersion:
        """Add a published pipeline to an endpoint durably, as its next version.

        The first version creates the endpoint, and is its default.

        Raises:
            NotFoundError: there is no such published pipeline.
        """

    def endpoint_versions(self, text: str | None = None) -> list[EndpointVersion]:
        """Return the versions of an endpoint, by its name or id; None: of all endpoints.

        Raises:
            NotFoundError: there is no such endpoint.
        """

    def set_endpoint_default(self, name: str, version: int) -> None:
        """Make a version the default of an endpoint durably.

        Raises:
            NotFoundError: there is no such endpoint.
            UsageError: it has no such version.
        """

    def rename_endpoint(self, name: str, new: str) -> None:
        """Give an endpoint another name durably; its id stays.

        Raises:
            NotFoundError: there is no such endpoint.
            UsageError: another endpoint has the new name.
        """

    def set_endpoint_active(self, name: str, *, active: bool) -> None:
        """Enable or disable an endpoint durably.

        Raises:
            NotFoundError: there is no such endpoint.
        """

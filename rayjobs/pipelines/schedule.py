"""Schedules of published pipelines: at recurring times, or when stored files change.

Source: ``azureml.pipeline.core.schedule`` 1.62.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rayjobs.core import ids
from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import UsageError
from rayjobs.core.paths import home
from rayjobs.core.users import user_name
from rayjobs.datastore.refs import datastore_name_of
from rayjobs.jobs.records import ScheduleRecord
from rayjobs.pipelines.pipeline import parameter_values
from rayjobs.pipelines.recurrence import ScheduleRecurrence, recurrence_of
from rayjobs.pipelines.runs import PipelineRun
from rayjobs.pipelines.scheduling import SCHEDULE_PROPERTY, changed, target_of
from rayjobs.pipelines.spec import chosen_values, read_pipeline
from rayjobs.target import timekeeper

if TYPE_CHECKING:
    from rayjobs.api.workspace import Workspace
    from rayjobs.workspace.folder import OpenWorkspace

ACTIVE, DISABLED = "Active", "Disabled"
# The limits of the minutes between two checks of watched files; each check starts a process.
SHORTEST_MIN, LONGEST_MIN = 0.01, 525_600


def create(
    workspace: OpenWorkspace,
    name: str,
    *,
    experiment: str,
    pipeline: str | None = None,
    endpoint: str | None = None,
    recurrence: ScheduleRecurrence | None = None,
    watched: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    description: str = "",
    continues: bool | None = None,
) -> ScheduleRecord:
    """Create and store a schedule; its first run is at its next due time.

    Args:
        workspace: Where the pipeline is published.
        name: A name for users.
        experiment: The experiment of its runs.
        pipeline: Id of a published pipeline.
        endpoint: Id of an endpoint instead, whose default version runs.
        recurrence: When it runs.
        watched: The watched data instead: datastore, path, polling_interval in minutes, parameter.
        parameters: Values of the pipeline's parameters for each run.
        description: A description for users.
        continues: Whether runs continue after a failure; None: the pipeline's own setting.

    Raises:
        UsageError: it has neither a recurrence nor a datastore, or both.
        NotFoundError: there is no such pipeline, endpoint or datastore.
        PipelineError: a parameter is wrong.
    """
    from rayjobs.submit import copies

    copies.become_own(workspace)
    now = SystemClock().now()
    record = ScheduleRecord(
        id=ids.token(),
        name=name,
        description=description,
        pipeline=pipeline,
        endpoint=endpoint,
        experiment=experiment,
        parameters=dict(parameters or {}),
        continues=continues,
        recurrence=None if recurrence is None else recurrence.checked.model_dump(mode="json"),
        watched=None if watched is None else dict(watched),
        created_by=user_name(),
        created_at=now,
    )
    check(workspace, record)
    return put(workspace, record)


def check(workspace: OpenWorkspace, record: ScheduleRecord) -> None:
    """Check that a schedule can run.

    Raises:
        UsageError: its name or interval is wrong, or it does not have exactly one of pipeline and
            endpoint, and one of times and watched files.
        NotFoundError: there is no such pipeline, endpoint or datastore.
        PipelineError: a parameter is wrong.
    """
    if not isinstance(record.name, str) or not record.name.strip():
        raise UsageError(f"the name of a schedule is {record.name!r}; give a short name")
    if (record.pipeline is None) == (record.endpoint is None):
        raise UsageError("a schedule runs a published pipeline or an endpoint: give one of them")
    if (record.recurrence is None) == (record.watched is None):
        raise UsageError(
            "a schedule runs at set times or when files change: give a recurrence, or a datastore"
        )
    given = dict(record.parameters)
    if record.recurrence is not None:
        recurrence_of(record.recurrence)
    if record.watched is not None:
        interval = record.watched.get("polling_interval")
        if not isinstance(interval, int | float) or not SHORTEST_MIN <= interval <= LONGEST_MIN:
            raise UsageError(
                f"polling_interval is {interval}; give a number of minutes from {SHORTEST_MIN} to "
                f"{LONGEST_MIN}"
            )
        datastore = workspace.catalogue.datastore(str(record.watched.get("datastore")))
        if record.watched.get("parameter"):
            given[str(record.watched["parameter"])] = f"{datastore.name}/x"
    spec = read_pipeline(target_of(workspace, record).spec)
    chosen_values(spec, given)


def set_active(workspace: OpenWorkspace, record: ScheduleRecord, *, active: bool) -> ScheduleRecord:
    """Enable or disable a schedule; times that passed while it was disabled are skipped."""
    return put(workspace, record, is_active=active)


def put(workspace: OpenWorkspace, record: ScheduleRecord, **values: Any) -> ScheduleRecord:
    """Store a schedule with changed values; from then on, this machine or the server runs it."""
    if workspace.server is not None:  # the server determines when it is due
        workspace.store.put_schedule(replace(record, **values))
        return workspace.store.schedule(record.id)
    new = changed(workspace, record, SystemClock().now(), **values)
    timekeeper.register(workspace.path, home=home())
    return new


def drop(workspace: OpenWorkspace, record: ScheduleRecord) -> None:
    """Remove a schedule; its runs stay."""
    workspace.store.drop_schedule(record.id)
    if workspace.server is None:
        timekeeper.register(workspace.path, home=home())


Runs = list[PipelineRun]
Schedules = list["Schedule"]


class Schedule:
    """Runs a published pipeline at certain times, or when stored files change."""

    def __init__(self, workspace: Workspace, record: ScheduleRecord) -> None:
        self._workspace = workspace
        self._record = record

    def __repr__(self) -> str:
        """Return name, id and status."""
        return f"Schedule(Name: {self.name}, Id: {self.id}, Status: {self.status})"

    # -- creation and lookup -----------------------------------------------------------------------
    @staticmethod
    def create(
        workspace: Workspace,
        name: str,
        pipeline_id: str,
        experiment_name: str,
        recurrence: ScheduleRecurrence | None = None,
        description: str | None = None,
        pipeline_parameters: Mapping[str, Any] | None = None,
        datastore: Any = None,
        polling_interval: float = 5,
        data_path_parameter_name: str | None = None,
        continue_on_step_failure: bool | None = None,
        path_on_datastore: str | None = None,
        **kwargs: Any,
    ) -> Schedule:
        """Create a schedule of a published pipeline.

        Args:
            workspace: Where the pipeline is published.
            name: A name for users.
            pipeline_id: Id of the published pipeline.
            experiment_name: The experiment of the runs.
            recurrence: When it runs.
            description: A description for users.
            pipeline_parameters: Values of parameters for each run.
            datastore: Instead of a recurrence: run when files in it change.
            polling_interval: Minutes between two checks of the datastore.
            data_path_parameter_name: Parameter for the path of the changed file, or of the folder
                if several files have changed.
            continue_on_step_failure: After a failure, run the other steps.
            path_on_datastore: Watch only files below it.
            **kwargs: Azure ML's further arguments have no effect.

        Raises:
            UsageError: an argument is wrong.
            NotFoundError: there is no such pipeline or datastore.
            PipelineError: a parameter is wrong.
        """
        record = create(
            workspace.opened,
            name,
            experiment=experiment_name,
            pipeline=workspace.opened.store.published_pipeline(pipeline_id).id,
            recurrence=recurrence,
            watched=_watched(
                datastore, path_on_datastore, polling_interval, data_path_parameter_name
            ),
            parameters=parameter_values(pipeline_parameters, workspace),
            description=description or "",
            continues=continue_on_step_failure,
        )
        return Schedule(workspace, record)

    @staticmethod
    def create_for_pipeline_endpoint(
        workspace: Workspace,
        name: str,
        pipeline_endpoint_id: str,
        experiment_name: str,
        recurrence: ScheduleRecurrence | None = None,
        description: str | None = None,
        pipeline_parameters: Mapping[str, Any] | None = None,
        datastore: Any = None,
        polling_interval: float = 5,
        data_path_parameter_name: str | None = None,
        continue_on_step_failure: bool | None = None,
        path_on_datastore: str | None = None,
        **kwargs: Any,
    ) -> Schedule:
        """Create a schedule of an endpoint, which runs the default version; see `create`."""
        (own, *_) = workspace.opened.store.endpoint_versions(pipeline_endpoint_id)
        record = create(
            workspace.opened,
            name,
            experiment=experiment_name,
            endpoint=own.id,
            recurrence=recurrence,
            watched=_watched(
                datastore, path_on_datastore, polling_interval, data_path_parameter_name
            ),
            parameters=parameter_values(pipeline_parameters, workspace),
            description=description or "",
            continues=continue_on_step_failure,
        )
        return Schedule(workspace, record)

    @staticmethod
    def get(workspace: Workspace, id: str, **kwargs: Any) -> Schedule:
        """Return a schedule by its id or name.

        Raises:
            NotFoundError: it does not exist.
        """
        return Schedule(workspace, workspace.opened.store.schedule(id))

    @staticmethod
    def list(
        workspace: Workspace,
        active_only: bool = True,
        pipeline_id: str | None = None,
        pipeline_endpoint_id: str | None = None,
        **kwargs: Any,
    ) -> list[Schedule]:
        """Return schedules, newest first."""
        return [
            Schedule(workspace, one)
            for one in workspace.opened.store.schedules(active=active_only)
            if pipeline_id in (None, one.pipeline) and pipeline_endpoint_id in (None, one.endpoint)
        ]

    get_all = list

    @staticmethod
    def get_schedules_for_pipeline_id(workspace: Workspace, pipeline_id: str) -> Schedules:
        """Return all schedules of a published pipeline."""
        return Schedule.list(workspace, active_only=False, pipeline_id=pipeline_id)

    @staticmethod
    def get_schedules_for_pipeline_endpoint_id(
        workspace: Workspace, pipeline_endpoint_id: str
    ) -> Schedules:
        """Return all schedules of an endpoint."""
        return Schedule.list(
            workspace, active_only=False, pipeline_endpoint_id=pipeline_endpoint_id
        )

    # -- facts -------------------------------------------------------------------------------------
    @property
    def id(self) -> str:
        """Its id."""
        return self._record.id

    @property
    def name(self) -> str:
        """Its name, for users."""
        return self._record.name

    @property
    def description(self) -> str:
        """Its description, for users."""
        return self._record.description

    @property
    def status(self) -> str:
        """``Active`` or ``Disabled``."""
        return ACTIVE if self._record.is_active else DISABLED

    @property
    def schedule_type(self) -> str:
        """``Recurrence`` or ``ChangeBasedTrigger``."""
        return "Recurrence" if self._record.recurrence is not None else "ChangeBasedTrigger"

    @property
    def pipeline_id(self) -> str | None:
        """Id of the published pipeline."""
        return self._record.pipeline

    @property
    def pipeline_endpoint_id(self) -> str | None:
        """Id of the endpoint."""
        return self._record.endpoint

    @property
    def recurrence(self) -> ScheduleRecurrence | None:
        """When it runs; None if it runs when files change."""
        if self._record.recurrence is None:
            return None
        values = dict(self._record.recurrence)
        return ScheduleRecurrence(start_time=values.pop("start_at"), **values)

    @property
    def datastore_name(self) -> Any:
        """The watched datastore."""
        return self._watch("datastore")

    @property
    def path_on_datastore(self) -> Any:
        """The watched path."""
        return self._watch("path")

    @property
    def polling_interval(self) -> Any:
        """Minutes between two checks."""
        return self._watch("polling_interval")

    @property
    def data_path_parameter_name(self) -> Any:
        """The parameter that gets the changed path."""
        return self._watch("parameter")

    @property
    def continue_on_step_failure(self) -> bool | None:
        """Whether other steps continue after a failure."""
        return self._record.continues

    @property
    def error_status(self) -> str:
        """The problem at the last due time; empty if there was none."""
        return self._workspace.opened.store.schedule(self.id).note

    def _watch(self, name: str) -> Any:
        return None if self._record.watched is None else self._record.watched.get(name)

    # -- runs --------------------------------------------------------------------------------------
    def get_pipeline_runs(self) -> Runs:
        """Return the runs that it started, newest first."""
        return [
            PipelineRun.get(self._workspace, one.job.id)
            for one in self._workspace.opened.store.pipelines()
            if one.job.properties.get(SCHEDULE_PROPERTY) == self.id
        ]

    def get_last_pipeline_run(self) -> PipelineRun | None:
        """Return the newest run that it started, or None."""
        return next(iter(self.get_pipeline_runs()), None)

    # -- changes -----------------------------------------------------------------------------------
    def enable(self, wait_for_provisioning: bool = False, wait_timeout: int = 3600) -> None:
        """Enable the schedule; times that have passed are skipped."""
        self._set_active(active=True)

    def disable(self, wait_for_provisioning: bool = False, wait_timeout: int = 3600) -> None:
        """Stop it from starting runs."""
        self._set_active(active=False)

    def _set_active(self, *, active: bool) -> None:
        opened = self._workspace.opened
        # It may have run or changed since this object was made.
        self._record = set_active(opened, opened.store.schedule(self.id), active=active)

    activate, deactivate = enable, disable

    def update(
        self,
        name: str | None = None,
        description: str | None = None,
        recurrence: ScheduleRecurrence | None = None,
        pipeline_parameters: Mapping[str, Any] | None = None,
        status: str | None = None,
        datastore: Any = None,
        polling_interval: float | None = None,
        data_path_parameter_name: str | None = None,
        continue_on_step_failure: bool | None = None,
        path_on_datastore: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Change the given fields; see `create`.

        Raises:
            UsageError: an argument is wrong.
            PipelineError: a parameter is wrong.
        """
        if status not in (None, ACTIVE, DISABLED):
            raise UsageError(f"status is {status!r}; use 'Active' or 'Disabled'")
        record = self._workspace.opened.store.schedule(self.id)
        values: dict[str, Any] = {}
        if recurrence is not None:
            values |= {
                "recurrence": recurrence.checked.model_dump(mode="json"),
                "watched": None,
                "seen": None,
            }
        watching = {
            "datastore": None if datastore is None else datastore_name_of(datastore),
            "path": None if path_on_datastore is None else path_on_datastore.strip("/"),
            "polling_interval": polling_interval,
            "parameter": data_path_parameter_name,
        }
        given = {key: value for key, value in watching.items() if value is not None}
        if given and recurrence is not None:
            raise UsageError("give a recurrence, or a datastore to watch")
        if given:
            if record.watched is None and "datastore" not in given:
                raise UsageError("the schedule has times; give a datastore to watch instead")
            before = record.watched or {"path": "", "polling_interval": 5, "parameter": None}
            values |= {"watched": {**before, **given}, "recurrence": None}
        for key, value in (
            ("name", name),
            ("description", description),
            ("continues", continue_on_step_failure),
            ("is_active", None if status is None else status == ACTIVE),
        ):
            if value is not None:
                values[key] = value
        if pipeline_parameters is not None:
            values["parameters"] = parameter_values(pipeline_parameters, self._workspace)
        check(self._workspace.opened, replace(record, **values))
        self._record = put(self._workspace.opened, record, **values)


def _watched(
    datastore: Any, path: str | None, interval: float, parameter: str | None
) -> dict[str, Any] | None:
    if datastore is None:
        if path is not None or parameter is not None:
            raise UsageError("path_on_datastore and data_path_parameter_name need a datastore")
        return None
    return {
        "datastore": datastore_name_of(datastore),
        "path": (path or "").strip("/"),
        "polling_interval": interval,
        "parameter": parameter,
    }

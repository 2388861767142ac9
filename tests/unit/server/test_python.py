"""Python programs use the workspace that their user has logged in to, as the command line does."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs import Experiment, Model, Workspace
from rayjobs.api.workspace import WorkspaceNotFoundError
from rayjobs.core.errors import RayjobsError, SpecError, UsageError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import MetricPoint
from rayjobs.spec.model import Input, JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace import server_choice, users
from rayjobs.workspace.users import Role
from tests.unit.server.conftest import Served

JOB = NewJob(spec=JobSpec(script="a.py"), snapshot=None, experiment="e", user="?")


@pytest.fixture
def program(served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Served:
    """A program on another machine, whose user `ada` has logged in."""
    _, token = users.add(served.workspace.store, "ada", Role.SUBMITTER, by="root")
    monkeypatch.setenv(server_choice.ADDRESS, served.address)
    monkeypatch.setenv(server_choice.TOKEN, token)
    (tmp_path / "program").mkdir()
    monkeypatch.chdir(tmp_path / "program")
    return served


def test_every_way_to_open_a_workspace_leads_to_the_server(program: Served) -> None:
    for opened in (Workspace(), Workspace.from_config(), Workspace.get("workspace")):
        assert (opened.id, opened.name) == (program.workspace.id, "workspace")
    with pytest.raises(WorkspaceNotFoundError, match=r"serves the workspace 'workspace', not 'x'"):
        Workspace.get("x")


def test_a_job_never_uses_the_login_of_its_machine(
    program: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off switch: let `of_program` not look at RAYJOBS_RUN_ID."""
    monkeypatch.setenv("RAYJOBS_RUN_ID", "train_1_ab")
    assert server_choice.of_program() is None


@pytest.mark.long
def test_an_interactive_run_is_recorded_with_metrics_files_and_children(program: Served) -> None:
    Path("result.txt").write_text("good")
    run = Experiment(Workspace(), "tries").start_logging(snapshot_directory=None)
    run.log("loss", 0.5)
    run.upload_file("result.txt", "result.txt")
    child = run.child_run("part")
    child.complete()
    run.complete()
    stored = program.workspace.store
    assert stored.job(run.id).user == "ada"
    assert [str(stored.job(one).state) for one in (run.id, child.id)] == ["Completed"] * 2
    assert [one.value for one in stored.metrics(run.id)] == [0.5]
    assert [one.name for one in stored.files(run.id)] == ["result.txt"]
    assert {one.id for one in Experiment(Workspace(), "tries").get_runs()} == {run.id}


@pytest.mark.long
def test_a_model_is_registered_from_files_of_the_client(program: Served) -> None:
    Path("model.pt").write_bytes(b"weights")
    model = Model.register(Workspace(), "model.pt", "net", tags={"kind": "small"})
    found = program.workspace.store.model("net")
    assert (found.version, dict(found.tags)) == (1, {"kind": "small"})
    assert found.lineage["uploaded"]["by"] == "ada"
    model.download(target_dir="back")
    assert Path("back/model.pt").read_bytes() == b"weights"


def test_writes_into_foreign_runs_or_jobs_are_refused(served: Served) -> None:
    """Off switches: let `_own` compare neither the user nor the kind."""
    ada, eve = served.client("ada"), served.client("eve")
    job, _ = ada.store.submit(JOB)
    point = MetricPoint(
        attempt=1, rank=0, sequence=0, name="x", value=1.0, step=0, at=job.submitted_at
    )
    with pytest.raises(RayjobsError, match="this changes runs of kind interactive only"):
        ada.store.add_metrics(job.id, [point])
    with pytest.raises(RayjobsError, match="this changes runs of kind interactive only"):
        ada.store.end_run(job.id, outcome=Outcome.COMPLETED)
    for change in (
        lambda: eve.store.revise(job, job.spec),
        lambda: eve.store.end_orphans([job.id], reasons={job.id: "x"}),
        lambda: eve.store.request_fail(job.id, failure=Failure(FailureClass.USER, "x")),
    ):
        with pytest.raises((RayjobsError, UsageError), match="ada's"):
            change()


def test_a_waiting_job_is_revised_with_a_spec_that_is_valid_here(served: Served) -> None:
    ada = served.client("ada")
    job, _ = ada.store.submit(JOB)
    nowhere = {"data": Input(source="nope/a")}
    with pytest.raises(SpecError, match="nope"):
        ada.store.revise(job, job.spec.model_copy(update={"inputs": nowhere}))
    new = job.spec.model_copy(update={"priority": 7})
    revised = ada.store.revise(job, new)
    assert revised is not None and served.workspace.store.job(job.id).spec.priority == 7


def test_program_settings_are_separate_from_store_settings(served: Served) -> None:
    ada = served.client("ada")
    ada.store.put_program_setting("identity", '{"name": "team"}')
    assert ada.store.program_settings("") == {"identity": '{"name": "team"}'}
    assert served.workspace.store.meta("identity") is None
    with pytest.raises(UsageError, match="only works on the server's own machine"):
        ada.store.meta("workspace")

"""Filters that name something unknown are refused; valid ones without matches say so."""

from __future__ import annotations

import pytest

from rayjobs.jobs.records import Job
from rayjobs.spec.model import Array, JobSpec
from rayjobs.store.requests import NewJob
from tests.unit.cli.conftest import Queue, Terminal


@pytest.fixture(autouse=True)
def _job(queue: Queue) -> None:
    queue.completed(tags={"seed": "3"})


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (["--filter", "state=Faild"], "there is no state 'Faild'. Did you mean Failed?"),
        (["--filter", "state!=Quequed"], "Did you mean Queued?"),
        (["--filter", "kind=swep"], "Did you mean sweep?"),
        (["--filter", "failure=xyz"], "It is one of: user, time_limit,"),
        (["--filter", "losss=3"], "Did you mean loss?"),
        (["--filter", "loss>low"], "loss is a number, and 'low' is not"),
        (["--experiment", "mnits"], "no experiment 'mnits'. Did you mean mnist?"),
        (["--target", "locla"], "no target 'locla'. Did you mean local?"),
        (["--target", "nix"], "no target 'nix'. Known: local."),
        (["--tag", "sead=3"], "no tag 'sead'. Did you mean seed?"),
        (["--parent", "mnist"], "has no children; --parent takes an array"),
    ],
)
def test_ls_refuses_a_filter_that_names_something_unknown(
    terminal: Terminal, typed: list[str], named: str
) -> None:
    for arguments in (["ls", *typed], ["ls", "--json", *typed]):
        done = terminal.type(*arguments)
        assert (done.code, done.out) == (2, "")
        assert named in done.err


def test_an_unknown_parent_is_not_found(terminal: Terminal) -> None:
    done = terminal.type("ls", "--parent", "mnits")
    assert (done.code, done.out) == (3, "")
    assert "did you mean" in done.err and "mnist" in done.err


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--filter", "state=Canceled"], "matches --filter 'state=Canceled'."),
        (["--filter", "state=can*"], "matches --filter 'state=can*'."),
        (["-s", "canceled"], "matches --state canceled."),
        (["--tag", "seed=4"], "The values of tag 'seed' are: 3."),
        (["--experiment", "mnist", "-s", "failed"], "--state failed --experiment mnist"),
    ],
)
def test_ls_reports_that_a_valid_filter_matches_no_job(
    terminal: Terminal, typed: list[str], message: str
) -> None:
    done = terminal.type("ls", *typed)
    assert (done.code, done.out) == (0, "")
    assert message in done.err


def test_sweep_ls_refuses_an_unknown_experiment(terminal: Terminal) -> None:
    unknown = terminal.type("sweep", "ls", "-e", "mnits")
    assert (unknown.code, "Did you mean mnist?" in unknown.err) == (2, True)
    valid = terminal.type("sweep", "ls", "-e", "mnist")
    assert (valid.code, "Experiment mnist has no sweeps" in valid.err) == (0, True)


@pytest.fixture
def array(queue: Queue) -> Job:
    """A waiting array of two."""
    spec = JobSpec(script="train.py", name="shards", array=Array(indices="4-5"))
    return queue.workspace.store.submit_array(
        NewJob(spec=spec, experiment="mnist", snapshot=None, user="ada")
    )[0]


@pytest.mark.parametrize("command", ["metrics", "files", "download"])
def test_commands_about_one_job_name_the_members_of_an_array(
    terminal: Terminal, array: Job, command: str
) -> None:
    done = terminal.type(command, array.id)
    assert (done.code, done.out) == (2, "")
    assert "is an array of 2 jobs, with the indices 4-5" in done.err
    assert f"rayjobs {command} '{array.id.rpartition('_')[2]}[4]'" in done.err
    assert terminal.type(command, f"{array.id}[4]").code == 0

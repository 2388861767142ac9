"""kill -9 of each process while one job is in each state: all end as `kills.toml` says, once."""

from __future__ import annotations

import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.core.paths import home
from rayjobs.injob.identity import Identity, identity_of, is_alive, send_signal
from rayjobs.jobs.states import JobState
from rayjobs.target import local_head, starting, targets
from rayjobs.workspace.folder import locate, open_workspace
from tests.faults.stages import PAUSE, Stage, all_states
from tests.faults.test_processes_killed import (
    actor_pid,
    agents,
    only_agent,
    rank_pid,
    warm_interpreters,
)
from tests.support.jobs import Jobs, until
from tests.support.local_target import LocalTarget

pytestmark = pytest.mark.ray

TABLE: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("kills.toml").read_text(encoding="utf-8")
)
RUNNING = str(JobState.RUNNING)
OTHER = "another running job"
STATES = {"Queued", "Provisioning", "Preparing", RUNNING, "Finalizing", PAUSE}


def known(pid: int) -> Identity:
    found = identity_of(pid)
    assert found is not None, f"process {pid} has just ended"
    return found


def the_agent(target: LocalTarget) -> Identity:
    (pid,) = until(lambda: only_agent(target), "there is exactly one agent")
    return known(pid)


def is_another(target: LocalTarget, old: local_head.HeadRecord) -> bool:
    """Whether another head runs; between the two, there is no record for a moment."""
    record = local_head.load_record(target.paths)
    return record is not None and record.instance != old.instance


def kill(*identities: Identity) -> None:
    for identity in identities:
        assert send_signal(identity, signal.SIGKILL)
    until(lambda: not any(is_alive(one) for one in identities), "it is dead")


def raylet_of(target: LocalTarget) -> Identity:
    found = target.head.identity("raylet")
    assert found is not None
    return found


def ends_as_expected(stage: Stage, process: str) -> None:
    stage.let_go()
    expected = {state: end for state, end in TABLE[process].items() if state in stage.by_state}
    assert stage.ends() == expected
    assert stage.violations() == []


def test_kill_table_is_complete() -> None:
    assert {frozenset(states) for states in TABLE.values()} == {frozenset(STATES)}
    assert all(
        one == "-" or one.split()[0] in set(JobState)
        for row in TABLE.values()
        for one in row.values()
    )


def test_the_target_actor(jobs: Jobs, local_target: LocalTarget) -> None:
    raylet = raylet_of(local_target)
    with all_states(jobs, agent=lambda: the_agent(local_target), raylet=raylet) as stage:
        old = known(actor_pid(local_target))
        kill(old)
        stage.resume()
        until(lambda: actor_pid(local_target) != old.pid, "a new target actor answers")
        ends_as_expected(stage, "target-actor")


def test_the_node_agent(jobs: Jobs, local_target: LocalTarget) -> None:
    raylet = raylet_of(local_target)
    with all_states(jobs, agent=lambda: the_agent(local_target), raylet=raylet) as stage:
        old = the_agent(local_target)
        kill(old)
        stage.resume()
        until(lambda: set(agents(local_target)) - {old.pid}, "a new agent is there")
        ends_as_expected(stage, "node-agent")


def test_the_warm_interpreter(jobs: Jobs, local_target: LocalTarget) -> None:
    raylet = raylet_of(local_target)
    with all_states(jobs, agent=lambda: the_agent(local_target), raylet=raylet) as stage:
        kill(*until(lambda: warm_interpreters(local_target), "the warm interpreter answers"))
        ends_as_expected(stage, "warm-interpreter")
    # The interpreter is replaced: the next job forks from a new one.
    after = jobs.wait(jobs.submit("print('next')"), JobState.COMPLETED)
    assert jobs.attempt(after).cold_reason is None


def test_killed_host_or_rank_affects_no_other_job(jobs: Jobs, local_target: LocalTarget) -> None:
    raylet = raylet_of(local_target)
    with all_states(
        jobs, agent=lambda: the_agent(local_target), raylet=raylet, running=(RUNNING, OTHER)
    ) as stage:
        of_host, of_rank = stage.by_state.pop(RUNNING), stage.by_state.pop(OTHER)
        kill(jobs.host_process(of_host), known(rank_pid(jobs.root(of_rank))))
        ends_as_expected(stage, "client")  # as if nothing had happened
        for process, job in (("attempt-host", of_host), ("rank", of_rank)):
            done = jobs.wait(job)
            assert f"{done.state} {done.attempt}" == TABLE[process][RUNNING]
        host_lost, failed = jobs.store.attempts(of_host.id)[0].failure, jobs.job(of_rank).failure
        assert host_lost is not None
        assert str(host_lost.failure_class) == "system"
        assert failed is not None
        assert failed.signal == signal.SIGKILL
    jobs.nothing_left(of_host)


def test_the_client_that_submitted(jobs: Jobs, local_target: LocalTarget) -> None:
    raylet = raylet_of(local_target)
    with all_states(jobs, agent=lambda: the_agent(local_target), raylet=raylet) as stage:
        stage.client.kill()
        ends_as_expected(stage, "client")


@pytest.fixture
def own_target(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTarget]:
    """A head for this test only, which it may kill."""
    monkeypatch.setenv("RAYJOBS_LOCAL_CPUS", "8")
    monkeypatch.setenv("RAYJOBS_LOCAL_DASHBOARD", "0")  # half the time of a start
    starting.ensure_target("local", home=home())
    yield LocalTarget(short_path / "h", ())
    targets.stop_target(force=True, home=short_path / "h")


@pytest.mark.slow
@pytest.mark.parametrize("process", ["raylet", "ray-head"])
def test_ray_itself(process: str, own_target: LocalTarget, tmp_path: Path) -> None:
    workspace = open_workspace(locate())
    jobs = Jobs(workspace, tmp_path)
    raylet = raylet_of(own_target)
    with all_states(jobs, agent=lambda: the_agent(own_target), raylet=raylet) as stage:
        head = own_target.head
        all_of_it = tuple(local_head.processes_of(Path(head.temp_dir)))
        kill(*([raylet] if process == "raylet" else all_of_it))
        stage.resume()
        until(lambda: is_another(own_target, head), "its keeper starts another head")
        # A job that ended meanwhile would correctly count as done.
        survivor = stage.by_state[RUNNING]
        until(lambda: jobs.store.attempts(survivor.id)[0].ended_at, "the survivor is ended")
        ends_as_expected(stage, process)
        for job in stage.by_state.values():
            jobs.nothing_left(job)
    workspace.close()

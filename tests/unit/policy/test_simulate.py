"""`rayjobs simulate`: traces are read or refused, the simulation is exact, the figures add up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rayjobs.cli.main import main
from rayjobs.cli.reporting import causes
from rayjobs.cli.simulate import NAMES
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.policy import Limits
from rayjobs.policy.simulate import (
    POLICIES,
    Pool,
    TraceJob,
    figures,
    make_traces,
    play,
    read_trace,
    shipped,
)

CSV = """\
# two jobs
submit,duration,gpus,cap,preemptible,user
0,90m,1,2h,yes,ann
10,60,,,0,
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def test_a_trace_is_csv_or_json_lines(tmp_path: Path) -> None:
    table, lines = tmp_path / "t.csv", tmp_path / "t.jsonl"
    table.write_text(CSV)
    lines.write_text(
        '{"submit": 0, "duration": "90m", "gpus": 1, "cap": "2h", "preemptible": true, '
        '"user": "ann", "job": "line-3"}\n\n{"job": "line-4", "submit": 10, "duration": 60}\n'
    )
    jobs = read_trace(table)
    assert jobs == read_trace(lines)
    assert jobs[0] == TraceJob(
        job="line-3",
        submit_s=0,
        duration_s=5400,
        gpus=1,
        cpus=4,
        cap_s=7200,
        preemptible=True,
        user="ann",
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("submit,duration\n0,soon\n", "line 2 .*not a valid duration"),
        ("submit\n0\n", "line 2 .*'duration' is missing"),
        ("submit,duration,colour\n0,1,red\n", "no column 'colour'"),
        ("submit,duration,preemptible\n0,1,maybe\n", "preemptible is 'maybe'"),
        ("submit,duration,nodes\n0,1,0\n", "nodes is 0"),
        ("submit,duration,gpus\n0,1,-1\n", "gpus is -1"),
        ("submit,duration\n-5,1\n", "submit is -5"),
        ("submit,duration,job\n0,1,a\n1,1,a\n", "names a job twice"),
        ("submit,duration\n", "has no jobs"),
        ('{"submit": 1\n', "line 1 .*not JSON"),
        ('{"submit": 1, "duration": 1}\n[]\n', "line 2 .*not a JSON object"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=named):
        read_trace(path)


@pytest.mark.parametrize("text", ["submit,duration,colour\n0,1,red\n", '{"submit": 1\n'])
def test_a_wrong_line_is_reported_once(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_trace(path)
    assert causes(caught.value) == [caught.value.message]


def test_unknown_trace_error_lists_the_known_ones() -> None:
    with pytest.raises(NotFoundError, match="many-small, mixed"):
        read_trace("nowhere.csv")


def test_shipped_traces_match_their_generator(tmp_path: Path) -> None:
    make_traces.write(tmp_path)
    assert sorted(shipped()) == ["many-small", "mixed"]
    for name, path in shipped().items():
        assert (tmp_path / f"{name}.csv").read_text() == path.read_text()


POOL = Pool(nodes=1, gpus=0, cpus=2)


def job(name: str, at: float, duration: float, cpus: float, **more: object) -> TraceJob:
    return TraceJob(job=name, submit_s=at, duration_s=duration, cpus=cpus, **more)  # type: ignore[arg-type]


def test_figures_add_up() -> None:
    trace = [job("a", 0, 100, 1), job("b", 10, 100, 2), job("c", 20, 60, 1, cap_s=30)]
    outcomes = {one.job.job: one for one in play(trace, POOL, POLICIES["fifo"])}
    assert [outcomes[name].started_s for name in "abc"] == [0, 100, 200]
    assert outcomes["c"].ended_s == 230  # its limit ends it
    found = figures("fifo", list(outcomes.values()), POOL)
    assert found.mean_wait_s == (0 + 90 + 180) / 3
    assert (found.p50_wait_s, found.p95_wait_s, found.max_wait_s) == (90, 180, 180)
    assert found.makespan_s == 230
    assert found.utilisation == (100 + 200 + 30) / (2 * 230)


def test_preempted_job_resumes_from_its_checkpoint() -> None:
    trace = [
        job("low", 0, 1000, 2, preemptible=True),
        job("high", 450, 100, 2, priority=1),
    ]
    low, high = play(trace, POOL, Limits(), checkpoint_s=200)
    assert high.started_s == 460
    assert low.spells == [(0, 460, ("node0",)), (560, 1160, ("node0",))]
    assert (low.preempted, low.lost_s, low.ended_s) == (1, 60, 1160)


def test_trace_job_larger_than_the_pool_is_refused() -> None:
    with pytest.raises(UsageError, match=r"asks for 3 CPUs.*--cpus"):
        play([job("big", 0, 1, 3)], POOL, Limits())
    with pytest.raises(UsageError, match="never starts within these limits"):
        play([job("big", 0, 1, 1, gpus=2.0)], Pool(1, 4, 8), Limits(gpus_per_user=1))


@pytest.mark.long
def test_the_command_prints_the_policies_side_by_side() -> None:
    done = run("mixed")
    assert done.exit_code == 0
    assert all(name in done.stdout for name in NAMES)
    assert "utilization" in done.stdout
    printed = run("mixed", "--json", "--policy", "backfill", "--nodes", "8")
    result = json.loads(printed.stdout)
    assert result["pool"] == {"nodes": 8, "gpus": 8.0, "cpus": 64.0}
    assert [one["policy"] for one in result["policies"]] == ["backfill"]
    assert result["policies"][0]["jobs"] == 300
    assert tuple(POLICIES) == NAMES


@pytest.mark.long
def test_each_policy_is_best_at_its_purpose() -> None:
    found = {one["policy"]: one for one in json.loads(run("mixed", "--json").stdout)["policies"]}
    assert found["backfill"]["mean_wait_s"] < 0.5 * found["fifo"]["mean_wait_s"]
    assert found["backfill"]["utilisation"] > found["fifo"]["utilisation"]
    assert found["backfill+preempt"]["top_wait_s"] < found["backfill"]["top_wait_s"]


@pytest.mark.long
def test_no_ray_and_no_torch_are_imported() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from rayjobs.cli.main import main\n"
        "done = CliRunner().invoke(main, ['simulate', 'mixed', '--policy', 'fifo'])\n"
        "assert done.exit_code == 0, done.output\n"
        "assert not {'ray', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ))

"""A sweep of 24 trials with 5 reports each, whose script imports torch: ours and Ray Tune's.

    python benchmarks/bench_sweep.py [--trials 24] [--rounds 5] [--json]

All three run in turn on this machine, as many trials at a time as it has CPUs: our sweep on a
running local target, stock Tune with a function that imports torch, and Tune with `reuse_actors`.
The times cover everything from the submit until the best trial is known, but not the start of Ray.
The figures are medians of the rounds. Stock Tune, which takes a minute, has one round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rayjobs.store.requests import JobFilter

REPORTS = 5
DEADLINE_S = 300.0
SCRIPT = """
import time
began = time.monotonic()
import argparse
import torch
from rayjobs import Run
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
x = torch.tensor(parser.parse_args().x)
run = Run.get_context()
for step in range(5):
    run.log("score", float(x * (step + 1)), step=step)
run.log("took_s", time.monotonic() - began)
"""


def ours(folder: Path, trials: int, at_once: int, rounds: int) -> dict[str, Any]:
    """Run our sweep on a new local target, after an unmeasured first one; return the medians."""
    os.environ["RAYJOBS_HOME"] = str(folder / "h")
    from rayjobs.target import targets
    from rayjobs.tuning.spec import parse_sweep
    from rayjobs.tuning.submitter import submit_sweep
    from rayjobs.workspace.folder import open_workspace

    source = folder / "source"
    source.mkdir()
    (source / "train.py").write_text(SCRIPT)
    home = folder / "h"
    targets.start_target(home=home)
    try:
        with open_workspace(folder / "w") as workspace:

            def run(count: int) -> tuple[float, Any]:
                began = time.monotonic()
                spec = parse_sweep(
                    {
                        "job": {"script": "train.py", "source_directory": str(source)},
                        "sampling": {
                            "type": "random",
                            "seed": 1,
                            "parameters": {"--x": ["uniform", [0, 1]]},
                        },
                        "metric": "score",
                        "goal": "maximize",
                        "limits": {"total": count, "concurrent": at_once},
                    }
                )
                sweep = submit_sweep(workspace, spec).sweep.job.id
                while not (job := workspace.store.job(sweep)).state.is_final:
                    if time.monotonic() - began > DEADLINE_S:
                        raise SystemExit(f"the sweep did not end in {DEADLINE_S:g} s")
                    time.sleep(0.02)
                return time.monotonic() - began, job

            first_s, _ = run(2)  # the node's warm interpreter imports torch
            times, overheads = [], []
            for _ in range(rounds):
                seconds, job = run(trials)
                assert job.properties["best_run"], job.reason
                completed = len(workspace.store.trials(job.id))
                assert job.reason.startswith(f"{trials} completed"), (job.reason, completed)
                took = [
                    point.value
                    for trial in workspace.store.jobs(JobFilter(parent=job.id))
                    for point in workspace.store.metrics(trial.id)
                    if point.name == "took_s"
                ]
                assert len(took) == trials, took
                times.append(seconds)
                # The time of all slots less that of the scripts: each slot is occupied during the
                # whole sweep.
                overheads.append((seconds * at_once - sum(took)) / trials)
            return {
                "seconds": statistics.median(times),
                "first_use_s": first_s,
                "overhead_s": statistics.median(overheads),
            }
    finally:
        targets.stop_target(force=True, home=home)


def peer(trials: int, at_once: int, rounds: int, *, reuse: bool) -> dict[str, Any]:
    """Run the same search in Ray Tune; Ray is started before the time begins."""
    import ray
    from ray import tune

    def train(config: dict[str, Any]) -> None:
        import torch

        x = torch.tensor(config["x"])
        for step in range(REPORTS):
            tune.report({"score": float(x * (step + 1))})

    folder = tempfile.mkdtemp(prefix="bt-", dir="/tmp")
    ray.init(
        num_cpus=at_once,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        _temp_dir=folder,
    )
    try:

        def run(count: int) -> float:
            began = time.monotonic()
            tuner = tune.Tuner(
                train,
                param_space={"x": tune.uniform(0, 1)},
                tune_config=tune.TuneConfig(
                    num_samples=count,
                    metric="score",
                    mode="max",
                    max_concurrent_trials=at_once,
                    reuse_actors=reuse,
                ),
                run_config=tune.RunConfig(storage_path=f"{folder}/results", verbose=0),
            )
            results = tuner.fit()
            assert results.get_best_result().metrics["score"] > 0
            assert len(results) == count and not results.errors
            return time.monotonic() - began

        run(2)  # unmeasured, as for ours
        return {"seconds": statistics.median(run(trials) for _ in range(rounds))}
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def in_a_process(what: str, trials: int, at_once: int, rounds: int) -> dict[str, Any]:
    """Run one of the three in a separate process, so that their Ray clusters do not interfere."""
    environment = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_AIR_NEW_OUTPUT": "0",
    }
    command = [sys.executable, __file__, "--only", what, "--trials", str(trials)]
    done = subprocess.run(
        [*command, "--at-once", str(at_once), "--rounds", str(rounds)],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{what} failed:\n{done.stderr[-3000:]}")
    found = dict(json.loads(done.stdout.strip().splitlines()[-1]))
    print(f"{what}: {found['seconds']:.2f} s", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure, print, and say whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["ours", "tune", "tune-reuse"])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.only:
        if given.only == "ours":
            folder = Path(tempfile.mkdtemp(prefix="bs-", dir="/tmp"))
            try:
                found = ours(folder, given.trials, given.at_once, given.rounds)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        else:
            reuse = given.only == "tune-reuse"
            found = peer(given.trials, given.at_once, given.rounds, reuse=reuse)
        print(json.dumps(found))
        return
    found = {
        what: in_a_process(what, given.trials, given.at_once, rounds)
        for what, rounds in (("ours", given.rounds), ("tune-reuse", given.rounds), ("tune", 1))
    }
    mine = found["ours"]["seconds"]
    report = {
        "trials": given.trials,
        "at_once": given.at_once,
        "load": os.getloadavg()[0],
        "ours_s": round(mine, 2),
        "tune_s": round(found["tune"]["seconds"], 2),
        "tune_reuse_s": round(found["tune-reuse"]["seconds"], 2),
        "faster_than_tune": round(found["tune"]["seconds"] / mine, 2),
        "of_tune_reuse": round(mine / found["tune-reuse"]["seconds"], 2),
        "per_trial_s": round(mine / given.trials, 3),
        "overhead_per_trial_s": round(found["ours"]["overhead_s"], 3),
    }
    if given.json:
        print(json.dumps(report))
        return
    print(f"{given.trials} trials x {REPORTS} reports, {given.at_once} at a time")
    print(f"  ours                {report['ours_s']:7.2f} s  ({report['per_trial_s']} s a trial)")
    overhead_s = report["overhead_per_trial_s"]
    print(f"  overhead of a trial {overhead_s:7.3f} s  (a slot's time, less the script's)")
    print(f"  Ray Tune            {report['tune_s']:7.2f} s  (goal: ours 8x faster)")
    print(f"  Tune, reuse_actors  {report['tune_reuse_s']:7.2f} s  (goal: ours 1.5x at most)")
    print(f"  ours is {report['faster_than_tune']}x faster, {report['of_tune_reuse']}x of reuse")


if __name__ == "__main__":
    main()

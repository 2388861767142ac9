"""Pipelines compared with the same jobs without edges; the time of a submit and a re-run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, median
from benchmarks.head import TRIVIAL, Head
from rayjobs.jobs.states import JobState
from rayjobs.pipelines.pipeline_file import pipeline_of
from rayjobs.pipelines.spec import PipelineSpec
from rayjobs.pipelines.submitter import RunRequest, submit_pipeline
from rayjobs.workspace.folder import open_workspace

POLL_S = 0.005


def measure(head: Head, *, rounds: int, quick: bool) -> list[Figure]:
    """Run each shape, alternating with the same jobs without edges."""
    links, wide, large = (4, 8, 100) if quick else (20, 100, 1000)
    source = head.source(TRIVIAL)
    alone, chains, diamonds, parallel, again = [], [], [], [], []
    for number in range(rounds):
        # One after the other, as in a chain.
        began_s = time.perf_counter()
        for _ in range(links):
            head.wait([head.submit(source)])
        alone.append(time.perf_counter() - began_s)
        chain = chain_of(links, source, name=f"chain{number}")
        chains.append(_run(head, chain))
        again.append(_run(head, chain, is_reused=True))
        diamonds.append(_run(head, diamond_of(wide, source, name=f"diamond{number}")))
        parallel.append(_run(head, diamond_of(wide, source, name=f"flat{number}", edges=False)))
    submits = [_submit(head.folder / f"large{turn}", large, source) for turn in range(rounds)]
    return [
        Figure(
            f"chain of {links} trivial steps",
            "s",
            median(chains),
            median(alone),
            f"{links} jobs, each submitted after the one before",
            slower=1.0,
            plus=1.0,
        ),
        Figure(
            f"diamond of {wide} trivial steps",
            "s",
            median(diamonds),
            median(parallel),
            "the same jobs without edges",
            slower=1.2,
        ),
        Figure(
            f"{large} steps checked and submitted in one transaction",
            "s",
            median([wall_s for wall_s, _ in submits]),
            most=2.0,
        ),
        Figure(
            "of which processor time, in the submitting process",
            "s",
            median([processor_s for _, processor_s in submits]),
        ),
        Figure(f"unchanged pipeline of {links} steps run again", "s", median(again), most=2.0),
    ]


def chain_of(count: int, source: Path, *, name: str) -> PipelineSpec:
    """Return a pipeline in which each step waits for the one before."""
    steps: dict[str, Any] = {}
    for number in range(count):
        after = [f"s{number - 1}"] if number else []
        steps[f"s{number}"] = {"script": "train.py", "after": after}
    return pipeline_of({"name": name, "steps": steps}, folder=source)


def diamond_of(count: int, source: Path, *, name: str, edges: bool = True) -> PipelineSpec:
    """Return a pipeline of one step, many steps that wait for it, and one that waits for those."""
    middle = [f"s{number}" for number in range(count - 2)]
    steps: dict[str, Any] = {"first": {"script": "train.py"}}
    steps |= {one: {"script": "train.py", "after": ["first"] if edges else []} for one in middle}
    steps["last"] = {"script": "train.py", "after": middle if edges else []}
    return pipeline_of({"name": name, "steps": steps}, folder=source)


def _run(head: Head, spec: PipelineSpec, *, is_reused: bool = False) -> float:
    """Return the seconds from the submit to the recorded end of a run."""
    began_s = time.perf_counter()
    # All trivial steps are alike, so each would reuse the results of any other.
    request = RunRequest(experiment="bench", regenerate=not is_reused)
    done = submit_pipeline(head.workspace, spec, request)
    store = head.workspace.store
    while not (job := store.job(done.pipeline.job.id)).state.is_final:
        time.sleep(POLL_S)
    took_s = time.perf_counter() - began_s
    if job.state is not JobState.COMPLETED or bool(done.run.reused) != is_reused:
        raise SystemExit(f"{job.id} ended as {job.state}: {job.reason}")
    return took_s


def _submit(folder: Path, count: int, source: Path) -> tuple[float, float]:
    """Submit a large pipeline; return the elapsed and the processor time in seconds."""
    spec = diamond_of(count, source, name="large")
    with open_workspace(folder) as workspace:
        began_s, worked_s = time.perf_counter(), time.process_time()
        submit_pipeline(workspace, spec, wake=False)
        return time.perf_counter() - began_s, time.process_time() - worked_s

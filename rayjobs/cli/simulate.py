"""`rayjobs simulate`: replay a trace of jobs with the queue's own policy."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rayjobs.cli.output import print_json, table
from rayjobs.cli.params import Duration
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.core.text import counted, duration_text

if TYPE_CHECKING:
    from rayjobs.policy.simulate import Figures

# The same as `rayjobs.policy.simulate.POLICIES`, which is imported only when used.
NAMES = ("fifo", "backfill", "backfill+preempt")

EPILOG = """\b
Examples:
  rayjobs simulate mixed                    a bundled trace; so is many-small
  rayjobs simulate trace.csv --nodes 2 --gpus 4 --json
  rayjobs simulate mixed --policy backfill --max-jobs-per-user 3

A trace is CSV with a header, or JSON lines: submit and duration (seconds, or 90m), and
optionally job, nodes, gpus, cpus (per node), cap, priority, user, group, preemptible, expected.
"""


@click.command(epilog=EPILOG)
@click.argument("trace", metavar="TRACE")
@click.option("--nodes", type=click.IntRange(min=1), default=4, help="Nodes of the pool [4].")
@click.option("--gpus", type=click.FloatRange(min=0), default=8.0, help="GPUs of each node [8].")
@click.option("--cpus", type=click.FloatRange(min=0), default=64.0, help="CPUs of each node [64].")
@click.option(
    "--policy",
    "policies",
    type=click.Choice(NAMES),
    multiple=True,
    help="Policy to replay; repeatable [all].",
)
@click.option("--max-jobs", type=click.IntRange(min=1), help="Jobs that may run at a time.")
@click.option(
    "--max-jobs-per-user",
    type=click.IntRange(min=1),
    help="Jobs of one user that may run at a time.",
)
@click.option("--max-gpus-per-user", type=click.FloatRange(min=0, min_open=True))
@click.option(
    "--aging",
    type=Duration(),
    default="1d",
    metavar="DURATION",
    help="Waiting time worth one level of priority [1d].",
)
@click.option(
    "--checkpoint-every",
    type=Duration(),
    default="10m",
    metavar="DURATION",
    help="Work that a preempted job may lose [10m].",
)
@json_option
@common_options
@click.pass_obj
def simulate(
    settings: Settings,
    trace: str,
    nodes: int,
    gpus: float,
    cpus: float,
    policies: tuple[str, ...],
    max_jobs: int | None,
    max_jobs_per_user: int | None,
    max_gpus_per_user: float | None,
    aging: float,
    checkpoint_every: float,
) -> None:
    """Replay a trace of jobs: how long would they wait under each policy?

    This runs the code with which a target decides, on a simulated clock; nothing is started.
    """
    from dataclasses import replace

    from rayjobs.core.errors import UsageError
    from rayjobs.policy.simulate import POLICIES, Pool, figures, play, read_trace

    if aging <= 0 or checkpoint_every <= 0:
        raise UsageError("--aging and --checkpoint-every are durations above 0, such as 12h.")
    jobs, pool = read_trace(trace), Pool(nodes, gpus, cpus)
    found = []
    for name in policies or NAMES:
        settings.note(f"replaying {counted(len(jobs), 'job')} with {name} …")
        limits = replace(
            POLICIES[name],
            jobs=max_jobs,
            jobs_per_user=max_jobs_per_user,
            gpus_per_user=max_gpus_per_user,
            aging_s=aging,
        )
        outcomes = play(jobs, pool, limits, checkpoint_s=checkpoint_every)
        found.append(figures(name, outcomes, pool))
    if settings.as_json:
        print_json(
            {"trace": trace, "pool": asdict(pool), "policies": [asdict(one) for one in found]}
        )
        return
    header = ("", *(one.policy for one in found))
    click.echo(table([(label, *cells) for label, *cells in _rows(found)], header))


def _rows(found: list[Figures]) -> list[tuple[str, ...]]:
    return [
        ("jobs", *(str(one.jobs) for one in found)),
        ("mean wait", *(duration_text(one.mean_wait_s) for one in found)),
        ("median wait", *(duration_text(one.p50_wait_s) for one in found)),
        ("95 % wait at most", *(duration_text(one.p95_wait_s) for one in found)),
        ("longest wait", *(duration_text(one.max_wait_s) for one in found)),
        ("highest priority, mean", *(duration_text(one.top_wait_s) for one in found)),
        ("makespan", *(duration_text(one.makespan_s) for one in found)),
        ("utilization", *(f"{100 * one.utilisation:.1f} %" for one in found)),
        ("was preempted", *(str(one.preemptions) for one in found)),
        ("work done twice", *(duration_text(one.lost_s) for one in found)),
    ]

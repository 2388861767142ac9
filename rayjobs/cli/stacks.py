"""`rayjobs stacks`: show where each rank of a running job is."""

from __future__ import annotations

from collections.abc import Sequence

import click

from rayjobs.cli.asking import ask_target, check_running
from rayjobs.cli.naming import newest_named
from rayjobs.cli.output import print_json
from rayjobs.cli.params import job_argument
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.core.errors import NotFoundError
from rayjobs.injob.stacks import STOPPED, named, odd_ones
from rayjobs.target.answers import NodeRankStack, StacksAnswer
from rayjobs.target.requests import TargetRequest

# A host dumps its ranks one after another; each takes about ten milliseconds on a quiet machine.
ANSWER_S = 130.0

EPILOG = """\b
Examples:
  rayjobs stacks 1f3c
  rayjobs stacks 1f3c --rank 3
"""


@click.command(epilog=EPILOG)
@job_argument
@click.option("--rank", type=click.IntRange(0), help="Only this rank.")
@json_option
@common_options
@click.pass_obj
def stacks(settings: Settings, job: str, rank: int | None) -> None:
    """Print the stacks of a running job's ranks, and which rank the others wait for.

    The dumps are also kept among the job's files, in logs/stacks/. The ranks keep running.
    """
    with settings.open() as workspace:
        found = newest_named(settings, workspace.store, job)
        check_running(found)
        request = TargetRequest("stacks")
        answer = ask_target(found, workspace.path, request, StacksAnswer, timeout_s=ANSWER_S)
    ranks: Sequence[NodeRankStack] = answer.ranks
    odd, why = odd_ones(ranks)
    if rank is not None:
        chosen = [one for one in ranks if one.rank == rank]
        if not chosen:
            raise NotFoundError(f"job {found.id} has no running rank {rank}; it has {_list(ranks)}")
        ranks = chosen
    if settings.as_json:
        shown = [one.to_json() for one in ranks]
        print_json({"id": found.id, "attempt": answer.attempt, "odd": odd, "ranks": shown})
        return
    for one in ranks:
        click.echo(_heading(one))
        click.echo(one.text.rstrip("\n") + "\n")
    if odd:
        settings.note(named(odd, why))


def _heading(rank: NodeRankStack) -> str:
    state = "stopped" if rank.state == STOPPED else "alive"
    where = f", at {rank.where}" if rank.where else ""
    return f"== rank {rank.rank} on node {rank.node}: {state}{where} =="


def _list(ranks: Sequence[NodeRankStack]) -> str:
    return ", ".join(str(one.rank) for one in ranks)

"""`rayjobs tensorboard`: serve TensorBoard on the event files of a job or a sweep."""

from __future__ import annotations

import time

import click

from rayjobs.cli.params import JobId
from rayjobs.cli.settings import Settings, common_options
from rayjobs.core.text import counted


@click.command(
    epilog="\b\nExamples:\n  rayjobs tensorboard 1f3c\n"
    "  rayjobs tensorboard digits --port 6006\n  rayjobs tensorboard 1f3c --fetch events/\n"
)
@click.argument("job", metavar="JOB|SWEEP", type=JobId())
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port [a free one].")
@click.option("--fetch", "folder", metavar="DIR", help="Only download the event files to DIR.")
@common_options
@click.pass_obj
def tensorboard(settings: Settings, job: str, port: int, folder: str | None) -> None:
    """Serve TensorBoard for a job, or for all trials of a sweep, until Ctrl-C.

    It shows the event files that the scripts wrote below outputs/ or logs/; new ones appear while a
    job runs.
    """
    import tempfile
    from pathlib import Path

    from rayjobs.api.tensorboard import REFRESH_S, EventFiles, Server, runs_below
    from rayjobs.core.errors import NotFoundError

    with settings.open() as workspace, tempfile.TemporaryDirectory(prefix="rayjobs-tb-") as made:
        found = workspace.store.find(job)
        target = Path(folder or made)
        files = EventFiles(workspace, runs_below(workspace, found.id), target)
        count = files.refresh()
        if count == 0 and (folder or found.state.is_final):
            raise NotFoundError(
                f"{found.id} has no event files of TensorBoard. A script writes them below "
                f"outputs/ or logs/: SummaryWriter('outputs/tensorboard')"
            )
        if folder:
            click.echo(str(target))
            settings.note(f"{counted(count, 'event file')}")
            return
        server = Server(target, port)
        try:
            click.echo(server.url)
            later = "" if count else "; files of jobs on other machines appear once they are stored"
            settings.note(f"{counted(count, 'event file')}{later}; Ctrl-C ends it")
            while server.is_running:
                time.sleep(REFRESH_S)
                files.refresh()
        finally:
            server.stop()

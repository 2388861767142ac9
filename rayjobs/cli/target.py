"""`rayjobs target`: create, list, show, start and stop compute targets."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.exits import Exit
from rayjobs.cli.output import facts, print_json, table
from rayjobs.cli.params import Duration, Names
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option
from rayjobs.cli.target_limits import limit_options, limits, set_limits
from rayjobs.cli.target_secrets import secret
from rayjobs.core.text import counted, duration_text, size_text, verb
from rayjobs.injob.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from rayjobs.target.targets import TargetView
    from rayjobs.target.unfinished import Unfinished

NO_TOKEN = (
    "the cluster of target {name} requires no token: anyone who can reach it can run code on it, "
    "and read the data and secrets of its jobs"
)
_COLOURS = {
    "running": "green",
    "starting": "cyan",
    "lost": "red",
    "failing": "red",
    "unreachable": "red",
}


class TargetName(Names):
    """A target's name; completes existing ones."""

    name = "target"

    def __init__(self) -> None:
        super().__init__("targets")


NAME = click.argument("name", default="local", metavar="[NAME]", type=TargetName())

EPILOG = """\b
Examples:
  rayjobs target ls
  rayjobs target start                     the local one
  rayjobs target create lab --address 10.0.0.5:6379 --token-file ~/.lab-token
  rayjobs target use lab                   jobs run there from now on
"""


@click.group(cls=CommandList, epilog=EPILOG)
def target() -> None:
    """Create, list, show, start and stop compute targets.

    `local` is one Ray head on this machine, shared by all your workspaces. It starts automatically
    with the first job, and stops automatically when idle.
    """


target.add_command(limits)
target.add_command(secret)


@target.command(
    epilog="\b\nExample:\n  rayjobs target create lab --address 10.0.0.5:6379 --token-file FILE\n"
)
@click.argument("name", metavar="NAME")
@click.option(
    "--address", metavar="HOST:PORT", help="Address of the cluster's GCS (`ray start --head`)."
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="The cluster's token file, which only you may read.",
)
@click.option(
    "--cluster-without-token-anyone-can-run-code",
    "without_token",
    is_flag=True,
    help="Accept a cluster that requires no token, if only people you trust can reach it.",
)
@click.option(
    "--lease",
    type=Duration(),
    metavar="TIME",
    help="After this time, jobs of an unreachable node are retried elsewhere (90s or more) [90s].",
)
@click.option(
    "--cluster",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The file that `ray up` was run with: the node types that may start.",
)
@click.option(
    "--start-timeout",
    type=Duration(),
    metavar="TIME",
    help="How long a job waits for nodes to start before it tries again [20m].",
)
@limit_options
@json_option
@common_options
@click.pass_obj
def create(
    settings: Settings,
    /,
    name: str,
    address: str | None,
    token_file: str | None,
    lease: float | None,
    cluster: str | None,
    start_timeout: float | None,
    without_token: bool,
    **kwargs: Any,
) -> None:
    """Attach a running Ray cluster, by default only one that requires a token.

    Repeated for an attached one, it changes the settings that are given.
    """
    from rayjobs.target.targets import create_target

    record = create_target(
        name,
        address=address,
        token_file=token_file,
        lease_s=lease,
        cluster=cluster,
        start_timeout_s=start_timeout,
        without_token=without_token,
    )
    if record.without_token:
        settings.note(NO_TOKEN.format(name=record.name))
    set_limits(record.name, kwargs)
    if settings.as_json:
        print_json(asdict(record))
    else:
        click.echo(f"target {record.name} created; use it: rayjobs submit --target {record.name}")
        if record.node_types is not None:
            click.echo(f"it may start: {record.node_types.describe()}")


@target.command(epilog="\b\nExample:\n  rayjobs target rm lab\n")
@click.argument("name", metavar="NAME", type=TargetName())
@click.option("--cancel", "cancels", is_flag=True, help="Cancel its unfinished jobs first.")
@click.option(
    "--force", is_flag=True, help="Remove it despite unfinished jobs, which stay in the store."
)
@common_options
@click.pass_obj
def rm(settings: Settings, name: str, cancels: bool, force: bool) -> None:
    """Remove an attached cluster from the list; the cluster itself is not changed.

    With --cancel, jobs of a cluster that cannot be reached end in the store. Processes that may
    still run there are not ended, and their reports are ignored.
    """
    from rayjobs.core.paths import home
    from rayjobs.target import unfinished
    from rayjobs.target.record import load_target
    from rayjobs.target.targets import remove_target

    load_target(name, home=home())  # an unknown name changes nothing
    if cancels:
        jobs = unfinished.of_target(name, home=home())
        ended = unfinished.cancel_for_good(name, jobs, home=home(), say=settings.note)
        settings.note(f"canceled: {counted(len(ended), 'job')}")
    reason = remove_target(name, force=force, on_stage=settings.note)
    if reason:
        settings.note(f"the target's actor was not ended: {reason}")
    settings.note(f"removed target {name}")
    from rayjobs.submit.project import LOCAL, stored_choice, use_target

    if stored_choice() == name:
        use_target(LOCAL)
        settings.note(f"{name} was the default target; it is {LOCAL} again")


@target.command(epilog="\b\nExample:\n  rayjobs target ls --json\n")
@json_option
@common_options
@click.pass_obj
def ls(settings: Settings) -> None:
    """List targets and their states; `*` marks the default one (see `target use`)."""
    from rayjobs.target.targets import list_targets

    views = list_targets()
    if settings.as_json:
        print_json([view.to_json() for view in views])
        return
    default = _default_name()
    rows = [
        (
            f"{view.name} *" if view.name == default else view.name,
            _kind(view),
            view.state,
            _busy(view),
            view.address or "-",
            _size(view),
        )
        for view in views
    ]
    colours = [
        [None, None, _COLOURS.get(view.state) if settings.colours() else None, None, None, None]
        for view in views
    ]
    header = ("NAME", "KIND", "STATE", "WORK", "ADDRESS", "NODES")
    click.echo(table(rows, header, colours=colours))
    for view in views:
        if view.problem:
            settings.note(view.problem)


@target.command(
    epilog="\b\nExamples:\n"
    "  rayjobs target use lab        jobs run on lab from now on\n"
    "  rayjobs target use            print the default target and what sets it\n"
    "  rayjobs target use local      back to this machine\n"
)
@click.argument("name", required=False, metavar="[NAME]", type=TargetName())
@json_option
@common_options
@click.pass_obj
def use(settings: Settings, name: str | None) -> None:
    """Choose the default target, which runs the jobs that do not name a target.

    --target and a job file take precedence, then RAYJOBS_TARGET, then `target:` in the nearest
    rayjobs.yaml, then this choice, which applies to all projects of this user on this machine.
    """
    from rayjobs.submit.project import default_target, use_target

    if name is not None:
        from rayjobs.target.targets import require

        require(name)  # its error lists the existing targets
        use_target(name)
    found = default_target()
    if settings.as_json:
        print_json({"target": found.name, "set_by": found.origin})
        return
    click.echo(found.name)
    settings.note(f"set by {found.origin}")
    if name is not None and found.name != name:
        settings.note(
            f"your choice {name} is stored, but {found.origin} takes precedence with {found.name}"
        )


@target.command(epilog="\b\nExample:\n  rayjobs target show local --json\n")
@NAME
@json_option
@common_options
@click.pass_obj
def show(settings: Settings, name: str) -> None:
    """Show a target: its state, nodes, queue and allocations."""
    from rayjobs.target.targets import target_status

    view = target_status(name, ask=True)
    if settings.as_json:
        print_json(view.to_json())
        return
    detail = view.detail if view.detail is not None and view.detail.ok else None
    click.echo(
        facts(
            [
                ("Target", f"{view.name} ({_kind(view)})"),
                ("Token", NO_TOKEN.format(name=view.name) if view.without_token else ""),
                ("State", view.state),
                ("Problem", view.problem),
                ("Work", _busy(view)),
                ("Address", view.address),
                ("Dashboard", view.dashboard_url),
                ("Version", view.version),
                ("Running", "" if detail is None else str(len(detail.live))),
                ("Waiting", "" if detail is None else str(len(detail.waiting))),
                ("Workspaces", "" if detail is None else ", ".join(detail.workspaces)),
            ],
            colours={"State": _COLOURS.get(view.state) if settings.colours() else None},
        )
    )
    for node in view.nodes:
        seen = ", when it was last reached" if view.state == "unreachable" else ""
        click.echo(
            f"node {node.node_id[:12]}{seen}: {counted(node.cpus, 'CPU')}, "
            f"{counted(node.gpus, 'GPU')}, {size_text(node.memory)} memory"
        )
    for held in () if detail is None else detail.allocations:
        use = "draining" if held.draining else held.job or "idle"
        click.echo(f"allocation {held.name}: {use}")


@target.command(epilog="\b\nExample:\n  rayjobs target start\n")
@NAME
@json_option
@common_options
@click.pass_obj
def start(settings: Settings, name: str) -> int:
    """Start a target and report each stage; a running target is left unchanged."""
    from rayjobs.core.paths import home
    from rayjobs.target import unfinished
    from rayjobs.target.targets import start_target, target_status

    began_s = time.monotonic()
    older = unfinished.older(name, home=home())
    try:
        status = start_target(name, on_stage=settings.note)
    except KeyboardInterrupt:
        settings.note(_interrupted_start(name))
        return Exit.INTERRUPTED
    took = duration_text(time.monotonic() - began_s)
    if settings.as_json:
        print_json({**target_status(name).to_json(), "was_started": status.was_started})
    elif status.was_started:
        click.echo(f"target {name} is running (started in {took})")
        if older:
            settings.note(f"note: {older}")
    else:
        click.echo(f"target {name} is already running")
    return Exit.DONE


def _interrupted_start(name: str) -> str:
    """Return what continues after Ctrl-C during a start, and what to type."""
    from rayjobs.core.paths import TargetPaths, home
    from rayjobs.target import keeper_state

    if keeper_state.is_kept(TargetPaths.of(name, under=home())):
        return (
            f"interrupted: target {name} continues to start in the background. `rayjobs target "
            "show "
            f"{name}` shows its progress, `rayjobs target stop {name}` ends it"
        )
    return (
        f"interrupted: target {name} was not started; `rayjobs target start {name}` tries again, "
        "and so does the next submit"
    )


STOP_EPILOG = """\b
Examples:
  rayjobs target stop
  rayjobs target stop --cancel       cancel its jobs, then stop
  rayjobs target stop --force        keep its jobs for the next start
"""


@target.command(epilog=STOP_EPILOG)
@NAME
@click.option("--cancel", "cancels", is_flag=True, help="Cancel all its unfinished jobs first.")
@click.option(
    "--force", is_flag=True, help="Put running jobs back into the queue until the next start."
)
@json_option
@common_options
@click.pass_obj
def stop(settings: Settings, name: str, cancels: bool, force: bool) -> None:
    """Stop a target and everything that belongs to it.

    While jobs are unfinished, the command refuses and lists them: cancel or keep them. If a cluster
    cannot be reached, the stop is recorded, and no command restarts the target automatically.
    """
    from rayjobs.core.errors import TargetError
    from rayjobs.core.paths import home
    from rayjobs.target import unfinished
    from rayjobs.target.reach import UnreachedError
    from rayjobs.target.stopping import StopRefusedError
    from rayjobs.target.targets import stop_target, was_stopped

    if cancels and force:
        raise click.UsageError("give one of --cancel and --force.")
    address, unreached = unfinished.why_unreached(name, home=home())
    where = f"{address}: {unreached}" if unreached else ""
    jobs = unfinished.of_target(name, home=home())
    canceled: list[str] = []
    requested: list[str] = []
    if cancels and jobs:
        before = {job.id for _path, job in jobs.all}
        canceled = unfinished.cancel(
            name,
            jobs,
            home=home(),
            say=settings.note,
            is_reached=not unreached,
            is_stopped=not address and was_stopped(name, home=home()),
        )
        jobs = unfinished.of_target(name, home=home())
        requested = [job.id for _path, job in jobs.all if unreached and job.id in before]
    if not force and not was_stopped(name, home=home()) and not (cancels and unreached):
        unfinished.check_none(name, jobs, command="stop", unreached=where)
    try:
        ran = stop_target(name, force=force, on_stage=settings.note)
    except TargetError as error:
        if not cancels or not address or isinstance(error, StopRefusedError):
            if jobs and isinstance(error, UnreachedError):
                settings.note(unfinished.what_becomes(name, jobs))
            raise
        # The cancel still holds, and the stop is recorded.
        ran, unreached = False, unreached or error.message
        if not isinstance(error, UnreachedError):  # something answers there, but its Ray does not
            settings.note(f"the target's actor was not ended: {error.message}")
    if not unreached:  # jobs may have ended while it stopped
        jobs = jobs.still(unfinished.of_target(name, home=home()))
    _Stopped(name, ran, address if unreached else None, jobs, canceled, requested).report(settings)


@dataclass(frozen=True)
class _Stopped:
    """What a stop did.

    Attributes:
        ran: Whether the target ran.
        unreachable: The address of a cluster that was not reached; None for any other target.
        jobs: The jobs that are unfinished afterwards.
        canceled: Ids of the jobs that the stop canceled.
        requested: Ids of the jobs whose cancel is recorded, but could not be carried out.
    """

    name: str
    ran: bool
    unreachable: str | None
    jobs: Unfinished
    canceled: list[str]
    requested: list[str]

    def report(self, settings: Settings) -> None:
        """Print what the stop did."""
        if settings.as_json:
            print_json(self._json())
            return
        is_stopped = self.ran or self.unreachable is not None
        click.echo(f"target {self.name} {'is stopped' if is_stopped else 'was not running'}")
        canceled = counted(len(self.canceled), "job")
        if self.unreachable is not None:
            settings.note(
                f"{canceled} canceled; the target's actor could not be reached at "
                f"{self.unreachable}"
            )
        elif self.canceled:
            settings.note(f"canceled: {canceled}")
        self._report_jobs(settings)

    def _json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ran": self.ran,
            "state": "stopped",
            "canceled": self.canceled,
            "cancel_requested": self.requested,
            "unreachable": self.unreachable,
            "put_back": [
                job.id for _path, job in self.jobs.running if job.id not in self.requested
            ],
            "waiting": [job.id for _path, job in self.jobs.waiting],
        }

    def _report_jobs(self, settings: Settings) -> None:
        jobs = self.jobs
        if self.requested:
            settings.note(
                f"{counted(len(self.requested), 'running job')} may still run there: the cancel is "
                f"recorded, and is carried out once `rayjobs target start {self.name}` reaches "
                f"the cluster:"
            )
            for line in jobs.lines():
                settings.note(line)
            settings.note(
                f"If that cluster is gone for good, `rayjobs target rm {self.name} --cancel` ends "
                f"their records and removes the target"
            )
        elif jobs:
            stay = verb(len(jobs.all), "stays", "stay")
            start = verb(len(jobs.all), "starts", "start")
            settings.note(
                f"{jobs.text} {stay} in the queue and {start} with the target's next start:"
            )
            for line in jobs.lines():
                settings.note(line)
            settings.note("  rayjobs cancel JOB...   cancel the jobs that you no longer need")
        for path, reason in jobs.unreadable:
            settings.note(f"the jobs of {path} could not be listed: {reason}")


def _kind(view: TargetView) -> str:
    return f"{view.kind}, NO TOKEN" if view.without_token else view.kind


def _default_name() -> str | None:
    """Return the name of the default target; None if the project's file is invalid."""
    from rayjobs.core.errors import SpecError
    from rayjobs.submit.project import default_target

    try:
        return default_target().name
    except SpecError:
        return None  # a list of targets does not need it; `submit` reports the mistake


def _busy(view: TargetView) -> str:
    return {None: "-", True: "busy", False: "idle"}[view.busy]


def _size(view: TargetView) -> str:
    if not view.nodes:
        return "-"
    cpus = sum(node.cpus for node in view.nodes)
    gpus = sum(node.gpus for node in view.nodes)
    seen = ", last seen" if view.state == "unreachable" else ""
    return f"{len(view.nodes)} ({counted(cpus, 'CPU')}, {counted(gpus, 'GPU')}{seen})"

"""The starter: a short-lived process with Ray, which starts a head or only a target actor.

The keeper runs `python -P -m rayjobs.engine.starter HOME TARGET START what` with the environment of
`target.local_head.head_environment`. It runs the code of `ray start --head` in this process, and
then connects to the head: so Ray is imported once, not twice.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rayjobs.core import ids
from rayjobs.core.errors import RayjobsError, TargetError
from rayjobs.core.files import write_private
from rayjobs.core.paths import TargetPaths, runtime_dir
from rayjobs.core.text import counted, duration_text
from rayjobs.core.version import __version__
from rayjobs.injob import kernel
from rayjobs.injob.identity import Identity, identity_of, stat_of
from rayjobs.protocol.names import NAMESPACE, actor_name
from rayjobs.target import local_head
from rayjobs.target.local_head import HeadRecord, StartError
from rayjobs.target.machine import LocalSettings
from rayjobs.target.progress import Progress

ACTOR_END_S = 60.0
HOOK = "rayjobs.engine.starter.without_client_server"
# The logs to quote if a start fails without a message.
LOGS_TO_QUOTE = ("gcs_server.err", "raylet.err", "dashboard.err", "gcs_server.out", "raylet.out")
LINES_TO_QUOTE = 100
LINE_LIMIT = 300
LOOK_EVERY_S = 0.5
# No start takes this long; Ray's own calls may wait forever after their cluster is gone.
LIFE_S = 900.0


class LateError(TargetError):
    """Ray did not start in time, as happens on a busy machine: another try may succeed."""


def without_client_server(parameters: Any, _is_head: bool) -> None:
    """Omit Ray's client server (`RAY_START_HOOK`): rayjobs does not use it, and it runs code.

    The command line of Ray cannot switch it off once gRPC is installed.
    """
    parameters.ray_client_server_port = None


def start_head(home: Path, name: str, say: Callable[[str], None]) -> HeadRecord:
    """Start Ray's head, connect this process to it, and write `head.json`.

    Raises:
        LateError: Ray did not start in time; the message is Ray's last output.
        StartError: Ray refused to start; the cause has its reason.
    """
    paths = TargetPaths.of(name, under=home)
    settings = LocalSettings.read()
    folder, ip = local_head.ray_folder(home), local_head.node_ip(home)
    runtime_dir(home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["RAY_START_HOOK"] = HOOK
    from ray.scripts.scripts import start

    say(f"starting Ray on {ip} ({counted(settings.cpus, 'CPU')}, {counted(settings.gpus, 'GPU')})")
    try:
        with patience_for_raylet(folder):
            start.main(
                args=local_head.head_arguments(settings, ip=ip, folder=folder),
                standalone_mode=False,
            )
        address = (folder / "ray_current_cluster").read_text(encoding="ascii").strip()
    except (Exception, SystemExit) as exc:
        traceback.print_exc()
        sys.stderr.write(_quotes(folder))  # a stack of Ray's C++ does not help users
        message = (_last_line(str(exc)) or type(exc).__name__)[:LINE_LIMIT]
        if is_late(exc):
            raise LateError(message) from exc
        raise StartError(
            f"Ray could not be started: {message.rstrip('.')}. Ray's own output is in "
            f"{paths.log / 'start.log'}.",
            advice=local_head.start_again(name),
        ) from exc
    finally:
        os.environ.pop("RAY_START_HOOK", None)
    try:
        node, dashboard = connect(address)
    except TargetError as exc:
        traceback.print_exc()
        sys.stderr.write(_quotes(folder))
        raise LateError(exc.message) from exc
    record = HeadRecord(
        instance=ids.token(8),
        node_ip=ip,
        gcs_address=address,
        dashboard_url=f"http://{dashboard}" if dashboard else "",
        temp_dir=str(folder),
        node_id=str(node["NodeID"]),
        token_path=str(paths.token),
        cpus=float(node["Resources"].get("CPU", 0)),
        gpus=float(node["Resources"].get("GPU", 0)),
        memory_bytes=int(node["Resources"].get("memory", 0)),
        ray_version=_ray_version(),
        rayjobs_version=__version__,
        processes=_identities(folder),
    )
    local_head.save_record(paths, record)
    url = record.dashboard_url
    say(f"Ray is up ({f'dashboard at {url}' if url else 'without a dashboard'})")
    return record


def is_late(error: BaseException) -> bool:
    """Whether Ray was slow or died; false if it refused its settings."""
    import click

    refusals = (click.ClickException, ImportError, OSError, TypeError, ValueError)
    return isinstance(error, (TimeoutError, ConnectionError)) or not isinstance(error, refusals)


@contextlib.contextmanager
def patience_for_raylet(folder: Path) -> Iterator[None]:
    """Give a new raylet `RAY_UP_S` to register, as long as it is alive.

    Ray gives it 30 s, a constant inside a function (`Node.__init__`) that no setting changes; this
    makes the call in its loop wait instead.
    """
    from ray._private import services

    once = getattr(services, "get_node", None)
    if once is None:  # another version of Ray: its own timeout has to suffice
        yield
        return
    deadline = time.monotonic() + local_head.RAY_UP_S

    def patiently(gcs_address: str, node_id: str) -> Any:
        while True:
            try:
                return once(gcs_address, node_id)
            except RuntimeError as exc:
                if not any(_comm(found) == "raylet" for found in local_head.processes_of(folder)):
                    raise LateError("the raylet ended while it was starting") from exc
                if time.monotonic() >= deadline:
                    raise LateError(
                        f"the raylet did not register within {duration_text(local_head.RAY_UP_S)}"
                    ) from exc
            time.sleep(LOOK_EVERY_S)

    services.get_node = patiently
    try:
        yield
    finally:
        services.get_node = once


def connect(address: str) -> tuple[dict[str, Any], str]:
    """Connect this process to a cluster; return its head's node row and its dashboard's address.

    Raises:
        TargetError: the cluster cannot be reached with this token.
    """
    import ray

    try:
        context = ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR"
        )
        nodes = [node for node in ray.nodes() if node["Alive"]]
        if not nodes:
            raise RuntimeError("it has no living node")
    except Exception as exc:
        raise TargetError(
            f"the Ray cluster at {address} cannot be reached: {_last_line(str(exc))}. Check its "
            f"address and its token.",
            address=address,
        ) from exc
    heads = [node for node in nodes if "node:__internal_head__" in node["Resources"]]
    dashboard = context.address_info.get("webui_url") or ""
    return (heads or nodes)[0], str(dashboard)


def start_actor(name: str, home: Path, say: Callable[[str], None]) -> None:
    """Create or find the target actor; return when its wake socket answers."""
    import ray

    from rayjobs.engine.actor import start_target_actor

    say("starting the target")
    try:
        start_target_actor(name, str(home))
    except TargetError as exc:
        if isinstance(exc.__cause__, ray.exceptions.GetTimeoutError):
            raise LateError(_last_line(exc.message)[:LINE_LIMIT]) from exc
        raise


def end_actor(name: str) -> None:
    """End the target actor permanently, if any, and wait until its name is free.

    Raises:
        TargetError: it still exists after `ACTOR_END_S`.
    """
    import ray

    deadline = time.monotonic() + ACTOR_END_S
    while time.monotonic() < deadline:
        try:
            actor = ray.get_actor(actor_name(name), namespace=NAMESPACE)
        except ValueError:
            return
        ray.kill(actor, no_restart=True)
        time.sleep(0.05)
    raise TargetError(
        f"the actor of target {name!r} did not end within {duration_text(ACTOR_END_S)}"
    )


def _clear_dashboard(name: str) -> None:
    """Remove a target's jobs from the cluster's list of jobs, which is no longer updated."""
    import asyncio

    from rayjobs.protocol import ray_jobs

    try:
        asyncio.run(ray_jobs.clear(name))
    except Exception:  # the target's end must not depend on that list
        traceback.print_exc()


def main(argv: list[str] | None = None) -> int:
    """Run the starter; the exit code is 0 when the target answers (or ended, for `end`).

    It is `EXIT_LATE` if a head did not start in time, which only the keeper sees.
    """
    parser = argparse.ArgumentParser(prog="rayjobs.engine.starter")
    parser.add_argument("home", type=Path)
    parser.add_argument("target")
    parser.add_argument("start")
    parser.add_argument("what", choices=("head", "actor", "replace", "end"))
    parser.add_argument("--address")
    parser.add_argument("--parent", type=int, help="id of the parent process: end when it ends")
    options = parser.parse_args(argv)
    if options.parent is not None:
        end_with_parent(options.parent)
    paths = TargetPaths.of(options.target, under=options.home)
    progress = Progress(paths.progress, options.start)
    reported = _end_after(progress)
    with _reporting_failures(progress, is_head=options.what == "head") as outcome:
        if options.what == "head":
            start_head(options.home, options.target, progress.stage)
        else:
            record = local_head.load_record(paths)
            address = options.address or (record.gcs_address if record else "")
            if not address:
                raise TargetError(f"target {options.target!r} has no running Ray to connect to")
            _, dashboard = connect(address)
            if options.address and dashboard:
                write_private(paths.root / "dashboard", f"http://{dashboard}")
        if options.what in ("replace", "end"):
            end_actor(options.target)
        if options.what == "end":
            _clear_dashboard(options.target)
        if options.what != "end":
            start_actor(options.target, options.home, progress.stage)
            progress.ready()
        outcome.append(0)
    reported.set()
    return outcome[0] if outcome else 1


def end_with_parent(parent: int) -> None:
    """End this process as soon as its parent has ended, for any reason.

    Ray's calls may wait forever, and they ignore SIGTERM.
    """
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call above
        os._exit(1)


def _end_after(progress: Progress, life_s: float = LIFE_S) -> threading.Event:
    """End this process after `life_s`, whatever it waits for.

    Returns an event to set after the outcome is reported; then only Ray's shutdown can hang.
    """
    reported = threading.Event()

    def end() -> None:
        if not reported.is_set():
            progress.failed(f"the start did not finish within {duration_text(life_s)}")
        os._exit(0 if reported.is_set() else 1)

    timer = threading.Timer(life_s, end)
    timer.daemon = True
    timer.start()
    return reported


@contextlib.contextmanager
def _reporting_failures(progress: Progress, *, is_head: bool) -> Iterator[list[int]]:
    """Turn any failure into one line for the waiting clients."""
    outcome: list[int] = []
    try:
        yield outcome
    except LateError as exc:
        traceback.print_exc()
        if is_head:
            progress.late(exc.message)
            outcome[:] = [local_head.EXIT_LATE]
        else:
            progress.failed(f"the target did not start in time: {exc.message}")
    except StartError as exc:
        progress.failed(exc.cause, advice=exc.advice)
    except RayjobsError as exc:
        progress.failed(exc.message)
    except Exception as exc:
        traceback.print_exc()
        progress.failed(f"the target could not be started: {type(exc).__name__}: {exc}")


def _identities(folder: Path) -> dict[str, Identity]:
    found: dict[str, Identity] = {}
    for identity in local_head.processes_of(folder):
        stat = stat_of(identity.pid)
        if stat is None or identity_of(identity.pid) != identity:
            continue
        name = stat.comm
        while name in found:
            name += "+"
        found[name] = identity
    return found


def _ray_version() -> str:
    import ray

    return str(ray.__version__)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _comm(identity: Identity) -> str:
    stat = stat_of(identity.pid)
    return "" if stat is None else stat.comm


def _quotes(folder: Path) -> str:
    """Return the ends of Ray's own logs, which are removed with its folder."""
    quoted = ""
    for name in LOGS_TO_QUOTE:
        try:
            text = (folder / "session_latest" / "logs" / name).read_text("utf-8", "replace")
        except OSError:
            continue
        if lines := [line for line in text.splitlines() if line.strip()][-LINES_TO_QUOTE:]:
            quoted += f"Ray's {name} ends with:\n" + "".join(f"  {line}\n" for line in lines)
    return quoted


if __name__ == "__main__":
    sys.exit(main())

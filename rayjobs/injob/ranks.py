"""One rank as its host sees it, and the forked process until it runs the user's program."""

from __future__ import annotations

import errno
import os
import signal
import sys
from dataclasses import field
from typing import Callable, Mapping

from rayjobs.injob import detach, kernel, leaving, open_files, parallel_settings, rank, startup
from rayjobs.injob.exit_record import RankExit
from rayjobs.injob.host_messages import RankStatus
from rayjobs.injob.identity import Identity, identity_of
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.log_cap import LogCap
from rayjobs.injob.plan import LaunchPlan, RankPlan, expand
from rayjobs.injob.tree import Tree
from rayjobs.injob.wait_status import WaitStatus

# Prefix, on the setup pipe, for programs that no other attempt can start either.
_NEVER = b"\0"
# Errors of `execve` that are permanent: every attempt would get them.
_NEVER_STARTS = frozenset(
    (
        errno.ENOENT,
        errno.EACCES,
        errno.ENOEXEC,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.E2BIG,
    )
)


class NeverStartsError(Exception):
    """A rank's program cannot be started, by this or any other attempt."""


@dataclass
class Rank(WaitStatus):
    """A started rank; `status` is the wait status once it has ended."""

    plan: RankPlan
    identity: Identity
    log: LogCap
    setup: int  # to read why the process could not be set up; end of file means success
    go: int  # one byte written here lets the process run
    started_at: float | None = None  # its release, in seconds since 1970
    ended_at: float | None = None
    status: int | None = None
    max_rss_bytes: int | None = None
    out_of_memory: bool = False
    setup_error: bytes = field(default=b"")

    @property
    def has_failed(self) -> bool:
        """Whether it ended other than with exit code 0."""
        return self.has_ended and self.exit_code != 0

    def read_setup(self) -> bool:
        """Read the process's report about its setup; True when the report is complete."""
        try:
            data = os.read(self.setup, 4096)
        except BlockingIOError:
            return False
        self.setup_error += data
        return not data

    @property
    def never_starts(self) -> bool:
        """Whether no other attempt can start its program either."""
        return self.setup_error.startswith(_NEVER)

    @property
    def setup_problem(self) -> str:
        """Why it could not be set up, as text; empty on success, or while it has not reported."""
        return self.setup_error.lstrip(_NEVER).decode("utf-8", "replace")

    def ended(self, status: int, max_rss_bytes: int, *, at: float) -> None:
        """Record its end; `at` in seconds since 1970."""
        self.status = status
        self.ended_at = at
        self.max_rss_bytes = max_rss_bytes

    def as_status(self) -> RankStatus:
        """Its entry in the answer to `status`."""
        return RankStatus(
            self.plan.rank,
            self.identity.pid,
            self.identity.start_time,
            not self.has_ended,
            self.exit_code,
            self.signal,
        )

    def as_record(self) -> RankExit:
        """Its entry in the exit record."""
        return RankExit(
            rank=self.plan.rank,
            pid=self.identity.pid,
            start_time=self.identity.start_time,
            exit_code=self.exit_code,
            signal=self.signal,
            started_at=self.started_at,
            ended_at=self.ended_at,
            max_rss_bytes=self.max_rss_bytes,
            out_of_memory=self.out_of_memory,
            log_bytes=self.log.size,
            log_dropped=self.log.dropped,
        )


@dataclass(frozen=True)
class Program:
    """The remaining work of a forked rank, once its host's frames are off the stack."""

    script: str
    arguments: tuple[str, ...]
    last_of_ours: str

    def run(self) -> None:
        """Run the user's script and end; see `leaving.run_and_leave`."""
        leaving.run_and_leave(self.script, self.arguments, self.last_of_ours)


@dataclass(frozen=True)
class WarmState:
    """What a fork needs from the warm interpreter."""

    base_path: tuple[str, ...]
    descriptors: frozenset[int]  # those that imported packages hold open


def fork_rank(
    plan: LaunchPlan,
    item: RankPlan,
    secrets: Mapping[str, str],
    warm: WarmState | None,
    *,
    abandon: Callable[[], None],
    tree: Tree,
) -> Rank | Program:
    """Fork one rank, which then waits to be released.

    Args:
        abandon: called in the rank: closes the host's sockets as objects. Closing only their
            descriptors would let a later garbage collection close the script's own files.
        tree: The tree that contains it.

    Returns:
        In the host: the rank. In the rank, after its release: the program to run. Cold ranks and
        commands never return: they exec another program.

    Raises:
        OSError: no process can be made.
    """
    setup_read, setup_write = os.pipe()
    try:
        go_read, go_write = os.pipe()
    except OSError:
        os.close(setup_read)
        os.close(setup_write)
        raise
    host = os.getpid()
    # Signals stay blocked while the rank still has its host's handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
    except OSError:
        for descriptor in (setup_read, setup_write, go_read, go_write):
            os.close(descriptor)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        raise
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.close(setup_write)
        os.close(go_read)
        identity = identity_of(pid)
        if identity is None:
            raise OSError("the forked rank does not appear in /proc")
        return Rank(item, identity, LogCap(plan.log_of(item.rank), plan.log_cap_bytes),
                    setup_read, go_write)  # fmt: skip
    try:
        startup.restore_signals(as_python=warm is not None)
        kernel.die_with_parent(signal.SIGKILL)
        abandon()
        os.close(go_write)
        os.close(setup_read)
        tree.enter()
        # A dead host is no longer the parent; a host outside the namespace appears as 0.
        if os.getppid() not in (host, 0) or not os.read(go_read, 1):
            os._exit(1)  # the host died before it released this rank
        return _set_up(plan, item, secrets, warm, setup_write)
    except NeverStartsError as error:
        os.write(setup_write, _NEVER + str(error).encode()[:4000])
        os._exit(126)
    except BaseException as error:
        os.write(setup_write, f"{type(error).__name__}: {error}".encode()[:4000])
        os._exit(126)


def _set_up(
    plan: LaunchPlan,
    item: RankPlan,
    secrets: Mapping[str, str],
    warm: WarmState | None,
    setup: int,
) -> Program:
    env = plan.rank_env(item, secrets)
    arguments = [expand(argument, env) for argument in plan.argv[1:]]
    os.setsid()
    detach.point_output(plan.log_of(item.rank))
    os.chdir(plan.work)
    open_files.give_back(plan.soft_files)
    os.umask(plan.umask)  # the host's own umask makes files private to the user
    if plan.container is not None:
        from rayjobs.injob import container

        try:
            container.set_limits(plan.container)
        except container.ContainerError as error:
            raise NeverStartsError(error.strerror) from None
    armed = None if plan.stall_timeout_s is None else plan.stacks_of(item.rank)
    if plan.kind == "command":
        assert plan.command is not None
        _replace(["/bin/sh", "-c", plan.command, "sh", *plan.argv], env, setup)
    # A rank of a parallel run only starts the process that runs the script.
    if warm is None or plan.container is not None or parallel_settings.VARIABLE in env:
        # Run by path: `-m` would put the working directory on the module path.
        bootstrap = os.path.abspath(rank.__file__)
        script = plan.argv[0]
        if armed is not None:
            env[rank.STACKS_VARIABLE] = armed
        _replace([plan.python, bootstrap, plan.injob_path, script, *arguments], env, setup)
    assert warm is not None
    startup.refresh(env)
    rank.show_command([plan.python, *plan.argv[:1], *arguments])
    rank.arrange_path(plan.argv[0], warm.base_path, plan.injob_path)
    startup.close_descriptors(keep=warm.descriptors)  # closes `setup` too: the host sees success
    if armed is not None:
        rank.arm(armed)
    rank.show_crashes()
    return Program(plan.argv[0], tuple(arguments), leaving.newest_module())


def _replace(arguments: list[str], env: Mapping[str, str], setup: int) -> None:
    startup.close_descriptors(keep=[setup])
    sys.stdout.flush()
    try:
        os.execve(arguments[0], arguments, dict(env))
    except OSError as error:
        problem = f"{arguments[0]} cannot be started: {error.strerror}"
        if error.errno in _NEVER_STARTS:
            raise NeverStartsError(problem + _why_never(arguments[0], error.errno)) from None
        raise OSError(error.errno, problem) from None


def _why_never(program: str, number: int) -> str:
    """Return an explanation of why a program cannot be started, in addition to the error."""
    if number == errno.ENOENT and os.path.exists(program):
        return " (the file exists; the loader or interpreter that it names does not)"
    if number == errno.ENOEXEC:
        return " (it is for another architecture, or is not a program)"
    if number == errno.E2BIG:
        return " (its arguments and variables are longer than the kernel allows)"
    return ""

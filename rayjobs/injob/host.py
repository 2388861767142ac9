"""The attempt host: starts, watches, ends and records the ranks of one attempt on one node."""

from __future__ import annotations

import os
import selectors
import time
import traceback
from typing import Dict, Mapping, Optional

from rayjobs.injob import control, detach, exit_record, kernel, master_port, open_files
from rayjobs.injob import plan as plans
from rayjobs.injob.answers import refusal
from rayjobs.injob.ending import Ending
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.extras import HostExtras
from rayjobs.injob.host_messages import NAME as HOST_FILE
from rayjobs.injob.host_messages import HostFile, HostRequest, HostState, HostStatus
from rayjobs.injob.host_signals import HostSignals
from rayjobs.injob.identity import own_identity
from rayjobs.injob.lease import boot_clock_s
from rayjobs.injob.log_times import LogTimes
from rayjobs.injob.memory import MemoryLimit, ProcessLimit
from rayjobs.injob.messages import Message
from rayjobs.injob.mlflow_start import MlflowPort
from rayjobs.injob.outcomes import CANCELED, Outcome, end_reason
from rayjobs.injob.plan import LaunchPlan
from rayjobs.injob.rank_forker import RankForker
from rayjobs.injob.ranks import Program, Rank, WarmState
from rayjobs.injob.sessions import Sessions
from rayjobs.injob.text import duration_text
from rayjobs.injob.tree import Tree
from rayjobs.injob.usage import Usage
from rayjobs.injob.views import Views
from rayjobs.injob.watch import Watch

_TICK_S = 0.5
_ENDING_TICK_S = 0.02
_ROUNDS = 8
_RETRY_RECORD_S = 0.5
_REAP_S = 1.0
_GIVE_UP_S = 10.0
_KEEP_RECORD_S = 24 * 3600.0


class Host:
    """One attempt on one node, from its first rank to its exit record."""

    def __init__(
        self,
        plan: LaunchPlan,
        secrets: Mapping[str, str],
        *,
        warm: WarmState | None,
        cold_reason: str | None = None,
        use_cgroups: bool = True,
    ) -> None:
        """Prepare the attempt: sockets, limits, host.json. Starts nothing yet.

        Raises:
            OSError: the attempt's directory or its socket cannot be used.
        """
        self._mlflow = MlflowPort(plan)
        plan = self._mlflow.plan
        self.plan = plan
        self._cold_reason = cold_reason
        self.ranks: list[Rank] = []
        self.record: ExitRecord | None = None
        self._is_recorded = False
        self._started_at = time.time()
        self._started_s = boot_clock_s()
        self._times = LogTimes(os.path.join(plan.root, "log", "times.log"), self._started_at)
        self._selector = selectors.DefaultSelector()
        self._signals = HostSignals(self._selector)
        kernel.become_subreaper()
        exit_record.make_reserve(plan.root)
        self._port_error = self._reserve_port()
        self.tree = Tree.make(plan.marker, plan.containment, use_cgroups=use_cgroups)
        self.memory = MemoryLimit(plan.memory_bytes, self.tree, use_cgroups=use_cgroups)
        self.processes = ProcessLimit(plan.pids_max, self.tree, use_cgroups=use_cgroups)
        self.ending = Ending(
            plan,
            self.ranks,
            tree=self.tree,
            memory=self.memory,
            is_leaving=self._is_leaving,
            keep_outcome=self._keep_outcome,
        )
        self.watch = Watch(plan, self.ranks, self.ending)
        self.usage = Usage(plan, self.tree)
        self._forker = RankForker(
            plan,
            secrets,
            warm,
            selector=self._selector,
            tree=self.tree,
            memory=self.memory,
            processes=self.processes,
            ending=self.ending,
            abandon=self._abandon,
            ranks=self.ranks,
        )
        self._server = control.ControlServer(
            control.listen(plan.socket), self._selector, self._answer
        )
        self._mlflow.serve(self._forker, self._selector)
        self._sessions = Sessions(self._forker)
        self._extras = _extras_of(plan, self._forker)
        exit_record.write_file(os.path.join(plan.root, HOST_FILE), self._description().to_json())

    def _description(self) -> HostFile:
        return HostFile(
            **own_identity().to_json(),
            socket=self.plan.socket,
            job=self.plan.job,
            attempt=self.plan.attempt,
            node=self.plan.node,
            marker=self.plan.marker,
            started_at=self._started_at,
            cold=self._cold_reason,
            tree=self.tree.kind,
            tree_refused=tuple(self.tree.refused),
            cgroup=self.tree.cgroup,
            memory=self.memory.how,
            pids=self.processes.how,
        )

    def _reserve_port(self) -> str | None:
        """Reserve the ranks' rendezvous port until this process ends; return why that failed."""
        if self.plan.master_port is None:
            return None
        try:
            master_port.reserve(self.plan.master_port)
        except OSError as error:
            return (
                f"the port {self.plan.master_port}, the rendezvous of the ranks, was taken by "
                f"another program ({error.strerror})"
            )
        return None

    # ---- running ------------------------------------------------------------------------------

    def run(self) -> Program | None:
        """Carry out the attempt.

        Returns:
            In the host: None, once the exit record is written and all waiters are answered. In a
            forked rank: the program to run.
        """
        try:
            program = self._start_ranks()
            while program is None and not self.ending.is_over:
                program = self._turn()
            if program is not None:
                return program
            self._finish(self._close())
        except Exception:
            detach.note(traceback.format_exc())
            self._give_up(traceback.format_exc())
        return None

    def _start_ranks(self) -> Program | None:
        if self._port_error is not None:
            self.ending.begin(Outcome.HOST_ERROR, self._port_error)
            return None
        self.watch.check_lease()  # the node may have been frozen since the request to start this
        if self.ending.has_begun:
            return None
        try:
            self._show_inputs()
        except (OSError, ValueError, TypeError) as error:
            self._begin_not_shown(error)
            return None
        try:
            self._extras.start()
        except OSError as error:
            self.ending.out_of_files = open_files.is_exhausted(error)
            self.ending.begin(Outcome.HOST_ERROR, f"what the ranks need cannot be started: {error}")
            return None
        if not self._extras.starts_ranks:
            program = self._forker.fork(self.plan.ranks)
            if program is not None:
                return program
            self._forker.let_go(self._extras.go_first([item.rank for item in self.plan.ranks]))
        self._started_s = boot_clock_s()
        self.usage.start()
        return None

    def _begin_not_shown(self, error: Exception) -> None:
        what = "inputs" if self.plan.container is None else "container"
        outcome, why = Outcome.HOST_ERROR, str(error)
        if self.plan.container is not None:
            from rayjobs.injob import container

            if isinstance(error, container.VolumeError):
                outcome, why = Outcome.NOT_STARTABLE, error.strerror or why
        self.ending.out_of_files = open_files.is_exhausted(error)
        self.ending.begin(outcome, f"the {what} cannot be set up for the ranks: {why}")

    def _show_inputs(self) -> None:
        """Move this process into a mount namespace that protects the inputs from the ranks."""
        namespace = self.tree.namespace
        has_own_users = namespace is not None and namespace.own_users
        views = self.plan.views or Views()
        views.enter(has_own_users=has_own_users)
        self.tree.has_mounts = not views.is_empty or self.plan.container is not None
        if self.plan.container is not None:
            from rayjobs.injob import container

            self.tree.root = container.make(self.plan.container, has_own_users=has_own_users)

    def _abandon(self) -> None:
        """Close all sockets in a forked process."""
        self.usage.abandon()
        self._extras.abandon()
        self._mlflow.abandon()
        self._server.abandon()

    @property
    def state(self) -> str:
        """The state that `status` reports."""
        if self._is_recorded:
            return "ended"
        if self.ending.has_begun:
            return "ending"
        is_starting = not self.ranks or any(rank.setup >= 0 for rank in self.ranks)
        return "starting" if is_starting else "running"

    def deadline_in_s(self) -> float | None:
        """Seconds until the attempt's time limit; None without one."""
        limit = self.plan.max_duration_s
        return None if limit is None else limit - (boot_clock_s() - self._started_s)

    def duration_s(self) -> float:
        """Seconds since the ranks were released."""
        return boot_clock_s() - self._started_s

    def _turn(self) -> Program | None:
        timeout = _ENDING_TICK_S if self.ending.has_begun else _TICK_S
        if self._extras.pause_s is not None:
            timeout = min(timeout, self._extras.pause_s)
        left = self.deadline_in_s()
        if left is not None and not self.ending.has_begun:
            timeout = min(timeout, max(left, 0.0))
        self._serve(timeout)
        self._reap()
        if not self.ending.has_begun and any(rank.has_failed for rank in self.ranks):
            self._serve_what_waits()
        for rank in self.ranks:
            rank.log.enforce()
        self.watch.check_lease()
        self._note_times()
        if not self.ending.has_begun:
            self._look_for_an_end()
        if self.ending.has_begun:
            self.usage.stop()
        else:
            self.usage.turn()
        program = self._extras.turn()
        if program is None and self.ending.has_begun:
            self.ending.advance()
        return program

    def _keep_outcome(self) -> None:
        """Save how the attempt ended before its remaining processes are ended.

        If this process is killed meanwhile, the ranks' own end must not be lost.
        """
        if all(rank.has_ended for rank in self.ranks):
            exit_record.write_outcome(self.plan.root, self._as_record())

    def _as_record(self) -> ExitRecord:
        """Return the exit record as of now."""
        return self.ending.as_record(
            started_at=self._started_at,
            duration_s=self.duration_s(),
            processes=self.processes.as_record(),
            cold=self._cold_reason,
            usage=self.usage.as_record(),
            stacks=self.watch.found,
        )

    def _close(self) -> ExitRecord:
        """Cut the logs to their limit, stop sampling, and return the exit record."""
        for rank in self.ranks:
            rank.log.enforce(at_end=True)
        self.usage.stop()
        record = self._as_record()
        self.ending.remove_cgroups()
        return record

    def _note_times(self, *, at_end: bool = False) -> None:
        sizes = {rank.plan.rank: rank.log.size for rank in self.ranks}
        self._times.look(sizes, time.time(), at_end=at_end)

    def _is_leaving(self) -> bool:
        self._mlflow.end()
        self._sessions.end()
        return self._extras.is_leaving()

    def _serve(self, timeout_s: float) -> None:
        for key, events in self._selector.select(timeout_s):
            key.data(events)

    def _serve_what_waits(self) -> None:
        """Answer pending requests before a rank's end counts as a failure.

        A host that was stopped sees the cancel request and the rank that its node has ended at the
        same time; the request came first.
        """
        for _ in range(_ROUNDS):  # accept, read and answer are separate rounds
            waiting = self._selector.select(0)
            if not waiting or self.ending.has_begun:
                return
            for key, events in waiting:
                key.data(events)

    def _reap(self) -> bool:
        """Reap ended children, including adopted ones; False if there are no children."""
        now = time.time()
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._extras.child_ended(pid, status, now)
            self._mlflow.child_ended(pid, status, now)
            self._sessions.child_ended(pid, status, now)
            for rank in self.ranks:
                if rank.identity.pid == pid and not rank.has_ended:
                    rank.ended(status, usage.ru_maxrss * 1024, at=now)
                    self._forker.read_setup(rank)

    def _look_for_an_end(self) -> None:
        failed = [rank for rank in self.ranks if rank.has_failed]
        left = self.deadline_in_s()
        if self._signals.end_signal is not None:
            name = self._signals.end_signal
            self.ending.begin(Outcome.HOST_ERROR, f"the attempt host received {name}")
        elif failed:
            self.ending.begin_with_failure(failed)
        else:
            self._extras.look_for_an_end()
        if self.ending.has_begun:
            return
        if not self._extras.starts_ranks and all(rank.has_ended for rank in self.ranks):
            self.ending.begin(Outcome.COMPLETED, "")
        elif left is not None and left <= 0:
            limit = duration_text(self.plan.max_duration_s, exact=True)
            self.ending.begin(
                Outcome.TIME_LIMIT,
                f"the attempt reached its time limit of {limit}",
            )
        elif self.memory.check() is not None:
            self.ending.begin_over_memory()
        else:
            self.watch.look()

    # ---- answers ------------------------------------------------------------------------------

    def _answer(self, values: Dict[str, object]) -> Optional[Message]:
        request = HostRequest.from_json(values)
        if request.op == "status":
            return self._status()
        if request.op == "cancel":
            sentence = request.reason or CANCELED.sentence
            self.ending.begin(
                Outcome.CANCELED,
                sentence,
                grace_s=request.grace_s,
                end_reason=end_reason(request.end_reason, sentence),
            )
            return HostState(state=self.state)
        if request.op == "wait":
            return self.record
        if request.op == "stalled":
            self.watch.end_stalled(request.reason or "the attempt has stalled")
            return HostState(state=self.state)
        answer = self.watch.answer(request) or self._sessions.answer(request)
        return refusal(f"unknown operation {request.op!r}") if answer is None else answer

    def _status(self) -> HostStatus:
        return HostStatus(
            state=self.state,
            ranks=tuple(rank.as_status() for rank in self.ranks),
            log_bytes={rank.plan.rank: rank.log.size for rank in self.ranks},
            deadline_in_s=self.deadline_in_s(),
            outcome=self.ending.outcome,
        )

    # ---- the end ------------------------------------------------------------------------------

    def _give_up(self, why: str) -> None:
        """End everything after an internal error, and record it."""
        deadline = time.monotonic() + _GIVE_UP_S
        while self._kill_rest() and time.monotonic() < deadline:
            self._reap()
            time.sleep(_ENDING_TICK_S)
        self._reap()
        self.ending.outcome = None
        # Without a grace period, since the ranks have been killed.
        self.ending.begin(Outcome.HOST_ERROR, f"the attempt host failed: {why}", grace_s=0.0)
        self.ending.note_remaining()
        self._finish(self._close())

    def _kill_rest(self) -> bool:
        """Kill all processes once; return whether some were, or may be, alive."""
        try:
            return bool(self.tree.kill())
        except OSError as error:
            detach.note(f"cannot end the attempt's processes yet: {error}")
            return True

    def _finish(self, record: ExitRecord) -> None:
        """Write the exit record, then report it; on a full disk, waiters get it from memory."""
        self._note_times(at_end=True)
        self.tree.close()
        patience = time.monotonic() + _REAP_S
        while self._reap() and time.monotonic() < patience:
            time.sleep(0.005)  # the last zombies, which a container's init may never reap
        keep_until = time.monotonic() + _KEEP_RECORD_S
        while True:
            try:
                exit_record.write(self.plan.root, record)
                break
            except OSError as error:
                if self.record is None:
                    detach.note(f"cannot write the exit record yet: {error}")
                self.record = record
                if not os.path.isdir(self.plan.root) or time.monotonic() > keep_until:
                    break
                self._server.answer_waiters(record)
                self._serve(_RETRY_RECORD_S)
        self.record, self._is_recorded = record, True
        self._server.answer_waiters(record)
        deadline = time.monotonic() + 5.0
        while self._server.has_unsent and time.monotonic() < deadline:
            self._serve(0.1)
        try:
            os.unlink(self.plan.socket)
        except FileNotFoundError:
            pass  # it was removed already
        self._extras.close()
        self._server.close()


def _extras_of(plan: LaunchPlan, forker: RankForker) -> HostExtras:
    """Return the extra work that a plan requires.

    Raises:
        OSError: a socket or a folder cannot be made.
        ValueError: this version does not know its kind.
    """
    settings = plan.extras
    if settings is None:
        return HostExtras()
    kind = settings.kind
    if kind == plans.MPI:
        from rayjobs.injob.mpi import MpiExtras

        return MpiExtras(forker, settings)
    if kind == plans.HOROVOD_GLOO:
        from rayjobs.injob.gloo_ranks import GlooHelper

        return GlooHelper(forker, settings)
    if kind == plans.RANK_ZERO_FIRST:
        from rayjobs.injob.rank0_first import RankZeroFirst

        return RankZeroFirst(forker, settings)
    raise ValueError(
        f"the plan requests {kind!r}, which this version does not support; use the "
        f"same rayjobs on every node"
    )

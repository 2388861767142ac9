"""Ranks that MPI starts: mpirun and orted are helpers of the hosts, which fork the ranks for them.

On node 0 the host starts mpirun. For every other node, mpirun requests an orted: the stub that
replaces ssh passes the request to this host, and an agent relays it to the other node's host.
mpirun and each orted start a stub per rank, which passes the rank's variables to the host of its
node and ends like the rank.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import time
from typing import Dict, Mapping

from rayjobs.injob import helpers, kernel, mpi_stub
from rayjobs.injob.answers import Answer, refusal
from rayjobs.injob.extras import HostExtras
from rayjobs.injob.interfaces import interface_of
from rayjobs.injob.lines import Asker, LineServer
from rayjobs.injob.mpi_messages import MpiRequest, RankEnd, Relayed
from rayjobs.injob.outcomes import Outcome
from rayjobs.injob.plan import ExtrasPlan, RankPlan
from rayjobs.injob.rank_forker import RankForker
from rayjobs.injob.ranks import Program, Rank

LOG_NAME = "mpi.log"
REMOTE = "remote"  # the program that mpirun runs as ssh, in its working directory
_REMOTE_TEXT = 'exec "${}" -S -E "${}" remote "$@"\n'.format(
    mpi_stub.PYTHON_VARIABLE, mpi_stub.STUB_VARIABLE
)
# A rank that MPI has lost may end by itself, with a more informative exit code.
_PULL_S = 1.0
_LEAVE_S = 3.0
_LAST_LINES = 4
_CLONE_NEWUTS = 0x04000000
_LONGEST_NAME = 50
_LAST_BYTES = 4096
# Defaults that the job can override. Without the first two, Open MPI looks for rare networks, which
# costs time and causes warnings.
_SETTINGS = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "^openib",
    # There may be more ranks than cores: a waiting rank must not block the one that it waits for.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
_INTERFACES = ("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include")
_NO_RANK = RankPlan(-1, -1, {})


class MpiExtras(HostExtras):
    """Starts the ranks of one node as mpirun (node 0) or orted (other nodes) requests them."""

    starts_ranks = True

    def __init__(self, forker: RankForker, settings: ExtrasPlan) -> None:
        """Listen for the stubs.

        Raises:
            OSError: the socket or the folder cannot be made.
        """
        self._forker = forker
        self._settings = settings
        self._socket = settings.socket
        self._folder = os.path.join(forker.plan.root, "mpi")
        os.makedirs(self._folder, exist_ok=True)
        with open(os.path.join(self._folder, REMOTE), "w", encoding="utf-8") as file:
            file.write(_REMOTE_TEXT)
        self._log = os.path.join(forker.plan.root, "log", LOG_NAME)
        self._server = LineServer(
            self._socket, forker.selector, asked=self._asked, gone=self._stub_gone
        )
        self._launcher: helpers.Helper | None = None
        self._waiting: list[tuple[Asker, RankPlan]] = []
        self._stubs: dict[int, Asker] = {}
        self._lost_at: float | None = None
        self._remote: dict[int, tuple[str, Asker]] = {}
        self._relay: Asker | None = None
        self._is_relayed = False
        self._leave_until: float | None = None

    # ---- starting -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start mpirun, only on node 0.

        Raises:
            OSError: no process can be made, or this one cannot get its own host name.
        """
        if self._settings.shares_machine:
            self._rename_host()
        command = self._settings.command
        if command:
            self._note("$ " + " ".join(shlex.quote(word) for word in command))
            self._launch("mpirun", list(command))

    def _rename_host(self) -> None:
        """Give this process and its children their own host name.

        Ranks of two nodes with the same host name assume shared memory, and crash: seen with Open
        MPI 4.1 and two ranks on each of two nodes.
        """
        name = f"{socket.gethostname()[:_LONGEST_NAME]}-n{self._forker.plan.node}"
        try:
            kernel.unshare(_CLONE_NEWUTS)
            socket.sethostname(name)
        except OSError as error:
            raise OSError(
                "nodes of an MPI job that share one machine need their own host names, which this "
                f"machine does not allow ({error.strerror or error}); use one node with more "
                f"processes"
            ) from error

    def _launch(self, name: str, arguments: list[str]) -> None:
        self._launcher = helpers.start(
            helpers.Program(name, arguments, self._environment(), self._folder),
            log=self._log,
            forker=self._forker,
        )

    def _environment(self) -> dict[str, str]:
        env = self._forker.plan.rank_env(_NO_RANK, {})
        for variable, value in {**self._of_this_node(), **_SETTINGS}.items():
            env.setdefault(variable, value)
        # Other nodes get these from their own host: names and folders differ between nodes.
        env["OMPI_MCA_plm_rsh_pass_environ_mca_params"] = "0"
        if os.getuid() == 0:
            env["OMPI_ALLOW_RUN_AS_ROOT"] = env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        env[mpi_stub.SOCKET_VARIABLE] = self._socket
        plan = self._forker.plan
        # In a container mpirun, orted and the stubs' interpreter come from the image.
        env[mpi_stub.PYTHON_VARIABLE] = plan.python if plan.container else sys.executable
        env[mpi_stub.STUB_VARIABLE] = os.path.abspath(mpi_stub.__file__)
        return env

    def _of_this_node(self) -> dict[str, str]:
        """The settings that differ between nodes, except those that the job sets itself."""
        plan = self._forker.plan
        # In /dev/shm, the files of vader would outlive ranks that are killed, and jobs whose mpirun
        # has the same pid, each in a PID namespace of its own, would use each other's files.
        found = {"OMPI_MCA_btl_vader_backing_directory": plan.rank_env(_NO_RANK, {})["TMPDIR"]}
        name = None if plan.address is None else interface_of(plan.address)
        if name is not None:
            # By name: Open MPI 4.1 treats every address as ADDRESS/32.
            found.update(dict.fromkeys(_INTERFACES, name))
        return {variable: value for variable, value in found.items() if variable not in plan.env}

    def turn(self) -> Program | None:
        """Fork the requested ranks; in such a rank, return its program."""
        while self._waiting:
            asker, item = self._waiting.pop(0)
            if self._forker.ending.has_begun:
                self._server.answer(asker, refusal("the attempt is being ended"))
                continue
            self._stubs[item.rank] = asker
            program = self._forker.fork([item])
            if program is not None:
                return program
            self._forker.let_go([item.rank])
        for rank in self._forker.ranks:
            # While an attempt is ending, its ranks have a grace period. mpirun would cut it short:
            # it ends all ranks at the first failure.
            if rank.has_ended and (not self._forker.ending.has_begun or self._all_have_ended()):
                self._tell(rank)
        return None

    def _tell(self, rank: Rank) -> None:
        stub = self._stubs.get(rank.plan.rank)
        if stub is not None:
            self._server.answer(stub, RankEnd(exit_code=rank.exit_code, signal=rank.signal))

    # ---- requests -----------------------------------------------------------------------------

    def _asked(self, asker: Asker, values: Dict[str, object]) -> None:
        request = MpiRequest.from_json(values)
        if request.op == "rank":
            self._rank_asked(asker, request.env)
        elif request.op == "remote":
            self._remote_asked(asker, request.node, request.command)
        elif request.op == "relay":
            self._relay = asker
            self._give_to_relay()
        elif request.op == "relayed":
            self._relayed(request.errors)
            self._server.answer(asker, Answer())
        elif request.op == "daemon":
            self._server.answer(asker, self._daemon(request.command))
        else:
            self._server.answer(asker, refusal(f"unknown operation {request.op!r}"))

    def _rank_asked(self, asker: Asker, env: Mapping[str, str]) -> None:
        number = env.get("OMPI_COMM_WORLD_RANK")
        for item in self._forker.plan.ranks:
            if str(item.rank) == number and all(
                rank.plan.rank != item.rank for rank in self._forker.ranks
            ):
                reported = {**env, **self._of_this_node()}  # mpirun passes on its own variables
                self._waiting.append(
                    (asker, RankPlan(item.rank, item.local_rank, {**item.env, **reported}))
                )
                return
        self._server.answer(
            asker,
            refusal(f"rank {number} is not one that node {self._forker.plan.node} may start"),
        )

    def _remote_asked(self, asker: Asker, node: str, command: str) -> None:
        nodes = list(self._settings.nodes)
        if node not in nodes[1:]:
            self._server.answer(asker, refusal(f"{node} is not another node of the job"))
            return
        self._remote[nodes.index(node)] = (command, asker)
        self._give_to_relay()

    def _give_to_relay(self) -> None:
        if self._relay is None or self._relay.is_gone:
            return
        if self._is_relayed:
            self._server.answer(self._relay, Relayed(over=True))
        elif len(self._remote) == len(self._settings.nodes) - 1:
            commands = {index: one for index, (one, _) in sorted(self._remote.items())}
            self._server.answer(self._relay, Relayed(commands=commands))

    def _relayed(self, errors: Mapping[int, str]) -> None:
        self._is_relayed = True
        for index, (_, asker) in self._remote.items():
            self._server.answer(asker, refusal(errors[index]) if index in errors else Answer())

    def _daemon(self, command: str) -> Answer:
        if self._launcher is not None:
            return Answer()  # relayed twice, because the relay was replaced
        if self._forker.ending.has_begun:
            return refusal(f"the attempt is being ended on node {self._forker.plan.node}")
        try:
            self._launch("orted", shlex.split(command))
        except (OSError, ValueError) as error:
            return refusal(f"orted cannot be started on node {self._forker.plan.node}: {error}")
        return Answer()

    def _stub_gone(self, asker: Asker) -> None:
        """Handle the end of a stub: MPI gave up its rank, so wait briefly for the rank to end."""
        self._waiting = [one for one in self._waiting if one[0] is not asker]
        if asker in self._stubs.values() and self._lost_at is None:
            self._lost_at = time.monotonic()

    # ---- ends ---------------------------------------------------------------------------------

    def child_ended(self, pid: int, status: int, at: float) -> None:
        """Handle the end of a child that is not a rank."""
        launcher = self._launcher
        if launcher is not None and launcher.identity.pid == pid and not launcher.has_ended:
            launcher.status, launcher.ended_at = status, at
            self._lost_at = self._lost_at or time.monotonic()

    def _all_have_ended(self) -> bool:
        ranks = self._forker.ranks
        return len(ranks) == len(self._forker.plan.ranks) and all(rank.has_ended for rank in ranks)

    def look_for_an_end(self) -> None:
        """Begin the attempt's end if MPI has ended; failed ranks take precedence."""
        launcher = self._launcher
        if launcher is not None and launcher.signal is not None:
            self._forker.ending.begin(
                Outcome.HOST_ERROR,
                f"{launcher.name}, which starts the ranks of node {self._forker.plan.node}, "
                f"{launcher.end_in_words()}",
            )
        elif launcher is not None and launcher.exit_code == 0 and self._all_have_ended():
            self._forker.ending.begin(Outcome.COMPLETED, "")
        elif self._lost_at is not None and time.monotonic() > self._lost_at + _PULL_S:
            who = "MPI"
            if launcher is not None and launcher.has_ended:
                who = f"{launcher.name} {launcher.end_in_words()} and"
            last = self._last_output()
            # An end that MPI caused because of another node must not count as the cause.
            self._forker.ending.is_consequence = True
            self._forker.ending.begin(
                Outcome.HOST_ERROR,
                f"{who} gave up the ranks of node {self._forker.plan.node}"
                f"{': ' + last if last else ''}",
            )

    def _last_output(self) -> str:
        try:
            with open(self._log, "rb") as file:
                file.seek(max(0, os.path.getsize(self._log) - _LAST_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines()]
        words = [line for line in lines if line.strip("-") and not line.startswith("$ ")]
        return " / ".join(words[-_LAST_LINES:])

    def is_leaving(self) -> bool:
        """End mpirun or orted once the ranks have ended; true while it still runs.

        mpirun takes a second to clean up ranks that have already ended. All files that it or orted
        leaves are in the attempt's own folder.
        """
        if self._leave_until is None:
            self._leave_until = time.monotonic() + _LEAVE_S
            for rank in self._forker.ranks:
                self._tell(rank)
            if self._launcher is not None:
                self._launcher.send(signal.SIGKILL)
        if self._launcher is None or self._launcher.has_ended:
            return False
        return time.monotonic() < self._leave_until

    def _note(self, text: str) -> None:
        with open(self._log, "a", encoding="utf-8") as file:
            file.write(text + "\n")

    def abandon(self) -> None:
        """Close all sockets in a forked process."""
        self._server.abandon()

    def close(self) -> None:
        """Close all sockets, once the exit record is written."""
        self._server.close()
        try:
            os.unlink(self._socket)
        except FileNotFoundError:
            pass  # it was removed already


MpiStarter = MpiExtras  # the name by which a host of an earlier version imports it

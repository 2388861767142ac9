"""The warm interpreter's loop: import, listen, fork."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from typing import Mapping

from rayjobs.injob import (
    coldhost,
    control,
    detach,
    kernel,
    leaving,
    messages,
    record_files,
    startup,
)
from rayjobs.injob import plan as plans
from rayjobs.injob.answers import Answer, StartAnswer, refusal
from rayjobs.injob.cold_check import cold_reason
from rayjobs.injob.files import try_lock
from rayjobs.injob.host_messages import HostRequest
from rayjobs.injob.identity import Identity, is_alive, own_identity
from rayjobs.injob.lazy_dataclass import generate_all
from rayjobs.injob.processes import MARKER_VARIABLE
from rayjobs.injob.ranks import Program, WarmState
from rayjobs.injob.warm_messages import WarmRequest, WarmStatus

_CHECK_S = 5.0
_REQUEST_S = 10.0


class Warm:
    """Answers requests one at a time; each takes milliseconds."""

    def __init__(self, options: argparse.Namespace, base_path: tuple[str, ...]) -> None:
        """Import, then listen.

        Raises:
            OSError: the socket cannot be made.
        """
        self._options = options
        self._started_with = {
            name: value for name, value in os.environ.items() if name != MARKER_VARIABLE
        }
        # Closed in forks: a rank that kept the lock would keep it from the next interpreter.
        ours = frozenset(startup.open_descriptors())
        self._import_s, self._loaded, self._failed = _preload(options.preload)
        self._state = WarmState(base_path, frozenset(startup.open_descriptors()) - ours)
        self._listener = control.listen(options.socket)
        self._inode = os.stat(options.socket).st_ino
        leaving.forget_finalizers()
        startup.prepare()
        messages.prepare(HostRequest)
        generate_all()
        # Objects alive now stay alive: a garbage collection in a rank need not copy their pages.
        gc.collect()
        gc.freeze()
        # A fork copies the page table; huge pages halve its time.
        self._addresses = kernel.huge_page_addresses()
        # The raylets whose agents use it; it ends with the last of them.
        self._raylets: dict[int, Identity] = {}
        self._is_for_good = False
        # Hosts are children of this process, which does not wait for them.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def serve(self) -> Program | None:
        """Serve until idle, stopped or replaced; in a forked rank, return its program."""
        last_used = time.monotonic()
        while (
            self._is_wanted()
            and not self._is_forsaken()
            and time.monotonic() - last_used < self._options.idle_s
        ):
            with selectors.DefaultSelector() as selector:
                selector.register(self._listener, selectors.EVENT_READ)
                if not selector.select(self._work_a_little()):
                    continue
            stream, _ = self._listener.accept()
            last_used = time.monotonic()
            try:
                stream.settimeout(_REQUEST_S)
                request = _read_request(stream)
                if request.op == "stop":
                    stream.sendall(control.encode(Answer()))
                    return None
                answer = self._answer(request, stream)
                if isinstance(answer, Forked):
                    return answer.program
                stream.sendall(control.encode(answer))
            except (OSError, ValueError) as error:
                print(f"a request failed: {error}", file=sys.stderr, flush=True)
            finally:
                stream.close()
        return None

    def _work_a_little(self) -> float:
        """Make a huge page, which takes milliseconds; return how many seconds to wait afterward."""
        address = next(self._addresses, None)
        if address is None:
            return float(min(_CHECK_S, self._options.idle_s))
        kernel.make_huge_page(address)
        return 0.0

    def close(self) -> None:
        """Remove the socket, unless another interpreter has taken its place."""
        if self._is_wanted():
            os.unlink(self._options.socket)
        self._listener.close()

    def _is_wanted(self) -> bool:
        try:
            return os.stat(self._options.socket).st_ino == self._inode
        except OSError:
            return False

    def _is_forsaken(self) -> bool:
        """Whether all its users belonged to clusters whose processes here have ended."""
        if self._is_for_good or not self._raylets:
            return False
        return not any(is_alive(raylet) for raylet in self._raylets.values())

    def _note_user(self, raylet: Identity | None) -> None:
        if raylet is None:
            self._is_for_good = True
        else:
            self._raylets[raylet.pid] = raylet

    def _answer(self, request: WarmRequest, stream: socket.socket) -> Answer | Forked:
        if request.op == "ping":
            if request.is_user:
                self._note_user(request.raylet)
            return WarmStatus(
                **own_identity().to_json(),
                preloaded=tuple(self._loaded),
                not_preloaded=self._failed,
                import_s=self._import_s,
                threads=len(os.listdir("/proc/self/task")),
            )
        if request.op == "fork":
            try:
                plan = plans.load(request.plan)
            except plans.PlanError as error:
                return refusal(str(error))
            names = {name.partition(".")[0] for name in sys.modules}
            reason = cold_reason(
                plan, names, started_with=self._started_with, python=sys.executable
            )
            if reason is not None:
                return StartAnswer(False, cold=reason)
            return self._fork(plan, request.secrets, stream)
        return refusal(f"unknown operation {request.op!r}")

    def _fork(
        self, plan: plans.LaunchPlan, secrets: Mapping[str, str], stream: socket.socket
    ) -> Answer | Forked:
        reader = detach.fork_detached(twice=False)
        if reader is None:
            stream.close()
            self._listener.close()
            keep = self._state.descriptors | detach.report_descriptors()
            startup.close_descriptors(keep=keep)
            return Forked(coldhost.take_over(plan, secrets, warm=self._state))
        line = detach.read_report(reader)
        if not line:
            return refusal(f"the attempt host died; see {plan.root}/host.log")
        return StartAnswer.from_json(record_files.parse_json(line))


class Forked:
    """Marks a fork: this process is no longer a warm interpreter."""

    def __init__(self, program: Program | None) -> None:
        self.program = program


def _read_request(stream: socket.socket) -> WarmRequest:
    data = b""
    while not data.endswith(b"\n"):
        chunk = stream.recv(65536)
        if not chunk or len(data) > control.MAX_LINE_BYTES:
            raise ValueError("the request is incomplete or too long")
        data += chunk
    return WarmRequest.from_json(control.parse_request(data))


def _preload(names: str) -> tuple[float, list[str], dict[str, str]]:
    """Import the named modules; return the seconds, the imported ones, and the others' errors."""
    began = time.monotonic()
    loaded, failed = [], {}
    for name in filter(None, names.split(",")):
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever it raises, the others remain useful
            failed[name] = f"{type(error).__name__}: {error}"
        else:
            loaded.append(name)
    return time.monotonic() - began, loaded, failed


def _only_one(path: str) -> int | None:
    """Lock the socket's name for this process's lifetime; None if another process holds it.

    The file then names the holder, and the socket of a killed interpreter is removed. A waiting
    client can thus tell an interpreter that is still importing from one that does not answer.
    """
    descriptor = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not try_lock(descriptor):
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, control.encode(own_identity()))
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # the usual case
    return descriptor


def main(arguments: list[str], base_path: tuple[str, ...]) -> Program | None:
    """Detach, import, serve; return the program in a forked rank, and None at any other end."""
    parser = argparse.ArgumentParser(prog="rayjobs-warm")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--marker-pad", type=int, default=128)
    parser.add_argument("--preload", default="")
    parser.add_argument("--log", required=True)
    parser.add_argument("--idle-s", type=float, default=1800.0)
    options = parser.parse_args(arguments)
    if len(os.environ.get(MARKER_VARIABLE, "")) < options.marker_pad:
        os.environ[MARKER_VARIABLE] = "-" * options.marker_pad
        os.execv(sys.executable, [sys.executable, sys.argv[0], *arguments])
    reader = detach.fork_detached()
    if reader is not None:
        line = detach.read_report(reader)
        died = StartAnswer.refused("the warm interpreter died at its start")
        os.write(1, line or control.encode(died))
        os._exit(0 if line else 1)
    detach.point_output(options.log)
    os.chdir("/")
    lock = _only_one(options.socket)
    if lock is None:
        problem = f"another process holds the lock {options.socket}.lock"
        detach.report(StartAnswer.refused(problem, held=True))
        return None
    try:
        warm = Warm(options, base_path)
    except Exception as error:
        traceback.print_exc()
        detach.report(StartAnswer.refused(f"the warm interpreter cannot start: {error}"))
        return None
    detach.report()
    owner = os.getpid()
    program = warm.serve()
    if os.getpid() == owner:
        warm.close()
        os.close(lock)  # now, not after the slow teardown of all packages
    return program

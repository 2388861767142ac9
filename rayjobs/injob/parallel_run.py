"""A rank of a parallel run: takes mini-batches and has its worker process run the entry script.

Rank 0 assigns the mini-batches (`parallel_ledger`) on the rendezvous port, with one JSON line per
request and answer. A worker that dies or takes too long is replaced, and any free rank tries its
mini-batch again.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from typing import Any, List, Optional, Sequence, Tuple, Type, TypeVar, Union

from rayjobs.injob.parallel_ledger import Ledger
from rayjobs.injob.parallel_messages import (
    Assignment,
    BatchDone,
    BatchFailed,
    BatchRows,
    MeasureTable,
    MiniBatch,
    RankRequest,
    RunBatch,
    StopBatches,
    TableSize,
    TakeBatch,
    WorkerAnswer,
    rank_request,
)
from rayjobs.injob.parallel_settings import VARIABLE, Settings

LEVELS = ("DEBUG", "INFO", "WARNING")
REACH_S = 300.0  # rank 0 may have to load a table first
STARTS = 3  # deaths of a worker before it is ready

Reply = TypeVar("Reply", bound=WorkerAnswer)


class StoppedError(Exception):
    """The run cannot continue; the message says why."""


class WorkerError(Exception):
    """The worker process ended, or took too long."""


def main(script: str, arguments: Sequence[str]) -> int:
    """Take part in the parallel run of this job; return the exit code of the rank."""
    settings = Settings.from_json(os.environ.pop(VARIABLE))
    rank = int(os.environ.get("RANK", "0"))

    def say(level: str, text: str) -> None:
        if LEVELS.index(level) >= LEVELS.index(settings.logging_level):
            print("%s parallel run: %s" % (level, text), file=sys.stderr, flush=True)

    worker = Worker(script, arguments)
    try:
        if rank == 0:
            worker.start()
            _lead(settings, worker, say)
        else:
            _follow(settings, worker, say)
    except StoppedError as error:
        # Rank 0 has the reason from the ledger, and its exit code decides the job's end.
        print("ERROR parallel run: %s" % error, file=sys.stderr, flush=True)
        return 1 if rank == 0 else 0
    finally:
        worker.end()
    return 0


def _follow(settings: Settings, worker: Worker, say: Any) -> None:
    """Process the mini-batches that rank 0 assigns.

    Raises:
        OSError: rank 0 cannot be reached.
        StoppedError: see `_work`; rank 0 has the reason.
    """
    try:
        worker.start()
    except StoppedError as error:
        # Rank 0 waits for each rank: a rank that ended silently would leave it waiting forever.
        with Caller() as caller:
            caller.stop(str(error))
        raise
    with Caller() as caller:
        _work(caller, settings, worker, say)


def _lead(settings: Settings, worker: Worker, say: Any) -> None:
    """Assign mini-batches, process some as well, and write the rows."""
    batches = batches_of(settings, worker)
    folder = os.environ.get("TMPDIR") or "."
    ledger = Ledger(batches, settings, folder, say)
    server: Optional[Server] = None
    others = int(os.environ.get("WORLD_SIZE", "1")) - 1
    if others:
        server = Server(ledger, others)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        _work(_Own(ledger), settings, worker, say)
    except StoppedError as error:
        ledger.stop(str(error))
        raise
    finally:
        if server is not None:
            server.wait_for_ends()
    if ledger.stop_reason is not None:
        say("WARNING", "all mini-batches are done, but a process stopped: %s" % ledger.stop_reason)
    say("INFO", ledger.summary())
    if settings.appends and settings.output is not None:
        folder = os.environ["AZUREML_DATAREFERENCE_%s" % settings.output]
        os.makedirs(folder, exist_ok=True)
        ledger.write_rows(os.path.join(folder, settings.append_row_file_name))


def _work(source: Any, settings: Settings, worker: Worker, say: Any) -> None:
    """Process mini-batches until none are left.

    Raises:
        StoppedError: too many failed, or the entry script cannot be started.
    """
    while True:
        assignment: Assignment = source.take()
        if assignment.stop is not None:
            raise StoppedError(assignment.stop)
        if assignment.end:
            return
        batch = assignment.batch
        if batch is None:
            continue
        number = batch.number
        say("DEBUG", "mini-batch %d: %d items" % (number, batch.items))
        request = RunBatch(settings.appends, batch.input, _paths_of(batch), batch.rows)
        try:
            answer = worker.ask(request, BatchRows, settings.run_invocation_timeout_s)
        except WorkerError as error:
            source.failed(number, str(error))
            try:
                worker.start()
            except StoppedError as stopped:
                source.stop(str(stopped))
                raise
            continue
        if answer.error is not None:
            source.failed(number, answer.error)
        else:
            source.done(number, answer.rows, answer.count)


# -- the mini-batches ------------------------------------------------------------------------------


def input_path(name: str) -> str:
    """Return the path of one of the job's inputs on this node."""
    return os.environ["AZUREML_DATAREFERENCE_%s" % name]


def _paths_of(batch: MiniBatch) -> Optional[Tuple[str, ...]]:
    """Return the paths of a mini-batch's files on this node; None: it has rows of a table."""
    if batch.files is None:
        return None
    root = input_path(batch.input)
    return tuple(os.path.join(root, one) if one else root for one in batch.files)


def batches_of(settings: Settings, worker: Worker) -> List[MiniBatch]:
    """Return all mini-batches: the files of the inputs by name, or the rows of tables.

    Raises:
        StoppedError: a table cannot be read.
    """
    batches: List[MiniBatch] = []
    for name in settings.inputs:
        if "AZUREML_DATAREFERENCE_%s" % name not in os.environ or not os.path.exists(
            input_path(name)
        ):
            for first, end in table_parts(name, settings, worker):
                rows = (first, end)
                batches.append(MiniBatch(len(batches), name, end - first, rows=rows))
            continue
        files = files_below(input_path(name))
        for first in range(0, len(files), settings.files):
            part = tuple(files[first : first + settings.files])
            batches.append(MiniBatch(len(batches), name, len(part), files=part))
    return batches


def table_parts(name: str, settings: Settings, worker: Worker) -> List[Tuple[int, int]]:
    """Return the rows of each mini-batch of a table: the first, and the one after the last.

    Raises:
        StoppedError: it cannot be read.
    """
    try:
        measured = worker.ask(MeasureTable(name), TableSize, None)
    except WorkerError as error:
        raise StoppedError("the table %r cannot be read: %s" % (name, error)) from None
    if measured.error is not None:
        raise StoppedError("the table %r cannot be read: %s" % (name, measured.error))
    count = measured.rows
    each = max(1, count * settings.table_bytes // max(1, measured.bytes))
    return [(first, min(count, first + each)) for first in range(0, count, each)]


def files_below(path: str) -> List[str]:
    """Return the files below a folder, relative and sorted; for a file, only ""."""
    if not os.path.isdir(path):
        return [""]
    found = [
        os.path.relpath(os.path.join(folder, name), path)
        for folder, _, names in os.walk(path, followlinks=True)
        for name in names
    ]
    return sorted(found)


# -- the worker ------------------------------------------------------------------------------------


class Worker:
    """The process that runs the entry script for this rank; replaced after its death."""

    def __init__(self, script: str, arguments: Sequence[str]) -> None:
        here = os.path.dirname(os.path.abspath(__file__))
        injob_path = os.path.dirname(os.path.dirname(here))
        # It is run by its path, and never imported here.
        program = os.path.join(here, "parallel_worker.py")
        self._program = [sys.executable, program, injob_path]
        self._script = [script, *arguments]
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._connection: Optional[socket.socket] = None
        self._pending = b""

    def start(self) -> None:
        """Start the process and wait until `init()` has returned.

        Raises:
            StoppedError: `init()` failed, or the process repeatedly died in it.
        """
        for _ in range(STARTS):
            self.end(signal.SIGKILL)
            ours, theirs = socket.socketpair()
            self._process = subprocess.Popen(
                [*self._program, str(theirs.fileno()), *self._script], pass_fds=[theirs.fileno()]
            )
            theirs.close()
            self._connection, self._pending = ours, b""
            try:
                answer = self._answer(WorkerAnswer, None)
            except WorkerError as error:
                reason = str(error)
                continue
            if answer.error is not None:
                raise StoppedError("the entry script does not start: %s" % answer.error)
            return
        raise StoppedError("the entry script does not start: %s" % reason)

    def ask(
        self, request: Union[MeasureTable, RunBatch], kind: Type[Reply], limit_s: Optional[float]
    ) -> Reply:
        """Return the answer, of class `kind`, to a request.

        Raises:
            WorkerError: there is none within `limit_s` seconds, or the process ended.
        """
        assert self._connection is not None
        try:
            self._connection.sendall(json.dumps(request.to_json()).encode() + b"\n")
        except OSError:
            raise self._ended() from None
        return self._answer(kind, limit_s)

    def end(self, number: Optional[int] = None) -> None:
        """Let the process call `shutdown()` and end; with a signal, kill it at once."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            if number is not None:
                self._process.send_signal(number)
            self._process.wait()
        self._connection = self._process = None

    def _answer(self, kind: Type[Reply], limit_s: Optional[float]) -> Reply:
        assert self._connection is not None
        until_s = None if limit_s is None else time.monotonic() + limit_s
        while b"\n" not in self._pending:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not select.select([self._connection], [], [], left_s)[0]:
                assert self._process is not None
                self._process.kill()
                raise WorkerError("run() took longer than %g s" % (limit_s or 0))
            try:
                data = self._connection.recv(2**16)
            except OSError:
                data = b""
            if not data:
                raise self._ended()
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return kind.from_json(json.loads(line))

    def _ended(self) -> WorkerError:
        assert self._process is not None
        code = self._process.wait()
        how = "signal %d" % -code if code < 0 else "exit code %d" % code
        return WorkerError("its worker process ended with %s" % how)


# -- between the ranks -----------------------------------------------------------------------------


class Server(socketserver.ThreadingTCPServer):
    """Rank 0's server for the other ranks."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, ledger: Ledger, others: int) -> None:
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self.ledger = ledger
        self._left = others
        self._changed = threading.Condition()
        super().__init__(address, _Connection)

    def gone(self) -> None:
        """Record that a rank has disconnected."""
        with self._changed:
            self._left -= 1
            self._changed.notify_all()

    def wait_for_ends(self) -> None:
        """Wait until every other rank knows that the work is done."""
        with self._changed:
            while self._left > 0:
                self._changed.wait()
        self.shutdown()
        self.server_close()


class _Connection(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        ledger = self.server.ledger
        try:
            for line in self.rfile:
                assignment = self._assignment(rank_request(line))
                self.wfile.write(json.dumps(assignment.to_json()).encode() + b"\n")
        except OSError:
            pass  # the same as a closed connection
        finally:
            ledger.lost(self)
            self.server.gone()

    def _assignment(self, request: RankRequest) -> Assignment:
        ledger = self.server.ledger
        if isinstance(request, TakeBatch):
            return ledger.take(self)
        if isinstance(request, BatchDone):
            ledger.done(request.number, request.rows, request.count)
        elif isinstance(request, BatchFailed):
            ledger.failed(request.number, request.reason)
        else:
            ledger.stop(request.reason)
        return Assignment()


class _Own:
    """The ledger for use by rank 0 itself."""

    def __init__(self, ledger: Ledger) -> None:
        self.done, self.failed, self.stop = ledger.done, ledger.failed, ledger.stop
        self._ledger = ledger

    def take(self) -> Assignment:
        return self._ledger.take(self)


class Caller:
    """The ledger for use by the other ranks."""

    def __enter__(self) -> Caller:
        """Connect to rank 0.

        Raises:
            OSError: it cannot be reached.
        """
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        until_s = time.monotonic() + REACH_S
        while True:
            try:
                self._socket = socket.create_connection(address, timeout=10)
                break
            except OSError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.1)
        self._socket.settimeout(None)
        self._lines = self._socket.makefile("rb")
        return self

    def __exit__(self, *_exc: object) -> None:
        """Disconnect."""
        self._lines.close()
        self._socket.close()

    def _call(self, request: RankRequest) -> Assignment:
        self._socket.sendall(json.dumps(request.to_json()).encode() + b"\n")
        line = self._lines.readline()
        if not line:
            raise StoppedError("rank 0 has ended")
        return Assignment.from_json(json.loads(line))

    def take(self) -> Assignment:
        """See `Ledger.take`."""
        return self._call(TakeBatch())

    def done(self, number: int, rows: Sequence[str], count: int) -> None:
        """See `Ledger.done`."""
        self._call(BatchDone(number, tuple(rows), count))

    def failed(self, number: int, reason: str) -> None:
        """See `Ledger.failed`."""
        self._call(BatchFailed(number, reason))

    def stop(self, reason: str) -> None:
        """See `Ledger.stop`."""
        self._call(StopBatches(reason))

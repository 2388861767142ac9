"""An HTTP server for MLflow's tracking clients: in a job's attempt, or in a driver's process.

As a program, ``python mlflow_server.py``, it serves the listening socket that is its standard
input, for the attempt that its environment names. It saves each change in the attempt's folder
before it answers, so a restarted server continues the same runs.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, List, Mapping, Optional, Tuple
from urllib.parse import parse_qsl, unquote, urlsplit

if __name__ == "__main__":
    # Run by its path: take this folder, whose module names are general words, off the module path.
    _package_home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[:1] = [_package_home]

from rayjobs.injob.metrics_file import Appender
from rayjobs.injob.mlflow_tracking import (
    Json,
    RunState,
    Sink,
    Tracking,
    TrackingError,
    not_found,
)
from rayjobs.injob.submitted import SubmittedRun
from rayjobs.injob.uploads import clean_name

TOKEN = "MLFLOW_TRACKING_TOKEN"
"""The variable with the clients' token. It is not in the address, since MLflow prints addresses."""
JOURNAL = "mlflow.jsonl"
# The server's records have a rank number of their own, above those of all real ranks.
RANK = 900_000
EXPERIMENT_ID = "1"
PARAM = "mlflow.param."
"""Prefix of the properties that are a run's parameters."""
MOST_BYTES = 64 * 1024 * 1024  # of one request
PAGE = "This is the endpoint of a run for MLflow's clients; `rayjobs show` shows the run.\n"
MOST_CONNECTIONS = 512  # at a time: ranks and their workers keep theirs open
FIRST_S = 20.0  # until a connection has shown the token
IDLE_S = 120.0  # afterwards
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_PREFIXES = ("/api/2.0/mlflow/", "/ajax-api/2.0/mlflow/")
_FILES = "/api/2.0/mlflow-artifacts/artifacts"
MLFLOW_VERSION = "2.0.0"
"""The version of MLflow's protocol that is supported."""


class TrackingServer:
    """Serves `Tracking` to clients of this machine that present the token.

    Args:
        token: Clients send it as ``Authorization: Bearer TOKEN``.
        listener: A listening socket; None makes one for this machine only.

    Attributes:
        uri: Its address, for ``MLFLOW_TRACKING_URI``.
    """

    def __init__(
        self, tracking: Tracking, token: str, listener: Optional[socket.socket] = None
    ) -> None:
        handler = type("Handler", (_Handler,), {"tracking": tracking, "token": token})
        self._http = _Http(("127.0.0.1", 0), handler, bind_and_activate=listener is None)
        if listener is not None:
            self._http.socket.close()
            self._http.socket = listener
            self._http.server_address = listener.getsockname()
        self.uri = "http://127.0.0.1:%d" % self._http.server_address[1]

    def serve(self) -> None:
        """Serve until `close`."""
        self._http.serve_forever(poll_interval=1.0)

    def start(self) -> None:
        """Serve on a separate thread until the process ends."""
        threading.Thread(target=self.serve, name="mlflow-tracking", daemon=True).start()

    def close(self) -> None:
        """Stop a server that serves on another thread."""
        self._http.shutdown()
        self._http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve each connection on its own thread; clients retry if there are too many."""
        if not self._slots.acquire(blocking=False):
            try:
                request.setblocking(False)
                request.send(_BUSY)
            except OSError:
                pass  # the client has gone
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, then free its slot."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def server_bind(self) -> None:
        # Skip the host name look-up, which may use the network.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    tracking: Tracking
    token: str
    protocol_version = "HTTP/1.1"
    timeout = FIRST_S

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer."""
        self._answer("GET")

    def do_POST(self) -> None:
        """Answer."""
        self._answer("POST")

    def do_PUT(self) -> None:
        """Answer."""
        self._answer("PUT")

    def do_PATCH(self) -> None:
        """Answer."""
        self._answer("PATCH")

    def do_DELETE(self) -> None:
        """Answer."""
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        try:
            status, content = 200, self._work(method)
        except TrackingError as error:
            status, content = error.status, {"error_code": error.code, "message": error.message}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            message = "the request cannot be read: %s" % error
            status, content = 400, {"error_code": "BAD_REQUEST", "message": message}
        except Exception as error:
            content = {"error_code": "INTERNAL_ERROR", "message": "%s" % error}
            status = 500
        kind, data = "application/json", b""
        if isinstance(content, bytes):
            kind, data = "application/octet-stream", content
        elif isinstance(content, str):
            kind, data = "text/plain", content.encode("utf-8")
        else:
            data = json.dumps(content).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _check_token(self) -> None:
        shown = self.headers.get("Authorization") or ""
        if not hmac.compare_digest(shown.encode("utf-8"), ("Bearer " + self.token).encode()):
            self.close_connection = True  # a body may follow
            message = "the client did not send this run's token (%s)" % TOKEN
            raise TrackingError(403, "PERMISSION_DENIED", message)
        self.connection.settimeout(IDLE_S)

    def _store_file(self, path: str) -> Json:
        self._check_token()
        run_id, _, name = unquote(path).strip("/").partition("/")
        length = self.headers.get("Content-Length")
        try:
            stream = _Stream(self.rfile, None if length is None else int(length))
            self.tracking.sink.write_artifact(run_id, clean_name(name), stream)
        except BaseException:
            self.close_connection = True  # the rest of the body is useless
            raise
        return {}

    def _file(self, path: str, query: Mapping[str, str]) -> Any:
        run_id, _, name = unquote(path).strip("/").partition("/")
        if not name:
            folder = query.get("path", "")
            return self.tracking.artifacts("%s/%s" % (run_id, folder) if run_id else folder)
        return b"".join(self.tracking.sink.read_artifact(run_id, name))

    def _work(self, method: str) -> Any:
        url = urlsplit(self.path)
        if method == "PUT" and url.path.startswith(_FILES):
            return self._store_file(url.path[len(_FILES) :])
        path = url.path
        length = int(self.headers.get("Content-Length") or 0)
        if path == "/":
            self.close_connection = self.close_connection or length != 0
            return PAGE
        self._check_token()  # before storing any of the body
        if not 0 <= length <= MOST_BYTES:
            self.close_connection = True
            raise TrackingError(413, "BAD_REQUEST", "the request has %d bytes" % length)
        data = self.rfile.read(length)
        if path in ("/health", "/version"):
            return "OK" if path == "/health" else MLFLOW_VERSION
        if path.startswith(_FILES):
            return self._file(path[len(_FILES) :], dict(parse_qsl(url.query)))
        prefix = next((one for one in _PREFIXES if path.startswith(one)), None)
        if prefix is None:
            raise TrackingError(404, "ENDPOINT_NOT_FOUND", "%s is not supported here" % path)
        body: Json = dict(parse_qsl(url.query))
        if data:
            given = json.loads(data)
            if not isinstance(given, dict):
                raise ValueError("the body is not a JSON object")
            body.update(given)
        return self.tracking.call(method, path[len(prefix) :], body)


class _Stream:
    """A request body as a file: the announced number of bytes, whole or in chunks."""

    def __init__(self, source: Any, length: Optional[int]) -> None:
        self._source = source
        self._left = length  # of the body; of the chunk, if it comes in chunks
        self._in_chunks = length is None

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""
        if self._in_chunks and not self._left:
            line = self._source.readline(100).split(b";")[0].strip()
            self._left = int(line, 16)
            if self._left == 0:
                self._source.readline(100)
                self._in_chunks = False
        if not self._left:
            return b""
        data: bytes = self._source.read(min(size, self._left))
        if not data:
            raise ValueError("the request's body is incomplete")
        self._left -= len(data)
        if self._in_chunks and not self._left:
            self._source.readline(100)  # the end of the chunk
        return data


class AttemptSink(Sink):
    """Stores what clients log in a job as the job's own metrics, tags, properties and files.

    Runs that a script begins itself (nested runs, or one after another) are part of the job's run:
    their metrics are called ``RUN/METRIC``.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._root = environment["RAYJOBS_ATTEMPT_DIR"]
        self._name = environment.get("RAYJOBS_EXPERIMENT") or "experiment"
        self.run_id = environment["RAYJOBS_RUN_ID"]
        rank = RANK + int(environment.get("RAYJOBS_NODE") or 0)
        self._run = SubmittedRun(self.run_id, environment["RAYJOBS_METRICS_DIR"], rank)
        self._files = os.path.join(self._root, "uploads")
        self._children = 0

    def main_run(self) -> RunState:
        """Return the job's own run."""
        os.makedirs(self._files, mode=0o700, exist_ok=True)
        return RunState(self.run_id, EXPERIMENT_ID, self.run_id, "file://" + self._files)

    def experiment_id(self, name: str, *, create: bool) -> Optional[str]:
        """Every name maps to the job's experiment: all logged data belongs to the job."""
        return EXPERIMENT_ID

    def experiment(self, experiment_id: str) -> Json:
        """See `Sink`."""
        if experiment_id not in (EXPERIMENT_ID, "0"):
            raise not_found("a job has one experiment, with the id %s." % EXPERIMENT_ID)
        location = "file://" + self._files
        return {
            "experiment_id": EXPERIMENT_ID,
            "name": self._name,
            "artifact_location": location,
        }

    def experiments(self) -> List[Json]:
        """See `Sink`."""
        return [self.experiment(EXPERIMENT_ID)]

    def create_run(
        self, experiment_id: str, name: str, tags: Mapping[str, str]
    ) -> Tuple[str, str, str]:
        """Begin a run inside the job's run."""
        self._children += 1
        name = name or "run-%d" % self._children
        run_id = "%s-%s-%d-%d" % (self.run_id, "mlflow", os.getpid(), self._children)
        return run_id, name, "file://%s/%s" % (self._files, _file_name(name))

    def find_run(self, run_id: str) -> Optional[RunState]:
        """Return None: an attempt knows only the runs that it began itself."""
        return None

    def run_ids(self, experiment_id: str) -> List[str]:
        """See `find_run`."""
        return []

    def _named(self, run: RunState, key: str) -> str:
        return key if run.run_id == self.run_id else "%s/%s" % (run.name, key)

    def metric(self, run: RunState, key: str, value: float, step: int) -> None:
        """See `Sink`."""
        self._run.log(self._named(run, key), value, step=step)
        self._check()

    def param(self, run: RunState, key: str, value: str) -> None:
        """See `Sink`."""
        self._run._put("property", PARAM + self._named(run, key), value)
        self._check()

    def tag(self, run: RunState, key: str, value: Optional[str]) -> None:
        """Set a tag of the job; MLflow's own tags of nested runs are not stored."""
        if run.run_id == self.run_id or not key.startswith("mlflow."):
            self._run._put("tag", self._named(run, key), value)
            self._check()

    def end_run(self, run: RunState, status: str) -> None:
        """Record a failed MLflow run; the job itself ends with its script."""
        if status == "FAILED":
            self._run._put("fail", "error", "MLflow's run %s failed" % run.name)

    def _check(self) -> None:
        if self._run._file.dropped:
            self._run._file.dropped = 0
            raise TrackingError(500, "INTERNAL_ERROR", "the node's disk is full; nothing was saved")


def _file_name(name: str) -> str:
    return "".join(one if one.isalnum() or one in "-_." else "_" for one in name) or "run"


def tracking_of(environment: Mapping[str, str]) -> Tracking:
    """Return the runs of an attempt, including those that an earlier process saved."""
    sink = AttemptSink(environment)
    path = os.path.join(environment["RAYJOBS_ATTEMPT_DIR"], JOURNAL)
    file = Appender(path)

    def keep(change: Dict[str, Any]) -> None:
        line = json.dumps(change, separators=(",", ":")).encode("ascii") + b"\n"
        if not file.append(line):
            raise TrackingError(500, "INTERNAL_ERROR", "the node's disk is full")

    if _ends_in_half_line(path):
        file.append(b"\n")
    tracking = Tracking(sink, keep)
    tracking.add_run(sink.main_run())
    tracking.replay(_changes(path))
    return tracking


def _changes(path: str) -> List[Json]:
    found = []
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                change = _change_of(line)
                if change is not None:
                    found.append(change)
    except FileNotFoundError:
        pass  # nothing was logged yet
    return found


def _ends_in_half_line(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            return size > 0 and file.read(1) != b"\n"
    except FileNotFoundError:
        return False


def _change_of(line: str) -> Optional[Json]:
    """Return the change in a line; None if a full disk or a kill has damaged the line.

    The server answers only after a line is complete, so no client relies on a damaged one.
    """
    try:
        found = json.loads(line) if line.endswith("\n") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("body"), dict):
        return None
    if not isinstance(found.get("method"), str) or not isinstance(found.get("path"), str):
        return None
    return found


def main() -> None:
    """Serve the socket that is standard input."""
    listener = socket.socket(fileno=os.dup(0))
    TrackingServer(tracking_of(os.environ), os.environ[TOKEN], listener).serve()


if __name__ == "__main__":
    main()

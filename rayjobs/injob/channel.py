"""Connects a job's script to its workspace: calls to the node's agent over a Unix socket.

The agent may be replaced while the job runs; a call waits for the next agent. After a connection
has broken, calls are repeated, which is safe because this side chooses ids and keys. A call that is
not idempotent is never repeated once it has been sent. The channel ends with the attempt.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
import uuid
from typing import Any, Dict, Mapping, Optional

from rayjobs.injob import run_calls
from rayjobs.injob.files import replacing
from rayjobs.injob.messages import MessageError
from rayjobs.injob.run_calls import Request, RunAnswer, RunCall, Value
from rayjobs.injob.run_token import TOKEN_VARIABLE

PATIENCE_S = 60.0  # a dead agent is replaced within seconds
ANSWER_S = 600.0  # for one call: a model's files may be large
PAUSE_S = 0.1


class ChannelError(RuntimeError):
    """A call was refused or not answered, as the message explains.

    Attributes:
        kind: The class of the error on the other side, such as ``NotFoundError``; empty if there
            was no answer.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class Channel:
    """The channel of one attempt on this node. Thread-safe and fork-safe."""

    def __init__(
        self, root: str, run: str, attempt: int, token: str, patience_s: float = PATIENCE_S
    ) -> None:
        """Create the channel of attempt `attempt` of `run`, whose folder on this node is `root`."""
        self.root = root
        self.run = run
        self.attempt = attempt
        self._token = token
        self._patience_s = patience_s
        self._lock = threading.RLock()
        self._pid = 0
        self._stream: Optional[socket.socket] = None
        self._file: Any = None
        self._was_sent = False  # whether the whole line of the last call was sent

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Channel":
        """Return the channel of the job that a process with these variables belongs to.

        Raises:
            ChannelError: it has no token, since it was started without the job's variables.
        """
        token = environment.get(TOKEN_VARIABLE)
        run = environment.get("RAYJOBS_RUN_ID")
        metrics = environment.get("RAYJOBS_METRICS_DIR", "")
        root = environment.get("RAYJOBS_ATTEMPT_DIR") or os.path.dirname(metrics)
        if not token or not run:
            raise ChannelError(
                "this process has no token of its attempt (%s is not set), so it cannot reach "
                "its workspace; keep the variables of the job when you start processes"
                % TOKEN_VARIABLE
            )
        return cls(root, run, int(environment.get("RAYJOBS_ATTEMPT") or 1), token)

    def call(self, request: Request[Value], *, once: bool = False) -> Value:
        """Send a request, and return the value of the agent's answer.

        Args:
            once: Do not repeat the call after it was sent, even if its answer is lost.

        Raises:
            ChannelError: it was refused; the attempt has ended; no agent answers; or, with
                `once`, the answer was lost.
        """
        call = RunCall(self._token, request.NAME, request.to_json())
        line = json.dumps(call.to_json()).encode() + b"\n"
        if len(line) > run_calls.MAX_LINE_BYTES:
            raise ChannelError(
                "the call has %d bytes, and at most %d can be sent; split it into several calls"
                % (len(line), run_calls.MAX_LINE_BYTES),
                "UsageError",
            )
        deadline = time.monotonic() + self._patience_s
        with self._lock:
            while True:
                try:
                    answer = self._ask(line)
                except (OSError, EOFError) as error:
                    self._close()
                    self._refuse_ended()
                    if once and self._was_sent:
                        raise ChannelError(
                            "the connection to the agent of this node broke after the call was "
                            "sent (%s): it may have been carried out, so it is not repeated; "
                            "check the workspace before you call again" % error
                        ) from error
                    if time.monotonic() >= deadline:
                        raise ChannelError(
                            "the agent of this node does not answer (%s); the script may call "
                            "again" % error
                        ) from error
                    time.sleep(PAUSE_S)
                    continue
                if answer.error is not None:
                    raise ChannelError(answer.error, answer.kind)
                try:
                    return request.read_answer(answer.value)
                except MessageError as error:
                    raise ChannelError("the agent's answer cannot be read: %s" % error) from error

    def _ask(self, line: bytes) -> RunAnswer:
        self._was_sent = False
        if self._pid != os.getpid():  # in a fork, the stream belongs to the parent
            self._stream = self._file = None
        if self._stream is None:
            self._stream = self._connect()
            self._file = self._stream.makefile("rb")
            self._pid = os.getpid()
        self._stream.sendall(line)  # a partly sent request has no newline; the agent ignores it
        self._was_sent = True
        answer = self._file.readline(run_calls.MAX_LINE_BYTES)
        if not answer.endswith(b"\n"):
            raise EOFError("the connection was closed")
        try:
            return RunAnswer.from_json(json.loads(answer))
        except (ValueError, MessageError) as error:
            raise EOFError("the answer cannot be read: %s" % error) from error

    def _connect(self) -> socket.socket:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A socket's path may have 107 bytes at most; that of a descriptor is short.
            folder = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                stream.settimeout(ANSWER_S)
                stream.connect("/proc/self/fd/%d/%s" % (folder, run_calls.SOCKET))
            finally:
                os.close(folder)
        except BaseException:
            stream.close()
            raise
        return stream

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._stream is not None:
            self._file.close()
            self._stream.close()
        self._stream = self._file = None

    def _refuse_ended(self) -> None:
        if os.path.exists(os.path.join(self.root, "exit.json")) or not os.path.isdir(self.root):
            raise ChannelError(
                "attempt %d of %s has ended: its token is no longer valid"
                % (self.attempt, self.run),
                "AttemptEndedError",
            )

    # -- bytes -------------------------------------------------------------------------------
    def new_file(self) -> str:
        """Return the path of a new file in `exchange`, for bytes that a call names."""
        folder = os.path.join(self.root, run_calls.EXCHANGE)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return os.path.join(folder, uuid.uuid4().hex)

    def take(self, name: str, target: str) -> None:
        """Move a file or folder of `exchange` to `target`, replacing a file there."""
        source = os.path.join(self.root, run_calls.EXCHANGE, os.path.basename(name))
        os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
        if os.path.isdir(source):
            shutil.move(source, target)
            return
        with replacing(target) as draft:
            shutil.move(source, draft)


_channels: Dict[str, Channel] = {}


def own_channel() -> Channel:
    """Return the channel of the job that this process belongs to.

    Raises:
        ChannelError: it has no token.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    found = _channels.get(token)
    if found is None:
        found = _channels.setdefault(token, Channel.of(os.environ))
    return found

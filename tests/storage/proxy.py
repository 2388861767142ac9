"""A TCP proxy on this machine that simulates network faults."""

from __future__ import annotations

import socket
import threading
from typing import Self

PIECE = 16_384


class Proxy:
    """A proxy in front of a server. `mode` may be changed at any time, for new connections:

    pass; hang (accepts, never responds); cut (closes after `cut_after` bytes of a response);
    cut_request (closes after `cut_after` bytes of a request); flip (changes `flip` once); 503.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.mode = "pass"
        self.cut_after = 0
        self.cuts_left = 1_000_000
        self.flip = b""
        self.sent = 0
        self.connections = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self.endpoint = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close all connections, and refuse new ones."""
        self._stopped.set()
        # A blocked accept keeps the listening socket alive after close; shutdown wakes it.
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # stopped already
        self._listener.close()
        with self._lock:
            connections, self._open = self._open, set()
        for connection in connections:
            _close(connection)

    def lose(self) -> None:
        """Break all connections, and new ones until `come_back`."""
        self.mode, self.cut_after = "cut_request", 0
        with self._lock:
            connections, self._open = self._open, set()
        for connection in connections:
            _close(connection)

    def come_back(self) -> None:
        """Serve new connections again."""
        self.mode = "pass"

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        mode = self.mode
        if mode == "hang":
            self._stopped.wait(300)
        elif mode == "503":
            self._answer_503(client)
        else:
            try:
                server = socket.create_connection(("127.0.0.1", self.target_port), timeout=30)
                server.settimeout(None)
            except OSError:
                _close(client)
                return
            with self._lock:
                self._open.add(server)
            back = threading.Thread(target=self._answers, args=(server, client, mode), daemon=True)
            back.start()
            self._requests(client, server, mode)
            back.join(60)
        _close(client)

    def _answer_503(self, client: socket.socket) -> None:
        answer = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        try:
            client.recv(65_536)
            client.sendall(answer)
        except OSError:
            return

    def _requests(self, client: socket.socket, server: socket.socket, mode: str) -> None:
        passed = 0
        try:
            while piece := client.recv(PIECE):
                passed += len(piece)
                if mode == "cut_request" and passed > self.cut_after:
                    break
                server.sendall(piece)
        except OSError:
            pass  # one side has closed its connection
        _close(server)
        if mode == "cut_request":
            _close(client)

    def _answers(self, server: socket.socket, client: socket.socket, mode: str) -> None:
        passed = 0
        try:
            while piece := server.recv(PIECE):
                if self.flip and self.flip in piece:
                    piece = piece.replace(self.flip, self.flip[::-1])
                    self.flip = b""
                if mode == "cut" and passed + len(piece) > self.cut_after and self._may_cut():
                    client.sendall(piece[: max(0, self.cut_after - passed)])
                    break
                client.sendall(piece)
                passed += len(piece)
                with self._lock:
                    self.sent += len(piece)
        except OSError:
            pass  # one side has closed its connection
        _close(client)
        _close(server)

    def _may_cut(self) -> bool:
        with self._lock:
            self.cuts_left -= 1
            return self.cuts_left >= 0


def _close(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # closed by the other side before
    connection.close()

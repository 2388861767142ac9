"""Transfers large files directly between this client and a server's bucket, with signed addresses.

If the bucket cannot be used from here, all bytes travel through the server.
"""

from __future__ import annotations

import http.client
import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import BinaryIO, Self
from urllib.parse import SplitResult, urlsplit

from rayjobs.workspace.connection import Connection, connected
from rayjobs.workspace.http_messages import Part, Parts, PartsRequest

log = logging.getLogger(__name__)

CONNECT_S = 3.0  # a network that drops packets costs this once per process
ANSWER_S = 30.0
PARTS_AT_ONCE = 4
TRIES = 4
FIRST_PAUSE_S = 0.2
_BUSY = (429, 500, 502, 503, 504)


class Bucket:
    """The bucket as this process reaches it; after a failure it is not tried again."""

    def __init__(self, server: Connection) -> None:
        self._server = server
        self._is_used = True

    def send(self, stream: BinaryIO, size: int, name: str) -> bool:
        """Send the missing parts of the upload `name`; False: the server must get the bytes."""
        path = f"/v1/uploads/{name}/parts"
        with Requests(self._server.ca_file) as requests:
            while self._is_used:
                body = PartsRequest(size)
                answer = self._server.ask("POST", path, Parts | None, body=body, repeats=True)
                if answer is None:
                    self._is_used = False
                    break
                if not answer.missing:
                    return True

                def put(part: Part, part_bytes: int = answer.part_bytes) -> None:
                    start = (part.number - 1) * part_bytes
                    data = os.pread(stream.fileno(), part_bytes, start)
                    requests.send("PUT", part.url, data, {})

                try:
                    with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
                        sent = [pool.submit(put, part) for part in answer.missing]
                        try:
                            for one in sent:
                                one.result()
                        except BaseException:
                            pool.shutdown(wait=True, cancel_futures=True)
                            raise
                except (OSError, http.client.HTTPException) as error:
                    self._give_up(error)
        return False

    @contextmanager
    def reading(self, key: str) -> Iterator[Callable[[int, int], bytes]]:
        """Yield a function that returns a blob's bytes between two positions, both inclusive.

        The function returns no bytes if the server must send them. It does not verify them.
        """
        found: str | None = None
        if self._is_used:
            found = self._server.ask("GET", f"/v1/blob-addresses/{key}", str | None)
        self._is_used, address = found is not None, str(found)

        def read(start: int, end: int) -> bytes:
            if not self._is_used:
                return b""
            try:
                return requests.send("GET", address, None, {"Range": f"bytes={start}-{end}"})
            except (OSError, http.client.HTTPException) as error:
                self._give_up(error)
                return b""

        with Requests(self._server.ca_file) as requests:
            yield read

    def _give_up(self, error: Exception) -> None:
        self._is_used = False
        log.info("files travel through %s: the bucket's server: %s", self._server.address, error)


class Requests:
    """Requests to one server from several threads; the context manager closes its connections."""

    def __init__(self, ca_file: str = "") -> None:
        self._ca_file = ca_file
        self._free: list[http.client.HTTPConnection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for one in self._free:
            one.close()

    def send(self, verb: str, address: str, data: bytes | None, headers: dict[str, str]) -> bytes:
        """Return the answer's body, retrying a failed request a few times.

        A failure to connect and a timeout are final.

        Raises:
            OSError, http.client.HTTPException: no attempt succeeded.
        """
        pause_s, parts = FIRST_PAUSE_S, urlsplit(address)
        expected = 206 if "Range" in headers else 200
        for attempt in range(TRIES):
            if attempt:
                time.sleep(pause_s)
                pause_s *= 2
            is_last = attempt + 1 == TRIES
            # A failure to connect is final: this network most likely cannot reach the server.
            connection = self._connected(parts)
            try:
                connection.request(verb, f"{parts.path}?{parts.query}", body=data, headers=headers)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if is_last or isinstance(error, TimeoutError):
                    raise
                continue
            if answer.status == expected:
                self._free.append(connection)
                return body
            connection.close()
            if is_last or answer.status not in _BUSY:
                where = f"{parts.scheme}://{parts.netloc}{parts.path}"  # without the signature
                raise http.client.HTTPException(f"{verb} {where} was answered {answer.status}")
        raise AssertionError("not reached")

    def _connected(self, parts: SplitResult) -> http.client.HTTPConnection:
        try:
            return self._free.pop()
        except IndexError:
            pass
        return connected(parts, connect_s=CONNECT_S, answer_s=ANSWER_S, ca_file=self._ca_file)

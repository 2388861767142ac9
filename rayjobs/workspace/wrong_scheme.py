"""Detects a server that speaks plain HTTP although its address says HTTPS, or the reverse."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from urllib.parse import SplitResult

LOOK_S = 3.0


def sentence(parts: SplitResult, error: Exception) -> str:
    """Return what the address should be; empty if `error` has another cause.

    Args:
        parts: The address that was used.
        error: How a request to it failed.
    """
    if parts.scheme == "https":
        # Any answer that is not TLS causes this error, even one in another protocol.
        if isinstance(error, ssl.SSLError) and _speaks_http(parts):
            return f"{parts.netloc} speaks plain HTTP, without TLS: use http://{parts.netloc}"
    elif isinstance(error, http.client.HTTPException | ConnectionError) and _speaks_tls(parts):
        return f"{parts.netloc} speaks HTTPS: use https://{parts.netloc}"
    return ""


def _speaks_tls(parts: SplitResult) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    try:
        with (
            socket.create_connection((str(parts.hostname), parts.port or 80), LOOK_S) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname),
        ):
            return True
    except (OSError, ValueError):
        return False


def _speaks_http(parts: SplitResult) -> bool:
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port or 443, timeout=LOOK_S)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/healthz")  # without the token
            connection.getresponse()
        except (OSError, http.client.HTTPException):
            return False
        return True

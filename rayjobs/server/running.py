"""Runs the server: uvicorn with limits on what one client may use."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rayjobs.core.errors import UsageError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.workspace import server_choice
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.users import role_of

if TYPE_CHECKING:
    import uvicorn

    from rayjobs.server.oidc import Provider

KEEP_ALIVE_S = 60
MOST_AT_ONCE = 1000
BACKLOG = 2048


@dataclass(frozen=True)
class Listening:
    """The server's address; with certificate and key files, it uses TLS.

    Attributes:
        bucket: The address at which clients reach S3; empty: the workspace's; ``none``: clients
            cannot reach it.
    """

    host: str = "127.0.0.1"
    port: int = 8400
    certificate: str | None = None
    key: str | None = None
    provider: Provider | None = None
    bucket: str = ""


def provider_of(
    issuer: str,
    client_id: str,
    *,
    claim: str,
    groups: str,
    roles: Sequence[str],
    default: str,
    domains: Sequence[str] = (),
) -> Provider:
    """Return the provider of OpenID Connect logins.

    Raises:
        UsageError: PyJWT is not installed, or a setting is invalid.
    """
    try:
        from rayjobs.server.oidc import Provider, Settings
    except ImportError as error:
        raise UsageError(
            f"OpenID Connect logins need {error.name}: pip install 'rayjobs[server]'"
        ) from error
    if default == "none" and not roles:
        raise UsageError(
            "no user could log in: give the role of a group, such as --oidc-role "
            "submitter=researchers, or --oidc-default, the role of everyone at the provider"
        )
    for domain in domains:
        if not domain or "@" in domain or domain != domain.strip():
            raise UsageError(f"{domain!r} is not a mailbox domain such as example.org")
    known = {}
    for text in roles:
        name, sign, group = text.partition("=")
        if not sign or not group:
            raise UsageError(f"{text!r} is not ROLE=GROUP")
        known[group] = role_of(name)
    return Provider(
        Settings(
            issuer=issuer,
            client_id=client_id,
            claim=claim,
            groups=groups,
            roles=known,
            default=None if default == "none" else role_of(default),
            domains=tuple(one.lower() for one in domains),
        )
    )


def check_bucket_address(address: str) -> None:
    """Check the address at which clients reach S3.

    Raises:
        UsageError: it is neither the address of a server nor ``none``.
    """
    if address in ("", "none"):
        return
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise UsageError(
            f"--bucket-address {address!r} is invalid; write http://HOST:PORT, https://HOST, or "
            "'none'"
        )


def serve(
    workspace: OpenWorkspace,
    listening: Listening,
    *,
    note: Callable[[str], None] = lambda _text: None,
) -> None:
    """Serve a workspace until a signal ends the process.

    Args:
        note: Called with the address, once the server listens.

    Raises:
        UsageError: uvicorn is not installed, a TLS file is missing or invalid, or the address
            cannot be used.
    """
    try:
        import uvicorn

        import rayjobs.server.app  # noqa: F401 - its dependencies may also be missing
    except ImportError as error:
        raise UsageError(
            f"`rayjobs serve` needs {error.name}: pip install 'rayjobs[server]'"
        ) from error
    if (listening.certificate is None) != (listening.key is None):
        raise UsageError("give both --tls-cert and --tls-key")
    for option, path in (("--tls-cert", listening.certificate), ("--tls-key", listening.key)):
        if path is not None and not os.access(path, os.R_OK):
            raise UsageError(
                f"{option} {path} cannot be read: name a PEM file that this user can read"
            )
    if listening.certificate is not None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(listening.certificate, listening.key)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(
                f"--tls-cert {listening.certificate} and --tls-key {listening.key} are not a "
                f"certificate and its key as PEM: {error.strerror or error}"
            ) from error
    try:
        family = socket.AF_INET6 if ":" in listening.host else socket.AF_INET
        address = (listening.host, listening.port)
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"the server cannot listen at {listening.host}:{listening.port} "
            f"({error.strerror or error}); name another --host or --port"
        ) from error
    note(f"serving {workspace.path} at {listening.host}:{listener.getsockname()[1]}")
    # Processes that the server starts must not use this machine's own login.
    server_choice.allow(False)
    for name in (server_choice.ADDRESS, server_choice.TOKEN):
        os.environ.pop(name, None)
    with listener:
        uvicorn.Server(config_of(workspace, listening)).run(sockets=[listener])


def config_of(
    workspace: OpenWorkspace, listening: Listening, *, is_silent: bool = False, **kwargs: Any
) -> uvicorn.Config:
    """Return the uvicorn configuration for a workspace; `kwargs` are further options."""
    import uvicorn

    from rayjobs.server.app import make_app
    from rayjobs.server.connections import BoundedProtocol
    from rayjobs.server.lines import on_stderr

    lines = None if is_silent else on_stderr()

    return uvicorn.Config(
        make_app(workspace, listening.provider, bucket=listening.bucket, lines=lines),
        host=listening.host,
        port=listening.port,
        http=BoundedProtocol,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
        limit_concurrency=MOST_AT_ONCE,
        h11_max_incomplete_event_size=64 << 10,
        server_header=False,
        access_log=False,
        **{"log_level": "info", **kwargs},
    )

"""Checks that a Ray cluster refuses callers without its token. Needs gRPC, not Ray."""

from __future__ import annotations

from pathlib import Path

from rayjobs.core.errors import NotFoundError, TargetError, UnreachableError, UsageError

# Every Ray since 2.52 has it; an empty message is a valid request.
_METHOD = "/ray.rpc.NodeInfoGcsService/GetClusterId"
ANSWER_S = 15.0
WITHOUT_TOKEN = "--cluster-without-token-anyone-can-run-code"


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        NotFoundError: there is no such file.
        UsageError: the file cannot be read, is empty, or is open to other users.
    """
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError as exc:
        raise NotFoundError(
            f"there is no token file {path}. Give the file that holds the cluster's token."
        ) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"the token file {path} cannot be read: {exc}. Give the file that holds the "
            f"cluster's token."
        ) from exc
    if not token:
        raise UsageError(f"the token file {path} is empty. Write the cluster's token into it.")
    if mode & 0o077:
        raise UsageError(
            f"the token file {path} can be read by other users, and the token gives "
            f"full control of the cluster. Run `chmod 600 {path}`."
        )
    return token


def check_token(address: str, token: str | None = None, *, timeout_s: float = ANSWER_S) -> None:
    """Check that the cluster's GCS refuses callers without a token and accepts `token`, if given.

    Args:
        address: `host:port` of the GCS.

    Raises:
        TargetError: it answers any caller: the cluster was started without RAY_AUTH_MODE=token.
        UsageError: it rejects this token.
        UnreachableError: no Ray cluster answers there.
    """
    if _answers(address, None, timeout_s):
        raise TargetError(
            f"the Ray cluster at {address} answers callers without a token: anyone who "
            f"can reach it can run code on it. Start it with RAY_AUTH_MODE=token and a token file "
            f"(RAY_AUTH_TOKEN_PATH), then create the target again. If that is impossible, and only "
            f"people you trust reach it, give {WITHOUT_TOKEN}.",
            address=address,
        )
    if token is not None and not _answers(address, token, timeout_s):
        raise UsageError(
            f"the Ray cluster at {address} rejected this token. Give the token file that "
            f"the cluster was started with.",
            address=address,
        )


def check_without_token(address: str, *, timeout_s: float = ANSWER_S) -> None:
    """Check that the cluster's GCS answers callers without a token.

    Raises:
        UsageError: it requires one, which should then be used.
        UnreachableError: no Ray cluster answers there.
    """
    if not _answers(address, None, timeout_s):
        raise UsageError(
            f"the Ray cluster at {address} requires a token. Give its token file (--token-file) "
            f"and leave out {WITHOUT_TOKEN}.",
            address=address,
        )


def _answers(address: str, token: str | None, timeout_s: float) -> bool:
    import grpc  # large, and rarely needed

    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    # Connect to the cluster's address without the proxy of the user's environment.
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        try:
            channel.unary_unary(_METHOD)(b"", timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as exc:
            if exc.code() == grpc.StatusCode.UNAUTHENTICATED:
                return False
            raise UnreachableError(
                f"no Ray cluster answers at {address} ({exc.code().name.lower()}: "
                f"{exc.details()}). Give the address that `ray start --head` printed, HOST:PORT.",
                address=address,
            ) from exc
    return True

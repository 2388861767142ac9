"""Turns botocore's errors into errors that explain the problem and what to do next."""

from __future__ import annotations

import re
from typing import Any

from botocore import exceptions as boto

from rayjobs.datastore.errors import (
    AccessDenied,
    BucketNotFound,
    DataChanged,
    DataNotFound,
    DatastoreError,
    DatastoreUnavailable,
    InvalidReference,
)

_DENIED = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "RequestTimeTooSkewed",
    }
)
_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
    boto.TokenRetrievalError,
)
_CONNECTION = (
    boto.HTTPClientError,  # refused, timed out, broken, TLS: all are subclasses
    boto.ConnectionError,
    boto.IncompleteReadError,
    OSError,
)

# The sentence has the storage's address already.
_ENDPOINT = re.compile(r' (?:to the|on|from) endpoint URL: "[^"]*"\.?')


def status_of(error: BaseException) -> int:
    """Return the HTTP status of a botocore error, 0 if it has none."""
    response: Any = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)


def explain(error: BaseException, *, what: str, where: str = "") -> DatastoreError:
    """Return the package's error for `error`, raised while doing `what`.

    Args:
        error: The error.
        what: What was done, after "cannot".
        where: The storage; empty: the caller's sentence names it.
    """
    if isinstance(error, DatastoreError):
        return error
    if isinstance(error, boto.ClientError) and _code_of(error) == "NoSuchBucket":
        at = f" at {where}" if where else ""
        return BucketNotFound(f"cannot {what}: there is no bucket{at}. Check its name.")
    if where:
        what = f"{what} on {where}"
    if isinstance(error, boto.ClientError):
        return _explain_answer(error, what=what)
    if isinstance(error, _CREDENTIALS):
        return AccessDenied(
            f"cannot {what}: {error}. Set the variables or the profile that the "
            "datastore names for its credentials (rayjobs datastore ls shows the names). Jobs get "
            "what is exported where you submit, or what `rayjobs target secret set NAME` sets."
        )
    if isinstance(error, _CONNECTION):
        reason = _ENDPOINT.sub("", str(error)) or type(error).__name__
        return DatastoreUnavailable(
            f"cannot {what}: {reason}. The server refused, hung or broke off, even "
            "after retries; check its address and that it is running, then try again."
        )
    if isinstance(error, boto.ParamValidationError | boto.BotoCoreError | ValueError):
        return InvalidReference(f"cannot {what}: {error}")
    return DatastoreUnavailable(f"cannot {what}: {type(error).__name__}: {error}")


def _code_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _explain_answer(error: Any, *, what: str) -> DatastoreError:
    code = _code_of(error)
    text = str(error.response.get("Error", {}).get("Message", "")) or code
    status = status_of(error)
    if code in _DENIED or status in (401, 403):
        return AccessDenied(
            f"cannot {what}: {text} ({code or status}). Check the credentials that the "
            "datastore names, and their permissions."
        )
    if status == 412 or code == "PreconditionFailed":
        return DataChanged(
            f"cannot {what}: the object has changed since it was listed. "
            "Register a new version, or put the old object back."
        )
    if status == 404 or code in ("NoSuchKey", "NotFound"):
        return DataNotFound(f"cannot {what}: there is no such object.")
    if status >= 500 or status == 429 or code in ("SlowDown", "RequestTimeout"):
        return DatastoreUnavailable(
            f"cannot {what}: the server answers {status} {text}, even after retries. "
            "Try again later."
        )
    return InvalidReference(f"cannot {what}: the server answers {status} {code}: {text}")

"""Refuses addresses and settings that contain a secret, without repeating them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rayjobs.datastore.errors import InvalidReference

ENV_SETTINGS = ("access_key_env", "secret_key_env", "session_token_env")
BY_REFERENCE = (
    "Credentials are given by reference: the names of environment variables "
    "(access_key_env, secret_key_env) or a profile."
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# An access key can look like a variable's name. AWS keys begin with A and three letters for their
# kind; other keys are long and have only letters and digits, unlike most variables.
_KEY = re.compile(r"(?:A[A-Z0-9]{3}[A-Z0-9]{16}|(?=.*[0-9])[A-Za-z0-9]{16,})\Z")
_QUERY = re.compile(r"\?[A-Za-z][A-Za-z0-9_.-]*=")


def check_url(url: str, *, wildcards: bool = True) -> None:
    """Refuse a URL that could contain a secret, as user information or in a query.

    With `wildcards`, a `?` is a wildcard unless a name and a value follow.

    Raises:
        InvalidReference: it could; the message does not repeat the URL.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        return
    authority = rest.partition("/")[0]
    # A password may contain a '/': then USER:PART precedes it, and PART is not a port.
    _, colon, port = authority.rpartition(":")
    is_part = bool(colon) and bool(port) and not port.isdigit() and not port.endswith("]")
    if "@" in authority or (is_part and "@" in rest):
        raise InvalidReference(
            f"this {scheme[:20]}:// address has user information (before an '@'), which would be "
            f"stored and shown. Remove it. {BY_REFERENCE}"
        )
    if _QUERY.search(rest) or (not wildcards and "?" in rest):
        raise InvalidReference(
            f"this {scheme[:20]}:// address has a query ('?…'), which would be stored and "
            f"shown. Remove it. {BY_REFERENCE}"
        )


def check_bucket(bucket: str) -> None:
    """Refuse a bucket name that could contain a secret.

    Raises:
        InvalidReference: it contains ':', '@', '?' or '/'; the message does not repeat it.
    """
    if any(mark in bucket for mark in ":@?/"):
        raise InvalidReference(
            "a bucket's name cannot contain ':', '@', '?' or '/'. Write the bucket's name alone "
            f"(s3://BUCKET/PREFIX). {BY_REFERENCE}"
        )


def check_settings(settings: Mapping[str, str]) -> None:
    """Refuse settings of an `s3` datastore that contain, or could contain, a secret.

    Raises:
        InvalidReference: a setting is wrong; the message has its name, but not its value.
    """
    check_bucket(settings.get("bucket", ""))
    if "?" in settings.get("prefix", ""):
        raise InvalidReference(
            "the prefix contains a '?': a datastore's address has no query, since it is stored "
            f"and shown. Remove the '?'. {BY_REFERENCE}"
        )
    endpoint = settings.get("endpoint", "")
    if endpoint:
        _check_endpoint(endpoint)
    for name in ENV_SETTINGS:
        value = settings.get(name, "")
        if value and (not _VARIABLE.match(value) or _KEY.match(value)):
            raise InvalidReference(
                f"{name} takes the NAME of an environment variable (letters, digits and '_', such "
                "as PHOTOS_KEY), but this looks like a key itself. Nothing was stored. Put the key "
                "into a variable and give its name."
            )


def _check_endpoint(endpoint: str) -> None:
    scheme, mark, rest = endpoint.partition("://")
    if not mark or scheme not in ("http", "https"):
        raise InvalidReference(
            "the datastore's endpoint is not a URL; write it with http:// or https://."
        )
    if any(part in rest for part in "@?#"):
        raise InvalidReference(
            "the datastore's endpoint has user information ('@'), a query ('?') or a fragment "
            "('#'), which would be stored and shown. Write http(s)://HOST[:PORT] alone. "
            f"{BY_REFERENCE}"
        )

"""Addresses of stores in PostgreSQL: ``postgresql://[USER@]HOST[:PORT]/DATABASE[?schema=NAME]``."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from rayjobs.core.errors import UsageError

SCHEMES = ("postgresql", "postgres")
DEFAULT_SCHEMA = "rayjobs"


def has_schema(url: str) -> bool:
    """Whether an address names its schema."""
    return "schema" in dict(parse_qsl(urlsplit(url).query))


def is_url(text: str) -> bool:
    """Whether a text is the address of a store in PostgreSQL."""
    return text.partition("://")[0] in SCHEMES


def parsed(url: str) -> tuple[str, str, str]:
    """Return the address for the driver, the schema's name, and the address for people.

    Args:
        url: ``postgresql://[USER@]HOST[:PORT]/DATABASE[?schema=NAME&…]``; other parameters are
            those of libpq.

    Raises:
        UsageError: it is not such an address, or it has a password, which would be stored and
            shown.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.path.strip("/"):
        raise UsageError(
            f"the store's address {_bare(url)!r} is invalid; write "
            "postgresql://USER@HOST:PORT/DATABASE, and ?schema=NAME for a schema other than "
            f"{DEFAULT_SCHEMA}"
        )
    query = dict(parse_qsl(parts.query))
    if parts.password or "password" in query:
        raise UsageError(
            f"the store's address {_bare(url)!r} has a password, which would be stored and shown. "
            f"Leave it out: it is read from PGPASSWORD, or from ~/.pgpass (PGPASSFILE)"
        )
    schema = query.pop("schema", DEFAULT_SCHEMA)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
        raise UsageError(
            f"the schema {schema!r} is invalid: use lower case letters, digits and '_'"
        )
    address = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(query), ""))
    shown = urlunsplit(("postgresql", parts.netloc, parts.path, "", ""))
    return address, schema, shown if schema == DEFAULT_SCHEMA else f"{shown}?schema={schema}"


def with_schema(url: str, schema: str) -> str:
    """Return the address with `schema`, unless it names one.

    Raises:
        UsageError: see `parsed`.
    """
    parsed(url)
    parts = urlsplit(url)
    query = {"schema": schema, **dict(parse_qsl(parts.query))}
    return urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(query), ""))


def _bare(url: str) -> str:
    return re.sub(
        r"(://[^/:@]*):[^@]*@", r"\1:***@", re.sub(r"password=[^&]*", "password=***", url)
    )

"""A bucket's address, credentials and time limits, read from a datastore record."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rayjobs.datastore import credentials
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.errors import AccessDenied, CredentialNotSet, InvalidReference
from rayjobs.datastore.nosecrets import check_settings
from rayjobs.datastore.patience import Patience
from rayjobs.datastore.refs import clean_path
from rayjobs.injob.lazy_dataclass import dataclass

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0
ATTEMPTS = 4
# A request for which a person waits: 15 s at most, including the pause between attempts.
QUICK_CONNECT_S = 3.0
QUICK_READ_S = 4.0
QUICK_ATTEMPTS = 2
POOL = 32
# In the same order as `credentials.AWS_KEYS`.
_AWS_OPTIONS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_sessions_lock = threading.Lock()
KNOWN = frozenset(
    {
        "bucket",
        "prefix",
        "endpoint",
        "region",
        "profile",
        "access_key_env",
        "secret_key_env",
        "session_token_env",
        "connect_timeout_s",
        "read_timeout_s",
        "attempts",
    }
)


@dataclass(frozen=True)
class S3Settings:
    """Where a bucket is and how to reach it, without credentials.

    `access_key_env` and the like are names of environment variables, which are read when a client
    is made; without them, botocore's own search (profile, AWS_*) applies.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    profile: str = ""
    access_key_env: str = ""
    secret_key_env: str = ""
    session_token_env: str = ""
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    read_timeout_s: float = READ_TIMEOUT_S
    attempts: int = ATTEMPTS

    @classmethod
    def from_record(cls, record: DatastoreRecord) -> S3Settings:
        """Return the settings of an `s3` record.

        Raises:
            InvalidReference: a setting is unknown, missing, out of range, or could hold a secret.
        """
        given = dict(record.settings)
        unknown = sorted(set(given) - KNOWN)
        if unknown:
            raise InvalidReference(
                f"datastore {record.name!r} has the setting {unknown[0]!r}; an s3 datastore knows "
                f"{', '.join(sorted(KNOWN))}."
            )
        if not given.get("bucket"):
            raise InvalidReference(f"datastore {record.name!r} has no bucket.")
        check_settings(given)
        if bool(given.get("access_key_env")) != bool(given.get("secret_key_env")):
            raise InvalidReference(
                f"datastore {record.name!r} needs both access_key_env and secret_key_env."
            )
        numbers = {
            "connect_timeout_s": _positive(given.get("connect_timeout_s"), CONNECT_TIMEOUT_S),
            "read_timeout_s": _positive(given.get("read_timeout_s"), READ_TIMEOUT_S),
            "attempts": _positive(given.get("attempts"), ATTEMPTS),
        }
        bad = sorted(name for name, number in numbers.items() if number is None)
        if bad:
            raise InvalidReference(
                f"{bad[0]} of datastore {record.name!r} must be a number above 0, "
                f"not {given[bad[0]]!r}."
            )
        texts = {name: value for name, value in given.items() if name not in numbers}
        texts["prefix"] = clean_path(texts.get("prefix"))
        return cls(
            **texts,
            connect_timeout_s=numbers["connect_timeout_s"] or CONNECT_TIMEOUT_S,
            read_timeout_s=numbers["read_timeout_s"] or READ_TIMEOUT_S,
            attempts=max(1, int(numbers["attempts"] or ATTEMPTS)),
        )

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that a client requires."""
        named = (self.access_key_env, self.secret_key_env, self.session_token_env)
        return tuple(name for name in named if name)

    @property
    def is_found_by_search(self) -> bool:
        """Whether the usual AWS search applies, since neither variables nor a profile are named."""
        return not self.access_key_env and not self.profile

    @property
    def where(self) -> str:
        """The bucket's address for people."""
        path = f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
        return f"{path} at {self.endpoint}" if self.endpoint else path

    def quick(self) -> S3Settings:
        """Return these settings for a request that a person waits for, such as a listing.

        Limits that the datastore itself sets stay: its owner knows how slow the server is.
        """
        own = (self.connect_timeout_s, self.read_timeout_s, self.attempts)
        usual = (CONNECT_TIMEOUT_S, READ_TIMEOUT_S, ATTEMPTS)
        short = (QUICK_CONNECT_S, QUICK_READ_S, QUICK_ATTEMPTS)
        connect, read, attempts = (
            quick if given == default else given
            for given, default, quick in zip(own, usual, short, strict=True)
        )
        return replace(self, connect_timeout_s=connect, read_timeout_s=read, attempts=int(attempts))

    def patience(self) -> Patience:
        """Return the object that reports the waits of a client with these settings."""
        return Patience(
            self.where,
            attempts=self.attempts,
            connect_s=self.connect_timeout_s,
            read_s=self.read_timeout_s,
        )

    def client_config(self) -> dict[str, Any]:
        """Return botocore's configuration: time limits, retries, features of all S3 servers."""
        return {
            "connect_timeout": self.connect_timeout_s,
            "read_timeout": self.read_timeout_s,
            "retries": {"mode": "standard", "total_max_attempts": self.attempts},
            "max_pool_connections": POOL,
            # Not every S3 server accepts the trailing checksums that newer clients add by default.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "s3": {"addressing_style": "path"} if self.endpoint else {},
        }

    def known_region(self) -> str:
        """Return the region to sign for, from the datastore, its profile, or AWS's files.

        Raises:
            AccessDenied: the profile is unknown.
        """
        from botocore.exceptions import ProfileNotFound

        from rayjobs.datastore.backends.s3_errors import explain

        try:
            found = self.region or _session(self.profile, os.getpid()).get_config_variable("region")
        except ProfileNotFound as error:
            raise explain(error, what="open", where=self.where) from error
        # Signing requires a region, which private servers ignore.
        return found or ("us-east-1" if self.endpoint else "")

    def client(self) -> Any:
        """Return a new S3 client.

        Raises:
            AccessDenied: a named variable is not set, or the profile is unknown.
        """
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        config = Config(**self.client_config())
        options: dict[str, Any] = {"config": config}
        if self.endpoint:
            options["endpoint_url"] = self.endpoint
        if self.access_key_env:
            options["aws_access_key_id"] = _variable(self.access_key_env, self.where)
            options["aws_secret_access_key"] = _variable(self.secret_key_env, self.where)
        if self.session_token_env:
            options["aws_session_token"] = _variable(self.session_token_env, self.where)
        if not self.access_key_env and not self.profile:
            # botocore's own search would find only credentials in the environment.
            given = credentials.given()
            is_whole = all(given.get(name) for name in credentials.AWS_KEYS[:2])
            for option, name in zip(_AWS_OPTIONS, credentials.AWS_KEYS, strict=True):
                if is_whole and given.get(name):  # a single key may be given for another purpose
                    options.setdefault(option, given[name])
        with _sessions_lock:  # a session is not thread-safe
            try:
                session = _session(self.profile, os.getpid())
                region = self.known_region() or None
                client = session.create_client("s3", region_name=region, **options)
                proxies = _given_proxies(client.meta.endpoint_url)
                if proxies:
                    options["config"] = config.merge(Config(proxies=proxies))
                    client = session.create_client("s3", region_name=region, **options)
                return client
            except BotoCoreError as error:
                raise AccessDenied(f"cannot open {self.where}: {error}") from error


def _given_proxies(url: str) -> dict[str, str]:
    """Return the proxies with passwords that this process was given, unless `url` bypasses them.

    botocore finds only the proxies in the environment, which holds no password.
    """
    from botocore.utils import get_environ_proxies, should_bypass_proxies

    given = credentials.given()
    found = {}
    for scheme in ("http", "https"):
        value = given.get(f"{scheme}_proxy") or given.get(f"{scheme}_proxy".upper())
        if value:
            found[scheme] = value
    if not found or should_bypass_proxies(url):
        return {}
    return {**get_environ_proxies(url), **found}


@lru_cache(maxsize=16)
def _session(profile: str, pid: int) -> Any:
    """Return this process's session: each new one reads a megabyte of service descriptions."""
    import botocore.session

    return botocore.session.Session(profile=profile or None)


def _positive(text: str | None, default: float) -> float | None:
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def _variable(name: str, where: str) -> str:
    value = credentials.variable(name)
    if not value:
        raise CredentialNotSet(
            f"{where} takes a credential from the environment variable {name}, which is not set "
            "here. Export it, or for jobs set it on the target: `rayjobs target secret set "
            f"{name}`.",
            name,
        )
    return value

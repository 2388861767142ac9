"""What the routes of a server that are not store methods answer, read and stream.

A server writes these classes and its clients read them, in the form of `rayjobs.workspace.plain`;
the OpenAPI document describes them. Routes of targets also use classes of `rayjobs.target`. Only
servers and their clients import this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from rayjobs.core.errors import Problem
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import Event

if TYPE_CHECKING:
    from rayjobs.datastore.backends.base import StoredFile
    from rayjobs.workspace.notifications import Subscription
    from rayjobs.workspace.users import Token


# -- errors ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ErrorFacts:
    """Why a request was refused or failed; entries that are None are not sent.

    Attributes:
        kind: The error's class in `rayjobs.core.errors` or `rayjobs.datastore.errors`.
        problems: What is wrong with an invalid spec.
        matches: The ids of the objects that an ambiguous name matches.
    """

    kind: str
    message: str
    problems: list[Problem] | None = None
    matches: list[str] | None = None


@dataclass(frozen=True)
class ErrorAnswer:
    """The answer to every request that was refused or failed."""

    error: ErrorFacts


# -- the workspace and its users -------------------------------------------------------------------
@dataclass(frozen=True)
class WorkspaceFacts:
    """A server's workspace.

    Attributes:
        path: Its folder on the server's machine.
        default_target: The target of jobs that name none.
    """

    id: str
    name: str
    path: str
    default_target: str


@dataclass(frozen=True)
class CurrentUser:
    """The user who sends the request.

    Attributes:
        role: "viewer", "submitter" or "admin".
        token: Id of the token in use.
        expires_at: When that token expires, in ISO 8601.
    """

    user: str
    role: str
    token: str
    expires_at: str


@dataclass(frozen=True)
class TokenRow:
    """A token in a list; see `rayjobs.workspace.users.Token`."""

    id: str
    user: str
    role: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None

    @classmethod
    def of(cls, token: Token) -> TokenRow:
        """Return the row of a token."""
        return cls(**_of_token(token))


@dataclass(frozen=True)
class NewTokenRow(TokenRow):
    """A token that was just made.

    Attributes:
        secret: The token itself, which cannot be read again.
    """

    secret: str

    @classmethod
    def with_secret(cls, token: Token, secret: str) -> NewTokenRow:
        """Return the row of a new token."""
        return cls(**_of_token(token), secret=secret)


def _of_token(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "user": token.user,
        "role": token.role.name.lower(),
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
    }


@dataclass(frozen=True)
class NewToken:
    """The request for a new token of a user, valid for some days."""

    user: str
    role: str = field(
        default="submitter",
        metadata={"described_as": Literal["viewer", "submitter", "admin"]},
    )
    days: float = 90.0


@dataclass(frozen=True)
class AuditPage:
    """Some changes, newest first.

    Attributes:
        items: The changes as the store keeps them (`rayjobs.workspace.users`,
            `rayjobs.server.audit`).
        next: The cursor of the next page; None: this is the last one.
    """

    items: list[Mapping[str, Any]]
    next: str | None


@dataclass(frozen=True)
class LoginProvider:
    """What a client needs for the device flow of a team's provider.

    Attributes:
        device_authorization_endpoint: None: the provider has no device flow.
    """

    issuer: str
    client_id: str
    device_authorization_endpoint: str | None
    token_endpoint: str
    scope: str


@dataclass(frozen=True)
class LoginRequest:
    """A login with the provider's ID token."""

    id_token: str


@dataclass(frozen=True)
class LoginAnswer:
    """A server's own token for a user; `expires_at` is in ISO 8601."""

    token: str
    expires_at: str


# -- notifications ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class NotificationRow:
    """A receiver of notifications in a list; `user` is None for the jobs of all users."""

    id: str
    user: str | None
    receiver: str
    by: str

    @classmethod
    def of(cls, one: Subscription, *, receiver: str | None = None) -> NotificationRow:
        """Return the row of a receiver.

        Args:
            receiver: What to show of its address; None: all.
        """
        shown = one.receiver if receiver is None else receiver
        return cls(id=one.id, user=one.user, receiver=shown, by=one.by)


@dataclass(frozen=True)
class NewNotification:
    """The request to add a receiver of notifications; `everyone`: for the jobs of all users."""

    receiver: str
    everyone: bool = False


# -- jobs: logs and events -------------------------------------------------------------------------
@dataclass(frozen=True)
class LogTimes:
    """The times of the lines of a rank's log.

    Attributes:
        notes: Times, each with the size of the log then.
        after: The time of what follows the last note; None: unknown.
        is_live: The job is still running: what follows has the time of its arrival.
    """

    notes: list[tuple[float, int]]
    after: float | None
    is_live: bool


@dataclass(frozen=True)
class LogPiece:
    """A record of a followed log; without data it is a sign of life."""

    attempt: int
    data: bytes


@dataclass(frozen=True)
class NewEvent:
    """A record of an event stream: an event."""

    event: Event


@dataclass(frozen=True)
class StreamPosition:
    """A record of an event stream: a sign of life, with the serial of the last event."""

    after: int


@dataclass(frozen=True)
class StreamEnd:
    """The last record of every stream; a stream without it was broken off."""

    is_end: Literal[True]


# -- files -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class KeepRequest:
    """The request to store an upload.

    Attributes:
        key: The key of a snapshot; None: the digest determines the key.
        digest: The digest of the bytes; None: not known.
        size: The number of bytes.
        direct: The client itself has sent the bytes to the bucket.
    """

    size: int
    key: str | None = None
    digest: str | None = None
    direct: bool = False


@dataclass(frozen=True)
class PartsRequest:
    """The request for the missing parts of an upload of `size` bytes."""

    size: int


@dataclass(frozen=True)
class Part:
    """A missing part of an upload.

    Attributes:
        number: Its number, 1 or more.
        url: The URL to which a PUT stores it, valid for an hour.
    """

    number: int
    url: str


@dataclass(frozen=True)
class Parts:
    """The first missing parts of an upload, and the size of a part in bytes."""

    part_bytes: int
    missing: list[Part]


@dataclass(frozen=True)
class DatastoreFile:
    """A file of a datastore; see `rayjobs.datastore.backends.base.StoredFile`."""

    path: str
    size: int
    etag: str
    digest: str

    @classmethod
    def of(cls, file: StoredFile) -> Self:
        """Return a storage's file as it is sent."""
        return cls(path=file.path, size=file.size, etag=file.etag, digest=file.digest)


@dataclass(frozen=True)
class ListedFile(DatastoreFile):
    """A file in the list of a folder."""

    is_folder: Literal[False] = False


@dataclass(frozen=True)
class ListedFolder:
    """A folder in the list of its parent."""

    path: str
    is_folder: Literal[True]


@dataclass(frozen=True)
class PutFileRequest:
    """The request to store an upload of `size` bytes as a datastore's file."""

    upload: str
    path: str
    size: int


# -- targets ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class StartedTarget:
    """A running target, and its actor's version of rayjobs."""

    version: str

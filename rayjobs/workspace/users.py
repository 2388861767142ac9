"""Users of a workspace's server: tokens, roles, and the record of every change.

They are values in the store (``meta``), so they move with its records. Only the SHA-256 of a token
is stored. Short passwords need a slow hash against guessing; a token has 256 random bits, which
cannot be guessed, and a fast hash keeps requests fast.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from rayjobs.core.clock import from_text, to_text
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.ids import token as random_name
from rayjobs.injob.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from rayjobs.store.base import Store

PREFIX = "rj_"
DAYS = 90.0
_TOKEN = "token:"
_IDENTITY = "identity:"
AUDIT = "audit:"  # changes to users and tokens, by time
OPENID = "openid"  # creator of tokens that logins make
HTTP_AUDIT = "audit-http:"  # lists of changes over HTTP, by the time of the first change
TOKENS_KEPT = timedelta(weeks=4)  # after their end
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")


class Role(IntEnum):
    """What a user may do; each role includes the previous ones."""

    VIEWER = 1  # read everything
    SUBMITTER = 2  # submit, and change their own jobs and data
    ADMIN = 3  # change everything, including targets and users


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token of a user.

    Attributes:
        id: Its id in lists, which reveals nothing about the token.
        user: Its owner.
        role: What it allows.
        created_at, created_by: When and by whom it was made.
        expires_at: When it expires.
        revoked_at: When it was revoked, or None.
    """

    id: str
    user: str
    role: Role
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None = None

    def problem(self, now: datetime) -> str:
        """Return why it is not valid; empty if it is valid."""
        if self.revoked_at is not None:
            return "this token was revoked"
        return "this token has expired" if now >= self.expires_at else ""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The person behind a user's name: a subject of an OpenID Connect issuer.

    Both are empty for a name that this workspace created itself (`rayjobs user add`). A provider
    can change and reassign names; only the pair of issuer and subject is permanent.
    """

    issuer: str = ""
    subject: str = ""


LOCAL = Identity()


def role_of(text: str) -> Role:
    """Return the role with a name.

    Raises:
        UsageError: there is no such role.
    """
    try:
        return Role[text.upper()]
    except KeyError:
        names = ", ".join(role.name.lower() for role in Role)
        raise UsageError(f"{text!r} is not a role; the roles are: {names}") from None


def add(
    store: Store, user: str, role: Role, *, by: str, days: float = DAYS, now: datetime | None = None
) -> tuple[Token, str]:
    """Make a token for a user; return its record and the token, which cannot be read again.

    Raises:
        UsageError: the name is not valid, or `days` is not above 0 and at most 3650.
    """
    _check_name(user)
    store.claim_meta(_IDENTITY + user, _identity_text(LOCAL))
    return _made(store, user, role, by=by, days=days, now=now)


def login(
    store: Store, user: str, role: Role, identity: Identity, *, days: float
) -> tuple[Token, str]:
    """Make a token, as `add` does, for a user whom a provider has identified.

    The first login binds the name to the identity.

    Raises:
        UsageError: as `add`, or the name belongs to someone else.
    """
    _check_name(user)
    key, wanted = _IDENTITY + user, _identity_text(identity)
    kept = store.meta(key)
    if kept is None:  # tokens of earlier versions have no identity
        is_local = any(one.user == user and one.created_by != OPENID for one in all_tokens(store))
        kept = store.claim_meta(key, _identity_text(LOCAL) if is_local else wanted)
    if kept != wanted:
        raise UsageError(
            f"the name {user!r} belongs to another user here. If it is the same person, an admin "
            f"can link the name on the server's machine: rayjobs user link {user} --issuer "
            f"{identity.issuer} --subject {identity.subject}"
        )
    return _made(store, user, role, by=OPENID, days=days)


def link(store: Store, user: str, identity: Identity, *, by: str) -> None:
    """Bind a name to an identity, replacing an earlier binding.

    Raises:
        UsageError: the name is not valid, or half of the identity is missing.
    """
    _check_name(user)
    if not identity.issuer or not identity.subject:
        raise UsageError("give the issuer and the subject")
    store.set_meta(_IDENTITY + user, _identity_text(identity))
    row = {"change": "link", "user": user, "issuer": identity.issuer, "subject": identity.subject}
    _audit(store, row, by=by, at=datetime.now(UTC))


def _check_name(user: str) -> None:
    if not _NAME.match(user):
        raise UsageError(
            f"{user!r} is not a user's name; use letters, digits, and ._@- after the first"
        )


def _made(
    store: Store, user: str, role: Role, *, by: str, days: float, now: datetime | None = None
) -> tuple[Token, str]:
    if not 0 < days <= 3650:
        raise UsageError(f"a token is valid for up to 3650 days, not {days:g}")
    at = now or datetime.now(UTC)
    text = PREFIX + secrets.token_urlsafe(32)
    made = Token(
        id=random_name(8),
        user=user,
        role=role,
        created_at=at,
        created_by=by,
        expires_at=at + timedelta(days=days),
    )
    store.set_meta(_key(text), _text(made))
    _audit(store, _change("add", made), by=by, at=at)
    return made, text


def find(store: Store, text: str) -> Token | None:
    """Return the record of a token; None if this workspace did not make it."""
    kept = store.meta(_key(text))
    return None if kept is None else _read(kept)


def all_tokens(store: Store) -> list[Token]:
    """Return the records of all tokens, by user and time."""
    return sorted(_tokens(store).values(), key=lambda one: (one.user, one.created_at))


def revoke(store: Store, name: str, *, by: str, now: datetime | None = None) -> list[Token]:
    """Revoke all tokens of a user, or the token with this id; return those that were valid.

    Raises:
        NotFoundError: there is no such user or token.
    """
    at = now or datetime.now(UTC)
    named = {key: one for key, one in _tokens(store).items() if name in (one.user, one.id)}
    if not named:
        raise NotFoundError(f"there is no user or token {name!r}; `rayjobs user ls` lists them")
    return _revoke(store, named, by=by, at=at)


def revoke_token(store: Store, token_id: str, *, by: str, only_of: str | None = None) -> bool:
    """Revoke the token with this id; return False if it was no longer valid.

    Args:
        only_of: Revoke it only if it is this user's; None means any user's.

    Raises:
        NotFoundError: there is no such token.
    """
    named = {
        key: one
        for key, one in _tokens(store).items()
        if one.id == token_id and only_of in (None, one.user)
    }
    if not named:
        raise NotFoundError(f"there is no token {token_id!r}")
    return bool(_revoke(store, named, by=by, at=datetime.now(UTC)))


def _tokens(store: Store) -> dict[str, Token]:
    return {key: _read(text) for key, text in store.meta_under(_TOKEN).items()}


def _revoke(store: Store, named: Mapping[str, Token], *, by: str, at: datetime) -> list[Token]:
    ended = []
    for key, token in named.items():
        if token.revoked_at is None:
            revoked = replace(token, revoked_at=at)
            store.set_meta(key, _text(revoked))
            _audit(store, _change("revoke", revoked), by=by, at=at)
            if not token.problem(at):
                ended.append(revoked)
    return ended


def ended_tokens(store: Store, *, before: datetime) -> dict[str, Token]:
    """Return tokens that expired or were revoked before a time, by their keys in the store."""
    return {
        key: one
        for key, one in _tokens(store).items()
        if min(one.expires_at, one.revoked_at or before) < before
    }


def forget_token(store: Store, key: str, token: Token) -> None:
    """Remove the record of a token; its user's name remains reserved."""
    if token.created_by != OPENID:
        store.claim_meta(_IDENTITY + token.user, _identity_text(LOCAL))
    store.set_meta(key, None)


def audit(store: Store, *, since: datetime | None = None) -> list[Mapping[str, Any]]:
    """Return all changes to users and tokens, oldest first.

    Args:
        since: Only changes from this time on; None: all.
    """
    found = _since(store, AUDIT, since)
    return [json.loads(text) for text in found.values()]


def http_audit(store: Store, *, since: datetime | None = None) -> list[Mapping[str, Any]]:
    """Return all changes made over HTTP, oldest first; see `audit`."""
    # A list begins shortly before its last change.
    begin = None if since is None else since - timedelta(minutes=1)
    found = _since(store, HTTP_AUDIT, begin)
    rows = [row for text in found.values() for row in json.loads(text)]
    oldest = "" if since is None else to_text(since)
    return sorted((row for row in rows if str(row["at"]) >= oldest), key=lambda row: str(row["at"]))


def _since(store: Store, prefix: str, since: datetime | None) -> dict[str, str]:
    if since is None:
        return store.meta_under(prefix)
    return store.meta_between(prefix + to_text(since), prefix + "~")


def _change(what: str, token: Token) -> dict[str, str]:
    role = token.role.name.lower()
    return {"change": what, "user": token.user, "role": role, "token": token.id}


def _audit(store: Store, change: Mapping[str, str], *, by: str, at: datetime) -> None:
    row = {"at": to_text(at), "by": by, **change}
    store.set_meta(f"{AUDIT}{to_text(at)}:{random_name(4)}", json.dumps(row))


def _identity_text(identity: Identity) -> str:
    return json.dumps(asdict(identity), sort_keys=True)


def _key(text: str) -> str:
    return _TOKEN + hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _text(token: Token) -> str:
    values = asdict(token)
    for name in ("created_at", "expires_at", "revoked_at"):
        values[name] = None if values[name] is None else to_text(values[name])
    return json.dumps({**values, "role": token.role.name.lower()})


def _read(text: str) -> Token:
    values = json.loads(text)
    for name in ("created_at", "expires_at", "revoked_at"):
        values[name] = None if values[name] is None else from_text(values[name])
    return Token(**{**values, "role": Role[values["role"].upper()]})

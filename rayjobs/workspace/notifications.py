"""Who gets notifications of ended jobs, and which notifications are still to be sent.

They are values in the store (``meta``), so they move with its records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rayjobs.core.clock import SystemClock, from_text, to_text
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec.notify import Receiver

if TYPE_CHECKING:
    from rayjobs.store.base import Store

_RECEIVER = "notify-to:"
_DUE = "notify-due:"
_SEEN = "notify-seen:"
_MAIL = "notify-mail"
PASSWORD = "RAYJOBS_SECRET_SMTP"


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """A receiver of notifications when a user's jobs, or any jobs, end.

    Attributes:
        user: The owner of the jobs; None means all users.
        since: Earlier ends are not reported.
    """

    receiver: str
    user: str | None
    since: datetime
    by: str

    @property
    def id(self) -> str:
        """Its id in lists."""
        return _name(f"{self.user}\n{self.receiver}")


@dataclass(frozen=True, kw_only=True)
class Mailer:
    """How mails are sent.

    Attributes:
        server: ``smtp://[USER@]HOST[:PORT]`` or ``smtps://…``; the password is the target's secret
            RAYJOBS_SECRET_SMTP.
        sender: The mailbox from which they are sent.
    """

    server: str
    sender: str


@dataclass(frozen=True, kw_only=True)
class Due:
    """A notification that is still to be sent.

    Attributes:
        serial: Serial number of the event that ended the job.
        first_at: When it was written.
        tries: How often sending has failed.
    """

    job: str
    serial: int
    receiver: str
    first_at: datetime
    tries: int = 0

    @property
    def key(self) -> str:
        """Its key, the same for each try, so that a receiver can drop repeats."""
        return f"{self.serial}-{_name(self.receiver)}"


def subscribe(store: Store, text: str, *, user: str | None, by: str) -> Subscription:
    """Add a receiver.

    Raises:
        UsageError: it is neither a web address nor a mailbox.
    """
    try:
        receiver = Receiver.of(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    made = Subscription(receiver=str(receiver), user=user, since=SystemClock().now(), by=by)
    values = {**asdict(made), "since": to_text(made.since)}
    store.set_meta(_RECEIVER + made.id, json.dumps(values))
    return made


def subscriptions(store: Store) -> list[Subscription]:
    """Return all receivers of users and of the workspace."""
    found = []
    for text in store.meta_under(_RECEIVER).values():
        values = json.loads(text)
        found.append(Subscription(**{**values, "since": from_text(values["since"])}))
    return sorted(found, key=lambda one: (one.user or "", one.receiver))


def unsubscribe(store: Store, name: str, *, only_of: str | None = None) -> Subscription:
    """Remove the receiver with an id, and the notifications to it that nothing else requests.

    Args:
        name: The receiver's id.
        only_of: Remove it only if it is this user's; None means any user's.

    Raises:
        NotFoundError: there is no such receiver.
    """
    for one in subscriptions(store):
        if one.id == name and only_of in (None, one.user):
            store.set_meta(_RECEIVER + one.id, None)
            _drop_due_to(store, one.receiver)
            return one
    raise NotFoundError(f"there is no notification {name!r}; `rayjobs notify ls` lists them")


def _drop_due_to(store: Store, receiver: str) -> None:
    """Drop notifications to a receiver that neither their job nor its user still names."""
    left = subscriptions(store)
    for key, text in store.meta_under(_DUE).items():
        due = _due_of(text)
        if due.receiver != receiver:
            continue
        try:
            job = store.job(due.job)
        except NotFoundError:
            continue  # the target drops notifications for a pruned job
        wanted = receivers_of(job.spec.notify, left, user=job.user, at=due.first_at)
        if receiver not in map(str, wanted):
            store.set_meta(key, None)


def mailer_of(server: str, sender: str | None) -> Mailer:
    """Return how mails are sent.

    Raises:
        UsageError: it is not the address of a mail server, or the sender is not a mailbox.
    """
    parts = urlsplit(server)
    try:
        has_port = parts.port != 0
    except ValueError:  # above 65535, or not a number
        has_port = False
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname or not has_port:
        raise UsageError(f"{server!r} is not smtp://[USER@]HOST[:PORT] or smtps://…")
    if parts.password:
        raise UsageError(
            f"a password in the address would be stored; give it with `rayjobs target secret set "
            f"{PASSWORD}` instead"
        )
    if sender is None or "@" not in sender:
        raise UsageError("give the sender of the mails: --from robot@example.org")
    return Mailer(server=server, sender=sender)


def set_mailer(store: Store, mailer: Mailer | None) -> None:
    """Set how mails are sent; None means not at all."""
    store.set_meta(_MAIL, None if mailer is None else json.dumps(asdict(mailer)))


def mailer(store: Store) -> Mailer | None:
    """Return how mails are sent."""
    text = store.meta(_MAIL)
    return None if text is None else Mailer(**json.loads(text))


# -- notifications that a target is to send -------------------------------------------------------


def seen(store: Store, target: str) -> int:
    """Return the serial number of the last event that a target has processed."""
    return int(store.meta(_SEEN + target) or 0)


def set_seen(store: Store, target: str, serial: int) -> None:
    """Store how far a target has processed events; earlier notifications must be stored first."""
    store.set_meta(_SEEN + target, str(serial))


def put_due(store: Store, target: str, due: Due) -> None:
    """Store a notification until it is sent, or update its number of tries."""
    values = {**asdict(due), "first_at": to_text(due.first_at)}
    store.set_meta(f"{_DUE}{target}:{due.key}", json.dumps(values))


def drop_due(store: Store, target: str, due: Due) -> None:
    """Remove a notification that was sent or given up."""
    store.set_meta(f"{_DUE}{target}:{due.key}", None)


def is_due(store: Store, target: str, due: Due) -> bool:
    """Whether a notification is still to be sent; False if its receiver was removed."""
    return store.meta(f"{_DUE}{target}:{due.key}") is not None


def all_due(store: Store, target: str) -> list[Due]:
    """Return the notifications that a target is still to send, oldest first."""
    found = [_due_of(text) for text in store.meta_under(f"{_DUE}{target}:").values()]
    return sorted(found, key=lambda one: one.serial)


def _due_of(text: str) -> Due:
    values: dict[str, Any] = json.loads(text)
    return Due(**{**values, "first_at": from_text(values["first_at"])})


def failed(due: Due) -> Due:
    """Return the notification with one more failed try."""
    return replace(due, tries=due.tries + 1)


def receivers_of(
    texts: Sequence[str], known: Sequence[Subscription], *, user: str, at: datetime
) -> list[Receiver]:
    """Return the receivers of a job's end from its own list and its user's, without repeats."""
    wanted = [*texts, *(
        one.receiver for one in known if one.user in (None, user) and one.since <= at
    )]  # fmt: skip
    return [Receiver.of(text) for text in dict.fromkeys(wanted)]


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]

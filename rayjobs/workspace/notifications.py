"""Who is told of ends, by user or for a whole workspace, and what still has to be sent.

They are values of the store's own (``meta``), so they move with its records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from rayjobs.core.clock import SystemClock, from_text, to_text
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.spec.notify import Receiver
from rayjobs.store.base import Store

_RECEIVER = "notify-to:"
_DUE = "notify-due:"
_SEEN = "notify-seen:"
_MAIL = "notify-mail"
PASSWORD = "RAYJOBS_SECRET_SMTP"


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """A receiver of the ends of a user's jobs, or of all jobs.

    Attributes:
        user: Whose jobs; None: of all users.
        since: Ends before this are not reported.
    """

    receiver: str
    user: str | None
    since: datetime
    by: str

    @property
    def id(self) -> str:
        """Names it in lists."""
        return _name(f"{self.user}\n{self.receiver}")


@dataclass(frozen=True, kw_only=True)
class Mailer:
    """How mails are sent.

    Attributes:
        server: ``smtp://[USER@]HOST[:PORT]`` or ``smtps://…``; the password is the target's secret
            RAYJOBS_SECRET_SMTP.
        sender: The mailbox that they come from.
    """

    server: str
    sender: str


@dataclass(frozen=True, kw_only=True)
class Due:
    """A notification that still has to be sent.

    Attributes:
        serial: Of the event of the job's end.
        tries: How often it has failed, and `first_at`: when it was written.
    """

    job: str
    serial: int
    receiver: str
    first_at: datetime
    tries: int = 0

    @property
    def key(self) -> str:
        """Names it; the same for each try, so that a receiver can drop repeats."""
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
    """Remove the receiver with an id, and what is due to it alone for this reason.

    Args:
        only_of: Remove it if it is this user's.

    Raises:
        NotFoundError: there is none.
    """
    for one in subscriptions(store):
        if one.id == name and only_of in (None, one.user):
            store.set_meta(_RECEIVER + one.id, None)
            _drop_due_to(store, one.receiver)
            return one
    raise NotFoundError(f"there is no notification {name!r}; `rayjobs notify ls` lists them")


def _drop_due_to(store: Store, receiver: str) -> None:
    """Forget what is due to a receiver for jobs that neither name it nor have it by their user."""
    left = subscriptions(store)
    for key, text in store.meta_under(_DUE).items():
        due = _due_of(text)
        if due.receiver != receiver:
            continue
        try:
            job = store.job(due.job)
        except NotFoundError:
            continue  # the target drops what is due for a job that was pruned
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
    except ValueError:  # above 65535, or no number
        has_port = False
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname or not has_port:
        raise UsageError(f"{server!r} is not smtp://[USER@]HOST[:PORT] or smtps://…")
    if parts.password:
        raise UsageError(
            f"a password in the address would be stored; `rayjobs target secret set {PASSWORD}`"
        )
    if sender is None or "@" not in sender:
        raise UsageError("give the mailbox that mails come from: --from robot@example.org")
    return Mailer(server=server, sender=sender)


def set_mailer(store: Store, mailer: Mailer | None) -> None:
    """Set how mails are sent; None: not at all."""
    store.set_meta(_MAIL, None if mailer is None else json.dumps(asdict(mailer)))


def mailer(store: Store) -> Mailer | None:
    """Return how mails are sent."""
    text = store.meta(_MAIL)
    return None if text is None else Mailer(**json.loads(text))


# -- what a target has to send --------------------------------------------------------------------


def seen(store: Store, target: str) -> int:
    """Return the serial of the last event that a target has looked at."""
    return int(store.meta(_SEEN + target) or 0)


def set_seen(store: Store, target: str, serial: int) -> None:
    """Keep how far a target has looked; what is due from before is written by then."""
    store.set_meta(_SEEN + target, str(serial))


def put_due(store: Store, target: str, due: Due) -> None:
    """Keep a notification until it is sent; a second time changes its number of tries."""
    values = {**asdict(due), "first_at": to_text(due.first_at)}
    store.set_meta(f"{_DUE}{target}:{due.key}", json.dumps(values))


def drop_due(store: Store, target: str, due: Due) -> None:
    """Forget a notification: it was sent, or given up."""
    store.set_meta(f"{_DUE}{target}:{due.key}", None)


def is_due(store: Store, target: str, due: Due) -> bool:
    """Whether a notification still has to be sent; not if its receiver was removed."""
    return store.meta(f"{_DUE}{target}:{due.key}") is not None


def all_due(store: Store, target: str) -> list[Due]:
    """Return what a target still has to send, oldest first."""
    found = [_due_of(text) for text in store.meta_under(f"{_DUE}{target}:").values()]
    return sorted(found, key=lambda one: one.serial)


def _due_of(text: str) -> Due:
    values: dict[str, Any] = json.loads(text)
    return Due(**{**values, "first_at": from_text(values["first_at"])})


def failed(due: Due) -> Due:
    """Return it after one more failure."""
    return replace(due, tries=due.tries + 1)


def receivers_of(
    texts: Sequence[str], known: Sequence[Subscription], *, user: str, at: datetime
) -> list[Receiver]:
    """Return who is told of a job's end, each once, by its own list and by those of its user."""
    wanted = [*texts, *(
        one.receiver for one in known if one.user in (None, user) and one.since <= at
    )]  # fmt: skip
    return [Receiver.of(text) for text in dict.fromkeys(wanted)]


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]

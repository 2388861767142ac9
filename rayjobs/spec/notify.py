"""Receivers of notifications about a job's end: a web address or a mailbox, and which ends."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from rayjobs.injob.lazy_dataclass import dataclass

ENDS = ("ended", "completed", "failed", "canceled")
FORM = "a web address (https://…) or a mailbox (ada@example.org), after `failed=` or the like"
_MAILBOX = re.compile(r"[^@\s,;<>\"]+@[A-Za-z0-9.-]+\.?[A-Za-z0-9-]*\Z")
_SECRET = re.compile(r"\$\{?(RAYJOBS_SECRET_[A-Za-z0-9_]+)\}?")


@dataclass(frozen=True)
class Receiver:
    """A receiver of notifications.

    Attributes:
        to: A mailbox, or a web address, in which ``$RAYJOBS_SECRET_…`` stands for a secret of the
            target.
        on: "ended" for every end, or the state in which a job must end.
    """

    to: str
    on: str = "ended"

    @staticmethod
    def of(text: str) -> Receiver:
        """Return the receiver for ``[STATE=]WHERE``.

        Raises:
            ValueError: it is neither a web address nor a mailbox, or contains a password.
        """
        on, sign, rest = text.partition("=")
        to = rest if sign and on in ENDS else text
        on = on if sign and on in ENDS else "ended"
        to = to.removeprefix("mailto:").strip()
        if not to or len(to) > 2000 or any(ord(one) < 33 for one in to):
            raise ValueError(f"{text!r:.100} is not {FORM}")
        if _MAILBOX.match(to):
            return Receiver(to, on)
        parts = urlsplit(to)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{text!r:.100} is not {FORM}")
        if parts.password:
            raise ValueError(
                "a password in a web address would be stored with the job; write "
                "$RAYJOBS_SECRET_NAME instead, and set it with `rayjobs target secret set`"
            )
        return Receiver(to, on)

    @property
    def is_mail(self) -> bool:
        """Whether it is a mailbox."""
        return "://" not in self.to

    @property
    def shown(self) -> str:
        """The receiver for display, without the parts of a web address that could be secret."""
        if self.is_mail:
            return self.to
        parts = urlsplit(self.to)
        return f"{parts.scheme}://{parts.hostname}/…"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of the secrets in the address."""
        return tuple(dict.fromkeys(_SECRET.findall(self.to)))

    def filled(self, values: dict[str, str]) -> str:
        """Return the address with the values of its secrets."""
        return _SECRET.sub(lambda match: values[match.group(1)], self.to)

    def wants(self, state: str) -> bool:
        """Whether it gets a notification of a job that ended in a state."""
        return self.on in ("ended", state.lower())

    def __str__(self) -> str:
        """Return the text that `of` reads."""
        return self.to if self.on == "ended" else f"{self.on}={self.to}"

"""Sends one notification as a web request or an email. Blocks; raises if it is not accepted."""

from __future__ import annotations

import http.client
import json
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any
from urllib.parse import unquote, urlsplit

from rayjobs.core.version import __version__
from rayjobs.spec.notify import Receiver
from rayjobs.workspace.notifications import PASSWORD, Mailer

TIMEOUT_S = 15.0


class NotSentError(Exception):
    """The receiver did not accept it; the message is a sentence without secrets."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None  # a POST would become a GET, and another host would get the header


def send(
    receiver: Receiver,
    facts: Mapping[str, Any],
    *,
    key: str,
    secrets: Mapping[str, str],
    mailer: Mailer | None,
) -> None:
    """Send one notification.

    Args:
        facts: The facts about the job that it reports.
        key: Identifies the notification; each try of it has the same key.

    Raises:
        NotSentError: it was not accepted.
    """
    missing = [name for name in receiver.secrets if name not in secrets]
    if missing:
        raise NotSentError(_no_secret(missing[0]))
    if receiver.is_mail:
        _mail(receiver, facts, key=key, secrets=secrets, mailer=mailer)
    else:
        _post(receiver.filled(dict(secrets)), facts, key=key)


def _no_secret(name: str) -> str:
    return f"the target has no secret {name}; set it with `rayjobs target secret set {name}`"


def _post(address: str, facts: Mapping[str, Any], *, key: str) -> None:
    request = urllib.request.Request(  # noqa: S310 - only http and https are receivers
        address,
        data=json.dumps(facts).encode(),
        headers={
            "Content-Type": "application/json",
            "User-Agent": f"rayjobs/{__version__}",
            "X-Rayjobs-Delivery": key,
        },
        method="POST",
    )
    try:
        opener = urllib.request.build_opener(_NoRedirects)
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        error.close()
        raise NotSentError(f"it answered {error.code} {error.reason}") from None
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise NotSentError(f"it cannot be reached: {reason}") from None
    except (http.client.InvalidURL, ValueError):
        # The error's message would show the address with its secrets.
        raise NotSentError(
            "its address, with the secrets filled in, is not a web address"
        ) from None
    except http.client.HTTPException as error:
        kind = type(error).__name__
        raise NotSentError(f"its answer is not valid HTTP ({kind})") from None


def _mail(
    receiver: Receiver,
    facts: Mapping[str, Any],
    *,
    key: str,
    secrets: Mapping[str, str],
    mailer: Mailer | None,
) -> None:
    if mailer is None:
        raise NotSentError(
            "no mail server is set; set one with `rayjobs notify mail smtp://HOST --from WHO`"
        )
    try:
        message = _message(receiver, facts, key=key, mailer=mailer)
        _hand_over(message, mailer, secrets)
    except (OSError, smtplib.SMTPException) as error:
        raise NotSentError(f"the mail server did not accept it: {error}") from None
    except ValueError as error:  # an invalid port, mailbox or password
        kind = type(error).__name__
        raise NotSentError(
            f"the mailbox, or the mail server's address or password, is not valid ({kind})"
        ) from None


def _message(
    receiver: Receiver, facts: Mapping[str, Any], *, key: str, mailer: Mailer
) -> EmailMessage:
    message = EmailMessage()
    message["From"] = mailer.sender
    message["To"] = receiver.to
    # A name may contain line feeds, but a header must not.
    name = " ".join(str(facts["name"]).split())
    message["Subject"] = f"{name} {facts['state'].lower()} ({facts['id']})"
    host = urlsplit(mailer.server).hostname
    message["Message-ID"] = f"<rayjobs-{facts['workspace_id']}-{key}@{host}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("".join(f"{name}: {value}\n" for name, value in facts.items() if value))
    return message


def _hand_over(message: EmailMessage, mailer: Mailer, secrets: Mapping[str, str]) -> None:
    parts = urlsplit(mailer.server)
    with _server(mailer.server) as server:
        if parts.username:
            if not isinstance(server, smtplib.SMTP_SSL):
                server.starttls(context=ssl.create_default_context())
            if PASSWORD not in secrets:
                raise NotSentError(_no_secret(PASSWORD))
            server.login(unquote(parts.username), secrets[PASSWORD])
        server.send_message(message)


def _server(address: str) -> smtplib.SMTP:
    parts = urlsplit(address)
    host = str(parts.hostname)
    if parts.scheme == "smtps":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(host, parts.port or 465, timeout=TIMEOUT_S, context=context)
    return smtplib.SMTP(host, parts.port or (587 if parts.username else 25), timeout=TIMEOUT_S)

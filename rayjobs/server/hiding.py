"""Hides what users must not see: web addresses of others' notifications, the store's address."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rayjobs.core.store_address import without_address
from rayjobs.server.access import Caller
from rayjobs.spec.notify import Receiver
from rayjobs.workspace.users import Role

MARK = '"notify":["'  # in compact JSON: a list of receivers that is not empty
MARK_IN_TEXT = MARK.replace('"', '\\"')  # in a spec that is a text of the data, as in a revision


def text_for(value: Any, caller: Caller) -> str:
    """Return JSON data as text, without the parts that the caller must not see."""
    text = _json(value)
    # Most answers have no receivers: skip the traversal.
    if caller.token.role < Role.ADMIN and (MARK in text or MARK_IN_TEXT in text):
        return _json(without_receivers(value, caller.user))
    return text


def without_receivers(value: Any, user: str, owner: str | None = None) -> Any:
    """Return JSON data without the notification web addresses of users other than `user`.

    They are omitted instead of shortened: a job submitted from another user's spec must not send to
    a partial address.

    Args:
        value: An answer.
        user: The recipient.
        owner: The owner of the data; a record inside it can name another owner.
    """
    if isinstance(value, list):
        return [without_receivers(one, user, owner) for one in value]
    if not isinstance(value, Mapping):
        return value
    owner = _owner(value) or owner
    return {name: _without(name, one, user, owner) for name, one in value.items()}


def _without(name: str, value: Any, user: str, owner: str | None) -> Any:
    if name == "notify" and isinstance(value, list) and owner != user:
        return [text for text in value if not _is_hidden(text)]
    # The spec before a revision. A history names no owner, so that owners do not see theirs either.
    if name == "before" and isinstance(value, str):
        try:
            return _json(without_receivers(json.loads(value), user, owner))
        except ValueError:
            return value
    return without_receivers(value, user, owner)


def shown(text: str) -> str:
    """Return a receiver in the form that others may see."""
    receiver = Receiver.of(text)
    return str(Receiver(receiver.shown, receiver.on))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _owner(record: Mapping[str, Any]) -> str | None:
    job = record.get("job")
    for holder in (record, job if isinstance(job, Mapping) else {}):
        for name in ("user", "created_by"):
            found = holder.get(name)
            if isinstance(found, str) and found:
                return found
    return None


def _is_hidden(text: object) -> bool:
    return isinstance(text, str) and "://" in text


def texts_without_store(value: Any) -> Any:
    """Return a target's JSON data without the address of the database in its sentences."""
    if isinstance(value, str):
        return without_address(value)
    if isinstance(value, list | tuple):
        return [texts_without_store(one) for one in value]
    if isinstance(value, Mapping):
        return {name: texts_without_store(one) for name, one in value.items()}
    return value

"""Which job a text on the command line means, where several have the same name.

Who reads means the last one: ``rayjobs logs -f train`` after the tenth job named train. What
changes a job (cancel, update, hold) asks for an id instead: `Store.find` alone is strict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayjobs.cli.output import ago_text
from rayjobs.errors import UsageError

if TYPE_CHECKING:
    from rayjobs.cli.settings import Settings
    from rayjobs.records import Job
    from rayjobs.store.base import Store


def newest_named(settings: Settings, store: Store, text: str, *, kind: str | None = None) -> Job:
    """Return the job that `text` names; of several with exactly this name the newest, and say so.

    Args:
        kind: Look among jobs of this kind alone, such as ``sweep``.

    Raises:
        NotFoundError: there is none.
        UsageError: `text` is the beginning of several ids, and no job's name.
    """
    try:
        return store.find(text, kind=kind)
    except UsageError as error:
        if not error.values.get("matches"):
            raise
        found = store.find(text, kind=kind, newest=True)
    settings.note(
        f"several {kind or 'job'}s are named {text!r}; this is the newest, {found.id} "
        f"({found.state}, submitted {ago_text(found.submitted_at)})"
    )
    return found

"""Resolves a name on the command line to a job, where several jobs have the same name.

Commands that only read take the newest one: ``rayjobs logs -f train`` after ``train-10``. Commands
that change a job (cancel, update) require an unambiguous name or id: `Store.find` is strict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayjobs.cli.output import ago_text
from rayjobs.core.errors import UsageError
from rayjobs.jobs.records import name_of

if TYPE_CHECKING:
    from rayjobs.cli.settings import Settings
    from rayjobs.jobs.records import Job
    from rayjobs.store.base import Store


def newest_named(settings: Settings, store: Store, text: str, *, kind: str | None = None) -> Job:
    """Return the job that `text` names; of several with exactly this name the newest, with a note.

    Args:
        kind: Look only among jobs of this kind, such as ``sweep``.

    Raises:
        NotFoundError: no such job.
        UsageError: `text` is a prefix of several ids, and not a job's name.
    """
    try:
        return store.find(text, kind=kind)
    except UsageError as error:
        error_matches = error.values.get("matches")
        if not error_matches:
            raise
        found = store.find(text, kind=kind, newest=True)
    own = name_of(found)
    which = found.id if own == text else f"{own} ({found.id})"
    settings.note(
        f"{text}: the newest of {len(error_matches)} is {which}, {found.state}, "
        f"submitted {ago_text(found.submitted_at)}"
    )
    return found

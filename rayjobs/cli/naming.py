"""Resolves a name on the command line to a job, where several jobs have the same name.

Commands that only read take the newest one: ``rayjobs logs -f train`` after ``train-10``. Commands
that change a job (cancel, update) require an unambiguous name or id: `Store.find` is strict. A
cancel can mean only a job that has not ended, so the only such one is unambiguous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayjobs.cli.output import ago_text
from rayjobs.core.errors import UsageError
from rayjobs.jobs.records import name_of

# A store names at most this many jobs of one name: older ones may be unfinished, too.
MOST_NAMED = 200

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


def unfinished_named(settings: Settings, store: Store, text: str) -> Job:
    """Return the job that `text` names; of several with this name the only unfinished, with a note.

    Raises:
        NotFoundError: no such job.
        UsageError: `text` is a prefix of several ids, or several jobs have this name and not
            exactly one of them is unfinished.
    """
    try:
        return store.find(text)
    except UsageError as error:
        matches = error.values.get("matches", ())
        states = store.job_states(matches)
        unfinished = [job for job, state in states.items() if not state.is_final]
        if len(unfinished) != 1 or len(matches) >= MOST_NAMED:
            raise
        found = store.job(unfinished[0])
        if text not in (found.spec.name, found.display_name):
            raise  # a part of an id, or a member of one of several arrays
    settings.note(
        f"{text}: of {len(matches)} jobs, only {name_of(found)} ({found.id}) has not ended"
    )
    return found

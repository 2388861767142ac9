"""The data of events that code reads: its base class, and the kinds of the queue and the store.

The text of an event is for people. Its data is stored as plain JSON, and code reads it only through
the class of its kind. Other kinds are in `rayjobs.data.events`, `rayjobs.results.left_out` and
`rayjobs.tuning.events`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message, MessageError
from rayjobs.jobs.states import JobState

if TYPE_CHECKING:
    from typing import Self

    from rayjobs.jobs.records import Event


class EventData(Message):
    """Base of the data of events of one kind."""

    __slots__ = ()
    # In an event's data, the entry `version` is the version of a dataset, not of the format.
    READS_VERSION: ClassVar[int | None] = None
    KIND: ClassVar[str]

    @classmethod
    def of(cls, event: Event) -> Self | None:
        """Return the data of an event; None if the event is of another kind, or unreadable."""
        if event.kind != cls.KIND:
            return None
        try:
            return cls.from_json(event.data)
        except MessageError:
            return None


@dataclass(frozen=True, kw_only=True)
class StateChanged(EventData):
    """A job's state has changed.

    Attributes:
        old: The state before; null: the job is new.
        new: The state since then.
    """

    KIND: ClassVar[str] = "state"

    old: JobState | None = None
    new: JobState


@dataclass(frozen=True)
class CancelRequested(EventData):
    """A user requested the end of a job that had started.

    Attributes:
        by: Who or what requested it; empty: unknown.
    """

    KIND: ClassVar[str] = "cancel"

    by: str = ""


@dataclass(frozen=True)
class SpecRevised(EventData):
    """The spec of a waiting job has changed.

    Attributes:
        revision: Number of the new revision.
        before: The earlier spec, as JSON text.
    """

    KIND: ClassVar[str] = "revision"

    revision: int
    before: str


@dataclass(frozen=True)
class Resumed(EventData):
    """An attempt started from a checkpoint.

    Attributes:
        continues: It is a checkpoint of the job itself, so the earlier attempts' work is not lost.
    """

    KIND: ClassVar[str] = "resumed"

    continues: bool = True


@dataclass(frozen=True)
class AgentLost(EventData):
    """The agent of a job's node was replaced while the job ran.

    Attributes:
        detail: Ray's whole text about the loss.
    """

    KIND: ClassVar[str] = "agent_lost"

    detail: str = ""


@dataclass(frozen=True)
class ModelRefused(EventData):
    """A model that a run requested was not registered at its end.

    Attributes:
        name: The model's name.
        path: The run's file or folder of the model.
        why: Why it was not registered.
    """

    KIND: ClassVar[str] = "model_refused"

    name: str
    path: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Pruned(EventData):
    """Files of a job were pruned, or the job with all its records.

    Attributes:
        name: The name of a job whose records are gone; null: only files were pruned.
        files: How many stored files were pruned; null: the records went with them.
        bytes: The size of these files.
    """

    KIND: ClassVar[str] = "pruned"

    name: str | None = None
    files: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Restored(EventData):
    """A restore of the store dropped a job, or returned it to an earlier state.

    Attributes:
        name: The name of a dropped job; null: the job is still there.
    """

    KIND: ClassVar[str] = "restored"

    name: str | None = None

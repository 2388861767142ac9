"""The contract of targets, of pruning, and of values by key.

Parts of `rayjobs.store.base.Store`, whose general contract also applies here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from rayjobs.jobs.serving import Claimant, Serving

if TYPE_CHECKING:  # importing pydantic would dominate the time of a listing
    from rayjobs.store.pruning import PruneView


class TargetStore(Protocol):
    """Claims of targets: which target actor serves a store."""

    def claim_target(self, target: str, *, epoch: str, claimant: Claimant | None = None) -> int:
        """Record that the target actor `epoch` serves this store; return the number of the claim.

        Numbers grow. After its claim, an actor reads everything that earlier actors have started.

        Raises:
            ServedElsewhereError: several machines use the store, and the target belongs to a home
                other than the `claimant`'s.
        """

    def target_epoch(self, target: str) -> tuple[int, str] | None:
        """Return the number and epoch of the last claim of a target."""

    def serving(self, target: str) -> Serving | None:
        """Return the home to which a target belongs, if several machines use the store."""

    def take_over(self, target: str, claimant: Claimant) -> Serving | None:
        """Assign a target to another home from now on; return the previous claim.

        Raises:
            UsageError: an actor serves it now, or only one machine uses the store.
        """

    def wake_target(self, target: str) -> None:
        """Wake the actor that watches the store, on any machine; no effect for a SQLite file."""

    def watch_wakes(self, target: str, *, epoch: str, wake: Callable[[], None]) -> None:
        """Call `wake` from a thread for each `wake_target`, and write signs of life until `close`.

        It is also called after a lost connection. A SQLite file is not watched.
        """


class PruneStore(Protocol):
    """Removal of data that is no longer needed."""

    def prune_view(self) -> PruneView:
        """Return which records refer to which stored files, as one state of the store."""

    def prune_files(self, jobs: Sequence[str], *, how: str = "") -> frozenset[str]:
        """Remove the files of finished jobs from the store; return those jobs.

        Keeps jobs that an unfinished job names; see `PruneView.needed`.

        Args:
            how: Who removes them with which command, for the jobs' histories.
        """

    def prune_records(self, jobs: Sequence[str], *, how: str = "") -> frozenset[str]:
        """Remove finished jobs with all that belongs to them; return those jobs.

        Keeps jobs that an unfinished job or a model refers to, and those whose processes are not
        proven dead. One line of each removed job stays, so that a look-up by name can report the
        removal.

        Args:
            how: Who removes them with which command.
        """


class SettingsStore(Protocol):
    """The store's own values, and settings that users' programs keep in a workspace."""

    def meta(self, key: str) -> str | None:
        """Return one of the store's own values (workspace id, schema version, …)."""

    def set_meta(self, key: str, value: str | None) -> None:
        """Set one of the store's own values; None removes it."""

    def claim_meta(self, key: str, value: str) -> str:
        """Set one of the store's own values if there is none; return the current one."""

    def meta_under(self, prefix: str) -> dict[str, str]:
        """Return all of the store's own values whose keys begin with `prefix`, by key."""

    def meta_between(
        self, first: str, end: str, *, limit: int | None = None, newest_first: bool = False
    ) -> dict[str, str]:
        """Return the store's own values with keys from `first` up to, but excluding, `end`, by key.

        Args:
            limit: The maximum number of values.
            newest_first: Start from the end of the range instead of its beginning.
        """

    def drop_meta(self, first: str, end: str) -> int:
        """Remove values with keys from `first` up to, but excluding, `end`; return their number."""

    def program_setting(self, key: str) -> str | None:
        """Return a setting of users' programs, which are separate from the store's own values."""

    def program_settings(self, prefix: str) -> dict[str, str]:
        """Return all settings of programs whose keys begin with `prefix`, by key."""

    def put_program_setting(self, key: str, value: str | None) -> None:
        """Store a setting of programs; None removes it."""

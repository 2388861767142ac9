"""What an attempt host does besides forking and watching ranks, where a launcher asks for it."""

from __future__ import annotations

from rayjobs.injob.ranks import Program


class HostExtras:
    """Nothing more: the host forks all ranks of its plan at once, and watches for their ends."""

    # Whether it forks the ranks one by one, in `turn`, and knows when the last one has ended.
    starts_ranks = False

    def start(self) -> None:
        """Do what comes before the ranks.

        Raises:
            OSError: it cannot be done; the attempt then ends.
        """

    def go_first(self, ranks: list[int]) -> list[int]:
        """Return which of the node's ranks, all forked now, run at once; it lets the others go."""
        return ranks

    @property
    def pause_s(self) -> float | None:
        """After how many seconds it wants its turn again at the latest; None: it can wait."""
        return None

    def turn(self) -> Program | None:
        """Do what is due; in a rank that was forked for it, return its program."""
        return None

    def child_ended(self, pid: int, status: int, at: float) -> None:
        """Take in the end of a child that is not a rank; `at` in seconds of the wall clock."""

    def look_for_an_end(self) -> None:
        """Begin the attempt's end if something besides the ranks asks for it."""

    def is_leaving(self) -> bool:
        """Whether, now that all ranks have ended, something still has time to end by itself."""
        return False

    def abandon(self) -> None:
        """Close all sockets in a forked process."""

    def close(self) -> None:
        """Close all sockets, once the exit record is written."""

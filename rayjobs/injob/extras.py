"""Extra work of an attempt host, which some launchers need in addition to forking ranks."""

from __future__ import annotations

from rayjobs.injob.ranks import Program


class HostExtras:
    """No extra work: the host forks all ranks of its plan at once, and watches for their ends."""

    # Whether `turn` forks the ranks one by one, and decides when the last one has ended.
    starts_ranks = False

    def start(self) -> None:
        """Prepare before any rank starts.

        Raises:
            OSError: it cannot be done; the attempt then ends.
        """

    def go_first(self, ranks: list[int]) -> list[int]:
        """Return which of the node's forked ranks run at once; `turn` releases the others."""
        return ranks

    @property
    def pause_s(self) -> float | None:
        """Maximum seconds until its next `turn`; None: no limit."""
        return None

    def turn(self) -> Program | None:
        """Do what is due; in a rank that was forked for it, return its program."""
        return None

    def child_ended(self, pid: int, status: int, at: float) -> None:
        """Handle the end of a child that is not a rank; `at` in seconds since 1970."""

    def look_for_an_end(self) -> None:
        """Begin the attempt's end if something other than a rank requires it."""

    def is_leaving(self) -> bool:
        """Tell, once all ranks have ended, whether a helper may still end by itself."""
        return False

    def abandon(self) -> None:
        """Close all sockets in a forked process."""

    def close(self) -> None:
        """Close all sockets, once the exit record is written."""

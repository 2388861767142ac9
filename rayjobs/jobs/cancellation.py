"""Who or what canceled a job, and the sentence that says so."""

from __future__ import annotations

from rayjobs.injob.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Cancellation:
    """The end of a canceled job.

    Attributes:
        by: Who or what canceled it, such as a user's name; empty: unknown.
        remarks: What else users should know, as a clause; may be empty.
        requeue_reason: Why it would otherwise have been queued again; empty: it would not.
    """

    by: str = ""
    remarks: str = ""
    requeue_reason: str = ""

    @property
    def sentence(self) -> str:
        """The reason of the job, e.g. ``canceled by ada; 4 Canceled``."""
        return self.at("")

    def at(self, time: str) -> str:
        """Return the sentence with a time, e.g. ``canceled by ada 3m ago; 4 Canceled``."""
        words = ["canceled", f"by {self.by}" if self.by else "", time]
        if self.requeue_reason:
            words.append(f"instead of being queued again ({self.requeue_reason})")
        text = " ".join(filter(None, words))
        return f"{text}; {self.remarks}" if self.remarks else text

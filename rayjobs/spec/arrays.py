"""The indices of a job array: texts such as ``0-15``, ``1,3,8-20:4`` and the limit ``%4``. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

MOST_MEMBERS = 10_000
LARGEST_INDEX = 999_999
FORMS = "write it as 0-15, 1,3,8 or 0-30:5, followed by %4 for at most 4 at a time"

_PART = re.compile(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?")


def split_limit(text: str) -> tuple[str, int | None]:
    """Return the indices and the limit of e.g. ``0-15%4``; the limit is None without ``%``.

    Raises:
        ValueError: the text after ``%`` is not a whole number, 1 or more.
    """
    indices, separator, limit = text.partition("%")
    if not separator:
        return indices.strip(), None
    if not limit.strip().isdigit() or int(limit) < 1:
        raise ValueError(f"{text!r} has the limit {limit.strip()!r}; {FORMS}")
    return indices.strip(), int(limit)


@lru_cache(maxsize=256)
def expand(text: str) -> tuple[int, ...]:
    """Return the indices that a text names, in order and without repeats.

    Raises:
        ValueError: it cannot be read, runs backwards, or names too many.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{text!r} names no indices at {part.strip()!r}; {FORMS}")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        step = int(match[3]) if match[3] else 1
        if last < first or step < 1:
            raise ValueError(f"{text!r} does not count upwards at {part.strip()!r}; {FORMS}")
        count = (last - first) // step + 1
        if count > MOST_MEMBERS:  # checked before the indices are built
            raise ValueError(
                f"{text!r} names {count:,} indices; an array has at most {MOST_MEMBERS:,} jobs. "
                f"Submit several arrays, or let each job process several indices"
            )
        if last > LARGEST_INDEX:
            raise ValueError(f"{text!r} names index {last}; the largest is {LARGEST_INDEX}")
        found.update(range(first, last + 1, step))
        if len(found) > MOST_MEMBERS:
            raise ValueError(
                f"{text!r} names more than {MOST_MEMBERS:,} indices; an array has at most "
                f"{MOST_MEMBERS:,} jobs. Submit several arrays"
            )
    return tuple(sorted(found))


def split_member(text: str) -> tuple[str, int] | None:
    """Return the name and index in e.g. ``1f3c[3]``; None if the text has another form."""
    match = re.fullmatch(r"(.+)\[(\d{1,6})\]", text, re.DOTALL)
    return None if match is None else (match[1], int(match[2]))

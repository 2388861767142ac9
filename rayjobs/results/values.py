"""A job's values by name, for lists: its own fields, metrics, arguments and tags.

A bare name means the first of these kinds in which a listed job has it; ``metric:loss``,
``arg:loss`` and ``tag:loss`` name one kind.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import UsageError
from rayjobs.core.failures import FailureClass
from rayjobs.core.units import parse_duration
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import INTERACTIVE, name_of
from rayjobs.jobs.states import JobState

if TYPE_CHECKING:
    from rayjobs.jobs.records import JobLine
    from rayjobs.store.base import Store

METRIC, ARGUMENT, TAG = "metric", "arg", "tag"
KINDS = (METRIC, ARGUMENT, TAG)
OPERATORS = (">=", "<=", "!=", "==", "=", ">", "<", "~")
_FILTER = re.compile(rf"\s*([^=<>!~]+?)\s*({'|'.join(OPERATORS)})\s*(.*?)\s*", re.DOTALL)
_NUMBER = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)
_KEY_VALUE = re.compile(r"([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_READ_AT_ONCE = 2000  # jobs whose arguments one request reads: each is a spec to be parsed


def named_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Return a script's arguments by name: ``--lr 0.1``, ``--lr=0.1``, ``lr=0.1``, ``--fast``.

    Names have no dashes in front. A flag without a value is ``true``; positional arguments are left
    out.
    """
    found: dict[str, str] = {}
    at = 0
    while at < len(arguments):
        text = arguments[at]
        at += 1
        if not text.startswith("-") or text in ("-", "--") or _NUMBER.match(text):
            if pair := _KEY_VALUE.fullmatch(text):
                found[pair[1]] = pair[2]
            continue
        name, separator, value = text.lstrip("-").partition("=")
        if not separator:
            value = "true"
            if at < len(arguments) and _is_value(arguments[at]):
                value = arguments[at]
                at += 1
        if name:
            found[name] = value
    return found


def _is_value(text: str) -> bool:
    return not text.startswith("-") or text == "-" or _NUMBER.match(text) is not None


def scalar(value: Any) -> Any:
    """Return a metric's value as one cell: a number, a string, or a list's last item; else None."""
    if isinstance(value, Mapping):
        if value.get("kind") != "list":
            return None
        value = value.get("value")
    if isinstance(value, list):
        value = value[-1] if value else None
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)  # records have them as JSON strings
    return value if isinstance(value, (int, float, str)) else None


def number_of(value: Any) -> float | None:
    """Convert a value, or text such as ``1e-3``, to a number if possible."""
    if isinstance(value, bool):
        return float(value)
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True)
class Values:
    """One column: what each job has under a name.

    Attributes:
        name: The name as requested.
        by_serial: By the job's serial; jobs without a value are left out.
        note: Other kinds with the same name; empty if none.
    """

    name: str
    by_serial: Mapping[int, Any]
    note: str = ""

    def of(self, job: JobLine) -> Any:
        """Return the job's value; None when it has none."""
        return self.by_serial.get(job.serial)


def _seconds(since: datetime | None, until: datetime | None) -> float | None:
    return None if since is None or until is None else (until - since).total_seconds()


def _ran(job: JobLine) -> float | None:
    return _seconds(job.started_at, job.ended_at or datetime.now(UTC))


def _waited(job: JobLine) -> float | None:
    return _seconds(job.submitted_at, job.started_at or job.ended_at or datetime.now(UTC))


def _age(job: JobLine) -> float | None:
    return _seconds(job.submitted_at, datetime.now(UTC))


FIELDS: Mapping[str, Callable[[JobLine], Any]] = {
    "id": lambda job: job.id,
    "name": name_of,
    "experiment": lambda job: job.experiment,
    "state": lambda job: str(job.state),
    "user": lambda job: job.user,
    "target": lambda job: job.target,
    "priority": lambda job: job.priority,
    "attempt": lambda job: job.attempt,
    "kind": lambda job: job.kind,
    "failure": lambda job: str(job.failure.failure_class) if job.failure else None,
    "reason": lambda job: job.failure.message if job.failure else job.reason,
    "age": _age,
    "waited": _waited,
    "ran": _ran,
    "index": lambda job: job.array_index,
}
DURATIONS = ("age", "waited", "ran")


class ValueReader:
    """Reads columns of a list of jobs from a store: each kind once, whatever the number of names.

    Args:
        jobs: The listed jobs; only names that one of them has are known.
        names: All names that will be requested.
    """

    def __init__(self, store: Store, jobs: Sequence[JobLine], names: Iterable[str]) -> None:
        self._store = store
        self._jobs = jobs
        self._serials = {job.serial for job in jobs}
        wanted = {name.partition(":")[2] if _kind_of(name) else name for name in names}
        self._metrics = self._read_metrics(wanted)
        self._arguments: dict[int, dict[str, str]] | None = None

    def _read_metrics(self, names: set[str]) -> dict[str, dict[int, Any]]:
        # The column of a row or table is named ``metric.column``.
        stored = names | {name.rpartition(".")[0] for name in names if "." in name}
        found: dict[str, dict[int, Any]] = {}
        for serial, values in self._store.last_metrics(sorted(stored)).items():
            if serial not in self._serials:
                continue
            for name, value in values.items():
                if isinstance(value, Mapping) and value.get("kind") in ("row", "table"):
                    for column, cells in (value.get("value") or {}).items():
                        found.setdefault(f"{name}.{column}", {})[serial] = scalar(cells)
                elif (cell := scalar(value)) is not None:
                    found.setdefault(name, {})[serial] = cell
        return found

    def _read_arguments(self) -> dict[int, dict[str, str]]:
        if self._arguments is None:
            serials = sorted(self._serials)
            self._arguments = {
                serial: named_arguments(arguments)
                for start in range(0, len(serials), _READ_AT_ONCE)
                for serial, arguments in self._store.job_arguments(
                    serials[start : start + _READ_AT_ONCE]
                ).items()
                if arguments
            }
        return self._arguments

    def values(self, name: str, *, may_miss: bool = False) -> Values:
        """Return the column of a name.

        Args:
            may_miss: Return an empty column with a note for a name that no listed job has, unless
                it looks misspelled.

        Raises:
            UsageError: no listed job has it; the message suggests similar names.
        """
        kind = _kind_of(name)
        if kind is None and name.lower() in FIELDS:
            read = FIELDS[name.lower()]
            return Values(name, {job.serial: read(job) for job in self._jobs})
        bare = name if kind is None else name.partition(":")[2]
        found = {one: self._of_kind(one, bare) for one in KINDS if kind in (None, one)}
        having = [one for one, values in found.items() if values]
        if not having:
            if not self._jobs:
                return Values(name, {})
            text, is_near = self._unknown(name)
            if may_miss and not is_near:
                return Values(name, {}, text.removesuffix("."))
            raise UsageError(text)
        note = ""
        if len(having) > 1:
            others = ", ".join(f"{one}:{bare}" for one in having[1:])
            note = f"{bare} is read as {having[0]}:{bare}; there is also {others}"
        return Values(name, found[having[0]], note)

    def _of_kind(self, kind: str, name: str) -> dict[int, Any]:
        if kind == METRIC:
            return self._metrics.get(name, {})
        if kind == TAG:
            return {job.serial: job.tags[name] for job in self._jobs if name in job.tags}
        same = {name, name.replace("_", "-"), name.replace("-", "_")}
        return {
            serial: arguments[one]
            for serial, arguments in self._read_arguments().items()
            for one in same
            if one in arguments
        }

    def _unknown(self, name: str) -> tuple[str, bool]:
        """Return the message for an unknown name, with suggestions, and whether one is similar."""
        import difflib  # only on the way to an error

        known = dict.fromkeys(FIELDS)
        known.update(dict.fromkeys(self._store.metric_names()))
        for job in self._jobs:
            known.update(dict.fromkeys(job.tags))
        for arguments in self._read_arguments().values():
            known.update(dict.fromkeys(arguments))
        near = difflib.get_close_matches(name.rpartition(":")[2], known, n=3, cutoff=0.6)
        others = [one for one in known if one not in FIELDS][:20]
        hint = (
            f"Did you mean {' or '.join(near)}?"
            if near
            else f"These jobs have: {', '.join(others)}."
            if others
            else "These jobs have neither metrics nor named arguments nor tags."
        )
        text = f"no listed job has a metric, argument or tag named {name!r}. {hint}"
        return text, bool(near)


def _kind_of(name: str) -> str | None:
    kind, separator, _ = name.partition(":")
    return kind if separator and kind in KINDS else None


@dataclass(frozen=True)
class Filter:
    """A condition on one value, such as ``accuracy>0.9`` or ``state=Failed``."""

    name: str
    operator: str
    value: str

    def admits(self, value: Any) -> bool:
        """Return whether a job with this value matches; a job without a value never does."""
        if value is None:
            return False
        if self.operator == "~":
            return self.value.casefold() in str(value).casefold()
        wanted: Any = self.value
        if self.name.lower() in DURATIONS:
            wanted = parse_duration(self.value)
        first, second = number_of(value), number_of(wanted)
        if first is None or second is None:
            return self._admits_text(str(value).casefold(), str(wanted).casefold())
        if math.isnan(first) or math.isnan(second):
            same = math.isnan(first) and math.isnan(second)
            return same if self.operator in ("=", "==") else self.operator == "!=" and not same
        return _compare(self.operator, first, second)

    def check_against(self, values: Values) -> None:
        """Refuse to compare numbers with text by `<` or `>`: nothing would match.

        Raises:
            UsageError: all values are numbers, and the condition's is not.
        """
        if self.operator not in (">", ">=", "<", "<=") or self.name.lower() in DURATIONS:
            return
        numbers = [number_of(value) for value in values.by_serial.values() if value is not None]
        if numbers and None not in numbers and number_of(self.value) is None:
            raise UsageError(
                f"--filter '{self.name}{self.operator}{self.value}': {self.name} is a number, and "
                f"{self.value!r} is not"
            )

    def _admits_text(self, value: str, wanted: str) -> bool:
        if self.operator in ("=", "==", "!="):
            same = value == wanted or fnmatch.fnmatchcase(value, wanted)
            return same == (self.operator != "!=")
        return _compare(self.operator, value, wanted)


def _compare(operator: str, first: Any, second: Any) -> bool:
    return bool(
        {
            "=": first == second,
            "==": first == second,
            "!=": first != second,
            ">": first > second,
            ">=": first >= second,
            "<": first < second,
            "<=": first <= second,
        }[operator]
    )


def parse_filter(text: str) -> Filter:
    """Return the condition of a text.

    Raises:
        UsageError: it has no operator, or no name or value.
    """
    found = _FILTER.fullmatch(text)
    if found is None or not found[3]:
        raise UsageError(
            f"--filter {text!r} is not a condition; write NAME, one of {' '.join(OPERATORS)}, and "
            f"a value, such as --filter 'accuracy>0.9' or --filter state=Failed"
        )
    if found[1].lower() in DURATIONS and found[2] != "~":
        parse_duration(found[3])  # a wrong one is reported now, not per job
    _check_word(text, found[1].lower(), found[2], found[3])
    return Filter(found[1], found[2], found[3])


# Fields with a fixed set of values.
WORDS: Mapping[str, Sequence[str]] = {
    "state": tuple(JobState),
    "kind": ("job", "array", "sweep", "pipeline", INTERACTIVE),
    "failure": tuple(FailureClass),
}


def _check_word(text: str, name: str, operator: str, value: str) -> None:
    """Refuse a value that a field can never have.

    Raises:
        UsageError: the message suggests the most similar value, or lists all.
    """
    words = WORDS.get(name)
    if words is None or operator not in ("=", "==", "!="):
        return
    known = {str(word).casefold(): str(word) for word in words}
    if any(fnmatch.fnmatchcase(word, value.casefold()) for word in known):
        return
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(value.casefold(), known, n=2, cutoff=0.6)
    hint = (
        f"Did you mean {' or '.join(known[word] for word in near)}?"
        if near
        else f"It is one of: {', '.join(known.values())}."
    )
    raise UsageError(f"--filter {text!r}: there is no {name} {value!r}. {hint}")


def sorted_by(jobs: Sequence[JobLine], values: Values, *, descending: bool) -> list[JobLine]:
    """Return the jobs in the order of a value; those without one, and NaN, come last."""

    def rank(job: JobLine) -> tuple[int, float, str]:
        value = values.of(job)
        number = number_of(value)
        if value is None or (number is not None and math.isnan(number)):
            return (2, 0.0, "")
        return (1, 0.0, str(value).casefold()) if number is None else (0, number, "")

    with_value = [job for job in jobs if rank(job)[0] < 2]
    without = [job for job in jobs if rank(job)[0] == 2]
    return [*sorted(with_value, key=rank, reverse=descending), *without]

"""`partition_format`: converts paths of files to columns, and columns to paths.

Source: Azure ML SDK v1, `azureml.data.dataset_factory`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any

from rayjobs.datastore.errors import InvalidReference
from rayjobs.datastore.manifest import FileEntry
from rayjobs.injob.lazy_dataclass import dataclass

# Azure ML's parts of a time: the number of digits, and the argument of `datetime`.
_PARTS = {
    "yyyy": (4, "year"),
    "MM": (2, "month"),
    "dd": (2, "day"),
    "HH": (2, "hour"),
    "mm": (2, "minute"),
    "ss": (2, "second"),
}
_TIME = re.compile("|".join(_PARTS))
TIMES = "yyyy/MM/dd/HH/mm/ss"
"""How `partition_by` writes the times of a column as folders."""


@dataclass(frozen=True)
class PartitionFormat:
    """A format such as `{country}/{day:yyyy/MM/dd}/data.csv`, matched at the end of a path.

    Attributes:
        text: The format as given.
        keys: The columns, in their order.
    """

    text: str
    keys: tuple[str, ...]
    _pattern: re.Pattern[str]
    _times: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> PartitionFormat:
        """Return the parsed format.

        Raises:
            InvalidReference: it has no column, a column twice, or an unknown part of a time.
        """
        pattern, at = "", 0
        keys: list[str] = []
        times: set[str] = set()
        plain = text.lstrip("/")
        for found in re.finditer(r"\{([^{}:]+)(?::([^{}]*))?\}", plain):
            key, time = found[1].strip(), found[2]
            pattern += _literal(plain[at : found.start()])
            at = found.end()
            number = len(keys)
            if key in keys:
                raise InvalidReference(f"partition_format {text!r} has the column {key!r} twice.")
            keys.append(key)
            if time is None:
                pattern += f"(?P<k{number}>[^/]+)"
                continue
            times.add(key)
            parts = [one[0] for one in _TIME.finditer(time)]
            if not parts or parts[0] != "yyyy" or len(set(parts)) != len(parts):
                raise InvalidReference(
                    f"partition_format {text!r}: {time!r} is not a time format; "
                    f"write {key}:{TIMES}, or its first parts."
                )
            inner, before = "", 0
            for one in _TIME.finditer(time):
                inner += re.escape(time[before : one.start()])
                digits, name = _PARTS[one[0]]
                inner += f"(?P<t{number}_{name}>[0-9]{{{digits}}})"
                before = one.end()
            pattern += inner + re.escape(time[before:])
        if not keys:
            raise InvalidReference(
                f"partition_format {text!r} names no column; write {{NAME}} for a folder whose "
                "name is a value."
            )
        pattern += _literal(plain[at:])
        whole = re.compile(rf"(?:^|/){pattern}\Z")
        return cls(text, tuple(keys), whole, frozenset(times))

    def values(self, entry: FileEntry) -> dict[str, Any]:
        """Return the columns from a file's path: strings and times.

        Raises:
            InvalidReference: the path does not fit.
        """
        found = self._pattern.search(entry.key) or self._pattern.search(entry.path)
        if found is None:
            raise InvalidReference(
                f"the file {entry.key!r} does not fit partition_format {self.text!r}, which must "
                "describe the end of every file's path. Choose the files by a glob."
            )
        given = found.groupdict()
        values: dict[str, Any] = {}
        for number, key in enumerate(self.keys):
            if key not in self._times:
                values[key] = given[f"k{number}"]
                continue
            parts = {
                name.partition("_")[2]: int(digits)
                for name, digits in given.items()
                if name.startswith(f"t{number}_")
            }
            try:
                # Without a time zone: paths have none, and neither do Azure's columns.
                values[key] = datetime(**{"month": 1, "day": 1, **parts})  # type: ignore[arg-type]  # noqa: DTZ001
            except ValueError as error:
                raise InvalidReference(
                    f"the path of {entry.key!r} gives no time for {key!r}: {error}."
                ) from error
        return values


def _literal(text: str) -> str:
    return "[^/]*".join(re.escape(one) for one in text.split("*"))


def key_values(
    parsed: PartitionFormat | None, files: Iterable[FileEntry], wanted: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Return each combination of values in the files' paths once, in order of the paths.

    Args:
        wanted: Only these columns; None for all.

    Raises:
        InvalidReference: there is no partition_format, or it has no such column.
    """
    if parsed is None:
        raise InvalidReference(
            "this dataset has no partitions; give partition_format when making it."
        )
    names = list(parsed.keys if wanted is None else wanted)
    for name in names:
        if name not in parsed.keys:
            raise InvalidReference(
                f"{name!r} is not a partition key; the keys are {', '.join(parsed.keys)}."
            )
    found: list[dict[str, Any]] = []
    for entry in files:
        values = parsed.values(entry)
        picked = {name: values[name] for name in names}
        if picked not in found:
            found.append(picked)
    return found


def folder_for(values: Mapping[str, Any]) -> str:
    """Return the nested folders for a row's partition values.

    Raises:
        InvalidReference: a value cannot be a folder's name.
    """
    parts = []
    for key, value in values.items():
        if isinstance(value, datetime):
            parts.append(value.strftime("%Y/%m/%d/%H/%M/%S"))
            continue
        text = value.isoformat() if isinstance(value, date) else str(value)
        if value is None or text in ("", ".", "..") or "/" in text or "\0" in text:
            raise InvalidReference(
                f"column {key!r} has the value {value!r}, which cannot name a folder; replace it "
                "before partition_by."
            )
        parts.append(text)
    return "/".join(parts)

"""The settings of a parallel run, which its ranks read from their environment."""

from __future__ import annotations

import json
from typing import Any, Mapping, Optional, Sequence, Union

VARIABLE = "RAYJOBS_PARALLEL_RUN"
DEFAULT_FILES = 10
DEFAULT_BYTES = 2**20
APPEND_ROW = "append_row"


class Settings:
    """See `rayjobs.spec.model.ParallelRun`, which has the same fields."""

    inputs: Sequence[str]
    output: Optional[str]
    mini_batch_size: Union[int, str, None]
    error_threshold: int
    output_action: str
    append_row_file_name: str
    run_invocation_timeout_s: float
    run_max_try: int
    allowed_failed_count: Optional[int]
    allowed_failed_percent: Optional[float]
    logging_level: str

    def __init__(self, values: Mapping[str, Any]) -> None:
        for name in self.__annotations__:
            setattr(self, name, values[name])

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return the settings in the variable's text."""
        return cls(json.loads(text))

    @property
    def appends(self) -> bool:
        """Whether rows are appended to one file."""
        return self.output_action == APPEND_ROW

    @property
    def files(self) -> int:
        """Files of one mini-batch."""
        size = self.mini_batch_size
        return DEFAULT_FILES if size is None else int(size)

    @property
    def table_bytes(self) -> int:
        """Approximate bytes of a table per mini-batch."""
        size = self.mini_batch_size
        return DEFAULT_BYTES if size is None else bytes_of(size)


def bytes_of(size: Union[int, str]) -> int:
    """Return the bytes of a text such as 1024, 10KB, 10MB or 1GB.

    Raises:
        ValueError: it is not a size.
    """
    text = str(size).strip().upper()
    for unit, factor in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10), ("B", 1)):
        if text.endswith(unit):
            text, times = text[: -len(unit)].strip(), factor
            break
    else:
        times = 1
    return int(text) * times

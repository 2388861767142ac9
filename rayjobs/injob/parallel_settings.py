"""The settings of a parallel run, which its ranks read from their environment."""

from __future__ import annotations

import json
from typing import Any, Mapping, Optional, Sequence, Union

from rayjobs.injob.text import bytes_of

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
        return DEFAULT_BYTES if size is None else table_bytes_of(size)


def table_bytes_of(size: Union[int, str]) -> int:
    """Return the bytes of a `mini_batch_size` such as 1024, 10KB, 10MB or 1GB.

    A KB has 1024 bytes here, unlike in all other sizes that users write.
    Source: Azure ML SDK v1, `azureml.pipeline.core._parallel_run_config_base`.

    Raises:
        ValueError: it is not a size.
    """
    found = bytes_of(str(size), kilo=1024)
    return int(size) if found is None else int(found)

"""The file in an attempt's folder that says where its data is and what holds it."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

from rayjobs.core.files import write_atomic
from rayjobs.injob import record_files
from rayjobs.injob.data_file import AttemptInput, AttemptOutput, DataFile, HeldInput
from rayjobs.protocol.attempts import AttemptOnNode

log = logging.getLogger(__name__)


class DataRecord:
    """One attempt's record; each change replaces the file atomically.

    Attributes:
        file: Its current content.
    """

    def __init__(self, path: Path, file: DataFile) -> None:
        """Start with `file`; this writes nothing before the first change."""
        self._path = path
        self.file = file

    @classmethod
    def new(cls, path: Path, on: AttemptOnNode) -> DataRecord:
        """Return the record of an attempt that has nothing yet."""
        return cls(path, DataFile(on.job, on.attempt, on.node))

    def add_input(self, name: str, given: AttemptInput, held: HeldInput) -> None:
        """Record an input and what holds it."""
        file = self.file
        self._write(
            replace(file, inputs={**file.inputs, name: given}, held=(*file.held, held)),
        )

    def set_output(self, name: str, output: AttemptOutput) -> None:
        """Record an output; an earlier entry is replaced."""
        self._write(replace(self.file, outputs={**self.file.outputs, name: output}))

    def add_stored(self, name: str) -> None:
        """Record that an output is stored."""
        self._write(replace(self.file, stored=(*self.file.stored, name)))

    def add_refused(self, name: str, sentence: str) -> None:
        """Record why an output can never be stored."""
        self._write(replace(self.file, refused={**self.file.refused, name: sentence}))

    def _write(self, file: DataFile) -> None:
        self.file = file
        write_atomic(self._path, json.dumps(file.to_json()), mode=0o600)


def read(path: Path) -> DataFile:
    """Return an attempt's record; it is empty for an attempt without data.

    Raises:
        OSError, ValueError: its job has damaged it.
    """
    try:
        return DataFile.from_json(record_files.read_json(str(path.parent), path.name))
    except FileNotFoundError:
        return DataFile()


def read_what_is_left(path: Path) -> DataFile:
    """Return an attempt's record; it is empty if it cannot be read."""
    try:
        return read(path)
    except (OSError, ValueError) as error:
        log.warning("the record %s cannot be read: %s", path, error)
        return DataFile()


def sentence_of(error: Exception) -> str:
    """Return the message of an error that occurred while data was fetched or stored."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)

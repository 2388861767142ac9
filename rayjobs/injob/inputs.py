"""The job's inputs and outputs as its script sees them: paths, or dataset objects."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any, Dict, Iterator, Mapping, Optional

from rayjobs.injob import data_file
from rayjobs.injob.data_file import AttemptInput, DataFile


class InputDatasets(Mapping[str, Any]):
    """Inputs by name: a path if it was mounted or downloaded, else the dataset object.

    A dataset is opened on access. This needs Python 3.11 or later, and the packages that
    `rayjobs.datastore` imports, in the job's environment.

    Source: Azure ML v1, `Run.input_datasets`.
    """

    def __init__(self, entries: Mapping[str, AttemptInput]) -> None:
        """Store the inputs from the node's record."""
        self._entries = entries
        self._opened: Dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Return an input by its name."""
        if name not in self._entries:
            known = ", ".join(sorted(self._entries)) or "none"
            raise KeyError("the job has no input %r; it has: %s" % (name, known))
        entry = self._entries[name]
        if entry.definition is None:
            return entry.path
        if name not in self._opened:
            self._opened[name] = _open(name, entry.definition)
        return self._opened[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._entries)

    def __repr__(self) -> str:
        """Return names and paths, without opening anything."""
        shown = {name: entry.path for name, entry in self._entries.items()}
        return "InputDatasets(%r)" % shown


def _open(name: str, definition: str) -> Any:
    try:
        # Imported on use: by default a job's code needs only the standard library.
        inputs = importlib.import_module("rayjobs.datastore.inputs")
    except ImportError as exc:
        raise ImportError(
            "input %r is a dataset object (direct mode), which needs Python 3.11 or later and the "
            "packages that `datastore` imports: %s. Use mount or download mode, which need neither"
            % (name, exc)
        ) from exc
    with open(definition, encoding="utf-8") as file:
        return inputs.open_input(inputs.DataInput.from_json(json.load(file)))


def read_record(root: str) -> Optional[DataFile]:
    """Return the node's record of inputs and outputs; None if there is none."""
    try:
        with open(os.path.join(root, data_file.NAME), encoding="utf-8") as file:
            return DataFile.from_json(json.load(file))
    except (FileNotFoundError, NotADirectoryError):
        return None

"""The file `data.json` is read as earlier versions wrote it, and has all that a node needs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.materialise import Materialised
from rayjobs.datastore.outputs import DataOutput
from rayjobs.injob.data_file import DataFile, HeldInput, OutputDestination, Registration
from rayjobs.injob.messages import MessageError

STORE = DatastoreRecord("st", "local", {"root": "/data"})
# As version 0.1.0 wrote it.
OLD: dict[str, Any] = {
    "job": "j",
    "attempt": 2,
    "node": 0,
    "inputs": {"x": {"path": "/in/x", "mode": "mount", "how": "linked", "definition": None}},
    "outputs": {
        "y": {
            "path": "/out/y",
            "folder": "/out/y",
            "output": {
                "name": "y",
                "record": {"name": "st", "kind": "local", "settings": {"root": "/data"}},
                "path": "made",
                "overwrite": True,
                "source_globs": ["*.pt"],
                "path_on_compute": None,
                "mode": "mount",
            },
            "register_as": {"name": "made", "description": "", "tags": {"a": "b"}},
        },
        "z": {
            "path": "/out/z",
            "output": {
                "name": "z",
                "record": {"name": "st", "kind": "local", "settings": {}},
                "path": "other",
                "overwrite": False,
                "source_globs": [],
                "path_on_compute": "/z",
            },
        },
    },
    "held": [
        {
            "name": "x",
            "path": "/in/x",
            "how": "copied",
            "bytes": 7,
            "files": None,
            "said": ["a note"],
            "version": "1",
            "made": ["/in/x"],
            "mount_folder": "",
            "mount_token": "",
            "read_only": [],
            "overlays": [["/a", "/b", "/c"]],
            "shown": [["/d", "/e"]],
            "why_open": "",
            "seen": [],
        }
    ],
    "stored": ["y"],
    "refused": {"z": "output z: other files"},
}


def test_a_file_of_version_0_1_0_is_read() -> None:
    file = DataFile.from_json(OLD)
    output = DataOutput.from_json(file.outputs["y"].output.to_json())
    assert output == DataOutput("y", STORE, "made", True, ("*.pt",), mode="mount")
    assert file.outputs["y"].register_as == Registration("made", tags={"a": "b"})
    # It was written before outputs had a mode, a folder and a registration.
    assert (file.outputs["z"].output.mode, file.outputs["z"].register_as) == ("upload", None)
    (held,) = [Materialised.from_json(one.to_json()) for one in file.held]
    assert held == Materialised.from_json(OLD["held"][0])
    assert (held.overlays, held.shown) == ((("/a", "/b", "/c"),), (("/d", "/e"),))
    assert DataFile.from_json(json.loads(json.dumps(file.to_json()))) == file


def test_entries_of_the_file_keep_their_names() -> None:
    written = DataFile.from_json(OLD).to_json()
    assert written["outputs"]["y"] == OLD["outputs"]["y"]
    (held,) = OLD["held"]
    assert written["held"] == [{name: one for name, one in held.items() if name != "seen"}]


@pytest.mark.parametrize(
    ("message", "described", "left_out"),
    [(OutputDestination, DataOutput, set()), (HeldInput, Materialised, {"seen"})],
)
def test_no_value_of_an_output_or_an_input_is_lost(
    message: Any, described: Any, left_out: set[str]
) -> None:
    names = {one.name for one in dataclasses.fields(described)}
    assert {one.name for one in dataclasses.fields(message)} == names - left_out


def test_a_damaged_output_is_named() -> None:
    damaged = {**OLD, "outputs": {"y": {"path": "/out/y", "output": {"name": "y"}}}}
    with pytest.raises(MessageError, match="an output destination has no entry 'record'"):
        DataFile.from_json(damaged)

"""The data of events: stored by this version and by earlier ones, and read as messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from rayjobs.data.events import (
    ChangedFile,
    InputChanged,
    InputProtected,
    InputProvided,
    OutputStored,
    UnknownFile,
)
from rayjobs.jobs.events import (
    AgentLost,
    CancelRequested,
    EventData,
    ModelRefused,
    Pruned,
    Restored,
    Resumed,
    SpecRevised,
    StateChanged,
)
from rayjobs.jobs.records import Event
from rayjobs.jobs.states import JobState
from rayjobs.results.left_out import FileLeftOut
from rayjobs.tuning.events import DriverFault, MetricMissing


def event(kind: str, data: Mapping[str, Any] | None) -> Event:
    """Return an event as a store returns it."""
    values: Any = json.loads(json.dumps(data))
    return Event(serial=1, job="job", at=datetime.now(UTC), kind=kind, message="", data=values)


# As the classes' predecessors wrote them: without the entries that did not apply.
EARLIER: list[tuple[str, Mapping[str, Any], EventData]] = [
    (
        "state",
        {"old": None, "new": "Queued"},
        StateChanged(new=JobState.QUEUED),
    ),
    (
        "state",
        {"old": "Finalizing", "new": "Completed"},
        StateChanged(old=JobState.FINALIZING, new=JobState.COMPLETED),
    ),
    ("cancel", {"by": "ada"}, CancelRequested("ada")),
    ("revision", {"revision": 2, "before": "{}"}, SpecRevised(2, "{}")),
    ("resumed", {}, Resumed(True)),
    ("resumed", {"continues": False}, Resumed(False)),
    ("agent_lost", {"detail": "died"}, AgentLost("died")),
    (
        "model_refused",
        {"name": "m", "path": "outputs/m", "why": "it is empty"},
        ModelRefused("m", "outputs/m", "it is empty"),
    ),
    ("pruned", {"files": 3, "bytes": 9}, Pruned(files=3, bytes=9)),
    ("pruned", {"name": "train"}, Pruned(name="train")),
    ("restored", {"name": "train"}, Restored("train")),
    ("restored", {}, Restored()),
    (
        "input",
        {
            "name": "a",
            "source": "dataset:digits:3",
            "mode": "mount",
            "how": "mounted",
            "version": "digits:3",
            "dataset": "digits:3",
            "dataset_id": "id",
            "files": None,
            "bytes": None,
            "took_s": 1,
        },
        InputProvided(
            name="a",
            source="dataset:digits:3",
            mode="mount",
            how="mounted",
            version="digits:3",
            dataset="digits:3",
            dataset_id="id",
            took_s=1.0,
        ),
    ),
    ("input_protected", {"name": "a", "node": 2, "why_open": ""}, InputProtected("a", 2, "")),
    (
        "input_changed",
        {
            "name": "a",
            "version": "digits:3",
            "by_job": None,
            "count": 1,
            "changed": [
                {
                    "path": "/d/a",
                    "before": [1, 2, 3],
                    "now": None,
                    "digest": "sha256:1",
                    "digest_now": "",
                }
            ],
            "unknown_count": 1,
            "unknown": [{"path": "/d/b", "why": "a loop"}],
        },
        InputChanged(
            name="a",
            version="digits:3",
            count=1,
            changed=(ChangedFile("/d/a", (1, 2, 3), digest="sha256:1"),),
            unknown_count=1,
            unknown=(UnknownFile("/d/b", "a loop"),),
        ),
    ),
    (
        "output",
        {"name": "o", "datastore": "s", "path": "p"},
        OutputStored(name="o", datastore="s", path="p"),
    ),
    (
        "output",
        {
            "node": 1,
            "name": "o",
            "datastore": "s",
            "path": "p",
            "files": 2,
            "bytes": 5,
            "pin": "sha256:1",
            "dataset": "made",
            "version": 4,
            "dataset_id": "id",
        },
        OutputStored(
            name="o",
            datastore="s",
            path="p",
            files=2,
            bytes=5,
            pin="sha256:1",
            node=1,
            dataset="made",
            version=4,
            dataset_id="id",
        ),
    ),
    ("left_out", {}, FileLeftOut()),
    ("left_out", {"file": "", "has_lost_files": True}, FileLeftOut(has_lost_files=True)),
    ("metric_missing", {"near": None}, MetricMissing()),
    ("metric_missing", {"near": "loss"}, MetricMissing("loss")),
    ("driver_fault", {"progress": [1, 0, 2]}, DriverFault((1, 0, 2))),
]


@pytest.mark.parametrize(("kind", "stored", "data"), EARLIER)
def test_event_of_an_earlier_version_is_read(
    kind: str, stored: Mapping[str, Any], data: EventData
) -> None:
    assert type(data).of(event(kind, stored)) == data
    written = event(data.KIND, data.to_json())
    assert type(data).of(written) == data
    # An earlier version finds every entry that it wrote itself.
    assert {**written.data, **event(kind, stored).data} == written.data


def test_every_kind_is_tried() -> None:
    assert {type(data) for _, _, data in EARLIER} == set(EventData.__subclasses__())
    kinds = [one.KIND for one in EventData.__subclasses__()]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize(
    "unreadable",
    [
        event("output_late", {"name": "o"}),
        event("output", {}),
        event("output", {"name": "o", "node": "first"}),
        event("output", None),
    ],
)
def test_event_of_another_kind_or_without_readable_data_is_none(unreadable: Event) -> None:
    assert OutputStored.of(unreadable) is None


def test_a_file_is_explained_by_its_own_event_or_by_a_lost_folder() -> None:
    assert FileLeftOut("logs/a").explains("logs/a")
    assert not FileLeftOut("logs/a").explains("logs/b")
    assert not FileLeftOut().explains("logs/a")
    assert FileLeftOut(has_lost_files=True).explains("logs/a")

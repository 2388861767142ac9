"""A node reports its progress while it stores the files of a job."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayjobs.core.paths import AttemptPaths
from rayjobs.datastore.progress import Progress
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.data_facts import DataFacts
from rayjobs.node import collect
from rayjobs.node.collect import Collecting
from tests.support.attempts import on_node


def test_progress_of_a_running_upload_is_reported_until_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported, go = threading.Event(), threading.Event()

    def store_outputs(
        _root: Path, _workspace: object, *, note: object, progress: Callable[[Progress], None]
    ) -> list[str]:
        progress(Progress("output made", 1, 3, 5_000_000, 9_000_000))
        reported.set()
        assert go.wait(60)
        return []

    AttemptPaths(tmp_path).data.parent.mkdir(parents=True, exist_ok=True)
    AttemptPaths(tmp_path).data.write_text(json.dumps({}))
    on = on_node(tmp_path)
    job = SimpleNamespace(attempt=on.attempt)
    workspace = SimpleNamespace(store=SimpleNamespace(job=lambda _: job))
    workspaces: Any = SimpleNamespace(of=lambda _: workspace, record=lambda *_: None)
    data: Any = SimpleNamespace(store_outputs=store_outputs, facts=lambda _: DataFacts())
    completed = SimpleNamespace(outcome=Outcome.COMPLETED)
    monkeypatch.setattr(collect, "record_of", lambda _: completed)
    collecting = Collecting(data, workspaces)

    async def scene() -> None:
        assert collecting.store_progress(on).line == ""
        storing = asyncio.ensure_future(collecting.store_late(on))
        assert await asyncio.to_thread(reported.wait, 60)
        assert collecting.store_progress(on).line.startswith("output made: 1/3 files, ")
        go.set()
        assert (await storing).problems == ()
        assert collecting.store_progress(on).line == ""

    asyncio.run(scene())

"""After every fault test on real Ray, the invariants are checked on what it left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.workspace.folder import open_workspace
from tests.checker.evidence import collect
from tests.checker.invariants import check


@pytest.fixture(autouse=True)
def invariants(own_home: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold the invariants against the test's workspace, once all its jobs have ended.

    Set up before `jobs`, hence torn down after it. Scratch is not judged here: some tests leave
    files on purpose that could not be stored.
    """
    yield
    folder = own_home / "w"
    if not request.node.get_closest_marker("ray") or not (folder / "workspace.json").exists():
        return
    workspace = open_workspace(folder, create=False)
    try:
        violations = check(collect(workspace))
    finally:
        workspace.close()
    assert not violations, "\n".join(str(one) for one in violations)

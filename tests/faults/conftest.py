"""Check the invariants on the workspace after every fault test on real Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.workspace.folder import open_workspace
from tests.checker.evidence import collect
from tests.checker.invariants import check


@pytest.fixture(autouse=True)
def invariants(own_home: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Check the invariants on the test's workspace after all its jobs have ended.

    Set up before `jobs`, so torn down after it. Scratch is not checked: some tests leave
    files that could not be stored.
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

"""Files that builds cache for later builds are removed when old, but never during a build."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from rayjobs.core.files import locked
from rayjobs.environments.cache import Cache
from rayjobs.environments.realise import Environments
from rayjobs.environments.work import Realised
from rayjobs.housekeeping import scratch
from rayjobs.housekeeping.doctor.findings import DoctorContext
from rayjobs.housekeeping.doctor.leftovers import attempts as look
from tests.support.conda_channel import VERSION, Channel
from tests.support.wheels import SlowPackage, make_project
from tests.unit.environments.conftest import Builder

pytestmark = pytest.mark.long

DAY_S = 86_400.0


def set_back(*paths: Path) -> None:
    then = time.time() - 40 * DAY_S
    for path in paths:
        os.utime(path, (then, then), follow_symlinks=False)


def plan(builder: Builder) -> scratch.ScratchPlan:
    return scratch.plan(builder.node.root.parent, older_than_s=DAY_S)


def kept(builder: Builder) -> set[str]:
    """Return the cached files of builds that a plan would remove."""
    return {item.name.split("/", 1)[1] for item in plan(builder).items if item.kind == "cache"}


def with_project(builder: Builder, project: Path, *lines: str) -> dict[str, object]:
    """Return a request with a project of the job, unpacked as an agent does."""
    digest = "sha256:" + "5" * 64
    context = Cache(builder.node.environments).source(digest)
    if not context.exists():
        context.parent.mkdir(parents=True, exist_ok=True)
        make_project(context, "own-package")
    return {"pip": [str(project), "--no-index", *lines], "sources": {str(project): digest}}


def realise(builder: Builder, request: dict[str, object]) -> Realised:
    return asyncio.run(builder.environments().realise(request, builder.wish().work))


def test_unused_conda_packages_are_removed_after_a_while(builder: Builder, tmp_path: Path) -> None:
    channel = Channel(tmp_path / "channel")
    channel.add_library("tiny-tool")
    channel.add_library("other-tool")
    channel.index()
    builder.build(conda=["tiny-tool", "other-tool"], channels=[channel.url])
    folder = Cache(builder.node.environments).conda
    packages = ["other-tool-1.0-0", f"python-{VERSION}-0", "tiny-tool-1.0-0"]
    assert kept(builder) == set()
    set_back(*folder.iterdir())
    assert kept(builder) == {f"conda/{name}" for name in packages}
    assert "build packages" in next(iter(look(DoctorContext(builder.node.root.parent, None)))).text
    # Another environment uses two of them.
    builder.build(conda=["tiny-tool"], channels=[channel.url])
    made = plan(builder)
    assert [item.name for item in made.items] == ["environments/conda/other-tool-1.0-0"]
    assert scratch.apply(made).files > 0
    assert not (folder / "other-tool-1.0-0").exists()
    assert not (folder / "other-tool-1.0-0.lock").exists()
    # The environment with the removed package is complete; a new build fetches the package again.
    assert builder.build(conda=["other-tool", "tiny-tool"], channels=[channel.url])[0].python
    assert (folder / "other-tool-1.0-0").is_dir()


def test_projects_of_jobs_stay_during_builds(builder: Builder, tmp_path: Path) -> None:
    slow = SlowPackage(tmp_path, "slowpackage")
    asked = with_project(builder, tmp_path / "elsewhere", str(slow.path))
    cache = Cache(builder.node.environments)
    (source,) = cache.sources.iterdir()

    async def prune_meanwhile() -> Realised:
        environments = Environments(builder.node.environments, builder.environments()._own_python)
        building = asyncio.ensure_future(environments.realise(asked, builder.wish().work))
        while not slow.has_begun() and not building.done():
            await asyncio.sleep(0.02)
        set_back(source)
        made = plan(builder)
        assert kept(builder) == set()
        message = f"environments/sources/{source.name}: an environment is being built"
        assert message in made.kept
        item = scratch.Leftover("cache", f"environments/sources/{source.name}", "")
        made.items.append(item)  # as if the build had started after the scan
        assert scratch.apply(made).spared == 1
        slow.let_go()
        return await building

    found = asyncio.run(prune_meanwhile())
    assert source.name in found.lock
    assert kept(builder) == {f"sources/{source.name}"}
    assert scratch.apply(plan(builder)).files > 0
    assert not source.exists()


def test_a_build_waits_for_the_moment_of_a_removal(builder: Builder) -> None:
    builder.build()
    cache = Cache(builder.node.environments)

    async def build_meanwhile() -> list[str]:
        wish = builder.wish()
        with locked(cache.builds):
            request = {"pip": [], "python": None, "constraints": ["a<1"]}
            building = asyncio.ensure_future(builder.environments().realise(request, wish.work))
            done, _ = await asyncio.wait({building}, timeout=0.3)
            assert not done
        await building
        return wish.steps

    asyncio.run(build_meanwhile())


@pytest.mark.parametrize("name", ["base/stand-ins", "programs/uv-1-1"])
def test_old_stand_ins_and_copied_programs_are_removed(builder: Builder, name: str) -> None:
    builder.build()
    context = builder.node.environments / name
    context.mkdir(parents=True)
    (context / "file").write_text("x")
    assert kept(builder) == set()
    set_back(context)
    assert kept(builder) == {name}
    scratch.apply(plan(builder))
    assert not context.exists()

"""Environments on a node, built by the real uv from wheels that the tests make."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.files import locked_if_free
from rayjobs.environments.cache import RECORD, Cache
from tests.support.wheels import make_source_archive, make_wheel
from tests.unit.environments.conftest import Builder

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    make_wheel(tmp_path / "wheels", "tiny-tool", "1.0", value="one")
    return tmp_path / "wheels"


def lines(wheels: Path, *packages: str) -> list[str]:
    return ["--no-index", f"--find-links {wheels}", *packages]


def tool_output(python: str) -> str:
    code = "import tiny_tool, sys; print(tiny_tool.VALUE, sys.prefix)"
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_pip_no_index_setting_is_honored(
    builder: Builder, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheels, "pip", "0.1")  # an index has newer ones
    monkeypatch.setenv("PIP_NO_INDEX", "true")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    found, _ = builder.build("pip", "tiny-tool")
    assert "pip==0.1" in found.lock


def test_an_environment_is_built_whole_and_found_again(builder: Builder, wheels: Path) -> None:
    first, wish = builder.build(*lines(wheels, "tiny-tool"))
    folder = builder.node.environments / first.key
    assert first.built
    assert wish.steps == ["resolve", "build", "built"]
    assert tool_output(first.python) == f"one {folder}\n"
    assert (folder / RECORD).exists()
    # Programs contain the final path of the environment, not the path where it was built.
    script = folder / "bin" / "tiny-tool-say"
    assert subprocess.run([script], check=True, capture_output=True, timeout=60).stdout == b"one\n"
    assert "tiny-tool==1.0" in first.lock
    assert "--hash=sha256:" in first.lock
    assert list((builder.node.environments / "building").iterdir()) == []
    again, other = builder.build(*lines(wheels, "tiny-tool"))
    assert not again.built
    assert (again.python, again.key) == (first.python, first.key)
    assert other.log == ""
    assert other.work.paths.environment_lock.read_text() == first.lock


def test_environments_are_distinguished_by_their_request(builder: Builder, wheels: Path) -> None:
    one, _ = builder.build(*lines(wheels, "tiny-tool"))
    make_wheel(wheels, "tiny-tool", "2.0", value="two")
    # The folder of wheels has changed, so the earlier resolution is not reused.
    two, _ = builder.build(*lines(wheels, "tiny-tool"))
    same, _ = builder.build(*lines(wheels, "tiny-tool<2"))
    assert tool_output(two.python).startswith("two ")
    assert one.key != two.key
    assert (same.key, same.built) == (one.key, False)


def test_a_wheel_that_was_replaced_under_its_name_is_installed_again(
    builder: Builder, wheels: Path
) -> None:
    wheel = make_wheel(wheels, "tiny-tool", "1.0", value="before")
    before, _ = builder.build(str(wheel))
    make_wheel(wheels, "tiny-tool", "1.0", value="after it")
    after, _ = builder.build(str(wheel))
    assert tool_output(before.python).startswith("before ")
    assert tool_output(after.python).startswith("after it ")


def test_a_retry_gets_the_packages_of_the_attempt_before(
    builder: Builder, wheels: Path, tmp_path: Path
) -> None:
    wheel = make_wheel(wheels, "tiny-tool", "1.0")
    first, _ = builder.build(str(wheel))
    elsewhere = Builder(tmp_path / "other-node")
    wish = elsewhere.wish(known_lock=first.lock)
    again, _ = elsewhere.build(str(wheel), wish=wish)
    assert again.lock == first.lock
    assert "resolve" not in wish.steps
    # The lock of another request is not used.
    wish = elsewhere.wish(known_lock=first.lock)
    other, _ = elsewhere.build(str(wheel), f"--find-links {wheels}", wish=wish)
    assert "resolve" in wish.steps
    assert other.lock != first.lock


def test_an_environment_without_packages(builder: Builder) -> None:
    found, wish = builder.build()
    assert wish.steps == ["build", "built"]
    code = "import sys; print(sys.prefix != sys.base_prefix)"
    done = subprocess.run([found.python, "-c", code], check=True, capture_output=True, timeout=60)
    assert done.stdout == b"True\n"


def test_another_interpreter_gives_another_environment(
    builder: Builder, wheels: Path, tmp_path: Path
) -> None:
    own, _ = builder.build(*lines(wheels, "tiny-tool"))
    copy = tmp_path / "venv"
    command = [sys.executable, "-m", "venv", "--without-pip", "--copies", str(copy)]
    subprocess.run(command, check=True, timeout=200)
    other, _ = builder.build(*lines(wheels, "tiny-tool"), python=str(copy))
    assert other.key != own.key
    assert other.lock == own.lock


def test_removed_interpreter_causes_a_rebuild(builder: Builder, wheels: Path) -> None:
    first, _ = builder.build(*lines(wheels, "tiny-tool"))
    Path(first.python).unlink()
    again, _ = builder.build(*lines(wheels, "tiny-tool"))
    assert again.built
    assert tool_output(again.python).startswith("one ")


def test_leftovers_of_a_dead_build_are_removed_and_never_used(
    builder: Builder, wheels: Path
) -> None:
    first, wish = builder.build(*lines(wheels, "tiny-tool"))
    shutil.rmtree(wish.work.paths.root)  # its attempt has ended, so the key is free
    cache = Cache(builder.node.environments)
    torn = cache.building / f"{first.key}-1-2"
    (torn / "venv" / "bin").mkdir(parents=True)
    half = cache.folder(first.key)
    (half / RECORD).unlink()  # as if it had been removed halfway
    again, _ = builder.build(*lines(wheels, "tiny-tool"))
    assert again.built
    assert not torn.exists()


def test_one_builds_and_the_other_waits(builder: Builder, wheels: Path) -> None:
    async def both() -> list[bool]:
        # Two agents of one node, as after an agent was lost and replaced.
        wishes = [builder.wish(), builder.wish()]
        wanted = {"pip": lines(wheels, "tiny-tool")}
        found = await asyncio.gather(
            *(builder.environments().realise(wanted, wish.work) for wish in wishes)
        )
        assert len({one.python for one in found}) == 1
        return sorted(one.built for one in found)

    assert asyncio.run(both()) == [False, True]


def test_a_stop_ends_a_wait(builder: Builder, wheels: Path) -> None:
    found, _ = builder.build(*lines(wheels, "tiny-tool"))
    cache = Cache(builder.node.environments)
    wish = builder.wish()

    async def stopped() -> None:
        with locked_if_free(cache.lock_of(found.key)) as alone:
            assert alone
            wanted = {"pip": lines(wheels, "tiny-tool")}
            waiting = asyncio.ensure_future(builder.environments().realise(wanted, wish.work))
            while "wait" not in wish.steps:
                await asyncio.sleep(0.01)
            wish.work.control.stopped.set()
            with pytest.raises(PrepareError, match="end was requested"):
                async with asyncio.timeout(60):
                    await waiting

    asyncio.run(stopped())


def test_conflicting_packages_are_refused(builder: Builder, wheels: Path) -> None:
    wish = builder.wish()
    with pytest.raises(PrepareError) as caught:
        builder.build(*lines(wheels, "tiny-tool==3"), wish=wish)
    assert caught.value.failure_class == FailureClass.ENVIRONMENT
    assert "Because" in caught.value.message
    assert "tiny-tool==3" in caught.value.message
    assert "tiny-tool==3" in " ".join(caught.value.lines)
    assert "tiny-tool==3" in wish.log


def test_unreachable_index_is_reported(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(PrepareError, match="cannot be resolved") as caught:
        builder.build("tiny-tool")
    assert caught.value.failure_class == "environment"
    assert not caught.value.is_permanent, "the index may become reachable again"
    assert "127.0.0.1:9" in "\n".join(caught.value.lines)


def test_damaged_wheel_is_reported(builder: Builder, wheels: Path) -> None:
    wheel = make_wheel(wheels, "tiny-tool", "1.0")
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(PrepareError) as caught:
        builder.build(str(wheel))
    assert caught.value.failure_class == FailureClass.ENVIRONMENT
    assert "tiny_tool-1.0-py3-none-any.whl" in caught.value.message


@pytest.mark.parametrize(
    ("python", "words"),
    [("/nowhere/python", "no Python interpreter"), (">=3.90", "no Python >=3.90 on this node")],
)
def test_missing_interpreter_is_reported(builder: Builder, python: str, words: str) -> None:
    with pytest.raises(PrepareError, match=words) as caught:
        builder.build(python=python)
    assert caught.value.failure_class == FailureClass.ENVIRONMENT


def test_invalid_or_old_interpreter_is_refused(builder: Builder, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    for text, words in (
        ("exit 3", "does not answer like a Python interpreter"),
        ('echo \'[[3, 7, 9], "CPython", "x", "linux", []]\'', "is Python 3.7.9; jobs need 3.8"),
    ):
        fake.write_text(f"#!/bin/sh\n{text}\n")
        fake.chmod(0o755)
        with pytest.raises(PrepareError, match=words):
            builder.build(python=str(fake))


def test_secret_is_passed_and_never_shown(
    builder: Builder, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["--no-index", "--find-links ${RAYJOBS_SECRET_PLACE}", "tiny-tool"]
    with pytest.raises(PrepareError, match="RAYJOBS_SECRET_PLACE, which is not set"):
        builder.build(*wanted)
    monkeypatch.setenv("RAYJOBS_SECRET_PLACE", str(wheels))
    found, _ = builder.build(*wanted)
    assert tool_output(found.python).startswith("one ")
    assert str(wheels) not in found.lock
    wish = builder.wish()
    with pytest.raises(PrepareError) as caught:
        builder.build(*wanted, "none-such", wish=wish)
    assert str(wheels) not in wish.log + caught.value.message + "".join(caught.value.lines)


def test_full_disk_is_reported(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Cache, "finish", refuse)
    with pytest.raises(PrepareError, match="No space left") as caught:
        builder.build()
    assert caught.value.failure_class == FailureClass.STORAGE
    assert list((builder.node.environments / "building").iterdir()) == []


def test_full_disk_is_reported_when_only_the_lock_is_made(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Cache, "make", refuse)
    with pytest.raises(PrepareError, match="No space left") as caught:
        asyncio.run(builder.environments().lock({"pip": ()}, builder.wish().work))
    assert caught.value.failure_class == FailureClass.STORAGE


def test_packages_are_added_to_those_of_the_target(builder: Builder, wheels: Path) -> None:
    # Neither an index nor the folder has torch, so that of the target is used.
    requested = lines(wheels, "tiny-tool", "torch>=2", "click")
    found, _ = builder.build(*requested, base="target")
    assert tool_output(found.python).startswith("one ")
    code = "import click, torch; print(click.__file__); print(torch.__file__)"
    done = subprocess.run([found.python, "-c", code], check=True, capture_output=True, timeout=100)
    assert all(path.startswith(sys.prefix) for path in done.stdout.decode().split())
    assert "# of the target: torch==" in found.lock
    assert [line for line in found.lock.splitlines() if line[:1].isalpha()] == ["tiny-tool==1.0 \\"]
    again, _ = builder.build(*requested, base="target")
    assert (again.key, again.built) == (found.key, False)
    # A package requested in another version is installed, and found first.
    make_wheel(wheels, "click", "99.0", value="newer")
    newer, _ = builder.build(*lines(wheels, "click>=99"), base="target")
    code = "import click; print(click.VALUE)"
    done = subprocess.run([newer.python, "-c", code], check=True, capture_output=True, timeout=60)
    assert done.stdout == b"newer\n"


def test_a_source_archive_is_built_with_the_targets_own_build_tools(
    builder: Builder, wheels: Path, tmp_path: Path
) -> None:
    archive = make_source_archive(tmp_path, "old-style")
    found, _ = builder.build("--no-index", str(archive), base="target")
    code = "import old_style; print(old_style.VALUE)"
    done = subprocess.run([found.python, "-c", code], check=True, capture_output=True, timeout=60)
    assert done.stdout == b"built\n"


def test_constraints_limit_versions_and_request_no_packages(builder: Builder, wheels: Path) -> None:
    make_wheel(wheels, "tiny-tool", "2.0", value="two")
    limits = ["tiny-tool<2", "never-asked-for==1"]
    found, _ = builder.build(*lines(wheels, "tiny-tool"), constraints=limits)
    assert tool_output(found.python).startswith("one ")
    free, _ = builder.build(*lines(wheels, "tiny-tool"))
    assert tool_output(free.python).startswith("two ")


def test_the_nodes_of_a_job_use_the_lock_of_the_first(
    builder: Builder, wheels: Path, tmp_path: Path
) -> None:
    published: list[str] = []
    first = builder.wish()
    first.work.publish = published.append
    found, _ = builder.build(*lines(wheels, "tiny-tool"), wish=first)
    assert published == [found.lock]
    # The other node has an older resolution of the same request, which it must not use.
    elsewhere = Builder(tmp_path / "other-node")
    other, _ = elsewhere.build(*lines(wheels, "tiny-tool"))
    newer = found.lock.replace("tiny-tool==1.0", "tiny-tool==1.0 ; python_version > '3'")
    answers = iter([None, None, newer])
    wish = elsewhere.wish()
    wish.work.first_lock = lambda: next(answers)
    same, _ = elsewhere.build(*lines(wheels, "tiny-tool"), wish=wish)
    assert wish.steps[0] == "wait"
    assert "resolve" not in wish.steps
    assert same.lock == newer != other.lock
    # The lock of a node with another Python is ignored.
    wish = elsewhere.wish()
    wish.work.first_lock = lambda: "# request: of another node\n"
    assert elsewhere.build(*lines(wheels, "tiny-tool"), wish=wish)[0].lock == newer


def test_two_nodes_of_a_job_on_one_machine_do_not_wait_for_each_other(
    builder: Builder, wheels: Path
) -> None:
    """The second node starts first, and waits for the lock that the first node makes."""
    published: list[str] = []
    first, second = builder.wish(), builder.wish()
    first.work.publish = published.append
    second.work.first_lock = lambda: published[0] if published else None
    wanted = {"pip": lines(wheels, "tiny-tool"), "python": None}

    async def both() -> list[str]:
        environments = builder.environments()
        waiting = asyncio.ensure_future(environments.realise(wanted, second.work))
        while "wait" not in second.steps:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            found = await asyncio.gather(environments.realise(wanted, first.work), waiting)
        return [one.key for one in found]

    keys = asyncio.run(both())
    assert keys[0] == keys[1]
    assert "resolve" in first.steps and "resolve" not in second.steps


def test_pre_allows_prereleases(builder: Builder, tmp_path: Path) -> None:
    for version in ("1.0", "2.0rc1"):
        make_wheel(tmp_path / "wheels", "tiny-tool", version)
    lines = ["--no-index", f"--find-links {tmp_path}/wheels", "tiny-tool"]
    final, _ = builder.build(*lines)
    early, _ = builder.build("--pre", *lines)
    assert "tiny-tool==1.0" in final.lock
    assert "tiny-tool==2.0rc1" in early.lock and "--pre" not in early.lock
    assert final.key != early.key

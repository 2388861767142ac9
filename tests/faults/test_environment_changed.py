"""A job changes its unprotected environment: it is detected, and the environment rebuilt."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.files import locked_if_free
from rayjobs.environments.cache import Cache
from rayjobs.environments.work import Realised
from tests.support.conda_channel import Channel
from tests.support.wheels import make_wheel
from tests.unit.environments.conftest import Builder

CODE = "import tiny_tool; print(tiny_tool.__file__, tiny_tool.VALUE)"


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    """A node on which jobs can write to their environments."""
    made = Builder(tmp_path / "node")
    made.is_open = True
    return made


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    make_wheel(tmp_path / "wheels", "tiny-tool", value="good")
    return ["--no-index", f"--find-links {tmp_path}/wheels", "tiny-tool"]


def module_of(found: Realised) -> tuple[Path, str]:
    """Return the file of the package in an environment, and the value that it has."""
    words = subprocess.check_output([found.python, "-c", CODE], text=True).split()
    return Path(words[0]), words[1]


def write_over(path: Path) -> None:
    """Change a file in place: all names of its inode show the new bytes."""
    with path.open("r+b") as file:
        file.write(
            b"VALUE = 'evil'\n" + b"#" * 200
        )  # of another size, which distinguishes the bytecode


def test_a_file_that_was_overwritten_is_named_and_never_used_again(
    builder: Builder, lines: list[str]
) -> None:
    first, _ = builder.build(*lines)
    module, _ = module_of(first)
    again, wish = builder.build(*lines)
    assert (again.built, wish.steps) == (False, [])
    write_over(module)
    assert module_of(first)[1] == "evil"
    second, wish = builder.build(*lines)
    assert second.built and wish.steps == ["changed", "build", "built"]
    message = {data["step"]: text for text, data in wish.messages}["changed"]
    name = module.relative_to(builder.node.environments / first.key)
    assert f"{name} was changed" in message
    # The package cache, which the build reuses, was not changed.
    assert module_of(second)[1] == "good"
    assert not list(Cache(builder.node.environments).building.iterdir())


def test_added_and_removed_files_count_but_compiled_files_do_not(
    builder: Builder, lines: list[str]
) -> None:
    found, _ = builder.build(*lines)
    module, _ = module_of(found)
    subprocess.run([found.python, "-O", "-c", "import tiny_tool"], check=True, env={})
    assert [one.name for one in module.parent.glob("__pycache__/tiny_tool*opt-1*")]
    environments = builder.environments()
    assert environments.changed_since(found.key) == ""
    (module.parent / "new.py").write_text("pip install does this")
    message = environments.changed_since(found.key)
    assert message.startswith("its environment was changed while the job ran, and is built again")
    assert message.endswith("site-packages/new.py is new")
    assert environments.changed_since(found.key) == message, "others may have run in it, too"
    again, wish = builder.build(*lines)
    assert again.built and "changed" not in wish.steps
    module_of(again)[0].unlink()
    assert environments.changed_since(again.key).endswith("tiny_tool.py is missing")


def test_other_environments_of_the_same_packages_do_not_change(
    builder: Builder, lines: list[str], tmp_path: Path
) -> None:
    make_wheel(tmp_path / "wheels", "other-tool")
    one, _ = builder.build(*lines)
    two, _ = builder.build(*lines, "other-tool")
    write_over(module_of(one)[0])
    assert module_of(two)[1] == "good"
    assert builder.environments().changed_since(two.key) == ""


def test_conda_packages_are_copies(builder: Builder, tmp_path: Path) -> None:
    channel = Channel(tmp_path / "channel")
    channel.add_library("tiny-tool", value="good")
    channel.index()
    packages: dict[str, Any] = {"conda": ["tiny-tool"], "channels": [channel.url]}
    first, _ = builder.build(**packages)
    module, _ = module_of(first)
    assert builder.build(**packages)[0].built is False
    write_over(module)
    second, wish = builder.build(**packages)
    assert second.built and "changed" in wish.steps
    assert module_of(second)[1] == "good"


def test_environment_built_as_read_only_is_rebuilt_where_jobs_can_write(
    builder: Builder, lines: list[str]
) -> None:
    """Its files may be links to the package cache, and their original state is unknown."""
    builder.is_open = False
    first, _ = builder.build(*lines)
    builder.is_open = True
    again, wish = builder.build(*lines)
    assert again.built
    assert "the original state of its files is unknown" in wish.messages[0][0]
    assert os.stat(module_of(again)[0]).st_nlink == 1
    builder.is_open = False
    assert builder.build(*lines)[0].built is False
    assert first.key != again.key, "the first attempt still uses its own"


def test_environment_about_to_be_used_is_not_discarded(builder: Builder, lines: list[str]) -> None:
    found, _ = builder.build(*lines)
    write_over(module_of(found)[0])
    with locked_if_free(Cache(builder.node.environments).lock_of(found.key)):
        assert builder.environments().changed_since(found.key) == ""
    assert builder.environments().changed_since(found.key) != ""


@pytest.mark.parametrize("of_conda", [False, True])
def test_environment_in_use_is_rebuilt_under_another_name(
    builder: Builder, lines: list[str], tmp_path: Path, *, of_conda: bool
) -> None:
    """A job imports from it later, and its data loaders start processes from it."""
    packages: dict[str, Any] = {}
    if of_conda:
        channel = Channel(tmp_path / "channel")
        channel.add_library("tiny-tool", value="good")
        channel.index()
        packages, lines = {"conda": ["tiny-tool"], "channels": [channel.url]}, []
    first, runs = builder.build(*lines, **packages)
    module, _ = module_of(first)
    inode = module.stat().st_ino
    (module.parent / "new.py").write_text("pip install does this")
    second, wish = builder.build(*lines, **packages)
    assert second.built and "changed" in wish.steps and second.key != first.key
    assert module.stat().st_ino == inode, "the first attempt still has what it began with"
    third, wish = builder.build(*lines, **packages)
    assert (third.key, third.built, wish.steps) == (second.key, False, [])
    assert builder.environments().changed_since(first.key).endswith("new.py is new")
    assert builder.environments().changed_since(second.key) == ""
    shutil.rmtree(runs.work.paths.root)
    write_over(module_of(second)[0])
    fourth, _ = builder.build(*lines, **packages)
    assert fourth.built and fourth.key == first.key, "its name is free again"
    assert module_of(second)[1] == "evil" and module_of(fourth)[1] == "good"

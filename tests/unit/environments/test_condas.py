"""Conda environments, made by the real py-rattler from a channel that the tests make."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.environments import conda_worker, condas
from rayjobs.environments.cache import RECORD, Cache
from rayjobs.environments.conda_task import CondaTask, CondaWork
from tests.support.conda_channel import VERSION, Channel
from tests.support.wheels import make_wheel
from tests.unit.environments.conftest import Builder

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Channel:
    made = Channel(tmp_path_factory.mktemp("conda") / "channel")
    made.add_library("tiny-tool")
    made.add_library("tiny-tool", "2.0", value="two")
    made.add("needs-cuda", "1.0", files={"share/a": "a"}, depends=["__cuda >=99"])
    scripted = {"share/b": "b", "bin/.scripted-post-link.sh": "touch $PREFIX/share/linked\n"}
    made.add("scripted", "1.0", files=scripted, subdir="linux-64")
    made.add("no-python", "1.0", files={"share/c": "prefix /placeholder\n"})
    return made.index()


WORKER = Path(conda_worker.__file__ or "")


def output_of(python: str, code: str) -> str:
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, timeout=60)
    return done.stdout.decode().strip()


def test_packages_of_conda_and_of_pip_in_one_environment(
    builder: Builder, channel: Channel, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "wheels", "tiny-pip", needs=["tiny-tool>=1"])
    make_wheel(tmp_path / "wheels", "tiny-tool", "1.0", value="of pip")
    lines = ["--no-index", f"--find-links {tmp_path}/wheels", "tiny-pip"]
    request: dict[str, Any] = {"conda": ["tiny-tool=1"], "channels": [channel.url]}
    found, wish = builder.build(*lines, **request)
    assert wish.steps == ["resolve", "build", "resolve", "built"]
    prefix = builder.node.environments / found.key
    code = "import sys, tiny_tool, tiny_pip; print(sys.prefix, tiny_tool.VALUE, tiny_pip.VALUE)"
    # The bytecode is complete, since jobs cannot write it; no separate process compiled it.
    assert condas.to_compile(prefix) == []
    assert "compileall" not in wish.log
    # What conda has installed is not installed again by pip.
    assert output_of(found.python, code) == f"{prefix} conda tiny"
    program = subprocess.run([prefix / "bin/tiny-tool-say"], capture_output=True, check=True)
    assert program.stdout == b"conda\n"
    assert "sha256" in condas.split(found.lock)[0]
    assert "tiny-pip==1.0" in found.lock
    again, other = builder.build(*lines, **request)
    assert (again.key, again.built, again.lock) == (found.key, False, found.lock)
    assert other.steps == []
    # Another node builds the same from the lock, regardless of the channel's content.
    elsewhere = Builder(tmp_path / "elsewhere")
    wish = elsewhere.wish(known_lock=found.lock)
    copy, wish = elsewhere.build(*lines, wish=wish, **request)
    assert (wish.steps, copy.lock) == (["build", "built"], found.lock)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (["tiny-tool >=9"], "tiny-tool >=9"),
        (["tiny-tool 3"], "missing range specifier"),
        (["needs-cuda"], "__cuda >=99"),
    ],
)
def test_unsolvable_packages_report_the_solver_message(
    builder: Builder, channel: Channel, specs: list[str], words: str
) -> None:
    with pytest.raises(PrepareError) as caught:
        builder.build(conda=specs, channels=[channel.url])
    assert words in caught.value.message
    assert caught.value.failure_class == FailureClass.ENVIRONMENT
    assert caught.value.is_permanent


def test_unreachable_channel_is_named(builder: Builder, tmp_path: Path) -> None:
    with pytest.raises(PrepareError, match=r"gone/noarch/repodata\.json") as caught:
        builder.build(conda=["tiny-tool"], channels=[f"file://{tmp_path}/gone"])
    assert caught.value.failure_class == FailureClass.ENVIRONMENT


def test_a_package_whose_bytes_have_changed_is_not_installed(
    builder: Builder, tmp_path: Path
) -> None:
    own = Channel(tmp_path / "own")
    package = own.add_library("changed")
    own.index()
    package.write_bytes(own.add_library("other").read_bytes())
    with pytest.raises(PrepareError, match="cannot be installed") as caught:
        builder.build(conda=["changed"], channels=[own.url])
    assert "changed-1.0-0.tar.bz2 has the SHA-256 hash" in caught.value.message
    assert not [one for one in builder.node.environments.iterdir() if len(one.name) == 32]


def test_link_scripts_run_where_they_are_allowed(builder: Builder, channel: Channel) -> None:
    request: dict[str, Any] = {"conda": ["scripted"], "channels": [channel.url]}
    for allowed in (False, True):
        found, _ = builder.build(**request, link_scripts=allowed)
        assert (Path(found.python).parents[1] / "share/linked").exists() is allowed


def test_partial_prefix_is_recreated(builder: Builder, channel: Channel) -> None:
    asked: dict[str, Any] = {"conda": ["tiny-tool"], "channels": [channel.url]}
    first, of_first = builder.build(**asked)
    shutil.rmtree(of_first.work.paths.root)  # no attempt uses it any more
    folder = Cache(builder.node.environments).folder(first.key)
    (folder / RECORD).unlink()  # a build writes the record last
    (folder / "bin" / "python").unlink()
    half = folder / "lib" / "half-copied.py"
    half.write_text("x = ")
    again, _ = builder.build(**asked)
    assert (again.key, again.built) == (first.key, True)
    assert not half.exists()
    assert output_of(again.python, "import tiny_tool; print(tiny_tool.VALUE)") == "two"


def test_result_of_a_worker_that_crashed_afterwards_is_used(
    builder: Builder, channel: Channel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crashing = tmp_path / "worker.py"
    text = WORKER.read_text()
    assert "os._exit(code)" in text
    crashing.write_text(text.replace("os._exit(code)", "os.abort()"))
    monkeypatch.setattr(conda_worker, "__file__", str(crashing))
    found, _ = builder.build(conda=["tiny-tool"], channels=[channel.url])
    assert output_of(found.python, "import tiny_tool; print(tiny_tool.VALUE)") == "two"


COMMAND = """#!/bin/sh
# Stands in for micromamba: logs its arguments and copies an existing prefix.
echo "$@" >> {log}
cat "${{6:-/dev/null}}" >> {log}
cp -a {prefix} "$4"
mkdir -p "$4/conda-meta"
echo '{{"url": "file:///c/tiny-1.0-0.conda", "md5": "00"}}' > "$4/conda-meta/tiny.json"
"""


def test_conda_program_of_the_node_creates_the_environment(
    builder: Builder, channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request: dict[str, Any] = {
        "conda": ["tiny-tool"],
        "channels": [channel.url],
        "conda_command": "micromamba",
    }
    made, _ = builder.build(conda=["tiny-tool"], channels=[channel.url])
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(PrepareError, match="no program 'micromamba'"):
        builder.build(**request)
    log = tmp_path / "log"
    program = tmp_path / "micromamba"
    program.write_text(COMMAND.format(log=log, prefix=Path(made.python).parents[1]))
    program.chmod(0o755)
    found, _ = builder.build(**request)
    assert output_of(found.python, "import tiny_tool; print(tiny_tool.VALUE)") == "two"
    assert "create --yes --prefix" in log.read_text()
    assert "tiny-tool" in log.read_text()
    explicit = condas.split(found.lock)[0].splitlines()
    assert (explicit[0], explicit[-1]) == ("@EXPLICIT", "file:///c/tiny-1.0-0.conda#00")
    assert not builder.build(**request)[0].built
    # A retry on another node installs the packages of the first attempt.
    elsewhere = Builder(tmp_path / "elsewhere")
    log.unlink()
    elsewhere.build(wish=elsewhere.wish(known_lock=found.lock), **request)
    assert "tiny-1.0-0.conda#00" in log.read_text()


def test_without_py_rattler_the_remedy_is_named(
    builder: Builder, channel: Channel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    absent = tmp_path / "worker.py"
    text = WORKER.read_text()
    absent.write_text(
        f"import sys\nsys.modules['rattler'] = None\n{text}".replace(
            "from __future__ import annotations\n", ""
        )
    )
    monkeypatch.setattr(conda_worker, "__file__", str(absent))
    with pytest.raises(PrepareError, match=r"rayjobs\[conda\]") as caught:
        builder.build(conda=["tiny-tool"], channels=[channel.url])
    assert caught.value.is_permanent


def test_the_words_of_another_failure_do_not_ask_for_py_rattler(
    builder: Builder, channel: Channel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only the worker's exit code says that py-rattler is missing."""
    failing = tmp_path / "worker.py"
    failing.write_text("print('error: py-rattler is not installed')\nraise SystemExit(1)\n")
    monkeypatch.setattr(conda_worker, "__file__", str(failing))
    with pytest.raises(PrepareError, match="cannot be solved: py-rattler is not") as caught:
        builder.build(conda=["tiny-tool"], channels=[channel.url])
    assert not caught.value.is_permanent


def test_worker_finds_rayjobs_that_is_not_installed_in_its_interpreter(tmp_path: Path) -> None:
    """With -I it ignores PYTHONPATH, by which its agent may have found rayjobs."""
    done = tmp_path / "done"
    task = CondaTask(CondaWork.FETCH, "none", str(tmp_path), str(done), stall_s=1.0, index_s=1.0)
    (tmp_path / "task.json").write_text(json.dumps(task.to_json()))
    words = [sys.executable, "-I", "-S", str(WORKER), str(tmp_path / "task.json")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    # Without site packages there is no py-rattler either.
    assert (ended.returncode, done.exists()) == (conda_worker.NOT_INSTALLED, False), ended.stderr


def test_requested_python_is_used() -> None:
    common = {"conda": ["a"], "channels": ["c"]}
    for python, spec in (
        (None, "python 3.11.*"),
        ("3.10", "python 3.10.*"),
        (">=3.9", "python >=3.9"),
    ):
        assert condas.asked_of({**common, "python": python}, (3, 11, 7)).specs == (spec, "a")
    assert condas.asked_of({**common, "python": VERSION}, (3, 11)).specs[0] == f"python =={VERSION}"
    assert json.dumps(condas.joined("a\nb\n")) == json.dumps("# conda | a\n# conda | b\n")
    assert shutil.which("sh")

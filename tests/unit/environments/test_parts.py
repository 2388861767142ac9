"""The parts of a build: settings of the node, failure messages, removal of unused files."""

from __future__ import annotations

import asyncio
import compileall
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.files import locked_if_free
from rayjobs.environments import building, condas, interpreter, settings
from rayjobs.environments.cache import RECORD, Cache
from rayjobs.housekeeping import scratch
from rayjobs.housekeeping.doctor.capabilities import packages
from rayjobs.housekeeping.doctor.findings import DoctorContext, Level
from rayjobs.housekeeping.doctor.leftovers import built_environments as look
from rayjobs.injob.identity import stat_of
from rayjobs.node.warm import stamp
from tests.support.jobs import until
from tests.unit.environments.conftest import Builder

DAY_S = 86_400.0


# -- settings of the node --------------------------------------------------------------------------


def pip_conf(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_settings_of_pip_are_those_of_the_build(tmp_path: Path) -> None:
    user = pip_conf(
        tmp_path / ".config" / "pip" / "pip.conf",
        "[global]\nindex-url = https://host/simple\nfind-links =\n  /wheels\n  /more\n"
        "[install]\nextra-index-url = https://a/simple https://b/simple\n",
    )
    environment = {"HOME": str(tmp_path), "PATH": "/bin", "XDG_CONFIG_DIRS": "/nowhere"}
    assert user in settings.pip_files(environment)
    found = settings.variables(environment, pip_files=[user])
    assert found["UV_DEFAULT_INDEX"] == "https://host/simple"
    assert found["UV_INDEX"] == "https://a/simple https://b/simple"
    assert found["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert found["UV_FIND_LINKS"] == "/wheels,/more"
    assert found["UV_PYTHON_DOWNLOADS"] == "never"


def test_later_files_and_variables_of_pip_win(tmp_path: Path) -> None:
    one = pip_conf(tmp_path / "one", "[global]\nindex-url = https://one/\nno-index = false\n")
    two = pip_conf(tmp_path / "two", "[global]\nindex-url = https://two/\n")
    broken = pip_conf(tmp_path / "three", "index-url = no section\n")
    environment = {"HOME": str(tmp_path), "PIP_CERT": "/cert.pem", "XDG_CONFIG_DIRS": "/nowhere"}
    found = settings.of_pip(environment, [one, two, broken])
    assert found == {"UV_DEFAULT_INDEX": "https://two/", "SSL_CERT_FILE": "/cert.pem"}
    named = {"PIP_CONFIG_FILE": os.devnull, "HOME": str(tmp_path)}
    assert settings.pip_files(named) == []


def test_settings_of_uv_win_over_those_of_pip(tmp_path: Path) -> None:
    file = pip_conf(tmp_path / "pip.conf", "[global]\nindex-url = https://pip/\n")
    environment = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": "/nowhere"}
    own = {**environment, "UV_INDEX_URL": "https://uv/", "UV_SYSTEM_PYTHON": "1"}
    found = settings.variables(own, pip_files=[file])
    assert found["UV_INDEX_URL"] == "https://uv/"
    assert "UV_DEFAULT_INDEX" not in found
    assert "UV_SYSTEM_PYTHON" not in found
    pip_conf(tmp_path / ".config" / "uv" / "uv.toml", "")
    assert "UV_DEFAULT_INDEX" not in settings.variables(environment, pip_files=[file])


def test_a_build_sees_no_credential_by_accident(tmp_path: Path) -> None:
    environment = {
        "HOME": str(tmp_path),
        "AWS_SECRET_ACCESS_KEY": "x",
        "RAY_AUTH_TOKEN_PATH": "x",
        "RAYJOBS_SECRET_A": "a",
        "RAYJOBS_SECRET_B": "b",
        "https_proxy": "http://proxy",
        "CFLAGS": "-O1",
    }
    found = settings.variables(environment, secrets=["RAYJOBS_SECRET_A"])
    assert found["RAYJOBS_SECRET_A"] == "a"
    assert (found["https_proxy"], found["CFLAGS"]) == ("http://proxy", "-O1")
    assert not {"AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN_PATH", "RAYJOBS_SECRET_B"} & {*found}


def test_missing_uv_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PrepareError, match="pip install uv") as caught:
        settings.find_uv()
    assert caught.value.failure_class == FailureClass.ENVIRONMENT
    (finding,) = packages(DoctorContext(tmp_path, None))
    assert finding.level is Level.WARN and "pip install uv" in finding.remedy


def test_versions_of_pyenv_are_found_next_to_its_shims(tmp_path: Path) -> None:
    root = tmp_path / ".pyenv"
    (root / "versions" / "3.9.1" / "bin").mkdir(parents=True)
    environment = {"HOME": str(tmp_path), "PATH": f"{root}/shims:/usr/bin"}
    assert settings.search_path(environment) == f"/usr/bin:{root}/versions/3.9.1/bin"


# -- what a rank sees ------------------------------------------------------------------------------


def test_programs_of_an_environment_come_first(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").touch()
    python = str(tmp_path / "bin" / "python")
    found = interpreter.variables(python, {"PATH": "/usr/bin", "A": "1"})
    assert found == {"PATH": f"{tmp_path}/bin:/usr/bin", "A": "1", "VIRTUAL_ENV": str(tmp_path)}
    assert interpreter.variables(python, found) == found
    own = str(Path(sys.executable).parent)
    assert interpreter.variables(sys.executable, {"PATH": "/x"}) == {"PATH": f"{own}:/x"}


# -- failure messages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ["Resolving", "error: No solution found when resolving", "  cause: Because a and b."],
            "Because a and b",
        ),
        (
            ["error: Failed to read x", "  cause: Bad size", "  cause: torn"],
            "Failed to read x: torn",
        ),
        (
            [
                "error: Request failed after 3 retries in 4.7s",
                "  cause: Failed to fetch: http://127.0.0.1:9/simple/tqdm/",
                "  cause: tcp connect error",
                "  cause: Connection refused (os error 111)",
            ],
            "Failed to fetch: http://127.0.0.1:9/simple/tqdm/: Connection refused (os error 111)",
        ),
        (["  × No solution", "  ╰─▶ Because a."], "No solution Because a"),
        (["nothing", "known"], "nothing known"),
        ([], ""),
    ],
)
def test_relevant_log_lines_become_a_message(lines: list[str], words: str) -> None:
    assert building.sentence(building.matter(lines)) == words


@pytest.mark.parametrize(
    ("code", "lines", "failure_class"),
    [
        (1, ["error: wrong"], FailureClass.ENVIRONMENT),
        (2, ["error: x", "  cause: No space left on device (os error 28)"], FailureClass.STORAGE),
        (-9, [], FailureClass.SYSTEM),
        (127, [], FailureClass.ENVIRONMENT),
    ],
)
def test_failure_class_of_a_failed_build(
    code: int, lines: list[str], failure_class: FailureClass
) -> None:
    error = building._failed(code, lines, "the packages cannot be installed")
    assert error.failure_class == failure_class
    assert error.message.startswith("the packages cannot be installed: ")


def test_a_log_has_no_password(tmp_path: Path) -> None:
    log = building.BuildLog(tmp_path / "log", ["hunter2"])
    log.write("fetching https://robot:abc@host/x and hunter2\n")
    log.close()
    assert (tmp_path / "log").read_text() == "fetching https://****@host/x and ****\n"


@pytest.mark.parametrize(
    "output",
    ["print('No space left on device')", "print('x\\n' * 400_000 + 'No space left on device')"],
)
def test_log_on_a_full_disk_does_not_hide_the_failure_of_a_build(
    tmp_path: Path, output: str
) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    log = building.BuildLog(tmp_path / "log")
    words = [sys.executable, "-c", f"{output}; exit(1)"]

    async def run() -> None:
        await asyncio.wait_for(
            building.run(
                words,
                env={},
                cwd=tmp_path,
                build_log=log,
                control=building.Control("marker"),
                doing="the packages cannot be installed",
                shown="",
            ),
            30,
        )

    with pytest.raises(PrepareError) as caught:
        asyncio.run(run())
    assert caught.value.failure_class is FailureClass.STORAGE
    log.close()


@pytest.mark.parametrize("by", ["setpriv", "an interpreter"])
@pytest.mark.long
def test_a_build_ends_with_the_process_that_started_it(by: str) -> None:
    """The agent is killed: the kernel ends its child processes."""
    without = "building._setpriv = lambda: None\n" if by == "an interpreter" else ""
    parent = (
        "import subprocess, time\n"
        f"from rayjobs.environments import building\n{without}"
        "words = building.tied_to_this_process(['/bin/sleep', '1000'])\n"
        "child = subprocess.Popen(words)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    command = Path(f"/proc/{child}/cmdline")
    try:
        until(lambda: command.read_bytes().startswith(b"/bin/sleep"), "it becomes the program")
        process.kill()
        process.wait()
        process.stdout.close()
        until(lambda: is_dead(child), "it ends with who asked for it", deadline_s=20)
    finally:
        if not is_dead(child):
            os.kill(child, signal.SIGKILL)


def is_dead(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is None or stat.is_dead


# -- unused files ---------------------------------------------------------------------------------


def set_back(path: Path) -> None:
    then = time.time() - 2 * DAY_S
    os.utime(path, (then, then))


def plan(home: Path) -> scratch.ScratchPlan:
    return scratch.plan(home, older_than_s=DAY_S)


@pytest.mark.long
def test_unused_environment_is_removed_after_a_while(builder: Builder) -> None:
    home = builder.node.root.parent
    found, wish = builder.build()
    cache = Cache(builder.node.environments)
    name = f"environments/{found.key}"
    assert plan(home).items == []  # just used
    set_back(cache.folder(found.key) / RECORD)
    made = plan(home)
    assert made.items == []
    assert made.kept == [f"{name}: job1/a1 uses it"]
    wish.work.paths.environment.unlink()
    made = plan(home)
    assert [(item.kind, item.name) for item in made.items] == [("environment", name)]
    assert made.bytes > 0
    (finding,) = look(DoctorContext(home, None))
    assert finding.data["environments"] == 1
    with locked_if_free(cache.lock_of(found.key)):
        assert scratch.apply(made).spared == 1
        assert cache.is_whole(found.key)
    builder.build()  # used again, after the scan
    wish_folder = builder.node.root / "attempts" / "job2" / "a1"
    (wish_folder / "environment.json").unlink()
    assert scratch.apply(made).spared == 1
    assert cache.is_whole(found.key)
    set_back(cache.folder(found.key) / RECORD)
    assert scratch.apply(plan(home)).files > 0
    assert not cache.folder(found.key).exists()
    again, _ = builder.build()
    assert again.built


@pytest.mark.long
def test_leftovers_of_dead_builds_are_removed_and_running_builds_stay(builder: Builder) -> None:
    home = builder.node.root.parent
    found, _ = builder.build()
    cache = Cache(builder.node.environments)
    torn = cache.building / f"{found.key}-1-2"
    torn.mkdir()
    (torn / "file").write_text("half")
    set_back(torn)
    with locked_if_free(cache.lock_of(found.key)):
        assert plan(home).kept == [f"environments/building/{torn.name}: it is being built"]
    made = plan(home)
    assert [item.why for item in made.items] == ["its build has died"]
    scratch.apply(made)
    assert not torn.exists()
    assert cache.is_whole(found.key)


@pytest.mark.long
def test_old_resolutions_are_removed(builder: Builder) -> None:
    home = builder.node.root.parent
    builder.build()
    cache = Cache(builder.node.environments)
    (resolved,) = cache.requests.iterdir()
    set_back(resolved)
    made = plan(home)
    assert [item.name for item in made.items] == [f"environments/requests/{resolved.name}"]
    scratch.apply(made)
    assert not resolved.exists()


def test_an_environment_whose_packages_change_is_another_for_warm_interpreters(
    tmp_path: Path,
) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    python = str(tmp_path / "bin" / "python")
    os.utime(packages, (1, 1))
    before = stamp(python)
    assert stamp(python) == before
    (packages / "numpy-2.dist-info").mkdir()
    assert stamp(python) != before
    assert stamp(sys.executable)


def test_conda_packages_with_bytecode_are_not_compiled(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "tiny"
    package.mkdir(parents=True)
    assert condas.to_compile(tmp_path) == []
    (package / "__init__.py").touch()
    assert condas.to_compile(tmp_path) == [str(package.parent)]
    compileall.compile_dir(package, quiet=2)
    assert condas.to_compile(tmp_path) == []
    (package / "more.py").touch()
    assert condas.to_compile(tmp_path) == [str(package.parent)]


def test_configured_folders_are_used_in_addition_to_an_index() -> None:
    environment = {
        "UV_DEFAULT_INDEX": "file:///srv/pypi/simple",
        "UV_INDEX": "own=file:///srv/own/simple/ https://host/simple",
        "UV_FIND_LINKS": "/wheels,file:///more,https://host/links",
        "SSL_CERT_FILE": "/etc/cert.pem",
    }
    expected = ["/srv/pypi", "/srv/own", "/wheels", "/more"]
    assert settings.local_folders(environment) == [Path(one) for one in expected]

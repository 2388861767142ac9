"""What every test gets: a clean environment, own folders with short paths, a check for leftovers.

The run has one root folder with a short name (a Unix socket's path may have 107 bytes). Everything
a test makes lives below it, so a process that mentions the root in its environment, command line or
working directory was started by this run; at the end there must be none.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.jobs import jobs  # noqa: F401
from tests.support.local_target import (  # fixtures of all tests, and what cleans up after them
    local_target,  # noqa: F401
    remove_runtime_folder,
    shared_head,  # noqa: F401
)
from tests.support.raylets import pool_jobs, raylets, shared_raylets  # noqa: F401

WIPED_PREFIXES = ("RAYJOBS_", "RAY_", "AWS_", "AZUREML_", "XDG_", "OMPI_", "HOROVOD_")
WIPED_NAMES = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "RANK", "WORLD_SIZE", "LOCAL_RANK")
GROUPS = ("ray", "storage")  # markers whose tests share one server, hence one xdist worker
LEFTOVER_DEADLINE_S = float(os.environ.get("TEST_LEFTOVER_DEADLINE_S", "60"))
SERVER_TEST_TIMEOUT_S = 600

settings.register_profile(
    "rayjobs",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("rayjobs")

# A shell that starts this run in the background, or nohup, lets it ignore these signals, and so
# would every process that a test starts, those included that are to be interrupted.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

_session_root: Path | None = None


# --- the run's root and environment --------------------------------------------------------------


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _clean_environment(root: Path) -> None:
    """Forget the caller's settings and point everything that has a default folder below `root`."""
    for name in list(os.environ):
        if name.startswith(WIPED_PREFIXES) or name in WIPED_NAMES:
            del os.environ[name]
    os.environ.update(
        {
            "RAYJOBS_HOME": str(root / "s"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "AWS_CONFIG_FILE": str(root / "no-aws-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(root / "no-aws-credentials"),
            "AWS_EC2_METADATA_DISABLED": "true",
            "XDG_CONFIG_HOME": str(root / "x" / "config"),
            "XDG_DATA_HOME": str(root / "x" / "data"),
            "XDG_STATE_HOME": str(root / "x" / "state"),
        }
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    global _session_root
    if _is_worker(config):
        _session_root = Path(config.workerinput["rayjobs_root"])  # type: ignore[attr-defined]
    else:
        # The system's /tmp whatever TMPDIR says: a long TMPDIR would break every socket path.
        folder = os.environ.get("TEST_FOLDER", "/tmp")
        _session_root = Path(tempfile.mkdtemp(prefix="rj-", dir=folder))
        if config.option.basetemp is None:
            config.option.basetemp = str(_session_root / "t")
    _clean_environment(_session_root)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """A hook of pytest-xdist: the workers learn the run's root from the one who made it."""
    node.workerinput["rayjobs_root"] = str(_session_root)  # type: ignore[attr-defined]


# --- one server, one worker ----------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a server run in one worker, the longest group first."""
    for item in items:
        for group in GROUPS:
            if item.get_closest_marker(group) and not item.get_closest_marker("xdist_group"):
                item.add_marker(pytest.mark.xdist_group(group))
                break
        group_of_item = item.get_closest_marker("xdist_group")
        if "shared_head" in getattr(item, "fixturenames", ()) and (
            group_of_item is None or group_of_item.args != ("ray",)
        ):
            # The worker that ends first would stop the target of the other one.
            raise pytest.UsageError(f"{item.nodeid} uses `shared_head`: its group must be `ray`")
        # The first of these tests waits for the server, which a busy machine makes slow.
        is_grouped = any(item.get_closest_marker(group) for group in GROUPS)
        if is_grouped and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SERVER_TEST_TIMEOUT_S))
    items.sort(key=lambda item: not item.get_closest_marker("ray"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Stop rather than start a Ray per worker: some pytest and xdist pairs part groups silently."""
    if not _is_worker(session.config) or session.config.getvalue("dist") != "loadgroup":
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError(
                f"{item.nodeid} belongs to a group, but pytest-xdist does not keep it together. "
                "Install the versions of requirements/dev.txt (make setup)."
            )


# --- folders -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def session_root() -> Path:
    """The run's folder, short enough for sockets several folders below it (`/tmp/rj-xxxxxxxx`)."""
    assert _session_root is not None
    return _session_root


_serial = itertools.count()


@pytest.fixture
def short_path(session_root: Path) -> Path:
    """A new folder of this test with a short path; `tmp_path` is its longer, speaking sister."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw").removeprefix("gw")
    folder = session_root / f"{worker}-{next(_serial)}"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def own_home(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """RAYJOBS_HOME, RAYJOBS_WORKSPACE, DATASTORE_CACHE of this test alone; what holds them."""
    monkeypatch.setenv("RAYJOBS_HOME", str(short_path / "h"))
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(short_path / "w"))
    monkeypatch.setenv("DATASTORE_CACHE", str(short_path / "d"))
    yield short_path
    remove_runtime_folder(short_path / "h")


# --- nothing stays -------------------------------------------------------------------------------


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it ended while we looked, or it is not ours to look at


def _ancestors() -> set[int]:
    found, pid = set(), os.getpid()
    while pid > 0:
        found.add(pid)
        stat = _read(Path(f"/proc/{pid}/stat"))
        if not stat:
            break
        pid = int(stat.rpartition(b")")[2].split()[1])
    return found


def _processes_below(root: Path) -> Iterator[tuple[int, str]]:
    """(pid, command line) of processes that mention `root`; zombies show nothing any more."""
    wanted, own = os.fsencode(root), _ancestors()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        command = _read(entry / "cmdline")
        try:
            folder = os.fsencode(os.readlink(entry / "cwd"))
        except OSError:
            folder = b""
        if wanted in command or wanted in folder or wanted in _read(entry / "environ"):
            text = command.replace(b"\0", b" ").decode(errors="replace").strip()
            yield int(entry.name), text or _read(entry / "comm").decode(errors="replace").strip()


def _end_leftovers(root: Path) -> dict[int, str]:
    """Wait for processes that are on their way out, end the rest by pid; what had to be ended."""
    deadline = time.monotonic() + LEFTOVER_DEADLINE_S
    while (left := dict(_processes_below(root))) and time.monotonic() < deadline:
        time.sleep(0.1)
    named = dict(left)
    deadline = time.monotonic() + LEFTOVER_DEADLINE_S
    while left and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
        left = dict(_processes_below(root))
        named.update(left)
    return named


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if _is_worker(session.config) or _session_root is None:
        return
    leftovers = _end_leftovers(_session_root)
    if leftovers:
        listing = "\n".join(f"  {pid}: {command[:300]}" for pid, command in leftovers.items())
        report = pytest.TestReport(
            nodeid="the whole run",
            location=("tests", None, "the whole run"),
            keywords={},
            outcome="failed",
            longrepr=f"these processes were left by the tests, and had to be ended:\n{listing}",
            when="teardown",
        )
        session.config.hook.pytest_runtest_logreport(report=report)
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        shutil.rmtree(_session_root, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _session_root is not None and _session_root.exists():
        terminalreporter.write_line(f"the files of this run are kept in {_session_root}")

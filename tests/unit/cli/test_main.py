"""The command line as a whole: help, suggestions, errors, what it imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rayjobs.cli import reporting
from rayjobs.cli.guesses import COMMANDS
from rayjobs.cli.main import ALIASES, SECTIONS, main
from rayjobs.cli.reporting import causes, invoke
from rayjobs.cli.settings import Settings, common_options
from rayjobs.core.errors import NotFoundError, TargetError
from tests.unit.cli.conftest import Queue, Terminal, leaves

HEAVY = (
    *("ray", "torch", "pandas", "pyarrow", "alembic", "rich", "sqlalchemy", "numpy", "asyncio"),
    *("http.client", "ssl"),
)


def rayjobs(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "rayjobs", *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.parametrize("words", list(leaves()), ids=" ".join)
def test_every_command_explains_itself_by_an_example(
    words: tuple[str, ...], terminal: Terminal
) -> None:
    for flag in ("-h", "--help"):
        done = terminal.type(*words, flag)
        assert done.code == 0
        assert f"Usage: rayjobs {' '.join(words)}" in done.out
        assert "Example" in done.out
        assert f"  rayjobs {' '.join(words)}" in done.out.partition("Example")[2] or (
            f"rayjobs {words[0]}" in done.out.partition("Example")[2]
        )


def test_the_help_lists_every_command_once(terminal: Terminal) -> None:
    for shown in (terminal.type("-h").out, terminal.type("--help").out):
        for section in SECTIONS.values():
            for name in section:
                assert shown.count(f"\n  {name} ") == 1


def test_every_alias_leads_to_a_command() -> None:
    context = click.Context(main)
    for alias, name in ALIASES.items():
        assert main.get_command(context, alias) is main.get_command(context, name)


def test_no_command_has_a_name_that_stands_for_another() -> None:
    assert not {*COMMANDS} & {*main.list_commands(click.Context(main)), *ALIASES}


def test_the_version_is_the_packages(terminal: Terminal) -> None:
    import rayjobs as package

    assert terminal.type("--version").out == f"rayjobs {package.__version__}\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("sumbit",), "did you mean submit?"),
        (("train.py",), "did you mean `rayjobs submit train.py`?"),
        (("cancle", "1"), "did you mean cancel?"),
        (("zzz",), "there is no command 'zzz'. Commands: submit, ls, show,"),
        (("target", "lst"), "there is no command 'target lst'; did you mean"),
        (("target", "status"), "there is no command 'target status'; did you mean show?"),
        (("data", "upload"), "there is no command 'data upload'; did you mean put?"),
        (("sweep", "zzz"), "there is no command 'sweep zzz'. Commands: "),
        (("run", "train.py"), "there is no command 'run'; use: rayjobs submit SCRIPT"),
        (("attach", "1"), "use: rayjobs logs -f JOB"),
        (("status",), "Missing argument 'JOB'. `rayjobs ls` lists jobs."),
        (("submit", "--gpus", "1", "t.py"), "no option '--gpus'. Did you mean --gpus-per-proc?"),
        (("submit", "--epochs", "3"), "no option '--epochs'. Put arguments of the script after"),
        (("submit", "--lr", "3"), "no option '--lr'. Put arguments of the script after `--`"),
        (("submit", "--procs_per_node", "3"), "Did you mean --procs-per-node?"),
        (("ls", "--experimnt", "x"), "--experiment"),
    ],
)
def test_misspelled_command_gets_a_suggestion(
    typed: tuple[str, ...], meant: str, terminal: Terminal
) -> None:
    done = terminal.type(*typed)
    assert done.code == 2
    assert meant in done.err
    assert "-h`" in done.err
    assert done.out == ""


@pytest.mark.parametrize("typed", [(), ("target",), ("sweep",)])
def test_a_group_without_a_command_prints_its_help(
    typed: tuple[str, ...], terminal: Terminal
) -> None:
    done = terminal.type(*typed)
    assert done.code == 2
    assert done.err.startswith("Usage: ")
    assert "error:" not in done.err
    assert done.out == ""


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ("-h",),
        ("submit", "-h"),
        ("ls",),
        ("logs", "mnist"),
        ("show", "mnist"),
        ("metrics", "mnist"),
        ("events", "mnist"),
        ("cancel", "mnist"),
        ("wait", "mnist"),
        ("target", "ls"),
        ("submit", "--dry-run", "train.py"),
    ],
    ids=" ".join,
)
def test_everyday_commands_import_nothing_heavy(
    arguments: tuple[str, ...], queue: Queue, tmp_path: Path
) -> None:
    queue.completed()
    (tmp_path / "train.py").write_text("print(1)\n")
    code = (
        "import sys\n"
        "from rayjobs.cli.main import run\n"
        "code = run(sys.argv[1:])\n"
        f"print(code, *[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        cwd=tmp_path,
        timeout=180,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == "0"


# -- errors ------------------------------------------------------------------------------------


@click.group()
def group() -> None:
    """Commands that fail."""


@group.command()
@common_options
def causal() -> None:
    """Fail for a reason that has its own cause."""
    try:
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise TargetError("the target cannot start") from error
    except TargetError as error:
        raise NotFoundError("no job") from error


@group.command()
@common_options
def faulty() -> None:
    """Fail by an internal error."""
    raise ZeroDivisionError("oh")


@group.command()
def interrupted() -> None:
    """Be interrupted."""
    raise KeyboardInterrupt


def test_an_error_prints_its_causes_outermost_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(group, ["causal"]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "error: no job",
        "  caused by: the target cannot start",
        "  caused by: [Errno 28] No space left on device",
    ]


def test_a_cause_that_was_reported_is_not_reported_again() -> None:
    inner = OSError("disk")
    outer = TargetError("cannot write: disk")
    outer.__cause__ = inner
    assert causes(outer) == ["cannot write: disk"]


@pytest.mark.parametrize("name", ["causal", "faulty"])
def test_traceback_is_shown_only_on_request(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    invoke(group, [name])
    assert "Traceback" not in capsys.readouterr().err
    invoke(group, [name, "-v"])
    assert "Traceback" in capsys.readouterr().err


def test_internal_error_is_reported_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(group, ["faulty"]) == 1
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: oh" in shown
    assert "-v" in shown


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(group, ["interrupted"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.long
def test_closed_pipe_is_not_an_error(queue: Queue) -> None:
    job = queue.start(queue.submit())
    queue.store_file(job, "azureml-logs/70_driver_log.txt", b"line\n" * 400_000)
    queue.finish(job)
    with subprocess.Popen(
        [sys.executable, "-m", "rayjobs", "logs", job.id],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(150) == 141


@pytest.mark.long
def test_a_full_disk_behind_stdout_is_reported(queue: Queue) -> None:
    queue.completed()
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rayjobs", "ls"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=180,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr


@pytest.mark.long
def test_ctrl_c_ends_a_wait_with_130(queue: Queue) -> None:
    job = queue.submit()
    with subprocess.Popen(
        [sys.executable, "-m", "rayjobs", "wait", job.id], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "Queued\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(150) == 130
        assert "Traceback" not in process.stderr.read()
    assert str(queue.workspace.store.job(job.id).state) == "Queued"


def test_exit_handlers_run_before_the_fast_exit(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = (
        "import atexit, pathlib, rayjobs.__main__ as program\n"
        f"atexit.register(pathlib.Path({str(mark)!r}).touch)\n"
        "print('said')\n"
        "program.leave(7)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stdout, mark.exists()) == (7, "said\n", True)


@pytest.mark.long
def test_running_threads_are_waited_for(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = (
        "import pathlib, threading, rayjobs.__main__ as program\n"
        "go = threading.Event()\n"
        f"work = lambda: (go.wait(), pathlib.Path({str(mark)!r}).touch())\n"
        "threading.Thread(target=work).start()\n"
        "threading.Timer(0.2, go.set).start()\n"
        "program.leave(5)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=180, check=False)
    assert (done.returncode, mark.exists()) == (5, True)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("NO_COLOR", "")])
def test_colours_are_used_only_on_terminals_that_support_them(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert Settings().colours() is (value == "")
    assert Settings(no_color=True).colours() is False


@pytest.mark.long
def test_reporting_needs_no_terminal() -> None:
    done = rayjobs("show", "nothing")
    assert done.returncode == 3
    assert done.stdout == ""
    assert "no workspace" in done.stderr
    assert os.linesep.join(reporting.causes(ValueError("x"))) == "x"


def test_a_removed_current_directory_is_one_clear_error(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.delenv("RAYJOBS_WORKSPACE", raising=False)
    gone.rmdir()
    done = terminal.type("ls")
    monkeypatch.chdir(tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: the current directory no longer exists")
    assert "-v" not in done.err

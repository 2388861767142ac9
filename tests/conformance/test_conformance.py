"""The same script run as `python script.py`, by a cold host and by a warm one, prints the same."""

from __future__ import annotations

import difflib
import json
import re
import signal
from pathlib import Path

import pytest

from tests.conformance.hosts import PACKAGE_HOME, Attempt, namespaces_work, torch_warm, warm

__all__ = ["torch_warm", "warm"]

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(600)]
SCRIPTS = Path(__file__).parent / "scripts"
# Processes cannot detect a cgroup or their host; they can detect a namespace.
WAYS = ("cold", "warm", *(("cold namespace", "warm namespace") if namespaces_work() else ()))


def run(way: str, attempt: Attempt, socket: str) -> tuple[int, bytes]:
    """Run an attempt; return its return code, as `subprocess` gives it, and its output."""
    for name in ("log/driver_0.log", "exit.json", "host.json"):
        (attempt.root / name).unlink(missing_ok=True)  # of the previous way
    attempt.plan["containment"] = ["namespace"] if "namespace" in way else ["cgroup", "scan"]
    attempt.start_cold() if "cold" in way else attempt.start(socket)
    record = attempt.wait()
    assert (record["tree"] == "namespace") == ("namespace" in way), way
    rank = record["ranks"][0]
    assert record["leftovers"]["proven_dead"]
    assert (record["outcome"] == "completed") == (rank["exit_code"] == 0), record
    code = rank["exit_code"] if rank["signal"] is None else -rank["signal"]
    return code, attempt.log()


def difference(expected: bytes, found: bytes) -> list[str]:
    """Return the lines in which two outputs differ."""
    before, after = (text.decode("utf-8", "replace").splitlines() for text in (expected, found))
    differing = difflib.unified_diff(before, after, "python", "rayjobs", lineterm="", n=1)
    return list(differing) or ([] if expected == found else [repr(expected), repr(found)])


def report(way: str, expected: bytes, found: bytes) -> str:
    return "\n".join([way, *difference(expected, found)])


def every_way(folder: Path, socket: str, script: str, *arguments: str, **plan: object) -> bytes:
    """Run `script` in every way; require the same return code and output, and return the latter."""
    attempt = Attempt.make(folder, script, *arguments, **plan)  # type: ignore[arg-type]
    truth = attempt.truth()
    (attempt.root / "truth.log").unlink()
    for way in WAYS:
        code, output = run(way, attempt, socket)
        same = output == truth[1]
        assert same, report(way, truth[1], output)
        assert code == truth[0], way
        assert attempt.cold is None, attempt.cold
    return truth[1]


def script(name: str) -> str:
    return (SCRIPTS / f"{name}.py").read_text()


def test_process_and_interpreter_look_the_same(short_path: Path, torch_warm: str) -> None:
    printed = every_way(
        short_path, torch_warm, script("facts"), "--x", "$RANK", "${RANK}b", "$NOPE"
    )
    facts = json.loads(printed)
    assert facts["argv"] == ["train.py", "--x", "0", "0b", "$NOPE"]
    assert facts["random_differs"] and facts["stdin"] == ""
    assert facts["environ"]["PWD"] == facts["cwd"]
    # 3 is the listing itself: what the script leaves open or unreaped depends on the moment.
    assert facts["descriptors"] == ["0", "1", "2", "3"]
    assert facts["psutil"][3] == 0


def test_module_path_is_the_interpreters_own_followed_by_rayjobs(
    short_path: Path, warm: str
) -> None:
    source = "import sys, json; print(json.dumps(sys.path))"
    attempt = Attempt.make(short_path, source)
    truth = json.loads(attempt.truth()[1])
    expected = truth if PACKAGE_HOME in truth else [*truth, PACKAGE_HOME]
    for way in WAYS:
        assert json.loads(run(way, attempt, warm)[1]) == expected


def test_script_in_a_subfolder_imports_its_neighbour(short_path: Path, warm: str) -> None:
    source = "import sys, helper; print(helper.WHO, sys.argv, __file__, sys.path[0])"
    attempt = Attempt.make(short_path, source, name="src/train.py")
    (attempt.root / "work/src/helper.py").write_text("WHO = 'neighbour'")
    truth = attempt.truth()
    assert b"neighbour" in truth[1]
    for way in WAYS:
        assert run(way, attempt, warm) == truth


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('an explanation')",
        "import sys; sys.exit(None)",
        "import sys; sys.exit((1, 2))",
        "import sys; sys.exit(256 + 7)",
        "raise SystemExit",
        "import os; print('lost', end=''); os._exit(5)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
        "raise KeyboardInterrupt",
        "def f():\n  1/0\ntry:\n  f()\nexcept Exception as e:\n  raise ValueError('b') from e",
        "def f(:\n  pass",
        "import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__)\n1/0",
        "import sys\ndef bad(*a):\n    raise TypeError('worse')\nsys.excepthook = bad\n1/0",
        "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
        "import traceback\ntry:\n    1/0\nexcept Exception:\n    traceback.print_exc()",
        "import warnings; warnings.warn('careful')",
        "import sys; sys.stdout.close(); sys.exit(4)",
        "assert False, 'no'",
        "x: int = 3\nprint(__annotations__, __name__, __doc__, __spec__, __package__)",
        '"""The text."""\nprint(__doc__, __loader__.__class__.__name__, __builtins__.__class__)',
        "",
    ],
)  # fmt: skip
def test_exit_and_traceback_are_the_same(short_path: Path, warm: str, source: str) -> None:
    every_way(short_path, warm, source)


def test_end_of_the_interpreter_is_the_same(short_path: Path, torch_warm: str) -> None:
    printed = every_way(short_path, torch_warm, script("farewell"))
    assert printed.split() == [b"main", b"thread", b"atexit", b"del"]


# The output of `faulthandler` that differs between runs (thread ids), does not belong to the script
# (frames of its launcher), or lists the packages that a warm interpreter has imported.
_THREAD = re.compile(rb"0x[0-9a-f]+")
_NOT_OF_THE_SCRIPT = re.compile(
    rb'^  File ".*/(?:rayjobs/injob|asyncio|runpy)[/.].*\n|^  File "<frozen .*\n'
    rb"|^\nExtension modules: .*\n",
    re.MULTILINE,
)


@pytest.mark.parametrize(
    "source",
    [
        "import ctypes\ndef load():\n    ctypes.string_at(0)\nload()",
        "import os\nprint('kept', flush=True)\nos.abort()",
        "import faulthandler\nfaulthandler.disable()\nimport ctypes\nctypes.string_at(0)",
        "import faulthandler, sys\nfaulthandler.enable(sys.stdout)\nimport os\nos.abort()",
    ],
)
def test_a_crash_shows_its_python_stack(short_path: Path, warm: str, source: str) -> None:
    """The other intended difference: crashes look as under ``python -X faulthandler script.py``."""
    attempt = Attempt.make(short_path, source, env={"PYTHONFAULTHANDLER": "1"})
    code, output = attempt.truth()
    assert code in (-signal.SIGSEGV, -signal.SIGABRT)
    (attempt.root / "truth.log").unlink()
    del attempt.plan["env"]["PYTHONFAULTHANDLER"]  # which would start every way cold
    for way in WAYS:
        found_code, found = run(way, attempt, warm)
        found = _NOT_OF_THE_SCRIPT.sub(b"", _THREAD.sub(b"0x", found))
        assert (found_code, found) == (code, _THREAD.sub(b"0x", output)), (way, found)


def test_the_script_finds_faulthandler_on_and_not_imported(short_path: Path, warm: str) -> None:
    source = (
        "import sys; print('faulthandler' in sys.modules)\n"
        "import faulthandler; print(faulthandler.is_enabled())\n"
        "import signal; print(signal.getsignal(signal.SIGSEGV))\n"
    )
    attempt = Attempt.make(short_path, source)
    truth = attempt.truth()
    assert truth[1].splitlines()[1] == b"False"
    for way in WAYS:
        assert run(way, attempt, warm) == (0, truth[1].replace(b"\nFalse\n", b"\nTrue\n", 1)), way


def test_missing_script_is_reported_as_python_does(short_path: Path, warm: str) -> None:
    attempt = Attempt.make(short_path, "")
    (attempt.root / "work/train.py").unlink()
    code, output = attempt.truth()
    for way in WAYS:
        assert run(way, attempt, warm)[0] == code == 2
        assert attempt.log().partition(b": ")[2] == output.partition(b": ")[2]


def test_signal_handlers_work(short_path: Path, warm: str) -> None:
    every_way(short_path, warm, script("signals"))


def test_random_numbers_differ_between_ranks_and_repeat_under_a_seed(
    short_path: Path, torch_warm: str
) -> None:
    attempt = Attempt.make(short_path, script("draw"), ranks=3).start(torch_warm)
    assert attempt.wait()["outcome"] == "completed", attempt.log()
    drawn = [json.loads(output) for output in (*map(attempt.log, range(3)), attempt.truth()[1])]
    free = [number for values in drawn for number in values["free"]]
    assert len(set(free)) == len(free) == 4 * 5
    assert len({json.dumps(values["seeded"]) for values in drawn}) == 1


def test_multiprocessing_works_in_every_start_method(short_path: Path, torch_warm: str) -> None:
    printed = every_way(short_path, torch_warm, script("processes"))
    assert printed.count(b"[1, 4, 9]") == 3


def test_torch_trains_with_workers_and_threads(short_path: Path, torch_warm: str) -> None:
    printed = every_way(short_path, torch_warm, script("training"), threads=1)
    facts = json.loads(printed)
    assert facts["torch_threads"] == 1 and facts["batches"] == 4 and facts["workers"] == 2


def test_shadowed_module_is_taken_from_the_snapshot(short_path: Path, torch_warm: str) -> None:
    attempt = Attempt.make(short_path, "import random; print(random.WHO, random.__file__)")
    (attempt.root / "work/random.py").write_text("WHO = 'the snapshot'")
    truth = attempt.truth()
    assert b"the snapshot" in truth[1]
    assert run("warm", attempt, torch_warm) == truth
    assert attempt.cold is not None and "random.py" in attempt.cold


def test_command_runs_in_a_shell_with_the_same_environment(short_path: Path, warm: str) -> None:
    attempt = Attempt.make(
        short_path, "", kind="command", argv=[], command='echo "$RANK $PWD"; exit 9'
    )
    code, output = run("warm", attempt, warm)
    assert (code, output) == (9, f"0 {attempt.root}/work\n".encode())
    assert attempt.cold is not None and "command" in attempt.cold


def test_secrets_reach_the_rank_and_no_file(short_path: Path, warm: str) -> None:
    for way in WAYS:
        attempt = Attempt.make(short_path, "import os; assert os.environ['KEY'][::-1] == '9yranac'")
        attempt.secrets["KEY"] = "canary9"
        assert run(way, attempt, warm) == (0, b"")
        for path in attempt.root.rglob("*"):
            assert not path.is_file() or b"canary9" not in path.read_bytes(), path


def test_warm_interpreter_has_started_no_threads_and_touched_no_device(
    short_path: Path, torch_warm: str
) -> None:
    source = (
        "import os; print(len(os.listdir('/proc/self/task')))\n"
        "import torch; print(torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork())\n"
    )
    attempt = Attempt.make(short_path, source)
    assert run("warm", attempt, torch_warm) == (0, b"1\nFalse False\n")


def test_a_line_is_in_the_log_as_soon_as_it_is_whole(tmp_path: Path, warm: str) -> None:
    """The one intended difference: a log can be read while it is written."""
    text = "import os\nprint('whole')\nprint('part', end='')\nos._exit(0)\n"
    attempt = Attempt.make(tmp_path, text)
    for way in WAYS:
        _, output = run(way, attempt, warm)
        assert output == b"whole\n", way

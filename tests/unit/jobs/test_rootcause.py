"""The report of a failure: rank, code or signal, class, and the relevant lines."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rayjobs
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.jobs.outcomes import LOSSES
from rayjobs.jobs.rootcause import diagnose

WORK = "/home/me/.local/share/rayjobs/node/attempts/mnist_1_0a1b2c3d/a1/work"
F = FailureClass
PACKAGE = Path(rayjobs.__file__).parent


def rank_record(number: int = 0, **facts: Any) -> dict[str, Any]:
    return {
        "rank": number,
        "pid": 100 + number,
        "exit_code": 0,
        "signal": None,
        "started_at": 1.0,
        "ended_at": 2.0,
        "out_of_memory": False,
        **facts,
    }


def record(outcome: str = "failed", *ranks: dict[str, Any], **facts: Any) -> ExitRecord:
    failed = [one["rank"] for one in ranks if one["exit_code"] != 0]
    return ExitRecord.from_json(
        {
            "job": "j",
            "attempt": 1,
            "node": 0,
            "marker": "m",
            "outcome": outcome,
            "reason": "",
            "ended_at": 3.0,
            "ranks": list(ranks),
            "first_failed_rank": failed[0] if failed else None,
            **facts,
        }
    )


@dataclass(frozen=True)
class Broken:
    """A failed script: its output, its end, and the expected report."""

    name: str
    log: str
    message: str
    code: int | None = 1
    signal: int | None = None
    failure_class: FailureClass = F.USER
    lines: tuple[str, ...] = ()


BROKEN = [
    Broken(
        "an exception in the user's code",
        "epoch 1\nTraceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 30, in <module>\n    main()\n'
        f'  File "{WORK}/train.py", line 12, in main\n    raise ValueError("bad value")\n'
        "ValueError: bad value\n",
        "rank 0 exited with code 1: ValueError: bad value (train.py:12 in main)",
        lines=(
            'File "train.py", line 12, in main',
            '    raise ValueError("bad value")',
            "ValueError: bad value",
        ),
    ),
    Broken(
        "an exception inside a library",
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 5, in <module>\n    json.loads(text)\n'
        '  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads\n'
        "    return _default_decoder.decode(s)\n           ^^^^^^^^^^^^\n"
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n",
        "rank 0 exited with code 1: json.decoder.JSONDecodeError: Expecting value: line 1 "
        "column 1 (char 0) (train.py:5)",
    ),
    Broken(
        "a syntax error",
        f'  File "{WORK}/train.py", line 3\n    x = (\n        ^\n'
        "SyntaxError: '(' was never closed\n",
        "rank 0 exited with code 1: SyntaxError: '(' was never closed (train.py:3)",
    ),
    Broken(
        "a syntax error in an imported module",
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 1, in <module>\n    import model\n'
        f'  File "{WORK}/model.py", line 7\n    def f(:\n          ^\n'
        "SyntaxError: invalid syntax\n",
        "rank 0 exited with code 1: SyntaxError: invalid syntax (model.py:7)",
    ),
    Broken(
        "a missing module",
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 2, in <module>\n    import tensorflow\n'
        "ModuleNotFoundError: No module named 'tensorflow'\n",
        "rank 0 exited with code 1: ModuleNotFoundError: No module named 'tensorflow' (train.py:2)",
    ),
    Broken(
        "a chain of exceptions",
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 2, in <module>\n    1/0\nZeroDivisionError: division '
        "by zero\n\nThe above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 4, in <module>\n    raise RuntimeError("no data")\n'
        "RuntimeError: no data\n",
        "rank 0 exited with code 1: RuntimeError: no data (train.py:4)",
    ),
    Broken(
        "an exception that was ignored afterwards",
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 9, in <module>\n    run()\n'
        "KeyError: 'loss'\nException ignored in: <function A.__del__ at 0x7f>\n"
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 3, in __del__\nOSError: late\n',
        "rank 0 exited with code 1: KeyError: 'loss' (train.py:9)",
    ),
    Broken(
        "sys.exit with a text",
        "starting\nno training data in ./data\n",
        "rank 0 exited with code 1; its last line: no training data in ./data",
        lines=("starting", "no training data in ./data"),
    ),
    Broken(
        "wrong arguments",
        "usage: train.py [-h] [--epochs EPOCHS]\n"
        "train.py: error: argument --epochs: invalid int value: 'x'\n",
        "rank 0 exited with code 2: train.py: error: argument --epochs: invalid int value: 'x'",
        code=2,
    ),
    Broken("a silent exit", "", "rank 0 exited with code 7; it printed nothing", code=7),
    Broken(
        "a segmentation fault",
        "loading\n",
        "rank 0 crashed with SIGSEGV (invalid memory access in native code)",
        code=None,
        signal=signal.SIGSEGV,
    ),
    Broken(
        "a segmentation fault whose Python stack was printed",
        "loading\nFatal Python error: Segmentation fault\n\n"
        "Thread 0x00007fe9216d86c0 (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 982 in run\n\n'
        "Current thread 0x00007fe92225eb80 (most recent call first):\n"
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        f'  File "{WORK}/train.py", line 3 in load\n  File "{WORK}/train.py", line 5 in <module>\n'
        '  File "/opt/rayjobs/injob/leaving.py", line 87 in _run\n\n'
        "Extension modules: numpy.linalg._umath_linalg (total: 1)\n",
        "rank 0 crashed with SIGSEGV (invalid memory access in native code) at train.py:3 in load",
        code=None,
        signal=signal.SIGSEGV,
        lines=(
            "loading",
            "Fatal Python error: Segmentation fault",
            '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
            '  File "train.py", line 3 in load',
            '  File "train.py", line 5 in <module>',
        ),
    ),
    Broken(
        "an abort while leaving after an exception",
        "Traceback (most recent call last):\n"
        f"  File \"{WORK}/train.py\", line 9, in <module>\n    run()\nKeyError: 'loss'\n"
        "terminate called without an active exception\nFatal Python error: Aborted\n\n"
        "Current thread 0x00007fe92225eb80 (most recent call first):\n  <no Python frame>\n",
        "rank 0 crashed with SIGABRT (native code aborted, or an assertion failed): "
        "KeyError: 'loss' (train.py:9)",
        code=None,
        signal=signal.SIGABRT,
    ),
    Broken(
        "a crash of a helper process before the exception",
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x00007fe92225eb80 (most recent call first):\n"
        f'  File "{WORK}/train.py", line 3 in load\n\nTraceback (most recent call last):\n'
        f'  File "{WORK}/train.py", line 9, in <module>\n    next(loader)\n'
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Segmentation fault.\n",
        "rank 0 exited with code 1: RuntimeError: DataLoader worker (pid 7) is killed by signal: "
        "Segmentation fault. (train.py:9)",
    ),
    Broken(
        "a breakpoint",
        f"> {WORK}/train.py(3)f()\n-> x = 1\n(Pdb) \nTraceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 3, in f\n    x = 1\n'
        '  File "/usr/lib/python3.11/bdb.py", line 94, in trace_dispatch\n    return 1\n'
        "bdb.BdbQuit\n",
        "rank 0 exited with code 1: bdb.BdbQuit (train.py:3 in f); breakpoint() cannot stop here: "
        "a job has no terminal. Debug the script outside a job (`python SCRIPT`), or see where a "
        "running job is with `rayjobs stacks JOB`",
    ),
    Broken(
        "a question to the user",
        "Continue? Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 1, in <module>\n    input("Continue? ")\n'
        "EOFError: EOF when reading a line\n",
        "rank 0 exited with code 1: EOFError: EOF when reading a line; input() has nothing to "
        "read: a job has no terminal. Pass the value as an argument of the script (after `--`), "
        "or as a file",
    ),
    Broken(
        "a kill from outside",
        "epoch 1\nepoch 2\n",
        "rank 0 was ended by SIGKILL (killed from outside, or by the kernel when the machine "
        "ran out of memory)",
        code=None,
        signal=signal.SIGKILL,
    ),
    Broken(
        "a full disk",
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 40, in save\n    f.write(b)\n'
        "OSError: [Errno 28] No space left on device\n",
        "rank 0 exited with code 1: OSError: [Errno 28] No space left on device "
        "(train.py:40 in save)",
        failure_class=F.STORAGE,
    ),
    Broken(
        "no GPU memory",
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 40, in step\n    y = model(x)\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
        "rank 0 exited with code 1: torch.OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 2.00 GiB. (train.py:40 in step)",
        failure_class=F.OUT_OF_MEMORY,
    ),
    Broken(
        "a command that does not exist",
        "/bin/sh: 1: trian: not found\n",
        "rank 0 exited with code 127 (the shell's code for a command that was not found): "
        "/bin/sh: 1: trian: not found",
        code=127,
    ),
    Broken(
        "a child of a shell that was killed",
        "working\nKilled\n",
        "rank 0 exited with code 137 (a shell also reports SIGKILL with this code): Killed",
        code=137,
    ),
    Broken(
        "a progress bar before the exception",
        " 10%|#   |\r 20%|##  |\r 30%|### |Traceback (most recent call last):\n"
        "  0%|    |\r 50%|##  |\nTraceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 8, in <module>\n    assert ok\nAssertionError\n',
        "rank 0 exited with code 1: AssertionError (train.py:8)",
    ),
    Broken(
        "a message of several lines",
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 8, in <module>\n    check()\n'
        "RuntimeError: Error(s) in loading state_dict for Net:\n"
        '\tMissing key(s) in state_dict: "fc.weight".\n',
        "rank 0 exited with code 1: RuntimeError: Error(s) in loading state_dict for Net: "
        "(train.py:8)",
        lines=(
            'File "train.py", line 8, in <module>',
            "    check()",
            "RuntimeError: Error(s) in loading state_dict for Net:",
            '\tMissing key(s) in state_dict: "fc.weight".',
        ),
    ),
    Broken(
        "escapes in the error",
        "\x1b[31mfatal error:\x1b[0m bad \x1b]0;title\x07config\n",
        "rank 0 exited with code 3: fatal error: bad config",
        code=3,
    ),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_the_root_cause_is_reported(broken: Broken) -> None:
    rank = rank_record(exit_code=broken.code, signal=broken.signal)
    outcome, failure = diagnose([record("failed", rank)], {0: broken.log.encode()})
    assert outcome == "failed"
    assert failure is not None
    assert failure.message == broken.message
    assert failure.failure_class == broken.failure_class
    assert (failure.rank, failure.exit_code, failure.signal) == (0, broken.code, broken.signal)
    if broken.lines:
        assert failure.lines == broken.lines
    assert Failure.from_dict(failure.to_dict()) == failure


def test_module_missing_from_own_packages_names_the_base() -> None:
    log = (
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 2, in <module>\n    import torch\n'
        "ModuleNotFoundError: No module named 'torch'\n"
    )
    exits, tails = [record("failed", rank_record(exit_code=1))], {0: log.encode()}
    _, plain = diagnose(exits, tails)
    _, failure = diagnose(exits, tails, has_only_its_packages=True)
    assert plain is not None
    assert failure is not None
    assert failure.message == (
        f"{plain.message}; the job's environment has only the packages that the job requested. "
        "Add the missing one, or add yours to the target's own packages: by --pip without --env, "
        "or by `base: target` in a job file's environment"
    )


def test_a_completed_attempt_has_no_failure() -> None:
    assert diagnose([record("completed", rank_record())], {}) == ("completed", None)


def test_a_canceled_attempt_has_no_failure() -> None:
    ranks = rank_record(exit_code=None, signal=15)
    assert diagnose([record("canceled", ranks, reason="canceled")], {}) == ("canceled", None)


def test_the_time_limit_is_its_own_class() -> None:
    reason = "the attempt reached its time limit of 5s"
    ranks = rank_record(exit_code=None, signal=15)
    outcome, failure = diagnose(
        [record("time_limit", ranks, reason=reason, first_failed_rank=None)], {0: b"epoch 3\n"}
    )
    assert outcome == "time_limit"
    assert failure is not None
    assert failure.failure_class is F.TIME_LIMIT
    assert failure.message == f"{reason}; raise --max-duration"
    assert failure.lines == ("epoch 3",)


def test_own_memory_limit_is_named() -> None:
    ranks = rank_record(exit_code=None, signal=9, out_of_memory=True)
    memory = {"limit_bytes": 2**30, "peak_bytes": 2**30, "how": "cgroup2"}
    _, failure = diagnose(
        [record("out_of_memory", ranks, reason="rank 0 was killed", memory=memory)], {0: b""}
    )
    assert failure is not None
    assert failure.failure_class is F.OUT_OF_MEMORY
    assert failure.message == "rank 0 was killed (peak 1 GiB)"
    assert failure.signal == 9


def test_host_failure_is_a_system_failure() -> None:
    _, failure = diagnose([record("host_error", reason="the attempt host failed: x")], {})
    assert failure is not None
    assert failure.failure_class is F.SYSTEM
    assert failure.message == "the attempt host failed: x"


@pytest.mark.parametrize(("brings", "expected"), [(True, F.ENVIRONMENT), (False, F.USER)])
def test_a_program_that_cannot_be_started_is_blamed_on_its_environment_and_not_tried_again(
    brings: bool, expected: FailureClass
) -> None:
    why = "/bin/sh cannot be started: No such file or directory"
    ranks = rank_record(exit_code=126)
    outcome, failure = diagnose(
        [record("not_startable", ranks, reason=why)], {0: b""}, brings_programs=brings
    )
    assert outcome == "not_startable"
    assert outcome not in LOSSES
    assert failure is not None
    assert failure.failure_class is expected
    assert failure.is_permanent
    assert failure.message == why
    assert failure.rank == 0


def test_missing_exit_record_is_a_system_failure() -> None:
    outcome, failure = diagnose([], {})
    assert outcome == "host_error"
    assert failure is not None
    assert failure.failure_class is F.SYSTEM


def test_first_failing_node_is_the_cause() -> None:
    late = record("failed", rank_record(1, exit_code=1, ended_at=9.0))
    early = record("failed", rank_record(2, exit_code=5, ended_at=4.0))
    follower = record("canceled", rank_record(0, exit_code=None, signal=15, ended_at=3.0))
    _, failure = diagnose([follower, late, early], {1: b"", 2: b""})
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (2, 5)


@pytest.mark.parametrize("facts", [{"disk_full": True}, {}], ids=["now", "an earlier version"])
def test_a_full_disk_without_a_traceback_is_reported(facts: dict[str, bool]) -> None:
    rank = rank_record(exit_code=120)
    reason = (
        "rank 0 ended with exit code 120; the disk that holds the attempt's files is full (ENOSPC)"
    )
    ended = record("failed", rank, reason=reason, **facts)
    _, failure = diagnose([ended], {0: b"epoch 1\n"})
    assert failure is not None
    assert failure.failure_class is F.STORAGE
    assert failure.message.endswith("the disk that holds the attempt's files is full")


@pytest.mark.parametrize("ours", [f"{PACKAGE}/metrics.py", "/opt/rayjobs/injob/log_values.py"])
def test_script_line_is_named_for_an_error_raised_in_a_library(
    ours: str,
) -> None:
    log = (
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 3, in <module>\n    run.log("loss", [1, 2])\n'
        f'  File "{ours}", line 93, in number\n    raise TypeError(text)\n'
        "TypeError: a metric is a number\n"
    )
    _, failure = diagnose([record("failed", rank_record(exit_code=1))], {0: log.encode()})
    assert failure is not None
    assert failure.message.endswith("TypeError: a metric is a number (train.py:3)")


def test_handled_traceback_is_not_blamed() -> None:
    log = (
        "Traceback (most recent call last):\n"
        f'  File "{WORK}/train.py", line 3, in f\nKeyError: "old"\n' + "epoch\n" * 1000
    )
    rank = rank_record(exit_code=3)
    _, failure = diagnose([record("failed", rank)], {0: log.encode()})
    assert failure is not None
    assert "KeyError" not in failure.message


@pytest.mark.parametrize(
    "tail",
    [b"\xff\xfe" * 5000, b"\0" * 70_000, b"x" * 70_000, b"\r\n" * 99],
    ids=["no text", "zeros", "one line", "empty lines"],
)
@pytest.mark.long
def test_odd_logs_do_no_harm(tail: bytes) -> None:
    _, failure = diagnose([record("failed", rank_record(exit_code=1))], {0: tail})
    assert failure is not None
    assert len(failure.message) < 1000

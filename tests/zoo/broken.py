"""Scripts that fail in the ways that training scripts do, and what should be reported for each."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rayjobs.core.failures import FailureClass

F = FailureClass


@dataclass(frozen=True)
class Broken:
    """One script, and its root cause.

    Attributes:
        message: Text that the message must contain.
        line: One of the lines that matter; empty: there need be none.
        plan: What differs in the attempt's plan.
    """

    name: str
    script: str
    message: str
    line: str = ""
    failure_class: FailureClass = F.USER
    rank: int | None = 0
    code: int | None = 1
    signal: int | None = None
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    plan: Mapping[str, Any] = field(default_factory=dict)


ZOO = (
    Broken(
        "an exception",
        "def main():\n    raise ValueError('bad value')\n\nmain()\n",
        "rank 0 exited with code 1: ValueError: bad value (train.py:2 in main)",
        "ValueError: bad value",
    ),
    Broken(
        "an exception inside a library",
        "import json\nprint('loading')\njson.loads('')\n",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0) (train.py:3)",
        "    json.loads('')",
    ),
    Broken(
        "a syntax error",
        "print('never')\nx = (\n",
        "SyntaxError: '(' was never closed (train.py:2)",
        "SyntaxError: '(' was never closed",
    ),
    Broken(
        "a wrong indent",
        "def f():\nreturn 1\n",
        "IndentationError: expected an indented block after function definition on line 1",
    ),
    Broken(
        "a missing module",
        "import a_module_that_nobody_has\n",
        "ModuleNotFoundError: No module named 'a_module_that_nobody_has' (train.py:1)",
    ),
    Broken(
        "a missing file",
        "open('data/train.csv')\n",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv' (train.py:1)",
    ),
    Broken(
        "a chain of exceptions",
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n"
        "    raise RuntimeError('no loss') from error\n",
        "RuntimeError: no loss (train.py:4)",
        "RuntimeError: no loss",
    ),
    Broken(
        "an exception while another was handled",
        "try:\n    {}['loss']\nexcept KeyError:\n    undefined\n",
        "NameError: name 'undefined' is not defined (train.py:4)",
    ),
    Broken(
        "endless recursion",
        "def f():\n    return f()\n\nf()\n",
        "RecursionError: maximum recursion depth exceeded",
    ),
    Broken(
        "a message of several lines",
        "raise RuntimeError('loading failed:\\n\\tmissing key fc.weight')\n",
        "RuntimeError: loading failed:",
        "\tmissing key fc.weight",
    ),
    Broken(
        "a progress bar before the exception",
        "import sys\nfor n in range(5):\n"
        "    print(f'{n}/5', end='\\r', flush=True)\nassert n == 5, 'stopped early'\n",
        "AssertionError: stopped early (train.py:4)",
    ),
    Broken(
        "bytes that are no text before the exception",
        "import os\nos.write(1, bytes(range(256)) * 4 + b'\\n')\nint('x')\n",
        "ValueError: invalid literal for int() with base 10: 'x' (train.py:3)",
    ),
    Broken(
        "an exit after a thread has died",
        "import sys, threading\n"
        "def work():\n    raise OSError('of the thread')\n"
        "t = threading.Thread(target=work)\nt.start(); t.join()\n"
        "raise SystemExit('no batches left')\n",
        "rank 0 exited with code 1: OSError: of the thread",
        "no batches left",
    ),
    Broken(
        "sys.exit with a text",
        "import sys\nprint('starting')\nsys.exit('no training data in ./data')\n",
        "rank 0 exited with code 1; its last line: no training data in ./data",
        "no training data in ./data",
    ),
    Broken(
        "wrong arguments",
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--epochs', type=int)\nparser.parse_args()\n",
        "error: argument --epochs: invalid int value: 'x'",
        code=2,
        arguments=("--epochs", "x"),
    ),
    Broken(
        "a silent exit",
        "import os\nos._exit(7)\n",
        "rank 0 exited with code 7; it printed nothing",
        code=7,
    ),
    Broken(
        "a process of its own that failed",
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'raise SystemExit(5)'], check=True)\n",
        "returned non-zero exit status 5",
    ),
    Broken(
        "a command that does not exist",
        "",
        "rank 0 exited with code 127 (the shell's code for a command that was not found)",
        code=127,
        plan={"kind": "command", "argv": [], "command": "trian --epochs 3"},
    ),
    Broken(
        "a segmentation fault",
        "import ctypes\nprint('loading', flush=True)\nctypes.string_at(0)\n",
        "rank 0 crashed with SIGSEGV (invalid memory access in native code) at train.py:3",
        '  File "train.py", line 3 in <module>',
        code=None,
        signal=signal.SIGSEGV,
    ),
    Broken(
        "a breakpoint",
        "import sys\nbreakpoint()\nprint('not reached')\n",
        "breakpoint() cannot stop here: a job has no terminal",
    ),
    Broken(
        "a question to the user",
        "answer = input('Continue? ')\n",
        "input() has nothing to read: a job has no terminal",
    ),
    Broken(
        "an abort",
        "import os\nprint('terminate called', flush=True)\nos.abort()\n",
        "rank 0 crashed with SIGABRT (native code aborted, or an assertion failed) at train.py:3",
        code=None,
        signal=signal.SIGABRT,
    ),
    Broken(
        "a kill from outside",
        "import os, signal\nprint('epoch 1', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n",
        "rank 0 was ended by SIGKILL (killed from outside",
        "epoch 1",
        code=None,
        signal=signal.SIGKILL,
    ),
    Broken(
        "no memory",
        "kept = bytearray(1 << 62)\n",
        "MemoryError (train.py:1)",
        failure_class=F.OUT_OF_MEMORY,
    ),
    Broken(
        "no GPU memory",
        "class OutOfMemoryError(RuntimeError):\n    pass\n\n"
        "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')\n",
        "CUDA out of memory. Tried to allocate 2.00 GiB.",
        failure_class=F.OUT_OF_MEMORY,
    ),
    Broken(
        "a full disk",
        "with open('/dev/full', 'w') as file:\n    file.write('x' * 100_000)\n",
        "OSError: [Errno 28] No space left on device (train.py:2)",
        failure_class=F.STORAGE,
    ),
    Broken(
        "no end",
        "import time\nprint('epoch 1', flush=True)\ntime.sleep(600)\n",
        "raise --max-duration",
        failure_class=F.TIME_LIMIT,
        rank=None,
        code=None,
        plan={"max_duration_s": 2.0, "grace_s": 0.5},
    ),
    Broken(
        "one rank of several",
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n    raise RuntimeError('of rank 1')\n"
        "time.sleep(600)\n",
        "rank 1 exited with code 1: RuntimeError: of rank 1 (train.py:3)",
        "RuntimeError: of rank 1",
        rank=1,
        ranks=2,
        plan={"grace_s": 0.5},
    ),
    Broken(
        "a connection of its own beside a rank that survived an error",
        "import logging, os, pathlib, time\n"
        "survived = pathlib.Path('survived')\n"
        "if os.environ['RANK'] == '1':\n"
        "    try:\n        raise ValueError('a bad batch')\n"
        "    except ValueError:\n        logging.exception('left out')\n"
        "    print('epoch 2', flush=True)\n    survived.touch()\n    time.sleep(600)\n"
        "while not survived.exists():\n    time.sleep(0.01)\n"
        "raise ConnectionResetError(104, 'Connection reset by peer')\n",
        "rank 0 exited with code 1: ConnectionResetError: [Errno 104] Connection reset by peer",
        ranks=2,
        plan={"grace_s": 0.5},
    ),
)

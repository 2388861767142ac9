"""Children of one process that has imported everything: fast to create, and safe to kill."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run `work(number)` in `count` children that start together; return their results."""
    gate_read, gate_write = os.pipe()
    children = []
    for number in range(count):
        result_read, result_write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(gate_write)
            os.read(gate_read, 1)  # ends when the parent closes the other side
            _report(result_write, partial(work, number))
        os.close(result_write)
        children.append((child, result_read))
    os.close(gate_write)
    os.close(gate_read)
    results = []
    for child, result_read in children:
        with os.fdopen(result_read) as pipe:
            results.append(json.loads(pipe.read()))
        os.waitpid(child, 0)
    return results


def _report(descriptor: int, work: Callable[[], Any]) -> None:
    try:
        text = json.dumps(work())
    except BaseException:
        text = json.dumps({"error": traceback.format_exc()})
    with os.fdopen(descriptor, "w") as pipe:
        pipe.write(text)
    os._exit(0)

"""Runs the entry script of a parallel run: `init()` once, `run(mini_batch)` for each mini-batch.

As a program, `python parallel_worker.py INJOB_PATH SOCKET SCRIPT ARGUMENT...`, it is a child of a
rank, which replaces it when it dies. The two exchange JSON lines over the inherited descriptor
SOCKET.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple, Union

    from rayjobs.injob.parallel_messages import MeasureTable, RunBatch, WorkerAnswer


def elements(result: Any) -> Tuple[List[str], int]:
    """Return the rows and the number of elements of a result of `run`.

    A data frame's rows are its values separated by spaces, as in Azure ML.

    Raises:
        TypeError: it is not a list, array, series or data frame.
    """
    if hasattr(result, "to_csv") and hasattr(result, "columns"):
        text = result.to_csv(sep=" ", header=False, index=False)
        return text.splitlines(), len(result)
    if result is None or isinstance(result, (str, bytes, dict)) or not hasattr(result, "__iter__"):
        raise TypeError(
            "run() returned %s; return a list, an array or a pandas DataFrame with one element "
            "for each item that succeeded" % type(result).__name__
        )
    rows = [str(one) for one in result]
    return rows, len(rows)


class Entry:
    """The user's script, loaded."""

    def __init__(self, script: str) -> None:
        import importlib.util

        name = os.path.splitext(os.path.basename(script))[0]
        found = importlib.util.spec_from_file_location(name, script)
        assert found is not None and found.loader is not None
        self.module = importlib.util.module_from_spec(found)
        sys.modules[name] = self.module
        found.loader.exec_module(self.module)
        if not callable(getattr(self.module, "run", None)):
            raise AttributeError("%s has no function run(mini_batch)" % os.path.basename(script))
        self._tables: Dict[str, Any] = {}

    def init(self) -> None:
        """Call `init()`, if there is one."""
        if callable(getattr(self.module, "init", None)):
            self.module.init()

    def table(self, name: str) -> Any:
        """Return a table input as a data frame."""
        if name not in self._tables:
            from rayjobs.injob.run import Run

            run: Any = Run.get_context()
            self._tables[name] = run.input_datasets[name].to_pandas_dataframe()
        return self._tables[name]

    def answer(self, request: Union[MeasureTable, RunBatch]) -> WorkerAnswer:
        """Carry out the rank's request."""
        from rayjobs.injob.parallel_messages import BatchRows, MeasureTable, TableSize

        if isinstance(request, MeasureTable):
            frame = self.table(request.measure)
            size = int(frame.memory_usage(index=False, deep=True).sum())
            return TableSize(rows=len(frame), bytes=size)
        if request.rows is not None:
            first, end = request.rows
            batch = self.table(request.input).iloc[first:end].reset_index(drop=True)
        else:
            batch = list(request.paths or ())
        rows, count = elements(self.module.run(batch))
        return BatchRows(rows=tuple(rows) if request.keep else (), count=count)

    def shutdown(self) -> None:
        """Call `shutdown()`, if there is one."""
        if callable(getattr(self.module, "shutdown", None)):
            self.module.shutdown()


def _failed() -> WorkerAnswer:
    import traceback

    from rayjobs.injob.parallel_messages import WorkerAnswer

    traceback.print_exc()
    kind, error = sys.exc_info()[:2]
    return WorkerAnswer("%s: %s" % (getattr(kind, "__name__", kind), error))


def main(descriptor: int, script: str, arguments: List[str]) -> int:
    """Answer the rank on its socket until it disconnects; return the exit code."""
    import json
    import socket

    from rayjobs.injob.parallel_messages import WorkerAnswer, worker_request

    sys.argv = [script, *arguments]
    with socket.socket(fileno=descriptor) as connection:
        connection.set_inheritable(False)
        lines = connection.makefile("rb")

        def send(answer: WorkerAnswer) -> None:
            connection.sendall(json.dumps(answer.to_json()).encode() + b"\n")

        try:
            entry = Entry(script)
            entry.init()
        except Exception:
            send(_failed())
            return 1
        send(WorkerAnswer())
        for line in lines:
            try:
                answer = entry.answer(worker_request(line))
            except Exception:
                answer = _failed()
            sys.stdout.flush()
            send(answer)
        entry.shutdown()
    return 0


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        del sys.path[0]
    sys.path.append(sys.argv[1])
    import signal

    # Now, since the script's folder may have files with the names of standard modules.
    from rayjobs.injob import kernel, parallel_messages, rank  # noqa: F401

    del sys.path[-1]
    rank.arrange_path(sys.argv[3], sys.path, sys.argv[1])
    kernel.die_with_parent(signal.SIGKILL)
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main(int(sys.argv[2]), sys.argv[3], sys.argv[4:]))

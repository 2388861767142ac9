"""Runs a script in a fork of the warm interpreter, and exits without tearing torch down.

The interpreter's own exit would free every object of every preloaded package, which copies
hundreds of megabytes of shared pages and takes a second or more. Everything that a script can
observe of an exit still happens here, in CPython's order: non-daemon threads are joined, `atexit`
runs, the standard streams are flushed, the objects of the script's own modules are freed (so files
are written and `__del__` is called), and C's streams are flushed. Only the exit functions of C and
C++ libraries do not run: torch's alone take longer than a short job.

Source: `Py_RunMain`, `Py_FinalizeEx` and `finalize_modules` of CPython 3.8 to 3.13.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
from typing import Any

from rayjobs.injob import rank

_FILE_INPUT = 257  # Py_file_input
_FLUSH_FAILED = 120


def newest_module() -> str:
    """Return the name of the last imported module; later ones are the script's."""
    return next(reversed(sys.modules))


def forget_finalizers() -> None:
    """Disable the finalizers of preloaded packages, which would tear the packages down."""
    weakref = sys.modules.get("weakref")
    if weakref is not None:
        for finalizer in [*weakref.finalize._registry]:
            finalizer.atexit = False


def run_and_leave(script: str, arguments: tuple[str, ...], last_of_ours: str) -> None:
    """Run `script` as `__main__` and end the process as ``python script.py`` would.

    Call it from the outermost frame. It does not return.

    Args:
        last_of_ours: The result of `newest_module` when the rank was forked.
    """
    code, failure = 0, None
    try:
        _run(script, list(arguments))
    except SystemExit as error:
        code = _code_of(error)
    except BaseException as error:
        code, failure = 1, error
    interrupted = isinstance(failure, KeyboardInterrupt)
    mpi = sys.modules.get("mpi4py.MPI") if failure is None and code == 0 else None
    if failure is not None:
        _show(failure)  # outside any exception handler, as in the interpreter
        failure = None
    try:
        _tidy(last_of_ours)
    except BaseException as error:  # our own errors must not turn a success into a failure
        _complain(f"rayjobs: the rank could not be cleaned up at its end: {error!r}\n")
    if mpi is not None:
        _finalize(mpi)
    code = _flush(code)
    ctypes.CDLL(None).fflush(None)
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _run(script: str, arguments: list[str]) -> None:
    full_name = rank.begin(script, arguments)
    module = rank.make_main_module()
    names = module.__dict__
    from importlib.machinery import SourceFileLoader

    names["__file__"] = full_name
    names["__cached__"] = None
    names["__loader__"] = SourceFileLoader("__main__", full_name)
    c_library = ctypes.CDLL(None)
    c_library.fopen.restype = ctypes.c_void_p
    c_library.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    run = ctypes.pythonapi.PyRun_FileExFlags
    run.restype = ctypes.py_object
    run.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.py_object,
        ctypes.py_object,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    name = os.fsencode(full_name)
    stream = c_library.fopen(name, b"rbe")
    run(stream, name, _FILE_INPUT, names, names, 1, None)


def _show(error: BaseException) -> None:
    """Print a traceback that begins at the script, as the interpreter prints it."""
    trace = error.__traceback__
    # The first two entries are `run_and_leave` and `_run`.
    for _ in range(2):
        trace = trace.tb_next if trace is not None else None
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit:
        return
    except BaseException as other:
        _complain("Error in sys.excepthook:\n")
        if other.__traceback__ is not None:
            other.__traceback__ = other.__traceback__.tb_next  # without this function
        sys.__excepthook__(type(other), other, other.__traceback__)
        _complain("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)


def _code_of(error: SystemExit) -> int:
    code: Any = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    _complain(f"{code}\n")
    return 1


def _complain(text: str) -> None:
    stream = sys.stderr if sys.stderr is not None else sys.__stderr__
    if stream is not None:
        stream.write(text)


def _tidy(last_of_ours: str) -> None:
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    _flush(0)
    if threading is not None:
        # CPython stops daemon threads here; ours continue briefly, after their names are cleared.
        threading.__dict__["excepthook"] = _say_nothing
    sys.last_type = sys.last_value = sys.last_traceback = None
    sys.path = sys.argv = None  # type: ignore[assignment]
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    _clear(sys.modules["__main__"])
    for module in _newer_than(last_of_ours):
        _clear(module)
    gc.collect()


def _say_nothing(_facts: Any) -> None:
    """Let a daemon thread end silently."""


def _newer_than(last_of_ours: str) -> list[Any]:
    newer = []
    for name in reversed(sys.modules):
        if name == last_of_ours:
            break
        newer.append(sys.modules[name])
    return [module for module in newer if isinstance(module, type(sys)) and _is_python(module)]


def _is_python(module: Any) -> bool:
    # Extension modules keep state in C, so they are skipped.
    return str(getattr(module, "__file__", None) or "").endswith(".py")


def _clear(module: Any) -> None:
    """Set a module's names to None, those with a single leading underscore first."""
    names = module.__dict__
    for name in [*names]:
        if name[:1] == "_" and name[1:2] != "_":
            names[name] = None
    for name in [*names]:
        if name != "__builtins__":
            names[name] = None


def _finalize(mpi: Any) -> None:
    """Call MPI_Finalize for mpi4py, whose exit function does not run here.

    mpirun treats a rank that ends without MPI_Finalize as failed. Skipped after an error: it would
    wait for the other ranks, which wait for this one.
    """
    settings = getattr(sys.modules.get("mpi4py"), "rc", None)
    if getattr(settings, "finalize", None) is False:
        return  # the script calls MPI_Finalize itself, or not at all
    if mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


def _flush(code: int) -> int:
    """Flush the standard streams; failing to flush stdout is an error, as in CPython."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except BaseException as error:
            if stream is sys.stdout:
                code = code or _FLUSH_FAILED
                facts: Any = getattr(sys, "UnraisableHookArgs")  # noqa: B009  (typed as a protocol)
                sys.unraisablehook(facts((type(error), error, None, None, stream)))
    return code

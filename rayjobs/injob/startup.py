"""Brings a forked process into the state of a freshly started interpreter."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import sys
import time
from typing import Any, Iterable, Mapping

from rayjobs.injob import kernel

_IGNORED_BY_PYTHON = (signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE))
_OPENBLAS_SETTERS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
)

_blas_libraries: list[ctypes.CDLL] = []


def restore_signals(*, as_python: bool) -> None:
    """Set every signal to its state at the start of a process.

    Args:
        as_python: As an interpreter sets them before a script's first line; False: as a shell
            passes them to a new program.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number in (signal.SIGKILL, signal.SIGSTOP):
            continue
        handler: Any = signal.SIG_DFL
        if as_python and number in _IGNORED_BY_PYTHON:
            handler = signal.SIG_IGN
        elif as_python and number == signal.SIGINT:
            handler = signal.default_int_handler
        try:
            signal.signal(number, handler)
        except OSError:
            continue  # signals that the C library reserves
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def open_descriptors() -> list[int]:
    """The file descriptors this process has open."""
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue  # the descriptor that listed the folder
        descriptors.append(int(name))
    return descriptors


def close_descriptors(*, keep: Iterable[int]) -> None:
    """Close every descriptor above 2 that is not in `keep`."""
    kept = set(keep)
    for descriptor in open_descriptors():
        if descriptor > 2 and descriptor not in kept:
            os.close(descriptor)


def replace_environment(env: Mapping[str, str]) -> None:
    """Make `env` the whole environment, in Python's view and in C's."""
    if sys.flags.utf8_mode and "LC_ALL" not in env and "LC_CTYPE" in os.environ:
        # Python sets LC_CTYPE itself when it starts in the C locale.
        env = {"LC_CTYPE": os.environ["LC_CTYPE"], **env}
    os.environ.clear()
    os.environ.update(env)
    time.tzset()


def prepare() -> None:
    """Do the common work of `refresh` once, in the process that will be forked.

    Call it after the last import; no fork then has to touch the same memory again.
    """
    importlib.invalidate_caches()
    _blas_libraries.extend(_loaded_libraries("openblas"))


def refresh(env: Mapping[str, str]) -> None:
    """Reset state that a fork of a prepared process inherits but a fresh interpreter lacks."""
    replace_environment(env)
    kernel.set_name("python")
    gc.enable()
    _renew_main_thread()
    _renew_logging()
    _reseed()
    _renew_multiprocessing()
    _set_thread_counts(env)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.__dict__["tempdir"] = None  # it may come from another TMPDIR


def _renew_main_thread() -> None:
    threading = sys.modules.get("threading")
    renew = getattr(threading and threading.main_thread(), "_set_native_id", None)
    if renew is not None:
        renew()  # some versions keep the thread id of the process that was forked


def _renew_logging() -> None:
    """Make `relativeCreated` of log records count from now, as from the import of `logging`."""
    logging = sys.modules.get("logging")
    if logging is not None:
        # Nanoseconds since 3.13.
        is_in_ns = isinstance(logging.__dict__["_startTime"], int)
        logging.__dict__["_startTime"] = time.time_ns() if is_in_ns else time.time()


def _reseed() -> None:
    """Reseed every random generator: forks would otherwise draw the same numbers."""
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        # Only the CPU's: device generators are seeded on first use, which is still to come.
        torch.default_generator.seed()


def _renew_multiprocessing() -> None:
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        key = process.AuthenticationString(os.urandom(32))
        process.current_process()._config["authkey"] = key


def _set_thread_counts(env: Mapping[str, str]) -> None:
    """Apply OMP_NUM_THREADS and the like by calls: libraries read them only at their start."""
    count = _count(env, "OMP_NUM_THREADS") or _count(env, "MKL_NUM_THREADS")
    torch = sys.modules.get("torch")
    if count and torch is not None:
        # MKL, if torch has it, never uses more threads than cores, whatever is requested.
        most = torch.get_num_threads() if torch.backends.mkl.is_available() else count
        torch.set_num_threads(min(count, most))
    blas_count = _count(env, "OPENBLAS_NUM_THREADS") or count
    if blas_count:
        for library in _blas_libraries:
            for name in _OPENBLAS_SETTERS:
                setter = getattr(library, name, None)
                if setter is not None:
                    setter(ctypes.c_int(blas_count))


def _count(env: Mapping[str, str], name: str) -> int | None:
    value = env.get(name, "")
    return int(value) if value.isdigit() and int(value) > 0 else None


def _loaded_libraries(part_of_name: str) -> list[ctypes.CDLL]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.split(None, 5)[5].strip() for line in file if line.count("/") > 0}
    return [
        ctypes.CDLL(path)
        for path in sorted(paths)
        if part_of_name in os.path.basename(path) and ".so" in path
    ]

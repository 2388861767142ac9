"""Runs a user's script in this interpreter exactly as `python script.py` would.

As a program, `python rank.py INJOB_PATH SCRIPT ARGUMENT...`, it is the whole bootstrap of a cold
rank. It imports as little as possible, since the script would find its imports already loaded.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

# A real-time signal (SIGRTMAX - 5) that no known library uses; SIGUSR1 and 2 are the script's.
DUMP_SIGNAL = 59
STACKS_VARIABLE = "RAYJOBS_STACKS_FILE"

# The folder that provides `import azureml`, below the one from which ranks import `rayjobs`. It is
# on PYTHONPATH, so it comes before installed packages and applies to child processes, too.
ON_PATH = os.path.join("rayjobs", "injob", "onpath")
# The same for the address map (`url_map`), only in jobs of workspaces that have one.
MAPPED_ON_PATH = os.path.join("rayjobs", "injob", "onpath_mapped")

_STDERR = 2
_PR_SET_MM = 35
_PR_SET_MM_MAP = 14

_KEPT: list[Any] = []


def arm(path: str) -> None:
    """Make this process write its threads' stacks to `path` whenever it gets `DUMP_SIGNAL`.

    The script sees neither a handler (`signal.getsignal`) nor an imported module.

    Raises:
        OSError: the file cannot be made.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    _faulthandler().register(DUMP_SIGNAL, file=descriptor, all_threads=True, chain=False)


def show_crashes() -> None:
    """Make this process print its Python stacks to stderr when native code crashes it.

    The same as ``python -X faulthandler script.py``. The crash itself does not change: the handler
    passes the signal on. A script that enables or disables `faulthandler` overrides this.
    """
    _faulthandler().enable(file=_STDERR, all_threads=True)


def _faulthandler() -> Any:
    """Import the module without leaving it in the script's `sys.modules`."""
    was_imported = "faulthandler" in sys.modules
    import faulthandler

    if not was_imported:
        _KEPT.append(sys.modules.pop("faulthandler"))
    return faulthandler


def show_command(words: Sequence[str]) -> None:
    """Make `ps`, `top` and `/proc/PID/cmdline` show `words` as this process's command line.

    If the kernel cannot move the command line (CONFIG_CHECKPOINT_RESTORE), the words overwrite the
    old one, joined by spaces and cut to its length.
    """
    try:
        import ctypes
    except ImportError:
        return
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    code, end_code, stack = (int(fields[number]) for number in (23, 24, 25))
    data, end_data, heap, start, end, env, end_env = (int(field) for field in fields[42:49])
    buffer = ctypes.create_string_buffer(text, len(text))
    _KEPT.append(buffer)
    here = ctypes.addressof(buffer)
    # struct prctl_mm_map; no auxiliary vector, and the program's file stays as it is.
    values = [code, end_code, data, end_data, heap, 0, stack, here, here + len(text), env, end_env]
    layout = (ctypes.c_uint64 * 13)(*values, 0, 0)
    ctypes.c_uint32.from_buffer(layout, 12 * 8 + 4).value = 0xFFFFFFFF
    if not _set_layout(ctypes, layout) and end - start > 2:
        title = b" ".join(os.fsencode(word) for word in words)[: end - start - 2] + b"\0"
        # If the last byte is not NUL, the kernel treats everything up to the first NUL as a title.
        ctypes.memmove(start, title.ljust(end - start, b" "), end - start)


def _set_layout(ctypes: Any, layout: Any) -> bool:
    """Tell the kernel where this process's command line is; False if it refuses."""
    library = ctypes.CDLL(None)
    library.sbrk.restype = ctypes.c_void_p
    library.sbrk.argtypes = [ctypes.c_ssize_t]
    change = library.prctl
    change.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    address, size = ctypes.addressof(layout), ctypes.sizeof(layout)
    while True:
        # The call also sets the end of the heap, which must be the true one.
        before = library.sbrk(0)
        layout[5] = before
        if change(_PR_SET_MM, _PR_SET_MM_MAP, address, size, 0) != 0:
            return False
        if library.sbrk(0) == before:
            return True


def _full_name(script: str) -> str:
    return script if os.path.isabs(script) else os.path.join(os.getcwd(), script)


def make_main_module() -> Any:
    """Put a fresh `__main__` in place of the current one, and return it."""
    # Without a reference, the old module would be torn down while its code runs.
    _KEPT.append(sys.modules["__main__"])
    module = type(sys)("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    if sys.version_info < (3, 14):
        module.__dict__["__annotations__"] = {}
    sys.modules["__main__"] = module
    return module


def arrange_path(script: str, base_path: Sequence[str], injob_path: str) -> None:
    """Set `sys.path`: the script's own folder, then the interpreter's own, then ours.

    A fork has not read PYTHONPATH at its start, so our entry there is inserted here.
    """
    path = list(base_path)
    first = os.path.join(injob_path, ON_PATH)
    if first in os.environ.get("PYTHONPATH", "").split(os.pathsep) and first not in path:
        path.insert(0, first)
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        path.insert(0, os.path.dirname(os.path.realpath(_full_name(script))))
    if injob_path not in path:
        path.append(injob_path)
    sys.path[:] = path


def begin(script: str, arguments: Sequence[str]) -> str:
    """Set `sys.argv` and return the script's name as the interpreter has it in `__file__`.

    Raises:
        SystemExit: it cannot be opened; the interpreter's own message has been printed.
    """
    # Before 3.9 the interpreter kept the name as given.
    full_name = script if sys.version_info < (3, 9) else _full_name(script)
    sys.argv = [script, *arguments]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.executable, script, *arguments]
    # Readers follow the log, and the script may be killed at any moment: so flush each complete
    # line, as on a terminal.
    out: Any = sys.stdout
    if out is not None:
        out.reconfigure(line_buffering=True)
        if os.environ.get("PYTHONUNBUFFERED"):
            out.reconfigure(write_through=True)
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        sys.dont_write_bytecode = True
    if os.environ.get("RAYJOBS_URLS"):
        from rayjobs.injob import url_map

        url_map.install()
    try:
        os.close(os.open(full_name, os.O_RDONLY))
    except OSError as error:
        print(
            f"{sys.executable}: can't open file {full_name!r}: [Errno {error.errno}] "
            f"{os.strerror(error.errno or 0)}",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    return full_name


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Run `script` as `__main__` and end as the interpreter would.

    Call it last and from the outermost frame, and return from there: the interpreter's own
    finalization (threads, atexit, flushing, the exit by SIGINT) then follows.

    Raises:
        SystemExit: the script failed; the traceback has been printed already.
    """
    full_name = begin(script, arguments)
    if os.environ.get("RAYJOBS_PARALLEL_RUN"):  # only cold ranks get here
        from rayjobs.injob import parallel_run

        raise SystemExit(parallel_run.main(full_name, arguments))
    module = make_main_module()
    try:
        import ctypes
    except ImportError:
        failed = _run_by_exec(full_name, module)
    else:
        failed = _run_by_interpreter(full_name, ctypes)
    if failed and not _was_interrupted():
        raise SystemExit(1)


def _was_interrupted() -> bool:
    # CPython has recorded the unhandled KeyboardInterrupt: after a normal return it ends the
    # process by SIGINT, which SystemExit would prevent.
    last = getattr(sys, "last_type", None)
    return isinstance(last, type) and issubclass(last, KeyboardInterrupt)


def _run_by_interpreter(full_name: str, ctypes: Any) -> bool:
    """Run the file with CPython's own function: tracebacks, exits and `__main__` are right."""
    c_file_open = ctypes.CDLL(None).fopen
    c_file_open.restype = ctypes.c_void_p
    c_file_open.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    run = ctypes.pythonapi.PyRun_SimpleFileExFlags
    run.restype = ctypes.c_int
    run.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    name = os.fsencode(full_name)
    stream = c_file_open(name, b"rbe")
    close_when_read = 1
    return bool(run(stream, name, close_when_read, None))


def _run_by_exec(full_name: str, module: Any) -> bool:
    """The same for an interpreter built without ctypes."""
    names = module.__dict__
    names["__file__"] = full_name
    names["__cached__"] = None
    with open(full_name, "rb") as file:
        source = file.read()
    try:
        exec(compile(source, full_name, "exec", dont_inherit=True), names)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        # The first entry is this function; for a syntax error there is no other.
        trace = None if trace is None else trace.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error, trace)
        return True
    return False


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        del sys.path[0]  # this file's folder, whose modules the script must not see
    stacks_file = os.environ.pop(STACKS_VARIABLE, None)
    if stacks_file is not None:
        arm(stacks_file)
    show_crashes()
    arrange_path(sys.argv[2], sys.path, sys.argv[1])
    show_command([sys.executable, *sys.argv[2:]])
    run_script(sys.argv[2], sys.argv[3:])

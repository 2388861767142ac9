"""Prints what a script can see of its process and its interpreter."""

import gc
import json
import locale
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import inspect
import pickle


class Thing:
    pass


def describe(handler):
    return getattr(handler, "name", getattr(handler, "__name__", str(handler)))


again = pickle.loads(pickle.dumps(Thing()))
first = random.random()
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
facts = {
    "name": __name__,
    "file": __file__,
    "argv": sys.argv,
    "argv_orig": sys.orig_argv[1:],
    "globals": sorted(globals()),
    "main": sys.modules["__main__"] is inspect.getmodule(Thing),
    "class": repr(Thing) + type(again).__module__,
    "source": inspect.getsource(describe),
    "path0": sys.path[0],
    "cwd": os.getcwd(),
    "environ": dict(os.environ),
    # Not `os.popen`: it leaves the shell and the pipe behind if the shell ends a moment after its
    # output does.
    "c_environ": subprocess.check_output("env | sort | grep -v ^_=", shell=True, text=True),
    "stdin": sys.stdin.read(),
    "stdout": [
        sys.stdout.encoding,
        sys.stdout.errors,
        sys.stdout.write_through,
        sys.stdout.name,
        sys.stdout.mode,
        sys.stdout.isatty(),
    ],
    "stderr": [sys.stderr.encoding, sys.stderr.errors, sys.stderr.line_buffering],
    "same_stdout": sys.stdout is sys.__stdout__,
    "locale": [
        locale.getpreferredencoding(False),
        locale.setlocale(locale.LC_CTYPE),
        sys.getfilesystemencoding(),
        sys.flags.utf8_mode,
    ],
    "flags": str(sys.flags),
    "options": [sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.pycache_prefix],
    "executable": [sys.executable, sys.prefix, sys.base_prefix],
    "signals": {
        str(number): describe(signal.getsignal(number)) for number in sorted(signal.valid_signals())
    },
    # Signals 32 and 33 belong to the C library, which sets them once there have been threads.
    # Those of crashes (4, 6, 7, 8, 11) are caught to print the Python stack; see
    # test_a_crash_shows_its_python_stack.
    "mask": [
        hex(int(status[name], 16) & ~(3 << 31) & ~0x4E8) for name in ("SigBlk", "SigIgn", "SigCgt")
    ],
    "wakeup": signal.set_wakeup_fd(-1),
    "threads": [threading.active_count(), len(os.listdir("/proc/self/task"))],
    "main_thread": [
        threading.main_thread() is threading.current_thread(),
        threading.current_thread().name,
        threading.main_thread().native_id == os.getpid(),
    ],
    "descriptors": sorted(os.listdir("/proc/self/fd"), key=int),
    "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
    "recursion": sys.getrecursionlimit(),
    "switch": sys.getswitchinterval(),
    "trace": [str(sys.gettrace()), str(sys.getprofile()), str(sys.exc_info())],
    "excepthook": sys.excepthook is sys.__excepthook__,
    "leader": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
    "nice": os.nice(0),
    "limits": [
        resource.getrlimit(getattr(resource, name))
        for name in sorted(dir(resource))
        if name.startswith("RLIMIT_")
    ],
    "umask": os.umask(0o22),
    "comm": open("/proc/self/comm").read(),
    "tty": stat[4],
    "pid": int(os.readlink("/proc/self")) == os.getpid(),
    "tempdir": tempfile.gettempdir(),
    "random_differs": first != random.random(),
    "timezone": time.tzname,
    "affinity": sorted(os.sched_getaffinity(0)),
}
import logging  # noqa: E402

import psutil  # noqa: E402

process = psutil.Process()
record = logging.makeLogRecord({})
# A second and a half: the kernel's time of a start is rounded.
facts["logging_began_with_us"] = (
    record.created - record.relativeCreated / 1000 > process.create_time() - 1.5
)
facts["oom_score_adj"] = open("/proc/self/oom_score_adj").read()
facts["psutil"] = [
    process.pid == os.getpid(),
    process.status(),
    process.num_threads(),
    len(process.children()),
    process.cwd(),
    process.name(),
    process.cmdline(),
]
json.dump(facts, sys.stdout, sort_keys=True, indent=1)

"""How attempts end when something goes wrong: memory, disk, logs, deadlines, cancels."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rayjobs.injob.identity import is_alive
from rayjobs.launch import hostclient
from tests.conformance.hosts import Attempt, namespaces_work, until, warm

__all__ = ["warm"]

pytestmark = pytest.mark.timeout(600)  # some wait for several ends, each with a long deadline

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
HOG = (
    "import time\nprint('up', flush=True)\nkept = []\n"
    "for _ in range(400):\n    kept.append(bytearray(b'x' * 2**20)); time.sleep(0.002)\n"
    "time.sleep(600)\n"
)


def stored(attempt: Attempt) -> dict[str, Any] | None:
    """Return the JSON of the exit record on disk."""
    record = hostclient.read_exit_record(str(attempt.root))
    return None if record is None else record.to_json()


@pytest.mark.parametrize("cgroups", ["1", "0"])
def test_memory_hog_is_named_and_its_neighbour_lives(
    short_path: Path, warm: str, cgroups: str
) -> None:
    """Off switch: `MemoryLimit.was_exceeded` returns False (cgroup), `check` None (watch)."""
    neighbour = Attempt.make(short_path, SLEEP).start(warm)
    hog = Attempt.make(short_path, HOG, memory_bytes=96 * 2**20, cold="to know its memory")
    hog.start_cold(RAYJOBS_CGROUPS=cgroups)
    record = hog.wait()
    assert record["outcome"] == "out_of_memory", record
    assert "memory limit" in record["reason"] and record["first_failed_rank"] == 0
    assert record["ranks"][0]["signal"] == signal.SIGKILL and record["ranks"][0]["out_of_memory"]
    assert record["memory"]["limit_bytes"] == 96 * 2**20
    assert record["memory"]["peak_bytes"] >= 64 * 2**20
    if cgroups == "0":
        assert record["memory"]["how"] == "watch"
    assert neighbour.status()["state"] == "running"
    neighbour.cancel()
    assert neighbour.wait()["outcome"] == "canceled"


def test_external_sigkill_is_not_reported_as_out_of_memory(short_path: Path, warm: str) -> None:
    """Off switch: call every SIGKILL out of memory."""
    attempt = Attempt.make(short_path, SLEEP, memory_bytes=4 * 2**30).start(warm)
    attempt.printed("up")
    os.kill(attempt.status()["ranks"][0]["pid"], signal.SIGKILL)
    record = attempt.wait()
    assert record["outcome"] == "failed" and "SIGKILL" in record["reason"]
    assert not record["ranks"][0]["out_of_memory"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_full_disk_leaves_a_record_that_names_it(short_path: Path, warm: str) -> None:
    """Off switch: no reserve file, or no second try in `exit_record.write`."""
    disk = short_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        fill = (
            "with open('fill', 'wb', buffering=0) as file:\n"
            "    while True:\n        file.write(b'x' * 512)\n"
        )
        attempt = Attempt.make(short_path, fill, root=disk / "a").start(warm)
        record = attempt.wait()
        assert record["outcome"] == "failed" and "ENOSPC" in record["reason"]
        assert stored(attempt) == record
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_exit_record_is_served_from_memory_until_the_disk_has_space(
    short_path: Path, warm: str
) -> None:
    """Off switch: give up in `Host._finish` after the first OSError."""
    disk = short_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        fill = (
            "import os\nos.unlink('../.reserve')\n"
            "with open('fill', 'wb', buffering=0) as file:\n"
            "    while file.write(b'x' * 512):\n        pass\n"
        )
        attempt = Attempt.make(short_path, fill, root=disk / "a").start(warm)
        record = asyncio.run(attempt.host.wait(timeout_s=150)).to_json()
        assert record["outcome"] == "failed"
        assert stored(attempt) is None
        assert attempt.identity is not None and is_alive(attempt.identity)
        (attempt.root / "work/fill").unlink()
        assert attempt.wait() == record
        assert stored(attempt) == record
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_one_huge_line_and_binary_output_are_kept_byte_for_byte(
    short_path: Path, warm: str
) -> None:
    """Off switch: read the output through a pipe and decode it."""
    source = (
        "import sys, random\nrandom.seed(5)\n"
        "sys.stdout.buffer.write(bytes(range(256)) + random.randbytes(2**20) + b'\\x1b]0;x\\a')\n"
        "sys.stdout.buffer.write(b'x' * 10**8)\n"
    )
    attempt = Attempt.make(short_path, source)
    code, expected = attempt.truth()
    (attempt.root / "truth.log").unlink()
    record = attempt.start(warm).wait()
    assert code == record["ranks"][0]["exit_code"] == 0
    assert record["ranks"][0]["log_bytes"] == len(expected)
    assert record["ranks"][0]["log_dropped"] == 0
    assert hashlib.sha256(attempt.log()).digest() == hashlib.sha256(expected).digest()


def test_log_beyond_its_cap_keeps_start_and_end_and_counts_the_rest(
    short_path: Path, warm: str
) -> None:
    """Off switch: `LogCap.enforce` returns at once."""
    lines, cap = 2_000_000, 4 * 2**20
    source = (
        "import sys\n"
        f"for part in range({lines} // 10_000):\n"
        "    sys.stdout.write(''.join(\n"
        "        f'{part * 10_000 + line:09d} some words of a log line to fill it\\n'\n"
        "        for line in range(10_000)))\n"
    )
    attempt = Attempt.make(short_path, source, log_cap_bytes=cap).start(warm)
    record = attempt.wait(300)
    rank = record["ranks"][0]
    path = attempt.root / "log/driver_0.log"
    note = json.loads((attempt.root / "log/driver_0.holes.json").read_text())
    hole = note["holes"][0]
    assert record["outcome"] == "completed"
    width = len("000000000 some words of a log line to fill it\n")
    assert rank["log_bytes"] == path.stat().st_size == width * lines
    assert rank["log_dropped"] == note["dropped_bytes"] == hole["length"]
    with path.open("rb") as file:
        start = file.read(hole["offset"])
        given_back = file.read(hole["length"])
        end = file.read()
    assert not given_back.strip(b"\0")  # the released middle reads as zeros
    assert len(given_back) == hole["length"] and len(start) + len(end) <= 2 * cap
    assert len(start) >= cap // 2 and len(end) >= cap // 2
    assert start.startswith(b"000000000 some") and b"\0" not in start + end
    assert end.endswith(b"%09d some words of a log line to fill it\n" % (lines - 1))


def test_script_that_deletes_its_folder_ends_well(short_path: Path, warm: str) -> None:
    """Off switch: keep the exit record in `work/`."""
    source = "import os, shutil\nshutil.rmtree(os.getcwd())\nos.chdir('/')\nprint('still here')\n"
    for way in ("warm", "cold", *(["namespace"] if namespaces_work() else [])):
        attempt = Attempt.make(short_path, source)
        if way == "namespace":
            attempt.plan["containment"] = ["namespace"]
        record = (attempt.start_cold() if way == "cold" else attempt.start(warm)).wait()
        assert record["outcome"] == "completed" and attempt.log() == b"still here\n"


def test_failing_rank_ends_the_others_and_is_named(short_path: Path, warm: str) -> None:
    """Off switch: wait for all ranks in `Host._look_for_an_end`."""
    source = (
        "import os, signal, time\nprint('up', flush=True)\n"
        "if os.environ['RANK'] == '1':\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "time.sleep(600)\n"
    )
    record = Attempt.make(short_path, source, ranks=3, grace_s=60).start(warm).wait()
    assert record["outcome"] == "failed" and record["first_failed_rank"] == 1
    assert "rank 1" in record["reason"] and "SIGSEGV" in record["reason"]
    assert [rank["signal"] for rank in record["ranks"]] == [15, 11, 15]


def test_host_enforces_the_deadline_alone(short_path: Path) -> None:
    """Off switch: `Host.deadline_in_s` returns None. A separate warm interpreter is killed."""
    warm = str(short_path / "w.sock")
    found = asyncio.run(
        hostclient.ensure_warm(
            warm,
            python=sys.executable,
            env=hostclient.runtime_environment(),
            log_file=str(short_path / "warm.log"),
            preload=(),
        )
    )
    # Without its handler the attempt completes after a minute, and the test fails.
    script = "import time\ntime.sleep(60)\n"
    attempt = Attempt.make(short_path, script, max_duration_s=1.5).start(warm)
    os.kill(found.identity.pid, signal.SIGKILL)
    until(lambda: not is_alive(found.identity), "the end of the warm interpreter")
    record = until(lambda: stored(attempt), "the exit record")
    assert record["outcome"] == "time_limit" and "1.5s" in record["reason"]
    assert record["duration_s"] >= 1.5
    assert attempt.wait() == record


def test_warm_interpreter_killed_is_replaced(short_path: Path) -> None:
    """Off switch: `ensure_warm` trusts the socket file. Two concurrent callers get the same one."""
    warm = str(short_path / "w.sock")

    async def ensure() -> hostclient.WarmInterpreter:
        return await hostclient.ensure_warm(
            warm,
            python=sys.executable,
            env=hostclient.runtime_environment(),
            log_file=str(short_path / "warm.log"),
            preload=("json", "no_such_package"),
        )

    async def both() -> list[hostclient.WarmInterpreter]:
        return list(await asyncio.gather(ensure(), ensure()))

    first, second = asyncio.run(both())
    assert first.identity == second.identity and "no_such_package" in first.not_preloaded
    os.kill(first.identity.pid, signal.SIGKILL)
    until(lambda: not is_alive(first.identity), "the end of the warm interpreter")
    third = asyncio.run(ensure())
    assert third.identity != first.identity
    asyncio.run(hostclient.stop_warm(warm))
    until(lambda: not is_alive(third.identity), "the end of the second")
    asyncio.run(hostclient.stop_warm(warm))


def test_cancel_is_idempotent_in_every_state_of_a_host(short_path: Path, warm: str) -> None:
    """Off switch: let a later cause in `Ending.begin` overwrite the first."""
    at_once = Attempt.make(short_path, SLEEP).start(warm)
    assert at_once.cancel()
    record = at_once.wait()
    assert record["outcome"] == "canceled"
    assert not at_once.cancel()

    running = Attempt.make(short_path, SLEEP).start(warm)
    running.printed("up")
    assert running.status()["state"] == "running"
    assert running.cancel()
    assert running.wait()["outcome"] == "canceled"

    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
    ending = Attempt.make(short_path, deaf, grace_s=600).start(warm)
    ending.printed("up")
    assert ending.cancel()
    assert ending.status()["state"] == "ending"
    assert ending.cancel()
    assert ending.cancel(grace_s=0)
    assert ending.wait()["outcome"] == "canceled"

    one_fails = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['RANK'] == '0':\n    open('deaf', 'w').close(); time.sleep(600)\n"
        "while not os.path.exists('deaf'):\n    time.sleep(0.01)\n"
        "raise SystemExit(3)\n"
    )
    failing = Attempt.make(short_path, one_fails, ranks=2, grace_s=600).start(warm)
    until(lambda: failing.status()["state"] == "ending", "the end to begin")
    assert failing.cancel(grace_s=0)
    record = failing.wait()
    assert record["outcome"] == "failed" and record["first_failed_rank"] == 1

    failed = Attempt.make(short_path, "raise SystemExit(3)").start(warm)
    record = failed.wait()
    assert not failed.cancel()
    assert failed.wait() == record and record["outcome"] == "failed"


def test_cancel_racing_the_end_never_changes_the_outcome(short_path: Path, warm: str) -> None:
    """Off switch: decide the outcome from the cancel before looking at the exit codes."""
    attempts = [Attempt.make(short_path, "print('done')").start(warm) for _ in range(8)]
    for attempt in attempts:
        attempt.cancel()
    for attempt in attempts:
        record = attempt.wait()
        rank = record["ranks"][0]
        assert record["outcome"] in ("completed", "canceled")
        if record["outcome"] == "completed":
            assert rank["exit_code"] == 0
        assert record["leftovers"]["proven_dead"]


def test_host_reports_why_it_was_ended(short_path: Path, warm: str) -> None:
    """Off switch: leave SIGTERM at its default in the host."""
    attempt = Attempt.make(short_path, SLEEP).start(warm)
    attempt.printed("up")
    assert attempt.identity is not None
    os.kill(attempt.identity.pid, signal.SIGTERM)
    record = attempt.wait()
    assert record["outcome"] == "host_error" and "SIGTERM" in record["reason"]


def test_failing_rank_setup_is_a_host_error(short_path: Path, warm: str) -> None:
    """Off switch: ignore the setup pipe."""
    attempt = Attempt.make(short_path, SLEEP, python="/no/such/python")
    shutil.rmtree(attempt.root / "log")  # no folder for its output: caused by the node
    record = attempt.start(warm).wait()
    assert record["outcome"] == "host_error" and "cannot be set up" in record["reason"]
    assert record["cold"] is not None


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("missing", "cannot be started: No such file or directory"),
        ("mode", "cannot be started: Permission denied"),
        ("format", "cannot be started: Exec format error (it is for another architecture"),
        ("loader", "No such file or directory (the file exists; the loader or interpreter"),
    ],
)
def test_unstartable_program_is_not_a_host_error(
    short_path: Path, warm: str, harm: str, message: str
) -> None:
    program = short_path / "python"
    if harm != "missing":
        text = "#!/no/such/interpreter\n" if harm == "loader" else "not a program"
        program.write_text(text)
        program.chmod(0o644 if harm == "mode" else 0o755)
    record = Attempt.make(short_path, SLEEP, python=str(program)).start(warm).wait()
    assert record["outcome"] == "not_startable"
    assert f"{program} " in record["reason"] and message in record["reason"]
    assert record["first_failed_rank"] == 0


def test_stopped_host_is_unreachable_not_failed(short_path: Path, warm: str) -> None:
    """Off switch: take a timeout in `HostConnection` for the end of the host."""
    attempt = Attempt.make(short_path, SLEEP).start(warm)
    attempt.printed("up")
    assert attempt.identity is not None
    os.kill(attempt.identity.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(hostclient.HostUnreachable):
        asyncio.run(attempt.host.status(timeout_s=0.5))
    with pytest.raises(TimeoutError):
        asyncio.run(attempt.host.wait(timeout_s=0.5))
    assert time.monotonic() - began >= 0.9
    os.kill(attempt.identity.pid, signal.SIGCONT)
    assert attempt.status()["state"] == "running"
    attempt.cancel()
    assert attempt.wait()["outcome"] == "canceled"

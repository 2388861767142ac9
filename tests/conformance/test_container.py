"""Ranks in a container keep every promise of an attempt: ends, logs, limits, records, metrics."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from tests.conformance.hosts import NOBODY, Attempt, run_as_nobody
from tests.support.containers import PYTHON, image, in_image, mounts_below, needs_containers

__all__ = ["image"]

pytestmark = [pytest.mark.conformance, needs_containers, pytest.mark.timeout(300)]

LOOK = """
import json, os, sys
size = os.statvfs("/dev/shm")
print(json.dumps({
    "release": open("/etc/os-release").read(),
    "root": sorted(os.listdir("/")),
    "shm": size.f_blocks * size.f_frsize,
    "pids": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "pid": os.getpid(),
    "cwd": os.getcwd(),
    "argv": sys.argv,
    "path0": sys.path[0],
    "executable": sys.executable,
    "env": os.environ["FROM_THE_IMAGE"],
    "devices": sorted(os.listdir("/dev")),
    "modules": sorted(name for name in sys.modules if name.startswith("rayjobs")),
}))
open("/of-the-image", "w").write("changed")
os.symlink("/x", "/tmp/link")
"""


def test_a_rank_sees_the_image_and_its_own_folders_and_writes_next_to_the_image(
    short_path: Path, image: Path
) -> None:
    attempt = in_image(Attempt.make(short_path, LOOK, "--epochs", "3"), image)
    record = attempt.start_cold().wait()
    assert record["outcome"] == "completed", attempt.log()
    seen = json.loads(attempt.log())
    assert seen["release"] == 'NAME="made by a test"\n'
    assert seen["shm"] == 64 * 2**20
    assert set(seen["pids"]) == {1, seen["pid"]}
    assert seen["cwd"] == seen["path0"] == str(attempt.root / "work")
    assert seen["argv"] == ["train.py", "--epochs", "3"]
    assert seen["executable"] == "/usr/local/bin/python"
    assert seen["env"] == "yes"
    assert {"null", "zero", "full", "random", "urandom", "tty", "shm", "pts", "fd"} <= set(
        seen["devices"]
    )
    assert seen["modules"] == []
    assert not (image / "of-the-image").exists()
    assert (attempt.root / "container/upper/of-the-image").read_text() == "changed"
    assert record["cold"] == "requested"
    assert record["tree"] == "namespace"
    assert mounts_below(short_path) == []


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [
        ("raise SystemExit(37)", 37, None),
        ("import os; os.kill(os.getpid(), 11)", None, signal.SIGSEGV),
        ("import os; os.abort()", None, signal.SIGABRT),
        ("import sys; sys.exit('no')", 1, None),
    ],
)
def test_exit_codes_and_signals_are_exact(
    short_path: Path, image: Path, script: str, code: int | None, number: int | None
) -> None:
    record = in_image(Attempt.make(short_path, script), image).start_cold().wait()
    (rank,) = record["ranks"]
    assert (rank["exit_code"], rank["signal"]) == (code, number)


def test_a_crash_prints_python_stacks(short_path: Path, image: Path) -> None:
    script = "import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()\n"
    attempt = in_image(Attempt.make(short_path, script), image)
    record = attempt.start_cold().wait()
    assert record["ranks"][0]["signal"] == signal.SIGSEGV
    assert b"Fatal Python error: Segmentation fault" in attempt.log()
    assert b"in crash" in attempt.log()


def test_sigterm_handlers_run_and_get_their_grace(short_path: Path, image: Path) -> None:
    script = """
import signal, sys, time
def end(number, frame):
    print("saving", flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    time.sleep(60)
"""
    attempt = in_image(Attempt.make(short_path, script), image).start_cold()
    attempt.printed("ready")
    attempt.cancel()
    record = attempt.wait()
    assert record["outcome"] == "canceled"
    assert record["ranks"][0]["exit_code"] == 5
    assert attempt.log() == b"ready\nsaving\n"


def test_the_log_has_every_byte(short_path: Path, image: Path) -> None:
    script = """
import os, sys
for part in range(64):
    os.write(1, bytes(range(256)) * 64)
sys.stderr.write("to stderr\\n")
os.system("echo from a child; printf 'no newline at the end'")
"""
    attempt = in_image(Attempt.make(short_path, script), image)
    assert attempt.start_cold().wait()["outcome"] == "completed"
    expected = bytes(range(256)) * 64 * 64 + b"to stderr\nfrom a child\nno newline at the end"
    assert attempt.log() == expected


def test_time_and_memory_limits_hold(short_path: Path, image: Path) -> None:
    attempt = in_image(
        Attempt.make(short_path, "import time; time.sleep(600)", max_duration_s=0.5), image
    )
    assert attempt.start_cold().wait()["outcome"] == "time_limit"
    hungry = "held = [bytearray(8 * 2**20) for _ in range(200)]; print('got it all')"
    attempt = in_image(Attempt.make(short_path, hungry, memory_bytes=200 * 2**20), image)
    record = attempt.start_cold().wait()
    assert record["outcome"] == "out_of_memory", record
    assert b"got it all" not in attempt.log()


def test_run_metrics_and_checkpoints_work_on_the_images_python(
    short_path: Path, image: Path
) -> None:
    script = """
from rayjobs import Run, checkpoint
run = Run.get_context()
print(run.id)
run.log("loss", 0.25)
with open("outputs/model.txt", "w") as file:
    file.write("weights")
"""
    attempt = in_image(Attempt.make(short_path, script), image)
    root = attempt.root
    attempt.plan["env"] |= {
        "RAYJOBS_RUN_ID": "run-1",
        "RAYJOBS_ATTEMPT": "1",
        "RAYJOBS_ATTEMPT_DIR": str(root),
        "RAYJOBS_METRICS_DIR": str(root / "metrics"),
        "RAYJOBS_OUTPUTS": str(root / "work/outputs"),
    }
    assert attempt.start_cold().wait()["outcome"] == "completed", attempt.log()
    assert attempt.log() == b"run-1\n"
    assert b'"loss"' in (root / "metrics/rank-0.jsonl").read_bytes()
    assert (root / "work/outputs/model.txt").read_text() == "weights"


def test_ranks_of_a_node_share_files_and_shared_memory(short_path: Path, image: Path) -> None:
    script = """
import os, time
me, other = int(os.environ["RANK"]), 1 - int(os.environ["RANK"])
open(f"/dev/shm/from-{me}", "w").close()
open(f"/from-{me}", "w").close()
while not (os.path.exists(f"/dev/shm/from-{other}") and os.path.exists(f"/from-{other}")):
    time.sleep(0.01)
print("met")
"""
    attempt = in_image(Attempt.make(short_path, script, ranks=2, max_duration_s=60), image)
    record = attempt.start_cold().wait()
    assert record["outcome"] == "completed", record
    assert not Path("/dev/shm/from-0").exists()


def test_binds_are_read_only_where_they_should_be_and_links_of_the_image_stay_inside(
    short_path: Path, image: Path, tmp_path: Path
) -> None:
    data, trap = tmp_path / "data", tmp_path / "trap"
    data.mkdir()
    trap.mkdir()
    (data / "file").write_text("stored")
    script = """
try:
    open("/input/file", "w")
except OSError as error:
    print(error.errno)
print(open("/input/file").read(), open("/etc/hosts").read() == open("/node-hosts").read())
"""
    attempt = in_image(
        Attempt.make(short_path, script),
        image,
        more_binds=[
            {"source": str(data), "target": "/input", "read_only": True},
            {"source": "/etc/hosts", "target": "/etc/hosts", "replaces": True},
            {"source": "/etc/hosts", "target": "/node-hosts"},
        ],
    )
    assert attempt.start_cold().wait()["outcome"] == "completed", attempt.log()
    assert attempt.log() == b"30\nstored True\n"
    # A link in the image to a folder of the node creates nothing in that folder.
    trapped = tmp_path / "trapped"
    trapped.mkdir()
    (trapped / "input").symlink_to(trap)
    attempt = in_image(
        Attempt.make(short_path, "pass"),
        trapped,
        more_binds=[{"source": str(data), "target": "/input/deep", "read_only": True}],
    )
    attempt.start_cold().wait()
    assert list(trap.iterdir()) == []


def test_limits_and_tmpfs_of_docker_arguments(short_path: Path, image: Path) -> None:
    script = """
import os, resource
print(resource.getrlimit(resource.RLIMIT_NOFILE), os.statvfs("/scratch").f_blocks * 4096)
"""
    attempt = in_image(
        Attempt.make(short_path, script),
        image,
        limits=[{"name": "nofile", "soft": 77, "hard": 99}],
        memory_folders=[{"target": "/scratch", "size_bytes": 2**20}],
    )
    attempt.start_cold().wait()
    assert attempt.log() == b"(77, 99) 1048576\n"


def test_a_command_without_python_and_a_program_that_is_not_there(
    short_path: Path, image: Path
) -> None:
    attempt = in_image(
        Attempt.make(short_path, "", kind="command", command="cat /etc/os-release; exit 3"), image
    )
    record = attempt.start_cold().wait()
    assert record["ranks"][0]["exit_code"] == 3
    assert attempt.log() == b'NAME="made by a test"\n'
    attempt = in_image(Attempt.make(short_path, "pass"), image)
    attempt.plan["python"] = "/opt/no/python"
    record = attempt.start_cold().wait()
    assert record["outcome"] == "not_startable"
    assert "/opt/no/python cannot be started: No such file or directory" in record["reason"]


def test_a_host_of_another_user_uses_a_user_namespace(
    short_path: Path, image: Path, session_root: Path
) -> None:
    own = session_root / "image-of-nobody"  # where another user can reach it
    shutil.copytree(image, own, symlinks=True)
    for folder in (own, *own.rglob("*")):
        os.chown(folder, NOBODY, NOBODY, follow_symlinks=False)
    script = (
        "import os; print(os.getuid()); open('/here', 'w').write('x'); print(open('/here').read())"
    )
    attempt = in_image(Attempt.make(short_path, script), own)
    attempt.plan["env"]["HOME"] = str(attempt.root / "tmp")
    record = run_as_nobody(attempt, short_path, "cold", python_in_image=PYTHON)
    assert record["outcome"] == "completed", (record["reason"], attempt.log())
    assert attempt.log() == b"65534\nx\n"
    # An image owned by root, in which that user cannot create what the container needs.
    theirs = in_image(Attempt.make(short_path, "pass"), image)
    record = run_as_nobody(theirs, short_path, "cold", python_in_image=PYTHON)
    assert record["outcome"] == "host_error"
    assert "give it as an archive or an OCI folder" in record["reason"]


def test_devices_and_driver_libraries_of_a_node_are_shown(
    short_path: Path, image: Path, tmp_path: Path
) -> None:
    """With a stand-in for a GPU: /dev/null by another name, and a file as the library."""
    if os.geteuid() != 0:
        pytest.skip("only root can make the stand-in")
    device, library = tmp_path / "nvidia0", tmp_path / "libcuda.so.550.1"
    os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    library.write_text("the driver's")
    script = """
import os, stat
print(stat.S_ISCHR(os.stat("DEVICE").st_mode), open("/usr/local/nvidia/lib64/libcuda.so.1").read())
open("DEVICE", "w").write("x")
""".replace("DEVICE", str(device))
    target = "/usr/local/nvidia/lib64/libcuda.so.550.1"
    attempt = in_image(
        Attempt.make(short_path, script),
        image,
        devices=[str(device), str(tmp_path / "gone")],
        more_binds=[{"source": str(library), "target": target, "read_only": True}],
        links=[{"path": "/usr/local/nvidia/lib64/libcuda.so.1", "target": "libcuda.so.550.1"}],
    )
    assert attempt.start_cold().wait()["outcome"] == "completed", attempt.log()
    assert attempt.log() == b"True the driver's\n"

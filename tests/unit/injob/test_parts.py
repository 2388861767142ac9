"""The small parts of an attempt host: identities, markers, cgroups, log caps, exit records."""

from __future__ import annotations

import ast
import errno
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import rayjobs.injob
from rayjobs.injob import cgroups, exit_record, kernel, processes, startup
from rayjobs.injob.identity import Identity, ProcessStat, is_alive, own_identity, stat_of
from rayjobs.injob.log_cap import LogCap
from rayjobs.injob.outcomes import Outcome
from rayjobs.injob.plan import RankPlan
from rayjobs.injob.processes import children, descendants, has_marker
from rayjobs.injob.ranks import Rank
from rayjobs.injob.tree import cgroup_name

INJOB = Path(rayjobs.injob.__file__).parent
RUNNING = (
    "warm", "warm_loop", "host", "coldhost", "rank", "ranks", "startup", "ending", "tree", "memory",
    "cgroups", "kernel", "processes", "identity", "plan", "control", "detach", "log_cap",
    "exit_record", "cold_check",
)  # fmt: skip


@pytest.mark.parametrize("name", RUNNING)
def test_module_needs_only_the_standard_library_of_python_3_8(name: str) -> None:
    tree = ast.parse((INJOB / f"{name}.py").read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for found in names:
            top = found.partition(".")[0]
            assert top in sys.stdlib_module_names or found.startswith("rayjobs.injob"), found


def test_own_identity_is_alive_and_survives_a_record() -> None:
    own = own_identity()
    assert is_alive(own) and own.pid == os.getpid()
    assert Identity.from_json(json.loads(json.dumps(own.to_json()))) == own


def test_zombie_is_dead() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    stat = stat_of(child)
    assert stat is not None and stat.state == "Z" and stat.is_dead
    assert child not in {stat.pid for stat in descendants(os.getpid())}
    os.waitpid(child, 0)
    assert stat_of(child) is None


def test_children_of_every_thread_are_listed_while_they_live() -> None:
    found: list[int] = []

    def start() -> None:
        with subprocess.Popen(["/bin/sleep", "600"]) as process:
            found.extend([process.pid, *(stat.pid for stat in children(os.getpid()) or ())])
            process.kill()

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert found[0] in found[1:]
    assert found[0] not in {stat.pid for stat in children(os.getpid()) or ()}
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    assert children(ended.pid) is None


def test_name_with_brackets_and_spaces_is_read(tmp_path: Path) -> None:
    strange = tmp_path / "a) R 1 (b"
    strange.symlink_to("/bin/sleep")
    with subprocess.Popen([str(strange), "600"]) as process:
        try:
            while (stat := stat_of(process.pid)) is None or stat.comm != strange.name:
                pass  # until the child has become that program
            assert stat.parent == os.getpid()
        finally:
            process.kill()


def test_marker_is_overwritten_in_place_and_seen_from_outside() -> None:
    source = (
        "import sys; from rayjobs.injob import kernel\n"
        "kernel.write_marker('rj-in-place'); print('done', flush=True); sys.stdin.read()\n"
    )
    env = {"RAYJOBS_MARKER": "-" * 40, "PYTHONPATH": str(INJOB.parent.parent)}
    command = [sys.executable, "-c", source]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"done\n"
        assert has_marker(process.pid, "rj-in-place")
        assert not has_marker(process.pid, "rj-in-plac")
        process.stdin.close()


def test_a_process_without_memory_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older kernels show empty files for it; newer ones refuse to open its environment block."""
    monkeypatch.setattr(processes, "_read", lambda pid, name: b"")
    monkeypatch.setattr(time, "sleep", lambda s: pytest.fail("it waits"))
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert processes.environment_of(ended.pid) == []
    thread = ProcessStat(2, "kthreadd", "S", 0, 0, 1, 1, flags=0x208040)
    monkeypatch.setattr(processes, "stat_of", lambda pid: thread)
    assert processes.environment_of(2) == []


def test_marker_without_space_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "MARKER_VARIABLE", "NO_SUCH_VARIABLE_AT_START")
    with pytest.raises(ValueError, match="NO_SUCH_VARIABLE_AT_START"):
        kernel.write_marker("x")
    monkeypatch.setattr(kernel, "MARKER_VARIABLE", "PATH")
    with pytest.raises(ValueError, match="space"):
        kernel.write_marker("x" * 100_000)


@pytest.mark.parametrize(
    ("mount_root", "path", "below"),
    [("/", "/", ""), ("/", "/slice", "/slice"), ("/box", "/box/in", "/in"), ("/box", "/else", "")],
)
def test_own_cgroup_is_found_under_any_mount(
    tmp_path: Path, mount_root: str, path: str, below: str
) -> None:
    for name in ("slice", "in"):
        (tmp_path / name).mkdir()
    assert cgroups._within(str(tmp_path), mount_root, path) == f"{tmp_path}{below}"


def test_cgroup_name_is_one_safe_path_part() -> None:
    assert cgroup_name("a/../b c") == "rayjobs-a_.._b_c"


def test_log_keeps_both_ends_over_several_rounds(tmp_path: Path) -> None:
    path = tmp_path / "driver_0.log"
    cap = LogCap(str(path), 64 * 1024)
    written = b""
    for number in range(40):
        part = b"%06d\n" % number * 2000
        written += part
        with path.open("ab") as file:
            file.write(part)
        cap.enforce()
    cap.enforce(at_end=True)
    note = json.loads((tmp_path / "driver_0.holes.json").read_text())
    hole = note["holes"][0]
    kept = path.read_bytes()
    end = hole["offset"] + hole["length"]
    assert cap.size == len(written) and cap.dropped == note["dropped_bytes"] == hole["length"]
    assert kept[: hole["offset"]] == written[: hole["offset"]] and kept[end:] == written[end:]
    assert hole["offset"] >= 32 * 1024 and len(written) - end >= 32 * 1024
    if cap.is_possible:
        assert not kept[hole["offset"] : end].strip(b"\0")  # freed bytes read as zeros


def test_log_on_a_disk_without_holes_is_left_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no holes here")

    monkeypatch.setattr(kernel, "punch_hole", refuse)
    path = tmp_path / "driver_0.log"
    path.write_bytes(b"x" * 10**6)
    cap = LogCap(str(path), 4096)
    cap.enforce(at_end=True)
    assert cap.dropped == 0 and not cap.is_possible
    assert json.loads((tmp_path / "driver_0.holes.json").read_text())["holes"] == []


@pytest.mark.parametrize("has_room_at", ["the hole", "the end"])
def test_note_of_a_hole_is_written_as_soon_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room_at: str
) -> None:
    punch, note = kernel.punch_hole, tmp_path / "driver_0.holes.json"
    (note / "in the way").mkdir(parents=True)  # as on a full disk, no note can be written

    def make_room() -> None:
        (note / "in the way").rmdir()
        note.rmdir()

    def free(descriptor: int, offset: int, length: int) -> None:
        punch(descriptor, offset, length)
        if has_room_at == "the hole":
            make_room()

    monkeypatch.setattr(kernel, "punch_hole", free)
    path = tmp_path / "driver_0.log"
    path.write_bytes(b"x" * 10**6)
    cap = LogCap(str(path), 64 * 1024)
    cap.enforce()
    if has_room_at == "the end":
        assert note.is_dir()
        make_room()
        cap.enforce(at_end=True)
    assert json.loads(note.read_text()) == cap.as_note()
    assert cap.dropped > 0 or not cap.is_possible


def test_rank_that_was_never_released_has_no_start_time() -> None:
    plan = RankPlan(rank=0, local_rank=0)
    log = LogCap("driver_0.log", None)
    rank = Rank(plan, own_identity(), log, setup=-1, go=-1)
    assert rank.as_record().started_at is None


ENDED = exit_record.ExitRecord(job="j", attempt=1, node=0, marker="m", outcome=Outcome.FAILED)


def test_exit_record_is_whole_or_absent(tmp_path: Path) -> None:
    assert exit_record.read(str(tmp_path)) is None
    exit_record.make_reserve(str(tmp_path))
    exit_record.write(str(tmp_path), ENDED)
    assert exit_record.read(str(tmp_path)) == ENDED
    assert os.listdir(tmp_path) == ["exit.json"]
    (tmp_path / "exit.json").write_text("[]")
    with pytest.raises(ValueError, match="exit record"):
        exit_record.read(str(tmp_path))


def test_reserve_is_given_up_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = exit_record.write_file, []

    def full_at_first(path: str, values: Any) -> None:
        calls.append(sorted(os.listdir(tmp_path)))
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "full")
        real(path, values)

    exit_record.make_reserve(str(tmp_path))
    monkeypatch.setattr(exit_record, "write_file", full_at_first)
    exit_record.write(str(tmp_path), ENDED)
    assert calls == [[".reserve"], []]
    assert exit_record.read(str(tmp_path)) == ENDED


RENAMES = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from rayjobs.injob import rank
if sys.argv[2] == "as a title":
    rank._set_layout = lambda ctypes, layout: False
rank.show_command(["python", "train.py", "a b", sys.argv[3]])
print(open("/proc/self/cmdline", "rb").read())
print(b"PLACE=here" in open("/proc/self/environ", "rb").read().split(b"\\0"))
"""


@pytest.mark.parametrize(
    ("way", "shown"),
    [("exactly", b"python\0train.py\0a b\0"), ("as a title", b"python train.py a b ")],
)
def test_the_shown_command_line_is_replaced(way: str, shown: bytes) -> None:
    """The last argument of the new command line is longer than the whole old one."""
    long = "x" * 20_000
    done = subprocess.run(
        [sys.executable, "-c", RENAMES, str(INJOB.parents[1]), way, long],
        env={"PLACE": "here"},
        stdout=subprocess.PIPE,
        check=True,
    )
    line, environment = done.stdout.decode().splitlines()
    found = ast.literal_eval(line)
    assert found.startswith(shown + b"xxx") and environment == "True"
    if way == "exactly":
        assert found == shown + long.encode() + b"\0"


def test_log_records_count_from_the_start_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for began in (1.0, 1_000_000_000):  # seconds, and the nanoseconds of later versions
        monkeypatch.setattr(logging, "_startTime", began)
        before = time.time()
        startup._renew_logging()
        now = getattr(logging, "_startTime")  # noqa: B009
        assert type(now) is type(began)
        assert before <= (now / 1e9 if isinstance(now, int) else now) <= time.time()

"""An attempt cannot change the sources of its inputs, by any path."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.hosts import Attempt, namespaces_work, run_as_nobody, until, warm

__all__ = ["warm"]


pytestmark = [
    pytest.mark.conformance,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not namespaces_work(), reason="no namespaces on this machine"),
]

# Prints for each path whether it could be written, and its content afterwards.
WRITES = """
import errno, os, sys
for path in sys.argv[1:]:
    try:
        with open(path, "r+") as file:
            file.write("CHANGED")
        outcome = "written"
    except OSError as error:
        outcome = errno.errorcode[error.errno]
    print(outcome, open(path).read())
print(os.path.exists("/proc/self/status"), os.listdir("."))
print(*[line.split()[1] for line in open("/proc/self/status") if line[:6] == "CapEff"])
"""
NO_RIGHTS = "0000000000000000"


class Inputs:
    """A stored folder that is read-only for an attempt, and a cached file below its own layer."""

    def __init__(self, folder: Path) -> None:
        self.stored = folder / "store" / "pets" / "1.txt"
        self.link = folder / "link"
        self.cached = folder / "cache" / "1"
        self.lower = folder / "inputs" / "own"
        for made in (self.stored.parent, self.cached.parent, self.lower):
            made.mkdir(parents=True)
        self.stored.write_text("stored")
        self.cached.write_text("cached")
        self.link.symlink_to(self.stored.parent)
        os.link(self.cached, self.lower / "1")
        self.paths = [str(self.link / "1.txt"), str(self.stored), str(self.lower / "1")]
        layers = (str(self.lower), str(folder / "upper"), str(folder / "work"))
        self.views: dict[str, Any] = {
            "read_only": [str(self.link)],
            "overlays": [layers],
            "writable": [],
        }

    def are_as_before(self) -> bool:
        return (self.stored.read_text(), self.cached.read_text()) == ("stored", "cached")


SEEN = [
    "EROFS stored",
    "EROFS stored",
    "written CHANGED",
    "True ['train.py', 'outputs', 'logs']",
]


def printed(attempt: Attempt, rank: int = 0) -> list[str]:
    lines = attempt.log(rank).decode().splitlines()
    return [*lines[:3], "True ['train.py', 'outputs', 'logs']" if lines[3][:4] == "True" else ""]


def start(attempt: Attempt, way: str, warm: str) -> Attempt:
    return attempt.start(warm) if way == "warm" else attempt.start_cold()


@pytest.mark.parametrize("containment", [["scan"], ["namespace"]], ids=["scan", "namespace"])
@pytest.mark.parametrize("way", ["cold", "warm"])
def test_attempt_cannot_change_its_inputs(
    short_path: Path, warm: str, way: str, containment: list[str]
) -> None:
    """Off switches: no remount in `Views._mount_read_only`; no `_show_inputs` in the host."""
    inputs = Inputs(short_path / "data")
    attempt = Attempt.make(
        short_path, WRITES, *inputs.paths, containment=containment, views=inputs.views
    )
    assert start(attempt, way, warm).wait()["outcome"] == "completed", attempt.log()
    assert printed(attempt) == SEEN
    assert inputs.are_as_before()
    assert str(short_path) not in Path("/proc/self/mountinfo").read_text()


def test_all_ranks_of_a_node_share_one_layer(short_path: Path, warm: str) -> None:
    inputs = Inputs(short_path / "data")
    source = (
        "import os, sys, time\n"
        "own = os.path.dirname(sys.argv[1])\n"
        "open(f'{own}/{os.environ[\"RANK\"]}.done', 'w').close()\n"
        "deadline = time.monotonic() + 150\n"
        "while len([n for n in os.listdir(own) if n[-5:] == '.done']) < 2:\n"
        "    assert time.monotonic() < deadline\n    time.sleep(0.01)\n"
    )
    attempt = Attempt.make(short_path, source, inputs.paths[2], ranks=2, views=inputs.views)
    assert attempt.start(warm).wait()["outcome"] == "completed", attempt.log()
    assert os.listdir(inputs.lower) == ["1"]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="becoming another user needs root"
)
@pytest.mark.parametrize("containment", [["scan"], ["namespace"]], ids=["scan", "namespace"])
@pytest.mark.parametrize("way", ["cold", "warm"])
def test_plain_user_gets_the_same_views_without_extra_rights(
    short_path: Path, way: str, containment: list[str]
) -> None:
    """Off switch: no `drop_capabilities` in `Views.enter`."""
    inputs = Inputs(short_path / "data")
    attempt = Attempt.make(
        short_path, WRITES, *inputs.paths, containment=containment, views=inputs.views
    )
    record = run_as_nobody(attempt, short_path, way)
    assert record["outcome"] == "completed", attempt.log()
    assert printed(attempt) == SEEN
    assert attempt.log().decode().splitlines()[4] == NO_RIGHTS
    assert inputs.are_as_before()


def test_attempt_inside_its_input_can_write_its_own_files(short_path: Path, warm: str) -> None:
    """Off switch: no writable folders in `Views._mount_read_only`."""
    inputs = Inputs(short_path / "data")
    inputs.views["read_only"] = [str(short_path)]
    source = WRITES + "open('outputs/made', 'w').write('made')\n"
    attempt = Attempt.make(short_path, source, *inputs.paths, views=inputs.views)
    inputs.views["writable"] = [str(attempt.root), str(short_path)]
    inputs.views["read_only"] = [str(short_path), str(inputs.stored.parent)]
    record = attempt.start(warm).wait(deadline_s=60.0)  # a host that cannot write it never ends
    assert record["outcome"] == "completed", attempt.log()
    assert printed(attempt)[:2] == SEEN[:2]
    assert (attempt.root / "work" / "outputs" / "made").read_text() == "made"


def test_mounts_below_an_input_are_read_only(short_path: Path, warm: str) -> None:
    """Off switch: only the folder itself is remounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    inputs = Inputs(short_path / "data")
    point = inputs.stored.parent / "more data"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nosuid", "none", point], check=True)
    try:
        (point / "2.txt").write_text("mounted")
        attempt = Attempt.make(short_path, WRITES, str(point / "2.txt"), views=inputs.views)
        assert attempt.start(warm).wait()["outcome"] == "completed", attempt.log()
        assert attempt.log().decode().splitlines()[0] == "EROFS mounted"
    finally:
        subprocess.run(["umount", point], check=True)


def test_a_closed_file_cannot_be_replaced_and_its_folder_stays_writable(
    short_path: Path, warm: str
) -> None:
    """Off switch: the folder is closed instead of the file."""
    inputs = Inputs(short_path / "data")
    inputs.views["read_only"] = [str(inputs.stored)]
    source = (
        "import errno, os, sys\nfile = sys.argv[1]\nnext_to = file + '.out'\n"
        "open(next_to, 'w').write('result')\n"
        "for change in (lambda: open(file, 'w'), lambda: os.unlink(file),\n"
        "               lambda: os.replace(next_to, file), lambda: os.rename(file, 'x')):\n"
        "    try:\n        change()\n    except OSError as error:\n"
        "        print(errno.errorcode[error.errno])\n"
    )
    attempt = Attempt.make(short_path, source, str(inputs.stored), views=inputs.views)
    assert attempt.start(warm).wait()["outcome"] == "completed", attempt.log()
    refused = attempt.log().decode().split()
    assert len(refused) == 4 and set(refused) <= {"EROFS", "EBUSY", "EXDEV"}
    assert inputs.are_as_before()
    assert inputs.stored.with_name("1.txt.out").read_text() == "result"


def test_a_folder_that_stays_writable_is_read_only_where_it_is_shown(
    short_path: Path, warm: str
) -> None:
    """Off switch: no mounts of `shown` in `Views._mount_read_only`."""
    inputs = Inputs(short_path / "data")
    place = short_path / "data" / "place"
    place.mkdir()
    views = {"shown": [(str(short_path), str(place))]}  # contains the attempt, as a home may
    shown = place / inputs.stored.relative_to(short_path)
    source = WRITES + "open('outputs/made', 'w').write('made')\n"
    attempt = Attempt.make(short_path, source, str(shown), str(inputs.stored), views=views)
    assert attempt.start(warm).wait()["outcome"] == "completed", attempt.log()
    assert attempt.log().decode().splitlines()[:2] == ["EROFS stored", "written CHANGED"]
    assert (attempt.root / "work" / "outputs" / "made").read_text() == "made"
    assert list(place.iterdir()) == []


def test_killed_host_leaves_no_mounts(short_path: Path, warm: str) -> None:
    inputs = Inputs(short_path / "data")
    source = (
        "import sys, time\nopen(sys.argv[1], 'w').write('mine')\nprint('in', flush=True)\n"
        "time.sleep(600)\n"
    )
    attempt = Attempt.make(short_path, source, inputs.paths[2], views=inputs.views).start(warm)
    attempt.printed("in")
    assert attempt.identity is not None
    members = attempt.members()
    assert members
    os.kill(attempt.identity.pid, signal.SIGKILL)
    until(lambda: not attempt.members(), "the end of all")
    assert str(short_path) not in Path("/proc/self/mountinfo").read_text()
    assert inputs.are_as_before()
    shutil.rmtree(short_path / "data")


def test_failing_views_end_the_attempt_before_it_starts(short_path: Path, warm: str) -> None:
    missing = {"read_only": [str(short_path / "gone")], "overlays": [], "writable": []}
    attempt = Attempt.make(short_path, "print('ran')", views=missing).start(warm)
    record = attempt.wait()
    assert record["outcome"] == "host_error"
    assert "gone" in record["reason"] and "inputs" in record["reason"]
    assert attempt.log() == b""

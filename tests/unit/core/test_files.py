"""Files that are replaced atomically, and locks that end with their process."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs.core.files import (
    is_locked,
    locked,
    locked_if_free,
    replacing,
    write_atomic,
)
from rayjobs.injob.identity import Identity, own_identity

HOLDER = """
import sys
from rayjobs.core.files import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_file_is_replaced_with_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")
    write_atomic(path, "new", mode=0o600, durable=True)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_atomic(path, b"\x00")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()
    assert os.listdir(tmp_path) == ["record.json"]


@pytest.mark.long
def test_a_failed_write_names_the_file_and_leaves_the_old_one(tmp_path: Path) -> None:
    code = (
        "import signal, sys\nfrom rayjobs.core.files import write_atomic\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try:\n    write_atomic(sys.argv[1], 'x' * 5000)\n"
        "except OSError as error:\n    print(error.filename)\n"
    )
    path = tmp_path / "record.json"
    path.write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert done.stdout.strip() == str(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_link_in_the_way_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other")
    (tmp_path / "record").symlink_to("other")
    write_atomic(tmp_path / "record", "new")
    assert (tmp_path / "other").read_text() == "other"
    assert (tmp_path / "record").read_text() == "new"


def test_draft_keeps_the_suffix_and_is_removed_if_its_writer_fails(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    with replacing(path) as draft:
        assert draft.endswith(".png")
        Path(draft).write_text("new")
    with pytest.raises(ZeroDivisionError), replacing(path) as draft:
        Path(draft).write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["plot.png"]


def test_a_lock_keeps_others_out_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    with locked(path):
        assert is_locked(path)
        with locked_if_free(path) as is_mine:
            assert not is_mine
    assert not is_locked(path)
    with locked(path, shared=True), locked(path, shared=True):
        pass


def test_a_lock_is_free_after_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert is_locked(path)
    holder.kill()
    holder.communicate()
    with locked(path, remove=True):
        pass
    assert os.listdir(tmp_path) == []


def test_a_missing_lock_file_is_not_locked(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")


def test_an_identity_that_an_earlier_version_wrote_is_read() -> None:
    own = own_identity()
    earlier = {"pid": own.pid, "start_time": own.start_time, "boot": own.boot_id}
    assert Identity.from_json(earlier) == own


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now

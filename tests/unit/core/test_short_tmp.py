"""Temporary folders of attempts have a path that is short enough for Unix sockets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rayjobs.core import short_tmp
from rayjobs.core.paths import AttemptPaths, runtime_dir


@pytest.fixture
def tmp(own_home: Path) -> Path:
    folder = AttemptPaths(own_home / "node" / "attempts" / ("long-name-" * 8) / "a1").tmp
    folder.mkdir(parents=True)
    return folder


def test_a_short_path_stays_as_it_is(short_path: Path) -> None:
    assert short_tmp.provide(short_path / "tmp") == short_path / "tmp"


def test_long_path_gets_a_short_link(tmp: Path) -> None:
    short = short_tmp.provide(tmp)
    assert short.samefile(tmp)
    assert short_tmp.provide(tmp) == short  # the link of an undone start is reused
    below = short / "pymp-xxxxxxxx" / "listener-xxxxxxxx"
    below.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(below))
    assert (tmp / "pymp-xxxxxxxx" / "listener-xxxxxxxx").is_socket()
    short_tmp.remove(tmp)
    assert not os.path.lexists(short) and tmp.is_dir()


def test_links_of_ended_attempts_are_removed_and_live_ones_refreshed(tmp: Path) -> None:
    living = short_tmp.provide(tmp)
    os.utime(living, (0, 0), follow_symlinks=False)
    ended = AttemptPaths(tmp.parents[1] / "a2")
    ended.tmp.mkdir(parents=True)
    over = short_tmp.provide(ended.tmp)
    ended.exit.write_text("{}")
    gone = short_tmp.provide(tmp.parents[1] / "a3" / "tmp")
    short_tmp.clean(runtime_dir())
    assert living.lstat().st_mtime > 0
    assert not os.path.lexists(over) and not os.path.lexists(gone)

"""Which files stay out: one ignore file, git's meaning of its lines, and the defaults."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rayjobs.core.errors import SnapshotError
from rayjobs.core.paths import VENDORED
from rayjobs.snapshots.ignore import LeftOut, Why, ignore_line, read_rules
from rayjobs.snapshots.limits import Limits
from rayjobs.snapshots.scan import scan
from tests.unit.snapshots.conftest import Packer


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def kept(packed: Packer) -> set[str]:
    return {entry.path for entry in packed().manifest if entry.kind == "file"}


def test_the_first_ignore_file_counts_alone(packed: Packer, source: Path) -> None:
    write(source, "a", "b", "c")
    (source / ".gitignore").write_text("a\n")
    assert not {"a"} & kept(packed)
    (source / ".amlignore").write_text("b\n")
    assert kept(packed) >= {"a", "c"}
    assert "b" not in kept(packed)
    (source / ".rayjobsignore").write_text("c\n")
    assert kept(packed) >= {"a", "b"}
    assert "c" not in kept(packed)


def test_only_the_ignore_file_at_the_root_counts(packed: Packer, source: Path) -> None:
    write(source, "deep/a")
    (source / "deep" / ".rayjobsignore").write_text("a\n")
    assert "deep/a" in kept(packed)


def test_windows_line_ends_and_a_byte_order_mark_do_no_harm(packed: Packer, source: Path) -> None:
    write(source, "a.log", "b.log")
    (source / ".rayjobsignore").write_bytes(b"\xef\xbb\xbfa.log\r\nb.log\r\n")
    assert not {"a.log", "b.log"} & kept(packed)


PATTERNS = """
# comment
*.log
!keep.log
/only-root
build/
docs/**/draft
**/cache2
a?c
[xy].txt
\\#hash
\\!bang
trailing\\SPACE
!/deep/build/kept
*
!*/
!*.py
!*.log
!x.txt
""".replace("SPACE", " ")
TREE = (
    "a.log", "keep.log", "deep/keep.log", "only-root", "deep/only-root", "build/x.py",
    "deep/build/kept", "docs/draft", "docs/a/b/draft", "docs/a.py", "k/cache2/x.py", "abc",
    "x.txt", "z.txt", "#hash", "!bang", "trailing ", "m.py", "deep/m.py",
)  # fmt: skip


@pytest.mark.parametrize(
    "lines",
    [
        PATTERNS.split("*\n!*/")[0],
        PATTERNS,
        "*\n!*.py\n",
        "deep/\n",
        "deep/**\n!deep/m.py\n",
        "/*\n!/deep/\n",
        "deep\n!deep/\n",
    ],
)
def test_ignore_lines_have_git_semantics(source: Path, lines: str) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed: nothing to compare with")
    write(source, *TREE)
    (source / ".gitignore").write_text(lines)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q", "."], cwd=source, check=True, env=environment)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=source, check=True, capture_output=True, env=environment,
    ).stdout  # fmt: skip
    ours = scan(source, read_rules(source), Limits())
    assert set(ours.stats) == {os.fsdecode(name) for name in listed.split(b"\0") if name}


def test_line_that_is_not_a_pattern_is_named(packed: Packer, source: Path) -> None:
    (source / ".rayjobsignore").write_text("ok\n!\n")
    with pytest.raises(SnapshotError, match=r"\.rayjobsignore"):
        packed()


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_ignore_file_that_is_not_a_file_is_refused_immediately(
    packed: Packer, source: Path, kind: str
) -> None:
    path = source / ".rayjobsignore"
    os.mkfifo(path) if kind == "fifo" else path.mkdir()
    with pytest.raises(SnapshotError, match="ignore file"):
        packed()


def test_version_control_caches_and_environments_are_left_out_and_named(
    packed: Packer, source: Path
) -> None:
    write(
        source,
        ".git/config", "sub/.git", ".hg/x", "__pycache__/a.pyc", "b.pyc", ".mypy_cache/x",
        "node_modules/x", ".rayjobs/store.db", "my env/pyvenv.cfg", "my env/lib/x.py",
        "conda/conda-meta/history", ".ipynb_checkpoints/a",
    )  # fmt: skip
    snapshot = packed()
    assert {entry.path for entry in snapshot.manifest} == {"train.py", "sub"}
    (warning,) = snapshot.warnings
    for name in (".git/", "sub/.git", "my env/", "conda/", ".mypy_cache/", ".rayjobs/"):
        assert name in warning
    assert "pyc" not in warning
    assert {"__pycache__/", "b.pyc"} <= {one.path for one in snapshot.left_out}


def test_separately_transferred_files_are_not_packed_twice(packed: Packer, source: Path) -> None:
    """The files are those that `rayjobs env vendor` writes, in the folder of the script."""
    write(source, "image/blobs/sha256/a", f"image/{VENDORED}", "offline/requirements.txt",
          "offline/wheels/a.whl", f"offline/wheels/{VENDORED}")  # fmt: skip
    snapshot = packed()
    paths = {entry.path for entry in snapshot.manifest}
    assert paths == {"train.py", "offline", "offline/requirements.txt"}
    (warning,) = snapshot.warnings
    assert "image/" in warning and "offline/wheels/" in warning


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("!.git/", ".git/config"),
        ("!/tools/venv/", "tools/venv/lib/x.py"),
        ("!*.pyc", "b.pyc"),
        ("!.env", ".env"),
        ("!*.pem", "certificates/ca.pem"),
        ("!certificates/ca.pem", "certificates/ca.pem"),
        ("!.aws/", ".aws/credentials"),
        ("!credentials.py", "credentials.py"),
    ],
)
def test_rayjobsignore_line_includes_a_default_exclusion(
    packed: Packer, source: Path, line: str, path: str
) -> None:
    write(source, path)
    if "venv" in path:
        write(source, "tools/venv/pyvenv.cfg")
    assert path not in kept(packed)
    (source / ".gitignore").write_text(line)
    assert path not in kept(packed)  # git's file is not meant for snapshots
    (source / ".rayjobsignore").write_text(line)
    assert path in kept(packed)


@pytest.mark.parametrize("line", ["!src/", "!src/**", "*\n!src/\n!src/**", "!*", "!.*", "!**"])
def test_broad_ignore_line_includes_no_secret(packed: Packer, source: Path, line: str) -> None:
    write(source, "src/.env", "src/id_rsa", "src/model.py", "src/__pycache__/model.pyc")
    (source / ".rayjobsignore").write_text(line)
    assert kept(packed) & {path for path in kept(packed) if path.startswith("src")} == {
        "src/model.py"
    }


@pytest.mark.parametrize(
    "name", ["plain", "sp ace ", "st*r", "br[a]cket", "!bang", "#hash", "a\\b"]
)
def test_ignore_line_for_a_path_excludes_only_that_path(
    packed: Packer, source: Path, name: str
) -> None:
    write(source, name, f"deep/{name}", "star", "bracket")
    (source / ".rayjobsignore").write_text(ignore_line(name) + "\n")
    assert name not in kept(packed)
    assert {f"deep/{name}", "star", "bracket"} <= kept(packed)


def test_exclusions_are_listed_with_their_reason(packed: Packer, source: Path) -> None:
    write(source, "a.log", ".env")
    (source / ".rayjobsignore").write_text("*.log\n")
    assert set(packed().left_out) == {
        LeftOut("a.log", Why.IGNORED, "line 1 of .rayjobsignore: *.log"),
        LeftOut(".env", Why.SECRET),
    }

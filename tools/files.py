"""The project's own text files, as git sees them, and its packages first on the path."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Tools that import this module import this tree, also with the environment of another checkout.
sys.path.insert(0, str(ROOT))


def project_files(*suffixes: str) -> Iterator[Path]:
    """Yield tracked files and new files that git does not ignore, with these suffixes if any."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in sorted({part.decode() for part in listing.split(b"\0") if part}):
        path = ROOT / name
        if path.is_file() and not path.is_symlink() and (not suffixes or path.suffix in suffixes):
            yield path


def read_text(path: Path) -> str | None:
    """Return the text of a file; None if it is binary."""
    data = path.read_bytes()
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None

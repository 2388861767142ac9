"""A root file system with Python 3.13, of Debian's own packages, which apt fetches and verifies."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

RELEASE = "trixie"
PYTHON = "/usr/bin/python3.13"
_PACKAGES = (
    *("python3.13-minimal", "libpython3.13-minimal", "libpython3.13-stdlib", "libc6", "libgcc-s1"),
    *("zlib1g", "libexpat1", "libffi8", "libbz2-1.0", "liblzma5", "libssl3t64", "libuuid1"),
    *("libsqlite3-0", "dash", "coreutils", "libacl1", "libattr1", "libselinux1"),
    *("libpcre2-8-0", "libzstd1", "libgmp10", "libcap2"),
)
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LATEST_S = 120.0


def debian_python(folder: Path, work: Path) -> Path:
    """Make a root in `folder`; skip the test if apt or its Debian mirror is not available."""
    if shutil.which("apt-get") is None or not Path(_KEYS).exists():
        pytest.skip("Python 3.13 comes from Debian packages, and this machine has no apt")
    for name in ("state/lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    sources = work / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYS}] {_mirror()} {RELEASE} main\n")
    options = {
        "Dir::State": work / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": work / "cache",
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "APT::Sandbox::User": "root",  # which can write to the test's folder
        "Acquire::http::Timeout": "20",
    }
    apt = ["apt-get", "-qq", *(word for item in options.items() for word in ("-o", "=".join(
        map(str, item))))]  # fmt: skip
    for words in ([*apt, "update"], [*apt, "download", *_PACKAGES]):
        done = subprocess.run(
            words, cwd=work, capture_output=True, text=True, timeout=_LATEST_S, check=False
        )
        if done.returncode:
            pytest.skip(f"the packages of Debian cannot be fetched here: {done.stderr[-300:]}")
    for name in ("bin", "lib", "lib64", "sbin"):
        (folder / "usr" / name).mkdir(parents=True)
        (folder / name).symlink_to(f"usr/{name}")
    for package in sorted(work.glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", package, folder], check=True, timeout=_LATEST_S)
    for name in ("tmp", "proc", "sys", "dev", "etc", "root"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "usr/bin/python3").symlink_to("python3.13")
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    return folder


def _mirror() -> str:
    """Return the Debian mirror that this machine's apt uses."""
    output = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)"],
        capture_output=True,
        text=True,
        timeout=_LATEST_S,
        check=True,
    ).stdout
    found = (
        line for line in output.splitlines() if "debian" in line and not line.endswith("security")
    )
    mirror = next(found, None)
    if mirror is None:
        pytest.skip("apt knows no mirror of Debian here")
    return mirror

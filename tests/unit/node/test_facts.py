"""What a node finds out about the interpreter and machine of an attempt."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest

from rayjobs.jobs.hosts import described
from rayjobs.node.facts import NodeFacts

SMI = """#!/bin/sh
cat <<'X'
<?xml version="1.0" ?><nvidia_smi_log><driver_version>570.1</driver_version>
<cuda_version>12.8</cuda_version>
<gpu id="1"><product_name>H200</product_name><uuid>GPU-a</uuid>
<fb_memory_usage><total>143771 MiB</total></fb_memory_usage></gpu>
<gpu id="2"><product_name>H200</product_name><uuid>GPU-b</uuid>
<fb_memory_usage><total>143771 MiB</total></fb_memory_usage></gpu></nvidia_smi_log>
X
"""


@pytest.mark.long
def test_interpreter_packages_and_machine(tmp_path: Path) -> None:
    found = NodeFacts(tmp_path / "facts").of(sys.executable, [])
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert dict(found["packages"])["ray"] == metadata.version("ray")
    assert found["cpus"] == os.cpu_count()
    assert found["cpu"]
    assert found["memory_bytes"] > 2**20
    assert "gpus" not in found
    assert "why" not in found


@pytest.mark.long
def test_package_list_is_read_once_per_environment_and_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    python = str(tmp_path / "env" / "bin" / "python")
    calls = []
    real = subprocess.run

    def counted(words: list[str], **options: object) -> object:
        calls.append(words[0])
        return real(words, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", counted)
    assert NodeFacts(tmp_path / "facts").of(python, [])["packages"] == []
    assert NodeFacts(tmp_path / "facts").of(python, [])["packages"] == []
    assert calls == [python]
    (packages,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    info = packages / "New_Thing-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: New_Thing\nVersion: 1.5\n")
    os.utime(packages, ns=(1, 1))  # a different time, however coarse the file system's clock is
    found = NodeFacts(tmp_path / "facts").of(python, [])
    assert found["packages"] == [["new-thing", "1.5"]]
    assert calls == [python, python]


@pytest.mark.long
def test_the_gpus_that_an_attempt_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    facts = NodeFacts(tmp_path / "facts")
    (gpu,) = facts.of(sys.executable, ["1"])["gpus"]
    assert (gpu["uuid"], gpu["name"], gpu["driver"]) == ("GPU-b", "H200", "570.1")
    both = facts.of(sys.executable, ["GPU-a", "GPU-b"])
    assert "2 × H200, driver 570.1 (CUDA 12.8)" in described(both)[1]


def test_unknown_facts_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "env" / "bin" / "python"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
    broken.chmod(0o755)
    sh = shutil.which("sh")
    assert sh is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    found = NodeFacts(tmp_path / "facts").of(str(broken), ["0"])
    assert "packages are unknown: no such thing" in found["why"]
    assert "no nvidia-smi" in found["why"]
    assert found["machine"]
    assert NodeFacts(tmp_path / "facts").of(str(tmp_path / "none"), [])["why"]


@pytest.mark.long
def test_damaged_or_unwritable_cache_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert NodeFacts(tmp_path / "file" / "facts").of(sys.executable, [])["packages"]
    folder = tmp_path / "facts"
    NodeFacts(folder).of(sys.executable, [])
    for kept in folder.iterdir():
        kept.write_text("[")
    assert NodeFacts(folder).of(sys.executable, [])["packages"]

"""The files of a node's NVIDIA driver that a container gets; the driver here is a fake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayjobs.containers import devices
from rayjobs.containers.devices import LIBRARY_FOLDER


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A root with the device files of two GPUs and one of another kind."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-other-thing", "sda"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


def nodes(found: devices.Devices) -> set[str]:
    return {Path(one).name for one in found.nodes}


def test_without_gpus_a_container_gets_no_devices(tmp_path: Path) -> None:
    assert devices.find(tmp_path, cdi_folders=(), cache="") == devices.Devices()


def test_libraries_of_the_driver_are_found_by_ldconfig(node: Path) -> None:
    library = node / "libcuda.so.550.1"
    library.touch()
    (node / "libcuda.so.1").symlink_to(library)
    other = node / "libc.so.6"
    other.touch()
    cache = (
        "3 libs found in cache\n"
        f"\tlibcuda.so.1 (libc6,x86-64) => {node}/libcuda.so.1\n"
        f"\tlibcuda.so.1 (libc6) => {node}/of-32-bits/libcuda.so.1\n"
        f"\tlibnvidia-ml.so.1 (libc6,x86-64) => {node}/gone/libnvidia-ml.so.1\n"
        f"\tlibc.so.6 (libc6,x86-64) => {other}\n"
    )
    found = devices.find(node, cdi_folders=(), cache=cache)
    assert found.how == "ldconfig"
    assert nodes(found) == {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"}
    (bind,) = [one for one in found.binds if LIBRARY_FOLDER in one.target]
    assert (bind.source, bind.target) == (str(library), f"{LIBRARY_FOLDER}/libcuda.so.550.1")
    assert bind.read_only
    (link,) = found.links
    assert (link.path, link.target) == (f"{LIBRARY_FOLDER}/libcuda.so.1", "libcuda.so.550.1")
    assert found.library_folders == (LIBRARY_FOLDER,)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_cdi_file_is_followed(node: Path, form: str) -> None:
    library = node / "libcuda.so.550.1"
    library.touch()
    values = {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "mounts": [
                {"hostPath": str(library), "containerPath": "/usr/lib/libcuda.so.550.1"},
                {"hostPath": f"{node}/gone", "containerPath": "/usr/lib/gone"},
            ],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": "/usr/bin/nvidia-ctk",
                    "args": ["nvidia-ctk", "hook", "create-symlinks", "--link",
                             "libcuda.so.550.1::/usr/lib/libcuda.so.1"],
                },
                {"args": ["nvidia-ctk", "hook", "update-ldcache", "--folder", "/usr/lib"]},
            ],
        },
    }  # fmt: skip
    folder = node / "cdi"
    folder.mkdir()
    (folder / "broken.json").write_text("{")
    # JSON is YAML too.
    (folder / f"nvidia.{form}").write_text(json.dumps(values))
    found = devices.find(node, cdi_folders=(str(folder),), cache="")
    assert found.how == "cdi"
    assert nodes(found) >= {"nvidia0", "nvidia1", "nvidiactl"}
    assert [(one.source, one.target) for one in found.binds] == [
        (str(library), "/usr/lib/libcuda.so.550.1")
    ]
    assert [(one.path, one.target) for one in found.links] == [
        ("/usr/lib/libcuda.so.1", "libcuda.so.550.1")
    ]
    assert found.library_folders == ("/usr/lib",)
    assert found.variables == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_cdi_file_of_another_vendor_is_skipped(node: Path) -> None:
    folder = node / "cdi"
    folder.mkdir()
    (folder / "other.json").write_text(json.dumps({"kind": "example.com/device"}))
    assert devices.find(node, cdi_folders=(str(folder),), cache="").how == "ldconfig"

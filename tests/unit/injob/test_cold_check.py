"""When a plan must start in fresh interpreters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayjobs.injob.cold_check import cold_reason, shadowed_module
from rayjobs.injob.plan import LaunchPlan, parse
from rayjobs.injob.rank import MAPPED_ON_PATH, ON_PATH
from tests.unit.injob.test_plan import values

LOADED = {"torch", "numpy", "random", "json", "sys"}


def plan(folder: Path, env: dict[str, str] | None = None, **changes: Any) -> LaunchPlan:
    (folder / "work").mkdir(exist_ok=True)
    return parse(values(root=str(folder), env=env or {}, **changes))


def test_plain_script_runs_warm(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    for name in ("train.py", "model.py", "data.json", "torch.txt"):
        (tmp_path / "work" / name).touch()
    (tmp_path / "work/torch").mkdir()  # without __init__.py it does not shadow the package
    env = {"CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "INFO", "TORCH_HOME": "/t"}
    assert cold_reason(plan(tmp_path, env, threads=4), LOADED) is None


@pytest.mark.parametrize(
    "env",
    [
        {"LD_PRELOAD": "x.so"},
        {"PYTHONPATH": "/p"},
        {"PYTHONHASHSEED": "0"},
        {"OMP_PROC_BIND": "close"},
        {"KMP_AFFINITY": "compact"},
        {"MKL_DYNAMIC": "FALSE"},
        {"TORCH_LOGS": "+dynamo"},
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        {"LC_ALL": "de_DE.UTF-8"},
        {"GLIBC_TUNABLES": "x=1"},
        {"OMP_NUM_THREADS": "4,2"},
        {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2"},
    ],
)
def test_variable_read_at_start_makes_it_cold(tmp_path: Path, env: dict[str, str]) -> None:
    reason = cold_reason(plan(tmp_path, env), LOADED)
    assert reason is not None and any(name in reason for name in env)


@pytest.mark.parametrize(
    "env", [{"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}]
)
def test_thread_counts_are_set_by_call(tmp_path: Path, env: dict[str, str]) -> None:
    assert cold_reason(plan(tmp_path, env), LOADED) is None


def test_variable_of_the_warm_interpreter_does_not_force_a_cold_start(tmp_path: Path) -> None:
    wanted = plan(tmp_path, {"LANG": "C.UTF-8"})
    assert cold_reason(wanted, LOADED) is not None
    assert cold_reason(wanted, LOADED, started_with={"LANG": "C.UTF-8"}) is None
    assert cold_reason(plan(tmp_path), LOADED, started_with={"PYTHONPATH": "/p"}) is not None


def test_rayjobs_folders_on_the_path_do_not_force_a_cold_start(tmp_path: Path) -> None:
    """A fork adds the first to its path itself, and maps addresses without the second."""
    ours = [f"/lib/{one}" for one in (ON_PATH, MAPPED_ON_PATH)]
    for path in (ours[0], ":".join(ours)):
        assert cold_reason(plan(tmp_path, {"PYTHONPATH": path}), LOADED) is None
    assert cold_reason(plan(tmp_path, {"PYTHONPATH": f"{ours[0]}:/p"}), LOADED) is not None


def test_variable_of_a_package_matters_only_if_it_is_loaded(tmp_path: Path) -> None:
    wanted = plan(tmp_path, {"MPLBACKEND": "agg"})
    assert cold_reason(wanted, LOADED) is None
    assert cold_reason(wanted, {*LOADED, "matplotlib"}) is not None


def test_variable_of_a_single_rank_counts(tmp_path: Path) -> None:
    ranks = [{"rank": 0, "env": {}}, {"rank": 1, "env": {"LD_LIBRARY_PATH": "/l"}}]
    assert cold_reason(plan(tmp_path, ranks=ranks), LOADED) is not None


def test_command_other_python_folder_and_request_are_cold(tmp_path: Path) -> None:
    assert cold_reason(plan(tmp_path, kind="command", command="x"), LOADED) is not None
    assert cold_reason(plan(tmp_path, cold="requested"), LOADED) == "requested"
    reason = cold_reason(plan(tmp_path), LOADED, python="/other/python")
    assert reason is not None and "/other/python" in reason
    (tmp_path / "work/package").mkdir(parents=True)
    assert cold_reason(plan(tmp_path, argv=["package"]), LOADED) is not None


@pytest.mark.parametrize(
    ("entry", "is_shadow"),
    [
        ("random.py", True),
        ("json/__init__.py", True),
        ("numpy.cpython-311-x86_64-linux-gnu.so", True),
        ("numpy.pyc", True),
        ("json/data.txt", False),
        ("random.txt", False),
        ("model.py", False),
        ("src/random.py", False),
    ],
)
def test_only_modules_preferred_by_import_are_shadows(
    tmp_path: Path, entry: str, is_shadow: bool
) -> None:
    path = tmp_path / entry
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    found = shadowed_module(str(tmp_path), LOADED)
    assert found == (entry.partition("/")[0] if is_shadow else None)


def test_shadow_is_searched_for_next_to_the_script(tmp_path: Path) -> None:
    (tmp_path / "work/src").mkdir(parents=True)
    (tmp_path / "work/random.py").touch()
    assert cold_reason(plan(tmp_path, argv=["src/train.py"]), LOADED) is None
    (tmp_path / "work/src/random.py").touch()
    assert cold_reason(plan(tmp_path, argv=["src/train.py"]), LOADED) is not None

"""The package as a whole: its imports, its name, its files."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rayjobs
from rayjobs.injob import run_calls
from rayjobs.injob.messages import Message
from rayjobs.jobs.events import Resumed

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("ray", "torch", "torchvision", "pandas", "pyarrow", "numpy")


def _heavy_modules_after(code: str) -> list[str]:
    """Which heavy packages a fresh interpreter has imported after running `code`."""
    script = (
        "import json, sys\n"
        f"{code}\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, list)
    return found


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_import_rayjobs_is_light() -> None:
    assert _heavy_modules_after("import rayjobs") == []


@pytest.mark.long
@pytest.mark.parametrize("command", [[], ["submit"], ["ls"], ["logs"], ["show"]])
def test_help_is_light(command: list[str]) -> None:
    code = (
        "import contextlib, io\n"
        "from rayjobs.cli.main import run\n"
        "printed = io.StringIO()\n"
        "with contextlib.redirect_stdout(printed):\n"
        f"    code = run([*{command!r}, '--help'])\n"
        "assert not code, code\n"
        "assert 'Usage' in printed.getvalue(), printed.getvalue()\n"
    )
    assert _heavy_modules_after(code) == []


def test_version_is_the_installed_one(pyproject: dict[str, Any]) -> None:
    assert rayjobs.__version__ == pyproject["project"]["version"]
    assert rayjobs.__version__ == importlib.metadata.version("rayjobs")


PACKAGES = ("rayjobs", "tuning", "datastore")


def test_every_shipped_folder_is_a_typed_package() -> None:
    for name in PACKAGES:
        assert (ROOT / name / "__init__.py").is_file()
        assert (ROOT / name / "py.typed").is_file()


def test_every_folder_with_modules_is_a_package() -> None:
    """A forgotten `__init__.py` works in the checkout and is missing after an installation."""
    for name in PACKAGES:
        folders = {path.parent for path in (ROOT / name).rglob("*.py")}
        # alembic loads migrations by path; a folder on a search path is not a package either
        bare = [
            str(folder.relative_to(ROOT))
            for folder in folders
            if not (folder / "__init__.py").is_file()
            and not {"migrations", "onpath_mapped"} & set(folder.parts)
        ]
        assert bare == []


def test_no_shipped_file_is_ignored_by_git() -> None:
    """The wheel leaves out what git ignores: a schema or a migration must not be among it."""
    listing = subprocess.run(
        [
            "git",
            "ls-files",
            "--others",
            "--ignored",
            "--exclude-standard",
            "--",
            "rayjobs",
            "tuning",
            "datastore",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    if listing.returncode != 0:  # not a git checkout: an unpacked sdist holds what was shipped
        return
    left_out = [name for name in listing.stdout.splitlines() if "__pycache__" not in name]
    assert left_out == []


def test_license_matches_its_declaration(pyproject: dict[str, Any]) -> None:
    assert pyproject["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert importlib.metadata.metadata("rayjobs")["License-Expression"] == "Apache-2.0"


# The only values of messages that take any JSON, and the reasons.
UNTYPED = {
    "rayjobs.containers.asking.ImageFacts.facts": "output of a probe, read by rayjobs.environments",
    "rayjobs.target.answers.ForwardedAnswer.answer": "read by the class of its operation",
    "rayjobs.injob.run_calls.RunCall.asked": "a request, read by the class that `name` chooses",
    "rayjobs.injob.run_calls.RunAnswer.value": "a value, read by the class of the request",
    "rayjobs.injob.run_calls.RunDetails.details": "Azure ML's details of a run, for users",
    "rayjobs.injob.run_calls.Point.value": "a logged value: a number, a text, a row or a table",
    "rayjobs.injob.run_calls.Metrics answer": "logged values",
    "rayjobs.injob.run_calls.Method.args": "arguments of `Store`, read by rayjobs.protocol.values",
    "rayjobs.injob.run_calls.Method.kwargs": "arguments of `Store`",
    "rayjobs.injob.run_calls.Method answer": "a result of `Store`, read by rayjobs.protocol.values",
    "rayjobs.injob.run_calls.KeepBlob answer": "a `Blob`, read by rayjobs.protocol.values",
    "rayjobs.injob.run_calls.FetchBlob answer": "a `Blob`, read by rayjobs.protocol.values",
}


def _is_untyped(kind: Any) -> bool:
    return kind in (object, Any) or any(_is_untyped(one) for one in typing.get_args(kind))


def _subclasses(cls: type[Message]) -> Iterator[type[Message]]:
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)


def test_messages_have_no_untyped_value_except_those_listed() -> None:
    folders = (ROOT / "rayjobs", ROOT / "rayjobs" / "tuning")  # the second is a link
    for file in sorted(one for folder in folders for one in folder.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        if re.search(r"^class \w+\(.*(Message|Request|Answer|EventData)\b", source, re.MULTILINE):
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    found = [one for one in _subclasses(Message) if one.__module__.startswith("rayjobs.")]
    assert len(found) > 100
    untyped = {
        f"{cls.__module__}.{cls.__name__}.{one.name}"
        for cls in found
        if dataclasses.is_dataclass(cls)
        for one in dataclasses.fields(cls)  # type: ignore[arg-type]
        if _is_untyped(typing.get_type_hints(cls)[one.name])
    }
    untyped |= {
        f"{cls.__module__}.{cls.__name__} answer"
        for cls in run_calls.Request.__subclasses__()
        if _is_untyped(run_calls.value_of(cls))
    }
    assert sorted(untyped) == sorted(UNTYPED)


def test_clients_read_the_answers_of_servers_by_their_types() -> None:
    """`Connection.json` is for the operations alone, which have types of their own."""
    raw = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "json"
    ]
    assert {place.partition(":")[0] for place in raw} == {
        "rayjobs/remote/workspace.py",
        "rayjobs/workspace/connection.py",
    }, raw


def test_protocol_has_no_untyped_value() -> None:
    files = sorted((ROOT / "rayjobs" / "protocol").rglob("*.py"))
    assert len(files) > 5
    files += [ROOT / "rayjobs" / "target" / f"{name}.py" for name in ("answers", "requests")]
    untyped = [
        f"{file.name}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id == "Any"
    ]
    assert untyped == []


# The only attributes `data` that are read by string and are not the data of an event.
NOT_OF_EVENTS = {
    "rayjobs/pipelines/pipeline_file.py: self.data": "the content of a pipeline file",
    "rayjobs/pipelines/recurrence.py: info.data": "what pydantic has validated so far",
}


def _data_attributes(whole: ast.expr) -> Iterator[str]:
    """Yield each `X.data` that an expression may be: itself, `X.data or {}`, `dict(X.data)`."""
    match whole:
        case ast.Attribute(attr="data"):
            yield ast.unparse(whole)
        case ast.BoolOp(values=parts) | ast.Call(func=ast.Name(id="dict"), args=parts):
            for one in parts:
                yield from _data_attributes(one)


def test_data_of_events_is_read_only_through_their_classes() -> None:
    found = set()
    for file in sorted(one for name in PACKAGES for one in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case (
                    ast.Subscript(value=whole, slice=ast.Constant(value=str()))
                    | ast.Call(
                        func=ast.Attribute(value=whole, attr="get"),
                        args=[ast.Constant(value=str()), *_],
                    )
                    | ast.Compare(left=ast.Constant(value=str()), comparators=[whole])
                ):
                    name = file.relative_to(ROOT).as_posix()
                    found |= {f"{name}: {one}" for one in _data_attributes(whole)}
    assert sorted(found) == sorted(NOT_OF_EVENTS)


def test_sql_reads_only_entries_of_events_that_a_class_has() -> None:
    files = sorted((ROOT / "rayjobs" / "store").glob("*.py"))  # migrations read earlier versions
    text = "".join(one.read_text(encoding="utf-8") for one in files)
    read = re.findall(r"json_extract\(data, '\$\.(\w+)'\)", text)
    assert read == [one.name for one in dataclasses.fields(Resumed)]


# Base classes with a single subclass: those that callers also create or name themselves. Any other
# is one class written in two places: hold an object instead, or call functions.
BASES_OF_ONE = {
    "rayjobs.api.compute.ComputeTarget": "of Azure ML: programs create it by a target's name",
    "rayjobs.api.environment.Environment": "of Azure ML: programs create it",
    "rayjobs.api.estimators.Estimator": "of Azure ML: programs create it",
    "rayjobs.injob.logging_run.Run": "of Azure ML: programs call Run(…) and Run.get_context()",
    "rayjobs.injob.rank_stack.RankStack": "what a host sends; the target adds the node",
    "rayjobs.injob.run_calls.RunRecord": "an answer of its own; another one adds details",
    "rayjobs.pipelines.script_steps.PythonScriptStep": "of Azure ML: programs create it",
    "rayjobs.tuning.config.HyperDriveConfig": "of Azure ML: programs create it",
    "rayjobs.tuning.expressions.LogNormal": "a distribution; another one rounds its values",
    "rayjobs.tuning.expressions.LogUniform": "a distribution; another one rounds its values",
    "rayjobs.tuning.runs.HyperDriveRun": "of Azure ML: what a submitted sweep returns",
    "rayjobs.workspace.http_messages.DatastoreFile": "an answer of its own; another is in lists",
    "rayjobs.workspace.http_messages.TokenRow": "an answer of its own; another adds the secret",
}


def _modules(folder: Path, name: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield each module of the product by name; the folders of `rayjobs` may be links."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _modules(path, f"{name}.{path.name}")
        elif path.suffix == ".py":
            module = name if path.stem == "__init__" else f"{name}.{path.stem}"
            yield module, ast.parse(path.read_text(encoding="utf-8"))


def _classes() -> dict[str, tuple[str, ...]]:
    """Return the full names of the bases of each class of the product, by its full name."""
    classes: dict[str, list[ast.expr]] = {}
    imported: dict[str, str] = {}  # the full name of what each module imports from another
    for module, tree in _modules(ROOT / "rayjobs", "rayjobs"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    name = f"{module}.{alias.asname or alias.name}"
                    imported[name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.ClassDef):
                classes[f"{module}.{node.name}"] = node.bases

    def full_name(name: str) -> str:
        while name not in classes and name in imported:
            name = imported[name]
        prefix, _, last = name.rpartition(".")
        return f"{imported.get(prefix, prefix)}.{last}"

    return {
        name: tuple(full_name(f"{name.rpartition('.')[0]}.{_written(base)}") for base in bases)
        for name, bases in classes.items()
    }


def _written(base: ast.expr) -> str:
    """Return the name of a base as it is written, without its parameters."""
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base)


@pytest.mark.long
@pytest.mark.parametrize("tool", ["check_docs", "spec_schema"])
def test_a_tool_reads_its_own_tree_with_the_environment_of_another(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rayjobs").mkdir()
    (tmp_path / "rayjobs" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import {tool}\n"
        "import rayjobs; print(rayjobs.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(ROOT / "rayjobs" / "__init__.py"), done.stderr


def test_a_base_class_has_several_subclasses() -> None:
    bases = _classes()
    subclasses: dict[str, list[str]] = {}
    for name, above in bases.items():
        for base in above:
            subclasses.setdefault(base, []).append(name)

    def is_error(name: str) -> bool:
        if name in bases:
            return any(is_error(base) for base in bases[name])
        kind = getattr(builtins, name.rpartition(".")[2], None)
        return isinstance(kind, type) and issubclass(kind, BaseException)

    found = {
        name
        for name, below in subclasses.items()
        if len(below) == 1
        and name in bases
        and not is_error(name)
        # The parts of the store, and the protocols that others implement without inheriting.
        and below != ["rayjobs.store.sql.SqlStore"]
        and not any(base.endswith(".Protocol") for base in bases[name])
    }
    assert found == set(BASES_OF_ONE)

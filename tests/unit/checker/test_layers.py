"""The layers of the packages hold for every kind of import."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONTRACT = """
[[tool.importlinter.contracts]]
name = "layers"
type = "layers"
containers = ["rayjobs"]
layers = ["cli", "left | right", "core"]
ignore_imports = ["rayjobs.core.old -> rayjobs.cli.main"]
"""


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("check_layers", ROOT / "tools/check_layers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("file", "code", "message"),
    [
        ("cli/main.py", "from rayjobs.left import work", None),
        ("core/old.py", "from rayjobs.cli import main", None),
        ("left/work.py", "import rayjobs.core", None),
        (
            "core/text.py",
            "from rayjobs.left import work",
            "core/text.py:1: rayjobs.left.work is above",
        ),
        (
            "core/text.py",
            "def f():\n    import rayjobs.cli.main",
            "text.py:2: rayjobs.cli.main is above",
        ),
        (
            "core/text.py",
            "import typing\nif typing.TYPE_CHECKING:\n    import rayjobs.cli.main",
            "text.py:3: rayjobs.cli.main is above",
        ),
        ("left/other.py", "from rayjobs import right", "rayjobs.right is in the layer of left"),
        ("left/other.py", "from .. import right", "rayjobs.right is in the layer of left"),
        ("left/other.py", "from rayjobs import Run", "'Run' from the module that defines it"),
        ("cellar/wine.py", "", "rayjobs/cellar is in no layer"),
    ],
)
def test_an_import_up_or_sideways_is_named(
    tmp_path: Path, checker: ModuleType, file: str, code: str, message: str | None
) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(CONTRACT)
    for module in ("cli/main.py", "left/work.py", "right/work.py", "core/text.py", file):
        path = tmp_path / "rayjobs" / module
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in (path.parent, path.parent.parent):
            (package / "__init__.py").touch()
        path.touch()
    (tmp_path / "rayjobs" / file).write_text(code)

    found = list(checker.problems(tmp_path / "rayjobs", pyproject))

    if message is None:
        assert found == []
    else:
        assert len(found) == 1 and message in found[0]


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        ({}, "these modules import each other: {}"),
        ({"a reason": "left: one three two"}, None),
        ({"a reason": "left: one two"}, "these modules import each other: {}"),
        (
            {"a reason": "left: one three two", "an old one": "left: above below"},
            "CYCLES in tools/check_layers.py names a group that is not a cycle: "
            "rayjobs.left.above, rayjobs.left.below",
        ),
    ],
    ids=["a cycle", "an allowed one", "a larger one", "one that is no longer there"],
)
def test_modules_that_import_each_other_are_named(
    tmp_path: Path,
    checker: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    allowed: dict[str, str],
    message: str | None,
) -> None:
    monkeypatch.setattr(checker, "CYCLES", allowed)
    package = "left"
    code = {
        "one.py": f"def f():\n    import rayjobs.{package}.two",
        "two.py": f"from rayjobs.{package} import three",
        "three.py": f"import typing\nif typing.TYPE_CHECKING:\n    import rayjobs.{package}.one",
        "above.py": f"import rayjobs.{package}.one",
        "below.py": "",
    }
    folder = tmp_path / "rayjobs" / package
    folder.mkdir(parents=True)
    for path in (folder, folder.parent):
        (path / "__init__.py").touch()
    for name, text in code.items():
        (folder / name).write_text(text)

    found = list(checker.cycles(tmp_path / "rayjobs"))

    names = ", ".join(f"rayjobs.{package}.{name}" for name in ("one", "three", "two"))
    assert found[:1] == ([message.format(names)] if message else [])


@pytest.mark.parametrize(
    ("file", "code", "listed", "message"),
    [
        ("core/text.py", "NAME = 'rayjobs.left.work:f'", (), "text.py:1: a string names rayjobs."),
        ("core/text.py", "NAME = 'rayjobs.left.work:f'", ("core.text: left.work",), None),
        ("core/text.py", "run('-m', 'rayjobs.left.work')", ("core.text: *",), None),
        ("core/text.py", "F = f'rayjobs.left.{x}'", (), "a string names rayjobs.left; import it"),
        (
            "core/text.py",
            "run('-c', 'import rayjobs.left.work as w')",
            (),
            "a string names rayjobs.left.work; import it",
        ),
        ("core/text.py", "def f():\n    'See rayjobs.left.work.'", (), None),
        ("core/text.py", "LOG = logger('rayjobs.core')", (), None),
        ("core/text.py", "run('-m', 'rayjobs.core.text')", (), None),
        ("left/__init__.py", "NAMES = {'f': 'rayjobs.left.work'}", (), None),
        ("left/__init__.py", "NAME = 'rayjobs.core.text'", (), "a string names rayjobs.core.text"),
        ("core/text.py", "", ("core.text: left.work",), "core.text does not name left.work"),
        ("core/text.py", "", ("core.text: *",), "core.text does not name *"),
    ],
)
def test_a_module_that_a_string_names_is_listed(
    tmp_path: Path,
    checker: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    code: str,
    listed: tuple[str, ...],
    message: str | None,
) -> None:
    monkeypatch.setattr(checker, "NAMED", {"a reason": listed})
    for module in ("__init__.py", "left/__init__.py", "left/work.py", "core/__init__.py", file):
        path = tmp_path / "rayjobs" / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "rayjobs" / "core" / "text.py").touch()
    (tmp_path / "rayjobs" / file).write_text(code)

    found = list(checker.unlisted_names(tmp_path / "rayjobs"))

    assert len(found) == (message is not None)
    if message is not None:
        assert message in found[0]


def test_a_package_that_names_a_module_of_its_own_imports_it(
    tmp_path: Path, checker: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checker, "CYCLES", {})
    folder = tmp_path / "rayjobs" / "left"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").write_text("NAMES = {'f': 'rayjobs.left.work'}")
    (folder / "work.py").write_text("import rayjobs.left")

    assert list(checker.cycles(tmp_path / "rayjobs")) == [
        "these modules import each other: rayjobs.left, rayjobs.left.work"
    ]

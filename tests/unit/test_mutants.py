"""Mutants that prove the fault tests: each still fits the code and names existing tests."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest

from tools.mutants import FOLDER, Mutant, MutantError, fingerprint, load, mutation

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = load(ROOT / FOLDER)


def test_each_mutant_fits_the_code() -> None:
    wrong = []
    for mutant in MUTANTS:
        try:
            mutation(ROOT, mutant)
        except MutantError as error:
            wrong.append(f"{mutant.name}: {error}")
    assert not wrong, "\n".join(wrong)


def test_each_mutants_tests_exist() -> None:
    wrong = []
    texts: dict[Path, str] = {}

    def text_of(file: Path) -> str:
        return texts.setdefault(file, file.read_text(encoding="utf-8"))

    for mutant in MUTANTS:
        for test in mutant.tests:
            module, *names = re.sub(r"\[.*", "", test, flags=re.DOTALL).split("::")
            file = ROOT / module
            # A class may inherit its tests from one in another file of its folder.
            files = [file] if len(names) == 1 else file.parent.glob("*.py")
            text = "".join(map(text_of, files)) if file.is_file() else ""
            if not text or any(
                re.search(rf"^\s*(?:async )?(?:def|class) {name}\b", text, re.MULTILINE) is None
                for name in names
            ):
                wrong.append(f"{mutant.name}: there is no test {test}")
    assert not wrong, "\n".join(wrong)


def test_every_fault_has_a_section_and_a_mutant_or_a_reason() -> None:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^### Fault (\d+)\b", text, re.MULTILINE))
    _, _, unproven = text.partition("\n## What is not proven\n")
    excused = set(re.findall(r"^- Fault (\d+)\b", unproven, re.MULTILINE))
    mutated = {str(mutant.fault) for mutant in MUTANTS}
    assert mutated - sections == set(), "mutants of faults without a section"
    assert sections - mutated - excused == set(), "faults without a mutant and without a reason"


def test_there_are_mutants() -> None:
    assert len(MUTANTS) >= 300


# --- how a mutant finds its code ------------------------------------------------------------------

CODE = """
    class Reader:
        def read(self, path):
            # why
            if self.is_open and path in (
                self.known
            ):
                log.info("read %s", path, extra=1)
                return self.known[path]
            value = find(path, deep=True)  # fault 7: found
            return value

    def other(path):
        value = find(path, deep=True)
        return value
"""


def changed(
    root: Path, change: str, code: str, *, by: str = "", at: str = "", name: str = ""
) -> str:
    """Write the module, apply one mutant, return the lines of the class that differ."""
    (root / "part").mkdir(exist_ok=True)
    (root / "part" / "reader.py").write_text(textwrap.dedent(CODE))
    place = name or "part.reader:Reader.read"
    found = mutation(root, Mutant(7, "a handler", place, at, change, code, by, ()))
    before, after = found.before.splitlines(), found.after.splitlines()
    return "\n".join(line.strip() for line in after if line not in before)


@pytest.mark.parametrize(
    ("change", "code", "by", "result"),
    [
        ("never", "path in (self.known)", "", "if self.is_open and False:"),
        ("always", "self.is_open and path in self.known", "", "if True:"),
        ("replace", "find(path, ...)", "None", "value = None"),
        ("replace", "value = find(...)", "raise KeyError(path)", "raise KeyError(path)"),
        ("drop", "deep=True", "", "value = find(path)"),
        ("drop", "if self.is_open and ...:\n    ...", "", ""),
        ("body", "return 1", "", "return 1"),
    ],
)
def test_code_is_found_whatever_its_format(
    tmp_path: Path, change: str, code: str, by: str, result: str
) -> None:
    assert changed(tmp_path, change, code, by=by) == result


READER = """
class Reader:
    def read(self):
        return 1

    def write(self):
        return 2
"""
TESTS = """
def test_it():
    assert Reader().read() == 1

def test_other():
    pass
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "is_valid"),
    [
        ("part/reader.py", "return 1", "return 3", False),
        ("part/reader.py", "return 2", "return 3", True),
        ("part/reader.py", "    def read(self):", '    def read(self):\n        """Doc."""', True),
        ("part/reader.py", "return 1", "return 1  # why", True),
        ("tests/test_a.py", "== 1", "== 3", False),
        ("tests/test_a.py", "pass", "assert True", True),
    ],
)
def test_a_proof_is_valid_until_the_code_it_depends_on_changes(
    tmp_path: Path, file: str, old: str, new: str, *, is_valid: bool
) -> None:
    for name, text in (("part/reader.py", READER), ("tests/test_a.py", TESTS)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    test = "tests/test_a.py::test_it[1]"
    mutant = Mutant(7, "h", "part.reader:Reader.read", "", "body", "return 0", "", (test,))
    before = fingerprint(tmp_path, mutant)
    path = tmp_path / file
    path.write_text(path.read_text().replace(old, new))
    assert (fingerprint(tmp_path, mutant) == before) == is_valid


def test_each_proof_on_record_is_of_a_mutant() -> None:
    record = json.loads((ROOT / FOLDER / "proven.json").read_text(encoding="utf-8"))
    assert set(record) <= {mutant.name for mutant in MUTANTS}


def test_a_marked_statement_is_changed_as_a_whole(tmp_path: Path) -> None:
    assert changed(tmp_path, "replace", "...", by="value = 1", at="found") == "value = 1"


def test_a_module_that_moved_inside_its_package_is_found(tmp_path: Path) -> None:
    assert changed(tmp_path, "body", "return 1", name="part.before:Reader.read") == "return 1"


@pytest.mark.parametrize(
    ("name", "change", "code", "message"),
    [
        ("part.reader:Reader.write", "body", "pass", "0 others"),
        ("part.reader", "replace", "find(path, deep=True)", "2 places match"),
        ("part.reader:other", "never", "path", "0 places match"),
        ("part.reader:other", "replace", "find(", "not valid Python"),
        ("part.reader:Reader", "body", "pass", "a function"),
        ("part.reader:other", "body", "value = find(path, deep=True)\nreturn value", "nothing"),
    ],
)
def test_a_mutant_that_does_not_fit_is_refused(
    tmp_path: Path, name: str, change: str, code: str, message: str
) -> None:
    with pytest.raises(MutantError, match=message):
        changed(tmp_path, change, code, name=name)

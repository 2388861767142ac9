"""Mutants that prove the fault tests: each still fits the code and names existing tests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
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


def test_words_of_a_mutant_are_no_part_of_its_proof(tmp_path: Path) -> None:
    """Its description, and how its code is written, may change."""
    for name, text in (("part/reader.py", READER), ("tests/test_a.py", TESTS)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    tests = ("tests/test_a.py::test_it",)
    one = Mutant(7, "reads", "part.reader:Reader.read", "", "replace", "return 1", "pass", tests)
    other = Mutant(8, "is read", "part.reader:Reader.read", "", "drop", "return  1", "", tests)
    different = Mutant(7, "reads", one.place, "", "body", "return 0", "", tests)
    assert fingerprint(tmp_path, one) == fingerprint(tmp_path, other)
    assert fingerprint(tmp_path, one) != fingerprint(tmp_path, different)


# --- the record and its page ----------------------------------------------------------------------


def test_each_proof_on_record_is_of_a_mutant() -> None:
    record = json.loads((ROOT / FOLDER / "proven.json").read_text(encoding="utf-8"))
    assert set(record) <= {mutant.name for mutant in MUTANTS}
    assert {entry["how"] for entry in record.values()} <= {"run", "carried"}


def test_the_page_agrees_with_the_record() -> None:
    """It speaks of the tree of the commit that it names, so a later change is no error."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "prove_faults.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 2:
        pytest.skip(done.stderr.strip())  # a clone without that commit
    assert done.returncode == 0, done.stdout


class Project:
    """A small project in Git with one mutant, and a copy of the tools."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "tools").mkdir()
        for name in ("mutants.py", "proofs.py", "prove_faults.py"):
            shutil.copy(ROOT / "tools" / name, root / "tools")
        for name, text in (
            ("part/reader.py", READER),
            ("tests/test_a.py", f"from part.reader import Reader\n{TESTS}"),
            ("tests/faults/mutants/reading.toml", textwrap.dedent(READING)),
            ("docs/faults.md", "### Fault 7: nothing is read\n"),
        ):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> str:
        user = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(self.root), *user, *arguments]
        return subprocess.check_output(command, text=True).strip()

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "work")
        return self.git("rev-parse", "HEAD")

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert old in text
        (self.root / name).write_text(text.replace(old, new))

    def prove(self, *arguments: str) -> str:
        command = [sys.executable, "tools/prove_faults.py", *arguments]
        return subprocess.check_output(command, cwd=self.root, text=True)

    def proof(self) -> dict[str, str]:
        text = (self.root / FOLDER / "proven.json").read_text()
        found: dict[str, str] = json.loads(text)["  7  reads"]
        return found

    def counts(self) -> str:
        """The row of the fault on the page, from the number of handlers."""
        text = (self.root / "docs" / "proven.md").read_text()
        return text.split("| 7: nothing is read | ")[1].strip()


READING = """
    [[mutant]]
    fault = 7
    handler = "reads"
    in = "part.reader:Reader.read"
    body = "return 0"
    tests = ["tests/test_a.py::test_it"]
"""


def test_a_proof_is_run_then_carried_to_moved_code_then_stale(tmp_path: Path) -> None:
    here = Project(tmp_path)
    first = here.commit()
    here.prove("--copies", "2")
    assert here.proof() | {"digest": ""} == {"digest": "", "commit": first, "how": "run"}
    assert here.counts() == "1 | 1 | 0 | 0 |  |"

    second = here.commit()
    here.git("mv", "part/reader.py", "part/files.py")
    here.edit("tests/test_a.py", "part.reader", "part.files")
    here.edit("tests/faults/mutants/reading.toml", "part.reader", "part.files")
    here.commit()
    here.prove("--page")
    assert here.counts() == "1 | 0 | 0 | 1 | reads |"
    here.prove("--carry", second)
    assert here.proof() | {"digest": ""} == {"digest": "", "commit": first, "how": "carried"}
    assert here.counts() == "1 | 0 | 1 | 0 |  |"

    here.edit("part/files.py", "return 1", "return 2 - 1")
    here.commit()
    assert here.prove("--check") == "prove: the page agrees with the record\n"  # of its commit
    here.prove("--carry", second)
    assert here.counts() == "1 | 0 | 0 | 1 | reads |"


def test_an_earlier_record_is_carried_from_the_commit_that_wrote_it(tmp_path: Path) -> None:
    """It did not say where a proof was run, so what it had from before may not have been."""
    here = Project(tmp_path)
    (mutant,) = load(tmp_path / FOLDER)
    text = json.dumps({mutant.name: fingerprint(tmp_path, mutant)})
    (tmp_path / FOLDER / "proven.json").write_text(text)
    wrote = here.commit()
    (tmp_path / "part" / "other.py").write_text("")
    later = here.commit()
    here.prove("--carry", later)
    assert here.counts() == "1 | 0 | 0 | 1 | reads |"
    (tmp_path / FOLDER / "proven.json").write_text(text)
    here.prove("--carry", wrote)
    assert here.proof() | {"digest": ""} == {"digest": "", "commit": wrote, "how": "carried"}


def test_a_page_that_says_more_than_the_record_is_found(tmp_path: Path) -> None:
    here = Project(tmp_path)
    here.commit()
    here.prove("--page")
    here.edit("docs/proven.md", "**0 run**", "**1 run**")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        here.prove("--check")
    assert "run tools/prove_faults.py --page" in failed.value.output


# --- what a mutant changes ------------------------------------------------------------------------


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

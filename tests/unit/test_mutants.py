"""Mutants that prove the fault tests: each still fits the code, and names tests that are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTS = sorted((ROOT / "tests" / "faults" / "mutants").glob("*.toml"))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_mutants_text_stands_once_in_its_file_and_its_tests_exist(path: Path) -> None:
    wrong = []
    for mutant in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
        file = ROOT / mutant["file"]
        times = file.read_text(encoding="utf-8").count(mutant["old"]) if file.is_file() else 0
        if times != 1:
            wrong.append(f"{mutant['handler']}: stands {times} times in {mutant['file']}")
        if mutant["new"] == mutant["old"]:
            wrong.append(f"{mutant['handler']}: changes nothing")
        for test in mutant["tests"]:
            module, *names = re.sub(r"\[.*", "", test, flags=re.DOTALL).split("::")
            # A class may have its tests from one beside it.
            files = [ROOT / module] if len(names) == 1 else (ROOT / module).parent.glob("*.py")
            is_there = (ROOT / module).is_file()
            text = "".join(one.read_text(encoding="utf-8") for one in files) if is_there else ""
            if not text or any(
                re.search(rf"^\s*(?:async )?(?:def|class) {name}\b", text, re.MULTILINE) is None
                for name in names
            ):
                wrong.append(f"{mutant['handler']}: there is no test {test}")
    assert not wrong, "\n".join(wrong)


def test_every_fault_that_has_a_mutant_has_its_section_in_the_documents() -> None:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^### Fault (\d+)\b", text, re.MULTILINE))
    mutants = {
        str(mutant["fault"])
        for path in LISTS
        for mutant in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    }
    assert mutants - sections == set()


def test_there_are_mutants() -> None:
    assert len(LISTS) >= 10

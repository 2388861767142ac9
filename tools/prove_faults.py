"""Proves the fault tests: switches each handler off once, and checks that its tests then fail.

`tests/faults/mutants/*.toml` lists small changes of the code with the tests that must fail under
each. They run in a private copy of the committed tree. A test that passes without its handler, or
cannot start, proves nothing, and the exit status is 1. A proof is recorded with a digest of the
code that it depends on, and is repeated once that code changes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mutants import FOLDER, Mutant, MutantError, fingerprint, load, mutation

ROOT = Path(__file__).resolve().parents[1]
RECORD = FOLDER / "proven.json"
PAGE = Path("docs") / "proven.md"
TEST_TIMEOUT_S = 240  # twice the deadlines that tests have under load
RUN_TIMEOUT_S = 1800


class Copy:
    """A private copy of the committed tree, with an interpreter that imports it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self.root.mkdir()
        self._stamp_s = int(time.time()) - 10**6
        with subprocess.Popen(
            ["git", "-C", str(ROOT), "archive", "HEAD"], stdout=subprocess.PIPE
        ) as archive:
            subprocess.run(["tar", "-x", "-C", str(self.root)], stdin=archive.stdout, check=True)
        if archive.returncode:
            raise SystemExit("prove: git could not export the committed tree")
        self.python = self._interpreter(folder / "venv")

    def _interpreter(self, folder: Path) -> Path:
        """Make an environment with the packages of this one and the code of the copy.

        PYTHONPATH would not work: jobs and Ray's processes remove it.
        """
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        python = folder / "bin" / "python"
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = subprocess.check_output([python, "-c", code], text=True).strip()
        packages = [path for path in sys.path if path.endswith("site-packages")]
        paths = [str(self.root), *packages]
        (Path(site) / "copy.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
        for name in ("rayjobs", "ray"):  # tests search for them in the folder of the interpreter
            program = Path(sys.executable).parent / name
            if program.exists():
                text = program.read_text(encoding="utf-8").split("\n", 1)[1]
                copied = folder / "bin" / program.name
                copied.write_text(f"#!{python}\n{text}", encoding="utf-8")
                copied.chmod(0o755)
        return python

    def write(self, path: Path, text: str) -> None:
        """Change a file and its modification time, so that no stale bytecode is used."""
        path.write_text(text, encoding="utf-8")
        self._stamp_s += 10
        os.utime(path, (self._stamp_s, self._stamp_s))

    def outcomes(self, tests: Iterable[str]) -> dict[str, str]:
        """Run tests; return `passed`, `failed`, `error` or `skipped` for each that was found."""
        report = self.root / "prove-report.xml"
        report.unlink(missing_ok=True)
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTEST_ADDOPTS")
        }
        # The programs of packages, such as the S3 server, come after those of the copy.
        own, given = self.python.parent, Path(sys.executable).parent
        environment["PATH"] = f"{own}:{given}:{os.environ.get('PATH', os.defpath)}"
        command = [
            *(str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(f"--timeout={TEST_TIMEOUT_S}", f"--junitxml={report}", "-o", "junit_family=xunit1"),
            *tests,
        ]
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=RUN_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {}
        if not report.exists():
            print(done.stdout.decode(errors="replace")[-2000:], flush=True)
            return {}
        return _read(report, self.root)


def _read(report: Path, root: Path) -> dict[str, str]:
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        test = f"{_place_of(str(case.get('classname')), root)}::{case.get('name')}"
        kinds = {child.tag for child in case}
        # A failed test counts as failed even if its fixtures then raise an error.
        outcome = next(
            (kind for kind in ("failure", "error", "skipped") if kind in kinds), "passed"
        )
        if found.get(test) != "failed":  # an error in a fixture is a second case of this name
            found[test] = "failed" if outcome == "failure" else outcome
    return found


def _place_of(dotted: str, root: Path) -> str:
    """Return ``folder/file.py::Class`` of a dotted name.

    The file that a report names is the one that defines a test, not one whose class inherits it.
    """
    parts = dotted.split(".") if dotted else []  # a file that cannot be collected has no class
    for count in range(len(parts), 0, -1):
        file = Path(*parts[:count]).with_suffix(".py")
        if (root / file).is_file():
            return "::".join((file.as_posix(), *parts[count:]))
    return dotted


def of(outcomes: dict[str, str], test: str) -> str:
    """Return a test's outcome; a test without its parameters stands for all of them.

    It is `failed` if one of them failed: perhaps only some need the handler.
    """
    seen = {
        found for name, found in outcomes.items() if name == test or name.startswith(f"{test}[")
    }
    order = ("failed", "error", "passed", "skipped")
    return next((outcome for outcome in order if outcome in seen), "not run")


def prove(copy: Copy, mutant: Mutant) -> str:
    """Return an empty text if every test of the mutant fails, else what is wrong."""
    try:
        change = mutation(copy.root, mutant)
    except MutantError as error:
        return str(error)
    text = change.file.read_text(encoding="utf-8")
    copy.write(change.file, change.after)
    try:
        outcomes = copy.outcomes(mutant.tests)
    finally:
        copy.write(change.file, text)
    wrong = {test: of(outcomes, test) for test in mutant.tests}
    return "; ".join(f"{test} {how}" for test, how in wrong.items() if how != "failed")


class Record:
    """The proofs so far: by the mutant's name, the digest of the code that the proof depends on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        text = file.read_text(encoding="utf-8") if file.exists() else "{}"
        self._proofs: dict[str, str] = json.loads(text)

    def has(self, root: Path, mutant: Mutant) -> bool:
        """Return whether a mutant is proven for the current code below `root`."""
        try:
            return self._proofs.get(mutant.name) == fingerprint(root, mutant)
        except MutantError:
            return False

    def put(self, root: Path, mutant: Mutant, *, is_red: bool) -> None:
        """Record a result."""
        self._proofs.pop(mutant.name, None)
        if is_red:
            self._proofs[mutant.name] = fingerprint(root, mutant)
        text = json.dumps(dict(sorted(self._proofs.items())), indent=0, ensure_ascii=False)
        self._file.write_text(text + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove all mutants, or those of the given faults; return 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("faults", nargs="*", type=int, help="numbers of faults; all by default")
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    parser.add_argument("--page", action="store_true", help="write the page and run nothing")
    parser.add_argument(
        "--again", action="store_true", help="also run mutants whose proof is still valid"
    )
    parser.add_argument(
        "--only", metavar="FOLDER", help="only mutants all of whose tests are in this folder"
    )
    options = parser.parse_args(arguments)
    every = load(ROOT / FOLDER)
    mutants = [
        mutant
        for mutant in every
        if not options.faults or mutant.fault in options.faults
        if not options.only or all(test.startswith(options.only) for test in mutant.tests)
    ]
    if options.list:
        for mutant in mutants:
            print(mutant.name, *mutant.tests, sep="\n       ")
        return 0
    record = Record(ROOT / RECORD)
    survived = 0
    if not options.page:
        left = [one for one in mutants if options.again or not record.has(ROOT, one)]
        print(f"prove: {len(mutants) - len(left)} of {len(mutants)} proofs are still valid")
        survived = _run(left, record)
        print(f"prove: {len(mutants) - survived} of {len(mutants)} handlers are proven")
    (ROOT / PAGE).write_text(page(every, record), encoding="utf-8")
    return 1 if survived else 0


def _run(mutants: Sequence[Mutant], record: Record) -> int:
    """Run mutants in a copy of the committed tree; return how many survived."""
    folder = Path(tempfile.mkdtemp(prefix="prove-", dir="/tmp"))
    folder.chmod(0o755)  # some tests run its programs as another user
    survived = 0
    try:
        copy = Copy(folder)
        for _, group in itertools.groupby(mutants, key=lambda mutant: mutant.fault):
            for mutant, line, is_red in _results(copy, list(group)):
                survived += not is_red
                print(line, flush=True)
                record.put(copy.root, mutant, is_red=is_red)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return survived


def _results(copy: Copy, mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, str, bool]]:
    """Yield each mutant, a line about it, and whether all of its tests failed."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    before = copy.outcomes(tests)
    sound = {test: of(before, test) for test in tests}
    for mutant in mutants:
        started_s = time.monotonic()
        odd = [f"{test} {sound[test]}" for test in mutant.tests if sound[test] != "passed"]
        problem = f"without the change: {'; '.join(odd)}" if odd else prove(copy, mutant)
        took = f"{time.monotonic() - started_s:6.1f} s"
        line = f"{'SURVIVED' if problem else 'red':<8} {took}  {mutant.name}"
        yield mutant, f"{line}\n                    {problem}" if problem else line, not problem


def page(mutants: Sequence[Mutant], record: Record) -> str:
    """Return a page: for each fault its handlers, and how many of them are proven."""
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    titles: dict[int, str] = {}
    for number, part, title in re.findall(r"(?m)^### Fault (\d+)(?:, ([^:]+))?: (.+)$", text):
        named = f"{part}: {title}" if part else title
        titles[int(number)] = "; ".join(filter(None, (titles.get(int(number)), named)))
    proven = {mutant.name for mutant in mutants if record.has(ROOT, mutant)}
    lines = [
        "# Proven handlers",
        "",
        "`make prove` writes this page. It switches each handler off, in a copy of the tree, and",
        "its tests must fail. A proof counts until the handler's function, the change that",
        "switches it off, or one of the tests changes; `make prove` then runs it again.",
        "",
        f"**{len(proven)} of {len(mutants)} handlers are proven.** Why some cannot be:",
        "[what is not proven](faults.md#what-is-not-proven).",
        "",
        "| fault | handlers | proven | not proven for the code as it is |",
        "|---|---|---|---|",
    ]
    for fault, group in itertools.groupby(
        sorted(mutants, key=lambda mutant: mutant.fault), key=lambda mutant: mutant.fault
    ):
        all_ = list(group)
        left = "; ".join(one.handler for one in all_ if one.name not in proven)
        named = f"{fault}: {titles[fault]}" if fault in titles else str(fault)
        lines.append(
            f"| {named} | {len(all_)} | {sum(one.name in proven for one in all_)} | {left} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

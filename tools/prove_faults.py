"""Proves the fault tests: switches each handler off once, and checks that its tests then fail.

`tests/faults/mutants/*.toml` lists small changes of the code with the tests that must fail under
each. They run in a private copy of the committed tree. A test that passes without its handler, or
cannot start, proves nothing, and the exit status is 1. A proof is recorded with the commit and a
digest of the code that it depends on; it is stale, and run again, once that code changes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import proofs
from mutants import FOLDER, Mutant, MutantError, fingerprint, load, mutation
from proofs import PAGE, RECORD, ROOT, Proof, ProofError, Record

TEST_TIMEOUT_S = 240  # twice the deadlines that tests have under load
RUN_TIMEOUT_S = 1800


class Copy:
    """A private copy of the committed tree, with an interpreter that imports it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self.root.mkdir()
        self._stamp_s = int(time.time()) - 10**6
        self.commit = proofs.commit_of("HEAD")
        proofs.export(self.commit, self.root)
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
    found: dict[str, str] = {}
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove all mutants, or those of the given faults; return 1 if one survives."""
    options = _options(arguments)
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
    try:
        if options.check:
            problem = proofs.problem_of_page()
            print(f"prove: {problem or 'the page agrees with the record'}")
            return 1 if problem else 0
        return _work(options, every, mutants)
    except ProofError as error:
        print(f"prove: {error}", file=sys.stderr)
        return 2


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("faults", nargs="*", type=int, help="numbers of faults; all by default")
    parser.add_argument(
        "--again", action="store_true", help="also run mutants whose proof is still valid"
    )
    parser.add_argument(
        "--carried", action="store_true", help="also run mutants whose proof was carried over"
    )
    parser.add_argument(
        "--copies",
        type=int,
        default=1,
        metavar="N",
        help="prove the handlers of N faults at once, each in a copy of its own; 1 by default",
    )
    parser.add_argument(
        "--only", metavar="FOLDER", help="only mutants all of whose tests are in this folder"
    )
    other = parser.add_argument_group("instead of a run")
    other.add_argument("--list", action="store_true", help="list the mutants")
    other.add_argument("--page", action="store_true", help="write the page")
    other.add_argument(
        "--check", action="store_true", help="check that the page agrees with the record"
    )
    other.add_argument(
        "--carry",
        metavar="COMMIT",
        nargs="+",
        help="carry over the proofs of these commits' records whose code has only moved since",
    )
    return parser.parse_args(arguments)


def _work(options: argparse.Namespace, every: Sequence[Mutant], mutants: Sequence[Mutant]) -> int:
    """Change the record and write the page; return the exit status."""
    record = Record(ROOT / RECORD)
    names = {mutant.name for mutant in every}
    survived = 0
    if options.carry:
        with proofs.tree_of("HEAD") as tree:
            print(f"prove: {proofs.carry(options.carry, tree, every, record)} are carried over")
        record.save(names)
    elif not options.page:
        with proofs.tree_of("HEAD") as tree:
            valid = {mutant.name: record.valid(tree, mutant) for mutant in mutants}
        skipped = () if options.again else ("run",) if options.carried else ("run", "carried")
        left = [one for one in mutants if getattr(valid[one.name], "how", "") not in skipped]
        print(f"prove: {len(left)} of {len(mutants)} handlers are to be proven", flush=True)
        survived = _run(left, names, record, max(1, options.copies))
        print(f"prove: {len(left) - survived} of these {len(left)} are proven")
    (ROOT / PAGE).write_text(proofs.page("HEAD", record), encoding="utf-8")
    return 1 if survived else 0


def _run(mutants: Sequence[Mutant], names: set[str], record: Record, copies: int) -> int:
    """Run mutants in copies of the committed tree; return how many survived."""
    by_fault = itertools.groupby(mutants, key=lambda mutant: mutant.fault)
    groups = [list(group) for _, group in by_fault]
    if copies > 1:
        groups.sort(key=len, reverse=True)  # the longest first, so that all copies end together
    folder = Path(tempfile.mkdtemp(prefix="prove-", dir="/tmp"))
    folder.chmod(0o755)  # some tests run its programs as another user
    survivors: list[Mutant] = []
    writing = threading.Lock()

    def work(copy: Copy) -> None:
        while True:
            with writing:
                if not groups:
                    return
                group = groups.pop(0)
            for mutant, line, is_red in _results(copy, group):
                proof = None
                if is_red:
                    proof = Proof(fingerprint(copy.root, mutant), copy.commit, "run")
                with writing:
                    print(line, flush=True)
                    if not is_red:
                        survivors.append(mutant)
                    record.put(mutant, proof)
                    record.save(names)

    try:
        with concurrent.futures.ThreadPoolExecutor(copies) as pool:
            trees = [Copy(_made(folder / str(number))) for number in range(copies)]
            for done in [pool.submit(work, tree) for tree in trees]:
                done.result()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return len(survivors)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


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


if __name__ == "__main__":
    sys.exit(main())

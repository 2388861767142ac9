"""The record of proven handlers, and the page that is written from it.

A proof is *run* if its tests were run for the code that its digest covers, *carried* if they were
run on an earlier tree that had the same code in other files, and *stale* if the code has changed
since.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from mutants import FOLDER, Mutant, MutantError, code_digest, fingerprint, load

ROOT = Path(__file__).resolve().parents[1]
RECORD = FOLDER / "proven.json"
PAGE = Path("docs") / "proven.md"


class ProofError(RuntimeError):
    """Git does not have what is asked for, or a record cannot be carried over."""


@dataclass(frozen=True)
class Proof:
    """One proof on record.

    Attributes:
        digest: The fingerprint of the mutant in the tree that the proof is valid for.
        commit: The commit on whose tree the tests were run; for a proof carried over from a
            record that did not say it, the commit that recorded it.
        how: Whether it was run for this code or carried over to it.
    """

    digest: str
    commit: str
    how: Literal["run", "carried"]


class Record:
    """The proofs so far, by the mutant's name."""

    def __init__(self, file: Path) -> None:
        self._file = file
        text = file.read_text(encoding="utf-8") if file.exists() else "{}"
        # An entry without a commit is of an earlier form of the record; `carry` reads those.
        self._proofs = {
            name: Proof(**entry)
            for name, entry in json.loads(text).items()
            if isinstance(entry, dict)
        }

    def valid(self, root: Path, mutant: Mutant) -> Proof | None:
        """Return the proof of a mutant that is valid for the code below `root`."""
        proof = self._proofs.get(mutant.name)
        try:
            return proof if proof and proof.digest == fingerprint(root, mutant) else None
        except MutantError:
            return None

    def put(self, mutant: Mutant, proof: Proof | None) -> None:
        """Record a proof, or with None that there is none."""
        self._proofs.pop(mutant.name, None)
        if proof:
            self._proofs[mutant.name] = proof

    def save(self, names: set[str]) -> None:
        """Write the proofs of the mutants with these names, each on a line of its own."""
        lines = [
            f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(asdict(proof))}"
            for name, proof in sorted(self._proofs.items())
            if name in names
        ]
        self._file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


# --- trees of commits ----------------------------------------------------------------------------


def commit_of(name: str) -> str:
    """Return the full id of a commit.

    Raises:
        ProofError: This clone does not have it.
    """
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ProofError(f"there is no commit {name} in this clone; a full clone has all of them")
    return done.stdout.strip()


def export(commit: str, folder: Path) -> None:
    """Write the tree of a commit into an empty folder.

    Raises:
        ProofError: Git could not export it.
    """
    with subprocess.Popen(
        ["git", "-C", str(ROOT), "archive", commit], stdout=subprocess.PIPE
    ) as archive:
        subprocess.run(["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=True)
    if archive.returncode:
        raise ProofError(f"git could not export the tree of {commit}")


@contextlib.contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """Yield a folder with the tree of a commit; it is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="proofs-") as folder:
        export(commit, Path(folder))
        yield Path(folder)


# --- carrying over -------------------------------------------------------------------------------


def carry(commits: Sequence[str], root: Path, mutants: Sequence[Mutant], record: Record) -> int:
    """Carry the proofs of earlier commits' records over to the tree below `root`.

    A proof is carried over if it was valid for the earlier tree, and if the syntax trees of the
    function, of the function with its handler switched off and of the tests are the same in both
    trees, without comments and docstrings. A mutant with a valid proof keeps it.

    Returns:
        How many were carried over.

    Raises:
        ProofError: This clone does not have one of the commits.
    """
    proven: dict[tuple[int, str], str] = {}
    for commit in map(commit_of, commits):
        with tree_of(commit) as earlier:
            proven |= _proven(commit, earlier)
    carried = 0
    for mutant in mutants:
        if record.valid(root, mutant):
            continue
        with contextlib.suppress(MutantError):
            if ran := proven.get((mutant.fault, code_digest(root, mutant))):
                record.put(mutant, Proof(fingerprint(root, mutant), ran, "carried"))
                carried += 1
    return carried


def _proven(commit: str, tree: Path) -> dict[tuple[int, str], str]:
    """Return the commits on which the proofs valid in a tree were run, by fault and code digest."""
    entries: dict[str, Any] = json.loads((tree / RECORD).read_text(encoding="utf-8"))
    before = _record_before(commit)
    tools = _tools_of(commit, tree)
    found = {}
    for mutant in tools.load(tree / FOLDER):
        entry = entries.get(mutant.name)
        if isinstance(entry, dict):
            digest, ran = entry["digest"], entry["commit"]
        elif entry == before.get(mutant.name):
            continue  # this form does not say where it was run: only its own commit counts
        else:
            digest, ran = entry, commit
        with contextlib.suppress(MutantError, tools.MutantError):
            if digest == tools.fingerprint(tree, mutant):
                found[mutant.fault, code_digest(tree, mutant)] = ran
    return found


def _record_before(commit: str) -> dict[str, Any]:
    command = ["git", "-C", str(ROOT), "show", f"{commit}^:{RECORD.as_posix()}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {} if done.returncode else json.loads(done.stdout)


def _tools_of(commit: str, tree: Path) -> ModuleType:
    """Return the commit's own `tools/mutants.py`: it knows how its record's digests are made."""
    name = f"mutants_of_{commit}"
    spec = importlib.util.spec_from_file_location(name, tree / "tools" / "mutants.py")
    assert spec is not None and spec.loader is not None  # the file's name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for their module there
    spec.loader.exec_module(module)
    return module


# --- the page ------------------------------------------------------------------------------------


def page(commit: str, record: Record) -> str:
    """Return the page: for the tree of a commit, what is proven on record.

    Raises:
        ProofError: This clone does not have the commit.
    """
    commit = commit_of(commit)
    with tree_of(commit) as root:
        mutants = load(root / FOLDER)
        text = (root / "docs" / "faults.md").read_text(encoding="utf-8")
        proofs = {mutant.name: record.valid(root, mutant) for mutant in mutants}
    titles: dict[int, str] = {}
    for number, part, title in re.findall(r"(?m)^### Fault (\d+)(?:, ([^:]+))?: (.+)$", text):
        named = f"{part}: {title}" if part else title
        titles[int(number)] = "; ".join(filter(None, (titles.get(int(number)), named)))
    run, carried, stale = _counts(list(proofs.values()))
    lines = [
        "# Proven handlers",
        "",
        "A handler is proven if its tests fail in a copy of the tree in which it is switched off.",
        f"At commit {commit}, of {len(mutants)} handlers:",
        "",
        f"- **{run} run**: proven by a run for this code of the function and of its tests.",
        f"- **{carried} carried**: run on an earlier tree. A program compared the syntax trees of",
        "  both: the function, the function with its handler switched off, and the tests are the",
        "  same.",
        f"- **{stale} stale**: not proven. The code has changed since the last proof, or the",
        "  handler has none.",
        "",
        "`make prove` runs the stale ones and writes this page ([how](decisions/0020-mutants.md)).",
        "Why some handlers cannot be proven: [what is not proven](faults.md#what-is-not-proven).",
        "",
        "| fault | handlers | run | carried | stale | the stale ones |",
        "|---|---|---|---|---|---|",
    ]
    for fault, group in itertools.groupby(mutants, key=lambda mutant: mutant.fault):
        members = list(group)
        counts = _counts([proofs[one.name] for one in members])
        left = "; ".join(one.handler for one in members if not proofs[one.name])
        named = f"{fault}: {titles[fault]}" if fault in titles else str(fault)
        cells = (named, len(members), *counts, left)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _counts(proofs: Sequence[Proof | None]) -> tuple[int, int, int]:
    """Return how many proofs are run, carried and missing."""
    hows = [proof.how if proof else "" for proof in proofs]
    return hows.count("run"), hows.count("carried"), hows.count("")


def problem_of_page() -> str:
    """Return what is wrong with the page, or an empty text.

    It must say what the record says of the tree of the commit that it names. Later commits may
    change that tree.

    Raises:
        ProofError: This clone does not have that commit.
    """
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    named = re.search(r"(?m)^At commit ([0-9a-f]{40}),", text)
    if named is None:
        return f"{PAGE} names no commit"
    if text != page(named[1], Record(ROOT / RECORD)):
        return f"{PAGE} differs from the record: run tools/prove_faults.py --page"
    return ""

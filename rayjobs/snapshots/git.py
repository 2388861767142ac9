"""Records the git state of a source directory: commit, branch, remote and uncommitted changes.

Commit, branch and remote are read from the repository's own files, which runs neither git
nor a hook. The diff needs git, which runs in parallel to the submit with limits on time and size. A
submit waits for it at most `PATIENCE_S` after everything else is done. Nothing here can fail a
submit: the record says what is unknown.
"""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import json
import os
import re
import selectors
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rayjobs.core.files import write_atomic
from rayjobs.core.text import duration_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.snapshots.own_records import read_start
from rayjobs.snapshots.secrets_found import holds_secret, is_secret_name, is_sensitive_word

# Time limit of git; a slower diff is not recorded.
LIMIT_S = 5.0
# How long a submit waits for git once all else is ready.
PATIENCE_S = 0.015
# The same if git starts only after packing, since a cached state turned out to be outdated.
PATIENCE_CHANGED_S = 0.25
DIFF_BYTES = 256 * 1024
UNTRACKED_NAMED = 20
_LIST_BYTES = 4 * 1024**2
_SMALL_BYTES = 1024**2
_HEX = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# The user's configuration must not run programs or change the output. The exception is a clean
# filter, such as git-lfs, for a file whose times differ from the index, as with any `git status`:
# without its filter an unchanged file would count as changed. The filter ends with git.
_SAFE = (
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "core.quotePath=false", "-c", "diff.mnemonicPrefix=false", "-c", "diff.noprefix=false"),
    *("-c", "submodule.recurse=false", "--no-optional-locks", "--no-pager"),
)
_DIFF = (
    *("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"),
    *("--ignore-submodules=dirty", "--relative", "--src-prefix=a/", "--dst-prefix=b/", "--", "."),
)
_UNTRACKED = ("ls-files", "--others", "--exclude-standard", "--directory", "-z", "--", ".")
# A name, and the separator before its value: password=, "token": , environ["API_KEY"] = ,
# \"token\": of a notebook.
_NAMED = re.compile(r"""(?<!\w)(?P<name>[A-Za-z_][\w.-]{0,60})\\?["']?\]?[ \t]*[:=][ \t]*""")
_QUOTED = re.compile(
    r"""[fFrRbBuU]{0,2}\\?(?P<quote>\"{3}|'{3}|["'])(?P<value>(?:\\.|(?!(?P=quote)).)*)"""
)
_ANNOTATION = re.compile(r"[\w.\[\]|, ]+=[ \t]*")
# In files with these suffixes, unquoted text is code; in others, it is a value to the line's end.
_CODE = frozenset(
    {
        *("py", "pyi", "pyx", "c", "cc", "cpp", "cxx", "cu", "cuh", "h", "hpp", "rs", "go"),
        *("java", "js", "jsx", "ts", "tsx", "jl", "r", "scala", "lua"),
    }
)
_FORM = 2  # increased when more is masked, so that earlier cached diffs are not used
_SHORTEST = 4  # characters of a quoted secret
# Not secrets whatever their name is, such as max_tokens: 512 or use_token: true.
_PLAIN = re.compile(r"(?:true|false|yes|no|on|off|null|none|~|[\[{(|>]+)[,;]?", re.IGNORECASE)
_COUNT = re.compile(r"[+-]?[\d_.]+(?:e[+-]?\d+)?[,;]?", re.IGNORECASE)
_URL_USER = re.compile(r"([a-z][a-z0-9+.-]*://)[^/@\s\"']+@", re.IGNORECASE)


@dataclass(frozen=True)
class GitFacts:
    """The state of a source directory's repository at submit.

    Attributes:
        commit: Full id of the commit that is checked out; empty where there is none.
        branch: Empty on a detached head.
        remote: URL of the branch's remote, without user name and password.
        dirty: Whether tracked files differ from the commit; None: not known.
        diff: Those differences, bounded, without what looks like a secret.
        diff_left_out: Files whose part of the diff is left out, with the reason.
        untracked: Files and folders that git does not know and does not ignore; None: not known.
        untracked_names: The first of them.
        why: What is unknown, and why; empty if everything is known.
    """

    commit: str = ""
    branch: str = ""
    remote: str = ""
    dirty: bool | None = None
    diff: str = ""
    diff_truncated: bool = False
    diff_left_out: tuple[str, ...] = ()
    untracked: int | None = None
    untracked_names: tuple[str, ...] = ()
    why: str = ""

    def properties(self, diff_digest: str | None = None) -> dict[str, str]:
        """Return Azure ML's properties of a run, and one of our own with the rest as JSON.

        Source: ``azureml._git``: the same names and forms.
        """
        found: dict[str, str] = {}
        for name, short, value in (
            ("repository_uri", "repoURL", self.remote),
            ("branch", "branch", self.branch),
            ("commit", "commit", self.commit),
        ):
            if value:
                found[f"azureml.git.{name}"] = value
                found[f"mlflow.source.git.{short}"] = value
        if self.dirty is not None:
            found["azureml.git.dirty"] = str(self.dirty)
        rest: dict[str, Any] = {
            "diff": diff_digest,
            "diff_bytes": len(self.diff.encode(errors="replace")) if self.diff else None,
            "diff_truncated": self.diff_truncated or None,
            "diff_left_out": list(self.diff_left_out) or None,
            "untracked": self.untracked,
            "untracked_names": list(self.untracked_names) or None,
            "why": self.why or None,
        }
        found["rayjobs.git"] = json.dumps(
            {key: value for key, value in rest.items() if value is not None}, ensure_ascii=False
        )
        return found


_OUTSIDE = GitFacts(why="not in a git repository")
PREFIXES = ("azureml.git.", "mlflow.source.git.", "rayjobs.git")


def kept(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the job properties that describe the origin of its code."""
    return {key: value for key, value in properties.items() if key.startswith(PREFIXES)}


def of_properties(properties: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the repository state in a job's properties, as JSON data; None if there is none."""
    try:
        rest = json.loads(properties.get("rayjobs.git", "null"))
    except ValueError:
        rest = None
    names = {"commit": "commit", "branch": "branch", "remote": "repository_uri"}
    known = {
        key: properties[f"azureml.git.{name}"]
        for key, name in names.items()
        if f"azureml.git.{name}" in properties
    }
    if not isinstance(rest, dict) and not known:
        return None
    dirty = properties.get("azureml.git.dirty")
    return {
        **known,
        "dirty": None if dirty is None else dirty == "True",
        **(rest if isinstance(rest, dict) else {}),
    }


def one_line(facts: Mapping[str, Any]) -> str:
    """Return the result of `of_properties` as one line: ``1f3c9a2b4d5e on main, …``."""
    parts = []
    if facts.get("commit"):
        branch = f" on {facts['branch']}" if facts.get("branch") else " (no branch)"
        parts.append(f"{facts['commit'][:12]}{branch}")
    if facts.get("remote"):
        parts.append(str(facts["remote"]))
    if facts.get("dirty") is not None:
        parts.append("with uncommitted changes" if facts["dirty"] else "no uncommitted changes")
    if facts.get("untracked"):
        parts.append(f"{facts['untracked']} untracked")
    if facts.get("why"):
        parts.append(str(facts["why"]))
    return ", ".join(parts)


class LastLook:
    """Caches the state of a source directory's last submit, which saves running git.

    The directory counts as unchanged if commit, branch, remote, index and snapshot are the same. A
    change of a tracked file outside the snapshot is noticed only with the next other change.
    """

    def __init__(self, cache: Path, source: Path) -> None:
        """Read the folder `cache`, which need not exist. Never raises."""
        root = os.path.realpath(source)
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
        self._path = cache / f"git-{name}.json"
        self._key = ""
        self._known: dict[str, Any] = {}
        self._is_outside = False
        try:
            repository = _find(Path(root))
            self._is_outside = repository is None
            if repository is not None:
                index = (repository[0] / "index").stat()
                seen = (_FORM, *_read(*repository), index.st_mtime_ns, index.st_size, index.st_ino)
                self._key = hashlib.sha256(repr(seen).encode(errors="replace")).hexdigest()
                known = json.loads(self._path.read_bytes())
                self._known = known if known["key"] == self._key else {}
        except (OSError, ValueError, KeyError, TypeError):
            pass  # first submit, or no repository: run git

    @property
    def is_known(self) -> bool:
        """Whether `facts` has the state if the snapshot is the same."""
        return self._is_outside or bool(self._known)

    def facts(self, snapshot: str) -> GitFacts | None:
        """Return the cached state for this snapshot; None: run git."""
        if self._is_outside:
            return _OUTSIDE
        if self._known.get("snapshot") != snapshot:
            return None
        try:
            given = dict(self._known["facts"])
            for name in ("diff_left_out", "untracked_names"):
                given[name] = tuple(given[name])
            return GitFacts(**given)
        except (KeyError, TypeError, ValueError):
            return None

    def keep(self, snapshot: str, facts: GitFacts) -> None:
        """Cache a complete state; a failure only costs the next submit time."""
        if not self._key or facts.dirty is None or facts.untracked is None:
            return
        data = {"key": self._key, "snapshot": snapshot, "facts": asdict(facts)}
        with contextlib.suppress(OSError):
            write_atomic(self._path, json.dumps(data))


class GitLook:
    """Inspects one source directory's repository while the submit continues."""

    def __init__(self, source: Path) -> None:
        """Read the repository's files, and start git. Never raises."""
        self._facts = GitFacts()
        self._children: list[subprocess.Popen[bytes]] = []
        self._texts: list[bytes] = [b"", b""]
        self._errors = b""
        self._why = ""
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._begin(Path(os.path.realpath(source)))
        except (OSError, ValueError, RecursionError) as error:
            self._facts = GitFacts(why=f"the repository cannot be read: {error}")

    def _begin(self, source: Path) -> None:
        repository = _find(source)
        if repository is None:
            self._facts = _OUTSIDE
            return
        commit, branch, remote, why = _read(*repository)
        self._facts = GitFacts(commit=commit, branch=branch, remote=remote, why=why)
        if commit:
            self._start(source)

    def _start(self, source: Path) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("GIT_")
        }
        environment.update(
            LC_ALL="C", GIT_OPTIONAL_LOCKS="0", GIT_TERMINAL_PROMPT="0", GIT_PAGER="cat"
        )
        try:
            for words in (_DIFF, _UNTRACKED):
                self._children.append(
                    subprocess.Popen(
                        ["git", *_SAFE, *words],
                        cwd=source,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        start_new_session=True,  # so that `_end` also ends what it starts
                    )
                )
        except FileNotFoundError:
            self._why = "no git is installed here, so changes since the commit are not known"
        except OSError as error:
            self._why = f"git cannot be started ({error.strerror}), so changes are not known"
        if self._why:
            self._end()
            return
        self._thread = threading.Thread(target=self._follow, name="git-look", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        limits = (DIFF_BYTES + 1, _LIST_BYTES)
        deadline_s = time.monotonic() + LIMIT_S
        with selectors.DefaultSelector() as selector:
            for number, child in enumerate(self._children):
                assert child.stdout is not None
                assert child.stderr is not None
                selector.register(child.stdout, selectors.EVENT_READ, number)
                selector.register(child.stderr, selectors.EVENT_READ, -1)
            while selector.get_map():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or self._is_over.is_set():
                    self._why = self._why or f"git took longer than {duration_text(LIMIT_S)}"
                    break
                for key, _ in selector.select(min(left_s, 0.25)):
                    data = os.read(key.fd, 64 * 1024)
                    number = key.data
                    if number < 0:
                        self._errors = (self._errors + data)[:4096]
                    else:
                        self._texts[number] += data
                        if len(self._texts[number]) > limits[number]:
                            self._children[number].kill()  # its output is not needed any more
                            data = b""
                    if not data:
                        selector.unregister(key.fileobj)
        self._is_over.set()

    def _end(self) -> None:
        self._is_over.set()
        for child in self._children:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if self._thread is not None:
            self._thread.join(1.0)
            if self._thread.is_alive():
                return  # a process outside git's session holds the pipes; the thread ends by itself
        for child in self._children:
            for stream in (child.stdout, child.stderr):
                if stream is not None:
                    stream.close()

    def __enter__(self) -> GitLook:
        """Return this object; the end of the block ends git and its children."""
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def result(
        self,
        packed: Callable[[], frozenset[str]] | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> GitFacts:
        """Return the state known so far; end git if it still runs.

        Args:
            packed: Paths of the snapshot's files; limits the diff to them. None: any path.
        """
        facts = self._facts
        if self._thread is not None:
            self._thread.join(patience_s)
            is_late = self._thread.is_alive()
            if is_late:
                self._why = "git had not finished when the job was ready, so changes are not known"
            codes = [] if is_late or self._why else [self._code(child) for child in self._children]
            self._end()
            if codes and not self._why:
                return self._of_output(codes, packed)
        why = "; ".join(part for part in (facts.why, self._why) if part)
        return GitFacts(facts.commit, facts.branch, facts.remote, why=why)

    @staticmethod
    def _code(child: subprocess.Popen[bytes]) -> int:
        try:
            return child.wait(0.05)
        except subprocess.TimeoutExpired:
            return 1  # it closed its output but still runs, so it is not git

    def _of_output(self, codes: list[int], packed: Callable[[], frozenset[str]] | None) -> GitFacts:
        facts = self._facts
        text = self._texts[0]
        truncated = len(text) > DIFF_BYTES
        if codes[0] != 0 and not truncated:
            errors = self._errors.decode("utf-8", "replace").strip().splitlines()
            reason = errors[0] if errors else f"git ended with code {codes[0]}"
            why = "changes are not known: " + _URL_USER.sub(r"\1", reason)[:300]
            why = "; ".join(part for part in (facts.why, why) if part)
            return GitFacts(facts.commit, facts.branch, facts.remote, why=why)
        paths = packed() if packed is not None and text else None
        diff, left_out = filtered(text[:DIFF_BYTES].decode("utf-8", "replace"), paths)
        names = [os.fsdecode(name) for name in self._texts[1].split(b"\0") if name]
        shown = tuple(
            name.encode("utf-8", "backslashreplace").decode() for name in names[:UNTRACKED_NAMED]
        )
        return GitFacts(
            facts.commit,
            facts.branch,
            facts.remote,
            dirty=bool(text),
            diff=diff,
            diff_truncated=truncated,
            diff_left_out=left_out,
            untracked=len(names) if codes[1] == 0 else None,
            untracked_names=shown if codes[1] == 0 else (),
            why=facts.why,
        )


# -- the repository's own files ------------------------------------------------------------------


def _find(source: Path) -> tuple[Path, Path] | None:
    """Return the folders of a working tree's repository: its own, and the shared one."""
    for folder in (source, *source.parents):
        try:
            mode = os.stat(f"{folder}/.git").st_mode  # noqa: PTH116 - speed
        except (FileNotFoundError, NotADirectoryError):
            continue
        path = folder / ".git"
        if stat.S_ISDIR(mode):
            return path, path
        if stat.S_ISREG(mode):  # a worktree, or a submodule
            text = _text(path)
            if not text.startswith("gitdir:"):
                return None
            own = Path(os.path.normpath(folder / text[7:].strip()))
            shared = _text(own / "commondir").strip()
            return own, Path(os.path.normpath(own / shared)) if shared else own
    return None


def _read(own: Path, shared: Path) -> tuple[str, str, str, str]:
    """Return commit, branch, remote, and what is not known."""
    head = _text(own / "HEAD").strip()
    if not head:
        return "", "", "", "the repository is damaged: it has no HEAD"
    name = head[5:].strip() if head.startswith("ref:") else ""
    branch = name.removeprefix("refs/heads/") if name.startswith("refs/heads/") else ""
    commit = _ref(shared, name) if name else head
    remote = _remote(shared / "config", branch)
    if (shared / "reftable").is_dir():
        return "", "", remote, "the repository keeps its references in a form not read here"
    if not _HEX.fullmatch(commit):
        is_new = bool(name) and not commit and (shared / "refs" / "heads").is_dir()
        damage = "the repository is damaged: its HEAD leads to no commit"
        return "", branch, remote, "the repository has no commit yet" if is_new else damage
    return commit, branch, remote, ""


def _ref(shared: Path, name: str, links: int = 5) -> str:
    """Return the commit that a reference leads to, or what it has instead; "" if it is absent."""
    if ".." in name.split("/") or not links:
        return ""
    found = _text(shared / name).strip()
    if found.startswith("ref:"):  # another name of a branch
        return _ref(shared, found[4:].strip(), links - 1)
    if found:
        return found
    for line in _text(shared / "packed-refs", 64 * _SMALL_BYTES).splitlines():
        digest, _, ref = line.partition(" ")
        if ref == name:
            return digest
    return ""


def _remote(config: Path, branch: str) -> str:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True, delimiters=("=",))
    try:
        lines = [line.strip() for line in _text(config).splitlines()]
        parser.read_string("\n".join(lines))
    except configparser.Error:
        return ""

    def value(section: str, key: str) -> str:
        return (parser.get(section, key, fallback="") or "").strip().strip('"')

    name = value(f'branch "{branch}"', "remote") or "origin"
    url = value(f'remote "{name}"', "url")
    if not url:
        others = [one for one in parser.sections() if one.startswith('remote "')]
        url = value(others[0], "url") if len(others) == 1 else ""
    return without_credentials(url)


def without_credentials(url: str) -> str:
    """Return a remote's URL without user name, password, query and fragment.

    ``git@host:path`` stays: its user is part of the address, not a secret.
    """
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    user, at, host = parts.netloc.rpartition("@")
    keeps = parts.scheme in ("ssh", "git+ssh") and at and ":" not in user
    # The address behind a helper, as in ext::https://…, is a part of the path.
    path = _URL_USER.sub(r"\1", parts.path)
    return urlunsplit((parts.scheme, f"{user}@{host}" if keeps else host, path, "", ""))


def _text(path: Path, most: int = _SMALL_BYTES) -> str:
    content = read_start(path, most)
    return "" if content is None else content.decode("utf-8", "replace")


# -- the diff -------------------------------------------------------------------------------------


def filtered(diff: str, packed: frozenset[str] | None) -> tuple[str, tuple[str, ...]]:
    """Return a diff without secrets, and the files that were left out of it.

    Left out are files that are not in the snapshot, files with a secret's name and files whose
    changes hold a key or token. Values that are assigned to a name such as ``password`` are masked.
    """
    kept: list[str] = []
    left_out: list[str] = []
    for part in re.split(r"(?m)^(?=diff --git )", diff):
        if not part:
            continue
        path, is_deleted = _path_of(part)
        reason = ""
        if any(is_secret_name(name) for name in path.split("/")):
            reason = "likely secret by its name"
        elif is_deleted:
            reason = "removed; the commit has it"
        elif packed is not None and path not in packed:
            reason = "not in the snapshot"
        elif holds_secret(part.encode(errors="replace")):
            reason = "holds what looks like a key or token"
        if reason:
            left_out.append(f"{path} ({reason})")
        else:
            kept.append(_masked(_URL_USER.sub(r"\1", part), path))
    return "".join(kept), tuple(left_out[:100])


def _path_of(part: str) -> tuple[str, bool]:
    head = part.partition("\n@@")[0].splitlines()
    is_deleted = any(line.startswith("deleted file mode") for line in head)
    for mark, prefix in (("+++ ", "b/"), ("--- ", "a/")):
        for line in head[1:]:
            if line.startswith(mark) and line[4:] != "/dev/null":
                return _unquoted(line[4:].rstrip("\t")).removeprefix(prefix), is_deleted
    names = head[0].removeprefix("diff --git ")
    middle = len(names) // 2  # both names are the same: rename detection is off
    return _unquoted(names[middle + 1 :]).removeprefix("b/"), is_deleted


def _unquoted(name: str) -> str:
    if len(name) > 1 and name[0] == name[-1] == '"':
        with contextlib.suppress(UnicodeDecodeError, UnicodeEncodeError):
            return name[1:-1].encode("latin-1").decode("unicode_escape")
    return name


def _masked(part: str, path: str) -> str:
    """Return a file's part of a diff with the values of secret names masked."""
    is_code = path.rpartition(".")[2].lower() in _CODE
    head, mark, changes = part.partition("\n@@")
    lines = (mark + changes).split("\n")  # lines with @@ also show a line of the file
    return head + "\n".join(_masked_line(line, is_code) for line in lines)


def _masked_line(line: str, is_code: bool) -> str:
    shown, at = "", 0
    for match in _NAMED.finditer(line):
        if match.start() < at or not is_sensitive_word(match["name"]):
            continue
        start = match.end()
        quoted = _QUOTED.match(line, start)
        if quoted is None and is_code:
            annotation = _ANNOTATION.match(line, start)
            quoted = _QUOTED.match(line, annotation.end()) if annotation else None
        if quoted is not None:
            if len(quoted["value"]) >= _SHORTEST:
                shown += line[at : quoted.start("value")] + "…"
                at = quoted.end("value")
        elif not is_code and _is_value(match["name"], line[start:].strip()):
            return shown + line[at:start] + "…"
    return shown + line[at:]


def _is_value(name: str, text: str) -> bool:
    """Return whether the text after a name, to the end of the line, may be a secret."""
    is_count = name.lower().endswith(("token", "tokens")) and _COUNT.fullmatch(text)
    return bool(text) and not is_count and not _PLAIN.fullmatch(text)

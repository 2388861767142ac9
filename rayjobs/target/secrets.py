"""The secrets of a target: a file that only its owner can read.

It is read whenever a job needs a secret, so one can be set or changed while the target runs. Nodes
that do not share the file get the values from the target actor, in memory; no record, log or
command line ever contains one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from rayjobs.core.errors import UsageError
from rayjobs.core.files import locked, write_private
from rayjobs.core.paths import TargetPaths
from rayjobs.core.text import size_text
from rayjobs.datastore.credentials import AWS_KEYS
from rayjobs.injob.lazy_dataclass import dataclass

FILE = "secrets.json"
MOST_BYTES = 64 * 2**10
# The source of a secret: a user's command, or a submit that found it exported in the shell.
BY_USER = "user"
BY_SUBMIT = "submit"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")


@dataclass(frozen=True)
class Secret:
    """One secret. Its `repr` does not contain the value."""

    name: str
    value: str
    given_by: str = BY_USER

    def __repr__(self) -> str:
        """Show only the name."""
        return f"Secret({self.name!r}, given_by={self.given_by!r})"


@dataclass(frozen=True)
class Taken:
    """What `TargetSecrets.take_over` changed.

    Attributes:
        new: Names that are new or have new values.
        dropped: Names that belonged to an earlier credential.
    """

    new: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


class TargetSecrets:
    """The secrets file of one target. Several processes may use it at once."""

    def __init__(self, target: str, *, home: Path) -> None:
        self.target = target
        self.path = TargetPaths.of(target, under=home).root / FILE

    def all(self) -> dict[str, Secret]:
        """Return the secrets by name; empty if there is no file.

        Raises:
            UsageError: the file is damaged, or other users can read it.
        """
        try:
            with self.path.open(encoding="utf-8") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the secrets in {self.path} cannot be read: {error}") from error
        if mode & 0o077:
            raise UsageError(
                f"other users can read {self.path}, which holds secrets. Run `chmod 600 "
                f"{self.path}`, and change the secrets if others may have seen them."
            )
        try:
            return {
                name: Secret(name, str(one["value"]), str(one.get("given_by", BY_USER)))
                for name, one in json.loads(text)["secrets"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"the secrets file {self.path} is damaged. Remove it, and give the secrets again: "
                f"`rayjobs target secret set NAME`."
            ) from error

    def values(self) -> dict[str, str]:
        """Return the values by name. Raises UsageError as `all` does."""
        return {name: one.value for name, one in self.all().items()}

    def set(self, name: str, value: str) -> tuple[str, ...]:
        """Add or replace a secret.

        Returns the names that were removed: a new AWS key does not match the other keys of a
        credential that a submit passed on.

        Raises:
            UsageError: the name or the value is not valid for a secret.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a variable's name: use letters, digits and underscores."
            )
        if not value:
            raise UsageError(f"the value of {name} is empty; `secret rm {name}` removes a secret.")
        if len(value.encode()) > MOST_BYTES or "\0" in value:
            raise UsageError(
                f"the value of {name} is not valid: give at most {size_text(MOST_BYTES)} of text, "
                f"without NUL characters."
            )
        with self._changing() as kept:
            is_new = name not in kept or kept[name].value != value
            dropped = _aws_by_submit(kept) - {name} if name in AWS_KEYS and is_new else set()
            for other in dropped:
                del kept[other]
            kept[name] = Secret(name, value)
        return tuple(sorted(dropped))

    def remove(self, name: str) -> bool:
        """Remove a secret; False if it does not exist."""
        with self._changing() as kept:
            return kept.pop(name, None) is not None

    def take_over(self, names: Iterable[str], environment: Mapping[str, str]) -> Taken:
        """Add the variables in `names` that a shell exports; return what changed.

        This never replaces what a user has set by command. The AWS keys are one credential and are
        replaced together or not at all, since S3 refuses a key with another credential's session
        token.
        """
        found = {name: environment[name] for name in names if environment.get(name)}
        aws = found.keys() & {*AWS_KEYS}
        if aws and environment.get(AWS_KEYS[0]):
            found |= {name: environment[name] for name in AWS_KEYS if environment.get(name)}
            aws = found.keys() & {*AWS_KEYS}
        if not found:
            return Taken()
        with self._changing() as kept:
            if any(name in kept and kept[name].given_by == BY_USER for name in AWS_KEYS):
                found = {name: value for name, value in found.items() if name not in aws}
                aws = set()
            new = {
                name: Secret(name, value, BY_SUBMIT)
                for name, value in found.items()
                if name not in kept
                or (kept[name].given_by == BY_SUBMIT and kept[name].value != value)
            }
            # A shell that exports only one unchanged key says nothing about the others.
            is_whole = AWS_KEYS[0] in aws or bool(aws & new.keys())
            dropped = _aws_by_submit(kept) - aws if aws and is_whole else set()
            for name in dropped:
                del kept[name]
            kept.update(new)
        return Taken(tuple(new), tuple(sorted(dropped)))

    def _changing(self) -> _Changing:
        return _Changing(self)


def _aws_by_submit(kept: Mapping[str, Secret]) -> set[str]:
    return {name for name in AWS_KEYS if name in kept and kept[name].given_by == BY_SUBMIT}


class _Changing:
    """Holds the file's lock, and writes any changes at the end of the block."""

    def __init__(self, secrets: TargetSecrets) -> None:
        self._secrets = secrets
        path = secrets.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = locked(path.with_name(f".{FILE}.lock"))
        self._kept: dict[str, Secret] = {}
        self._before: dict[str, Secret] = {}

    def __enter__(self) -> dict[str, Secret]:
        self._lock.__enter__()
        try:
            self._kept = self._secrets.all()
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        self._before = dict(self._kept)
        return self._kept

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        try:
            if kind is None and self._kept != self._before:
                values = {
                    one.name: {"value": one.value, "given_by": one.given_by}
                    for one in self._kept.values()
                }
                text = json.dumps({"version": 1, "secrets": values})
                write_private(self._secrets.path, text + "\n")
        finally:
            self._lock.__exit__(None, None, None)

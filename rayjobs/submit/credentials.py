"""Checks that a target has a job's credentials, and passes on those that the shell exports."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from rayjobs.core.errors import Problem, RayjobsError
from rayjobs.datastore.credentials import AWS_KEYS
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.target.local_head import is_kept, proxies_with_password

if TYPE_CHECKING:
    from pathlib import Path

    from rayjobs.datastore.catalogue import DatastoreRecord
    from rayjobs.spec.model import JobSpec
    from rayjobs.workspace.folder import OpenWorkspace


@dataclass
class Needs:
    """The variables that a job's node reads.

    Attributes:
        required: Variable → (field of the spec, what needs the variable, in words).
        optional: Variables that are used if they are set.
    """

    required: dict[str, tuple[str, str]] = field(default_factory=dict)
    optional: set[str] = field(default_factory=set)

    @property
    def names(self) -> set[str]:
        """All variables."""
        return {*self.required, *self.optional}


def needs_of(workspace: OpenWorkspace, spec: JobSpec) -> Needs:
    """Return what a checked spec's datastores, secrets and packages read from variables.

    The variables for access to the workspace itself are not included, see `own_needs`.
    """
    needs = Needs()
    for name, reference in spec.secrets.items():
        if reference.env is not None:
            needs.required.setdefault(reference.env, (f"secrets.{name}", f"the secret {name}"))
    password = _registry_password(spec)
    if password is not None:
        needs.required.setdefault(
            password, ("container.registry.password", "the password of the image's registry")
        )
    if spec.environment is not None and not isinstance(spec.environment, str):
        from rayjobs.spec import requirements

        for name in requirements.secrets_of(spec.environment.pip):
            needs.required.setdefault(name, ("environment.pip", "a package of the environment"))
        # Addresses and passwords of package indexes that the target did not store at its start.
        needs.optional |= {
            name
            for name, value in os.environ.items()
            if name.startswith(("UV_", "PIP_")) and not is_kept(name, value)
        } | proxies_with_password(os.environ)
    for name, one in spec.inputs.items():
        for record in _records(workspace, one.source):
            _of_datastore(record, f"inputs.{name}.source", needs)
    for name, output in spec.outputs.items():
        for record in _records(workspace, output.destination):
            _of_datastore(record, f"outputs.{name}.destination", needs)
    return needs


def own_needs(workspace: OpenWorkspace) -> set[str]:
    """Return the variables for access to the workspace itself, if it needs any."""
    address = workspace.blobs_address
    found = {*AWS_KEYS} if address is not None and not address.profile else set()
    return found | ({"PGPASSWORD"} if workspace.store_address is not None else set())


def hand_on_own(workspace: OpenWorkspace, target: str, *, home: Path) -> None:
    """Store this process's credentials for the workspace itself, for a target that it starts.

    Raises:
        UsageError: the target's secrets file cannot be used.
    """
    hand_on(Needs(optional=own_needs(workspace)), target, home=home)


def _registry_password(spec: JobSpec) -> str | None:
    """Return the variable that holds the password of the image's registry."""
    registry = None if spec.container is None else spec.container.registry
    return None if registry is None or registry.password is None else registry.password.env


def _records(workspace: OpenWorkspace, source: str) -> Iterable[DatastoreRecord]:
    """Return a source's datastores; empty if they cannot be found, which other checks report."""
    from rayjobs.data import pins
    from rayjobs.data.arguments import SAVED
    from rayjobs.datastore.errors import DatastoreError

    try:
        if source.startswith((SAVED, pins.DATASET)):
            return pins.datastores_of_dataset(workspace, source)
        return pins.datastore_of_path(workspace, source)
    except DatastoreError:
        return ()


def _of_datastore(record: DatastoreRecord, location: str, needs: Needs) -> None:
    if record.kind == "fsspec":
        named = json.loads(record.settings.get("option_env") or "{}")
        for name in named.values():
            needs.required.setdefault(name, (location, f"datastore {record.name!r}"))
        return
    if record.kind != "s3":
        return
    from rayjobs.datastore.backends.s3_settings import S3Settings
    from rayjobs.datastore.errors import DatastoreError

    try:
        settings = S3Settings.from_record(record)
    except DatastoreError:
        return
    needs.optional |= proxies_with_password(os.environ)
    for name in settings.variables:
        needs.required.setdefault(name, (location, f"datastore {record.name!r}"))
    if settings.is_found_by_search:
        needs.optional |= {*AWS_KEYS}


def missing(
    needs: Needs,
    target: str,
    *,
    home: Path,
    environment: Mapping[str, str] | None = None,
) -> list[Problem]:
    """Return a problem for each variable that the target lacks and this shell does not provide."""
    shell = os.environ if environment is None else environment
    if not needs.required:
        return []
    unseen = [name for name in needs.required if not shell.get(name)]
    unseen += _kept_apart(needs, target, shell, home=home)
    if not unseen:
        return []
    seen = _seen_by(target, unseen, home=home)
    return [
        Problem(
            needs.required[name][0],
            f"{needs.required[name][1]} takes its value from the variable {name}, which target "
            f"{target!r} cannot see.",
            (
                "An AWS key of this target was set by hand, and keys exported here are not mixed "
                "with it. Give"
                if shell.get(name)
                else f"Export {name} here and submit again, or give"
            )
            + f" it to the target: `rayjobs target secret set {name} --target {target}`.",
        )
        for name in unseen
        if name not in seen
    ]


def _kept_apart(needs: Needs, target: str, shell: Mapping[str, str], *, home: Path) -> list[str]:
    """Return exported AWS keys that are not passed on, because a user gave the target others."""
    from rayjobs.target.secrets import BY_USER, TargetSecrets

    exported = [name for name in AWS_KEYS if name in needs.required and shell.get(name)]
    kept = TargetSecrets(target, home=home).all() if exported else {}
    is_set = any(name in kept and kept[name].given_by == BY_USER for name in AWS_KEYS)
    return [name for name in exported if is_set and name not in kept]


def _seen_by(target: str, names: Iterable[str], *, home: Path) -> set[str]:
    """Return the variables in a target's file or, if it runs, in its environment."""
    from rayjobs.target import wake_client
    from rayjobs.target.answers import SeesAnswer
    from rayjobs.target.requests import TargetRequest
    from rayjobs.target.secrets import TargetSecrets
    from rayjobs.target.stopping import TargetLocation

    kept = set(TargetSecrets(target, home=home).all())
    left = sorted(set(names) - kept)
    if left:
        try:
            answer = wake_client.ask(
                TargetLocation(target, home).socket,
                TargetRequest("sees", names=tuple(left)),
                SeesAnswer,
            )
        except TimeoutError:
            answer = None
        if answer is not None:
            kept |= set(answer.sees)
    return kept


def hand_on(
    needs: Needs,
    target: str,
    *,
    home: Path,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Store the job's variables that this shell exports for the target; return notes for users.

    Raises:
        UsageError: the target's secrets file cannot be used.
        RayjobsError: the secrets file cannot be written.
    """
    from rayjobs.target.secrets import TargetSecrets

    shell = dict(os.environ if environment is None else environment)
    if not shell.get(AWS_KEYS[0]):  # without it, the AWS search ignores the others
        unused = (needs.optional - needs.required.keys()) & {*AWS_KEYS}
        shell = {name: value for name, value in shell.items() if name not in unused}
    if not needs.names & shell.keys():
        return []
    secrets = TargetSecrets(target, home=home)
    try:
        taken = secrets.take_over(sorted(needs.names), shell)
    except OSError as error:
        raise RayjobsError(f"the secrets of target {target!r} cannot be stored: {error}") from error
    notes = []
    if taken.new:
        notes.append(
            f"{', '.join(taken.new)} as exported here: stored for target {target!r} in "
            f"{secrets.path}, which only you can read (`rayjobs target secret ls`)"
        )
    if taken.dropped:
        notes.append(
            f"{', '.join(taken.dropped)} of an earlier credential: removed from the secrets of "
            f"target {target!r}, since it does not belong to the AWS keys exported here"
        )
    return notes

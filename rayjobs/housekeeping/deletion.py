"""Delete models, dataset versions and datastores, unless something still refers to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayjobs.errors import UsageError
from rayjobs.jobdata import DATASET
from rayjobs.states import JobState

if TYPE_CHECKING:
    from rayjobs.records import ModelVersion
    from rayjobs.store.base import Store
    from rayjobs.workspace_files import OpenWorkspace

_MOST_SHOWN = 5
_UNFINISHED = tuple(state for state in JobState if not state.is_final)


class StillUsedError(UsageError):
    """Something refers to what was to be deleted; nothing was deleted."""


@dataclass(frozen=True)
class DatasetUses:
    """What refers to a version of a dataset.

    Attributes:
        jobs: Ids of unfinished jobs that read it; it cannot be deleted under them.
        models: Models (``NAME:VERSION``) whose lineage names it.
    """

    jobs: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


def delete_dataset(
    workspace: OpenWorkspace, name: str, version: int, *, force: bool = False
) -> DatasetUses:
    """Delete a version of a dataset from the registry; its files stay in their datastore.

    The version's number is not given again.

    Args:
        force: Also when the lineage of models names it.

    Returns:
        What referred to it.

    Raises:
        DatasetNotFound: there is no such version.
        StillUsedError: an unfinished job reads it, or (without `force`) a model's lineage names
            it.
    """
    record = workspace.catalogue.dataset(name, version)
    uses = dataset_uses(workspace.store, record.name, record.version)
    title = f"{record.name}:{record.version}"
    if uses.jobs:
        raise StillUsedError(
            f"dataset {title} is an input of unfinished jobs: {_listed(uses.jobs)}. Wait for "
            f"their end, or cancel them; nothing was deleted"
        )
    if uses.models and not force:
        raise StillUsedError(
            f"dataset {title} is in the lineage of models: {_listed(uses.models)}. Without it "
            f"their training data cannot be fetched by version any more. Nothing was deleted; "
            f"--force deletes it all the same"
        )
    workspace.catalogue.remove_dataset(record.name, record.version)
    return uses


def dataset_uses(store: Store, name: str, version: int) -> DatasetUses:
    """Return what refers to a version of a dataset."""
    wanted = f"{name}:{version}"
    jobs = tuple(
        job.id
        for job in store.jobs(states=_UNFINISHED, newest_first=False)
        if any(one.source == f"{DATASET}{wanted}" for one in job.spec.inputs.values())
    )
    models = tuple(f"{one.name}:{one.version}" for one in _reading(store.models(), wanted))
    return DatasetUses(jobs, models)


def refuse_while_used(store: Store, datastore: str) -> None:
    """Return if no unfinished job names a path in a datastore as its input or output.

    Raises:
        StillUsedError: some do; it names them.
    """
    place = f"{datastore}/"
    jobs = [
        job.id
        for job in store.jobs(states=_UNFINISHED, newest_first=False)
        if any(one.source.startswith(place) for one in job.spec.inputs.values())
        or any(one.destination.startswith(place) for one in job.spec.outputs.values())
    ]
    if jobs:
        raise StillUsedError(
            f"datastore {datastore!r} is used by unfinished jobs: {_listed(jobs)}. Wait for their "
            f"end, or cancel them; nothing was removed"
        )


def delete_model(
    workspace: OpenWorkspace, name: str, version: int, *, force: bool = False
) -> tuple[str, ...]:
    """Delete a version of a model from the registry; ``rayjobs prune`` frees its files.

    Its number is not given again.

    Args:
        force: Also when aliases point to it; they are deleted too.

    Returns:
        The aliases that pointed to it.

    Raises:
        NotFoundError: there is no such version.
        StillUsedError: an alias points to it, and `force` is off.
    """
    found = workspace.store.model(name, version=version)
    if found.aliases and not force:
        names = _listed([f"{name}@{alias}" for alias in found.aliases])
        raise StillUsedError(
            f"model {name}:{version} is what {names} points to. Point the alias at another "
            f"version (`rayjobs model alias {name}:VERSION {found.aliases[0]}`), or delete both "
            f"with --force; nothing was deleted"
        )
    workspace.store.delete_model(name, version)
    return tuple(found.aliases)


def _reading(models: Sequence[ModelVersion], wanted: str) -> Iterator[ModelVersion]:
    for one in models:
        if any(data.get("version") == wanted for data in one.lineage.get("data", ())):
            yield one


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_SHOWN])
    left = len(names) - _MOST_SHOWN
    return f"{shown} and {left} more" if left > 0 else shown

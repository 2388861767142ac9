"""Compares Azure ML's public classes with ours: what is provided, refused by name, or missing.

The migration guide and the tests use it; the signatures are those of the wheels (`signatures`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from rayjobs.azureml.signatures import Parameter, azure_class
from rayjobs.core.refusing import sentence_of
from rayjobs.injob.azureml import names
from rayjobs.injob.azureml.finder import load
from rayjobs.injob.lazy_dataclass import dataclass

# Public by name in the wheels, but internal in practice: constants of loggers and of the REST
# client, hooks that the SDK calls itself.
INTERNAL = frozenset(
    {
        *("DELIM", "EXPERIMENT_ID_PATH", "EXPERIMENT_NAME_PATH", "RUN_PATH", "TID_FMT"),
        *(
            "WORKSPACE_FMT",
            "HYPER_DRIVE_RUN_USER_AGENT",
            "RUN_TYPE",
            "identity",
            "workspace_object",
        ),
        *("get_docs_url", "portal_url", "arg_val", "deserialize", "validate", "signed_session"),
        *("validate_configuration", "sdk_origin_url", "get_default_number_of_packages"),
        *("DEFAULT_NUMBER_OF_CONDA_PACKAGES", "DEFAULT_NUMBER_OF_PIP_PACKAGES"),
    }
)
# Classes that only the SDK instantiates, or that only serve as bases: programs do not call their
# constructors, and read only what `serialize` shows.
NOT_MADE = frozenset(
    {
        "AbstractAuthentication",
        "AbstractAzureStorageDatastore",
        "AbstractDatastore",
        "AmlComputeProvisioningConfiguration",
        "AmlComputeStatus",
        "AzureBlobDatastore",
        "AzureFileDatastore",
        "AzureMLTokenAuthentication",
        "EarlyTerminationPolicy",
        "HyperParameterSampling",
        "MMLBaseEstimator",
        "_OfflineRun",
        "_SubmittedRun",
    }
)


# Classes whose objects programs get from static methods, not from the constructor.
FOUND = frozenset({"Dataset"})


@dataclass(frozen=True)
class Comparison:
    """A class of Azure ML compared with ours.

    Attributes:
        azure: The name under which programs import it.
        ours: The ``module:attribute`` of ours.
        provided: Members that ours has.
        refused: Members that ours refuses, with the sentence.
        missing: Members, and parameters such as ``submit(tags=)``, that ours lacks.
    """

    azure: str
    ours: str
    provided: tuple[str, ...]
    refused: dict[str, str]
    missing: tuple[str, ...]


def compare(full_name: str) -> Comparison | None:
    """Compare a class with ours.

    Returns:
        None if the wheels lack it, ours is not a class, or programs do not create it (`NOT_MADE`).
    """
    module, _, name = full_name.rpartition(".")
    how, target = names.provided(module, name)
    azure = azure_class(full_name)
    if how != "by" or azure is None or name in NOT_MADE:
        return None
    ours = load(target, full_name)
    if not isinstance(ours, type) or issubclass(ours, BaseException):
        return None
    provided: list[str] = []
    refused: dict[str, str] = {}
    missing = []
    if name not in FOUND:
        missing = [f"{name}({one}=)" for one in _lacking(_constructor(ours), azure.init or ())]
    kinds = _kinds(ours)
    for member, parameters in sorted(azure.members.items()):
        if member in INTERNAL:
            continue
        found = [inspect.getattr_static(kind, member, None) for kind in kinds]
        has = [
            one is not None or member in _set_by_init(kind)
            for one, kind in zip(found, kinds, strict=True)
        ]
        if not all(has):
            missing.append(member)
            continue
        sentences = [sentence_of(getattr(one, "__func__", one)) for one in found if one is not None]
        if any(sentences):
            refused[member] = next(one for one in sentences if one)
            continue
        provided.append(member)
        if parameters is not None:
            for one in found:
                function = getattr(one, "__func__", one)
                if callable(function):
                    missing += [f"{member}({lack}=)" for lack in _lacking(function, parameters)]
    return Comparison(full_name, target, tuple(provided), refused, tuple(dict.fromkeys(missing)))


def classes() -> Iterator[str]:
    """Yield one import name of each class in the wheels that a class of ours replaces."""
    seen: set[str] = set()
    for module, table in sorted(names.MODULES.items()):
        for name, target in sorted(table.items()):
            full = f"{module}.{name}"
            azure = azure_class(full)
            if target.startswith("-") or azure is None or azure.name in seen:
                continue
            seen.add(azure.name)
            yield full


def _kinds(ours: type) -> list[type]:
    """Return the classes whose objects programs get under a name: for Run, there are two."""
    if ours.__name__ != "Run":
        return [ours]
    from rayjobs.api.run import JobRun
    from rayjobs.injob.submitted import SubmittedRun

    return [JobRun, SubmittedRun]


def _constructor(ours: type) -> Any:
    return _kinds(ours)[0].__init__  # type: ignore[misc]


def _lacking(function: Any, parameters: tuple[Parameter, ...]) -> list[str]:
    """Return the parameters that a function of ours does not accept by name."""
    if function is object.__init__:
        given: dict[str, inspect.Parameter] = {}
    else:
        try:
            given = dict(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            return []
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in given.values()):
        return []
    wanted = [one.name for one in parameters if one.kind in ("positional", "keyword")]
    return [one for one in wanted if one not in given and not one.startswith("_")]


def _set_by_init(kind: type) -> frozenset[str]:
    from rayjobs.azureml.kinds import instance_attributes

    return frozenset(instance_attributes(kind))

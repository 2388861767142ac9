"""References to data: a datastore, a path in it, and the mode in which a job sees it.

Source: Azure ML SDK v1, `azureml.data.data_reference` and `azureml.data.datapath`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Protocol, runtime_checkable

from rayjobs.datastore.digests import digest_of_text
from rayjobs.datastore.errors import InvalidReference
from rayjobs.injob.lazy_dataclass import dataclass

MODES = ("mount", "download", "upload")
_NAME = re.compile(r"[A-Za-z0-9_]+\Z")
_DATASET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")
_DATASTORE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}\Z")
_INPUT = re.compile(
    r"(?:(?P<name>[^=/:]*)=)?(?P<store>[^=/:]+)(?:/(?P<path>.*?))?(?::(?P<mode>[^:/]*))?\Z"
)


@runtime_checkable
class Named(Protocol):
    """Anything with a name: here, a datastore."""

    @property
    def name(self) -> str:
        """The name alone, without a path."""
        ...


def datastore_name_of(datastore: Named | str | None) -> str:
    """Return the name of a datastore given as an object or by name; "" for None."""
    if datastore is None:
        return ""
    return datastore if isinstance(datastore, str) else datastore.name


def clean_path(path: str | None) -> str:
    """Return `path` relative to its datastore, without `.` parts; "" is the datastore itself.

    Raises:
        InvalidReference: the path leaves the datastore, or contains a NUL.
    """
    if not path:
        return ""
    if "\0" in path:
        raise InvalidReference(
            f"path {path!r} contains a NUL character, which no file name can have"
        )
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidReference(
            f"path {path!r} has a '..' part; a path stays inside its datastore. "
            "Write the path relative to the datastore's root."
        )
    return "/".join(parts)


def check_name(name: str, what: str) -> str:
    """Return `name` if it can be part of an environment variable.

    Raises:
        InvalidReference: it has characters other than letters, digits and underscores.
    """
    if not _NAME.match(name):
        suggestion = re.sub(r"[^A-Za-z0-9_]", "_", name) or "data"
        raise InvalidReference(
            f"{what} {name!r} may contain only letters, digits and underscores, since it becomes "
            f"part of an environment variable, for example {suggestion!r}."
        )
    return name


def check_dataset_name(name: str) -> str:
    """Return `name` if a dataset can have it; the same rule applies to models.

    Raises:
        InvalidReference: it cannot.
    """
    if not isinstance(name, str) or not _DATASET_NAME.match(name):
        raise InvalidReference(
            f"a dataset cannot be called {name!r}; use letters, digits, '.', '_' and '-', and "
            "begin with a letter or digit."
        )
    return name


def check_datastore_name(name: str) -> str:
    """Return `name` if a datastore can have it.

    Raises:
        InvalidReference: it cannot.
    """
    if not _DATASTORE_NAME.match(name):
        raise InvalidReference(
            f"datastore name {name!r} may contain letters, digits, '_' and '-', and must begin "
            "with a letter or a digit."
        )
    return name


def check_mode(mode: str, *, allowed: tuple[str, ...] = MODES) -> str:
    """Return `mode` if it is one of `allowed`.

    Raises:
        InvalidReference: it is not.
    """
    if mode not in allowed:
        raise InvalidReference(f"mode {mode!r} is unknown; use one of {', '.join(allowed)}.")
    return mode


@dataclass(frozen=True)
class DataReferenceConfiguration:
    """A `DataReference` as plain values, for a job's specification."""

    datastore_name: str
    mode: str = "mount"
    path_on_datastore: str | None = None
    path_on_compute: str | None = None
    overwrite: bool = False

    @property
    def data_store_name(self) -> str:
        """`datastore_name`, as Azure ML writes it."""
        return self.datastore_name

    @property
    def path_on_data_store(self) -> str | None:
        """`path_on_datastore`, as Azure ML writes it."""
        return self.path_on_datastore

    def to_json(self) -> dict[str, Any]:
        """Return the values as a JSON object."""
        return asdict(self)


@dataclass
class DataReference:
    """A path in a datastore, and how a job sees it: `mount`, `download` or `upload`.

    `str(reference)` is `$AZUREML_DATAREFERENCE_<name>`, which a job's arguments expand to the local
    path. Without a name, a reference to the whole datastore has the datastore's name, and one to a
    path has 32 hex digits made from datastore and path, so that the same reference always has the
    same name.

    As in Azure ML, its fields can be set (`reference.mode = "download"`); a value that the
    constructor would refuse is refused. A job uses the values at submit.
    """

    datastore: Named | str
    data_reference_name: str = ""
    path_on_datastore: str | None = None
    mode: str = "mount"
    path_on_compute: str | None = None
    overwrite: bool = False

    def __setattr__(self, field: str, value: Any) -> None:
        """Set a field, after checking the value.

        Raises:
            InvalidReference: the field cannot have this value.
        """
        if field == "mode":
            check_mode(value)
        elif field == "path_on_datastore":
            value = clean_path(value) or None
        elif field == "datastore" and not datastore_name_of(value):
            raise InvalidReference("a DataReference needs a datastore; none was given.")
        elif field == "data_reference_name" and value:
            check_name(value, "data reference name")
        super().__setattr__(field, value)

    def __post_init__(self) -> None:
        if not self.data_reference_name:
            path, store = self.path_on_datastore, self.datastore_name
            self.data_reference_name = (
                digest_of_text(f"{store}\n{path}")[7:39]
                if path
                else re.sub(r"[^A-Za-z0-9_]", "_", store)
            )

    @staticmethod
    def create(
        data_reference_name: str | None = None,
        datapath: DataPath | None = None,
        datapath_compute_binding: DataPathComputeBinding | None = None,
    ) -> DataReference:
        """Return a reference to `datapath`, which a job sees as the binding defines.

        Raises:
            InvalidReference: one of the two is missing.
        """
        if datapath is None or datapath_compute_binding is None:
            raise InvalidReference("DataReference.create needs datapath and its compute binding.")
        return datapath.create_data_reference(data_reference_name, datapath_compute_binding)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataReference) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[object, ...]:
        return (self.data_reference_name, self.to_config())

    def __str__(self) -> str:
        return f"${self.environment_variable}"

    @property
    def environment_variable(self) -> str:
        """The variable that holds the local path in the job."""
        return f"AZUREML_DATAREFERENCE_{self.data_reference_name}"

    @property
    def datastore_name(self) -> str:
        """The datastore's name."""
        return datastore_name_of(self.datastore)

    def path(
        self, path: str | None = None, data_reference_name: str | None = None
    ) -> DataReference:
        """Return a reference to `path` below this one, with its own name."""
        below = posixpath.join(self.path_on_datastore or "", path.lstrip("/") if path else "")
        return replace(
            self,
            data_reference_name=data_reference_name or "",
            path_on_datastore=clean_path(below) or None,
        )

    def as_mount(self) -> DataReference:
        """Return this reference in mount mode."""
        return replace(self, mode="mount")

    def as_download(
        self, path_on_compute: str | None = None, overwrite: bool = False
    ) -> DataReference:
        """Return this reference in download mode."""
        return replace(self, mode="download", path_on_compute=path_on_compute, overwrite=overwrite)

    def as_upload(
        self, path_on_compute: str | None = None, overwrite: bool = False
    ) -> DataReference:
        """Return this reference in upload mode: a local folder, stored when the job ends."""
        return replace(self, mode="upload", path_on_compute=path_on_compute, overwrite=overwrite)

    def to_config(self) -> DataReferenceConfiguration:
        """Return the plain values of this reference."""
        return DataReferenceConfiguration(
            datastore_name=self.datastore_name,
            mode=self.mode,
            path_on_datastore=self.path_on_datastore,
            path_on_compute=self.path_on_compute,
            overwrite=self.overwrite,
        )

    def to_json(self) -> dict[str, Any]:
        """Return this reference, including its name, as a JSON object."""
        return {"name": self.data_reference_name, **self.to_config().to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DataReference:
        """Return the reference that `to_json` wrote; its datastore is a name."""
        return cls(
            datastore=values["datastore_name"],
            data_reference_name=values.get("name") or "",
            path_on_datastore=values.get("path_on_datastore"),
            mode=values.get("mode", "mount"),
            path_on_compute=values.get("path_on_compute"),
            overwrite=bool(values.get("overwrite", False)),
        )


@dataclass(frozen=True)
class DataPathComputeBinding:
    """How a job sees a `DataPath`."""

    mode: str = "mount"
    path_on_compute: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_mode(self.mode)

    def create_data_reference(
        self, data_reference_name: str | None = None, datapath: DataPath | None = None
    ) -> DataReference:
        """Return a reference to `datapath` bound in this way.

        Raises:
            InvalidReference: no `datapath`, or one without a datastore, was given.
        """
        if datapath is None:
            raise InvalidReference("create_data_reference needs a datapath; none was given.")
        return datapath.create_data_reference(data_reference_name, self)

    @staticmethod
    def create_from_data_reference(data_reference: DataReference) -> DataPathComputeBinding:
        """Return how a job sees the data of `data_reference`.

        Raises:
            InvalidReference: it is not a reference.
        """
        reference = _checked_reference(data_reference)
        return DataPathComputeBinding(
            reference.mode, reference.path_on_compute, reference.overwrite
        )


def _checked_reference(given: object) -> DataReference:
    if not isinstance(given, DataReference):
        raise InvalidReference(f"{given!r:.120} is not a DataReference.")
    return given


@dataclass(frozen=True)
class DataPath:
    """A path in a datastore, without the mode in which a job sees it."""

    datastore: Named | str | None = None
    path_on_datastore: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path_on_datastore", clean_path(self.path_on_datastore) or None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataPath) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[str, str | None, str | None]:
        return (self.datastore_name, self.path_on_datastore, self.name)

    @property
    def datastore_name(self) -> str:
        """The datastore's name; "" without a datastore."""
        return datastore_name_of(self.datastore)

    @staticmethod
    def create_from_data_reference(data_reference: DataReference) -> DataPath:
        """Return the path that `data_reference` refers to.

        Raises:
            InvalidReference: it is not a reference.
        """
        reference = _checked_reference(data_reference)
        return DataPath(reference.datastore, reference.path_on_datastore)

    def create_data_reference(
        self,
        data_reference_name: str | None = None,
        datapath_compute_binding: DataPathComputeBinding | None = None,
    ) -> DataReference:
        """Return a reference to this path, mounted unless the binding specifies otherwise.

        Raises:
            InvalidReference: this path has no datastore.
        """
        if self.datastore is None:
            raise InvalidReference("this DataPath has no datastore; give one to make a reference.")
        binding = datapath_compute_binding or DataPathComputeBinding()
        return DataReference(
            datastore=self.datastore,
            data_reference_name=data_reference_name or self.name or "",
            path_on_datastore=self.path_on_datastore,
            mode=binding.mode,
            path_on_compute=binding.path_on_compute,
            overwrite=binding.overwrite,
        )


def parse_reference(text: str, *, default_mode: str = "mount") -> DataReference:
    """Return the reference written as `[name=]datastore[/path][:mode]`.

    Raises:
        InvalidReference: `text` is not of that form.
    """
    found = _INPUT.match(text.strip())
    if found is None:
        raise InvalidReference(
            f"{text!r} is not of the form name=datastore/path:mode, "
            "for example data=workspaceblobstore/mnist:mount"
        )
    mode = found["mode"]
    if mode is not None and mode not in MODES:
        raise InvalidReference(
            f"{text!r} asks for mode {mode!r}; the modes are {', '.join(MODES)}."
        )
    if found["name"] == "":
        raise InvalidReference(f"{text!r} has no name before '='; write name=datastore/path.")
    return DataReference(
        datastore=found["store"],
        data_reference_name=found["name"] or "",
        path_on_datastore=found["path"],
        mode=mode or default_mode,
    )

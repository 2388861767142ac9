"""A datastore as an fsspec file system, which pandas, pyarrow, dask and others accept."""

from __future__ import annotations

from typing import Any

from rayjobs.datastore import credentials
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.errors import CredentialNotSet, InvalidReference


def filesystem_of(record: DatastoreRecord) -> Any:
    """Return the file system of a datastore, with paths relative to its root.

    Raises:
        CredentialNotSet: a variable with a credential is not set.
        InvalidReference: a file system of this kind cannot be used here.
    """
    import fsspec
    from fsspec.implementations.dirfs import DirFileSystem

    if record.kind == "local":
        return DirFileSystem(path=record.settings["root"], fs=fsspec.filesystem("file"))
    if record.kind == "s3":
        return _of_bucket(record)
    if record.kind == "fsspec":
        from rayjobs.datastore.backends.fsspec import FsspecBackend

        backend = FsspecBackend.from_record(record)
        return DirFileSystem(path=backend.root, fs=backend.file_system)
    raise InvalidReference(f"a datastore of kind {record.kind!r} has no file system.")


def _of_bucket(record: DatastoreRecord) -> Any:
    import s3fs
    from fsspec.implementations.dirfs import DirFileSystem

    from rayjobs.datastore.backends.s3_settings import S3Settings

    settings = S3Settings.from_record(record)
    options: dict[str, Any] = {
        "use_listings_cache": False,
        "skip_instance_cache": True,
        "config_kwargs": settings.client_config(),
    }
    names = {
        "key": settings.access_key_env,
        "secret": settings.secret_key_env,
        "token": settings.session_token_env,
    }
    for option, variable in names.items():
        if variable:
            value = credentials.variable(variable)
            if not value:
                raise CredentialNotSet(
                    f"the variable {variable} of datastore {record.name!r} is not set; export it.",
                    variable,
                )
            options[option] = value
    if settings.profile:
        options["profile"] = settings.profile
    if settings.endpoint:
        options["endpoint_url"] = settings.endpoint
    region = settings.known_region()
    if region:
        options["client_kwargs"] = {"region_name": region}
    path = f"{settings.bucket}/{settings.prefix}".rstrip("/")
    return DirFileSystem(path=path, fs=s3fs.S3FileSystem(**options))

"""`Datastore`: a named storage for uploads, downloads and the data of jobs.

Source: Azure ML SDK v1, `azureml.core.Datastore`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

from rayjobs.datastore import credentials
from rayjobs.datastore.absent import with_absent
from rayjobs.datastore.backends import Backend, Folder, StoredFile, open_backend
from rayjobs.datastore.catalogue import DEFAULT_DATASTORE, Catalogue, DatastoreRecord
from rayjobs.datastore.errors import DataNotFound, InvalidReference, NotSupported
from rayjobs.datastore.fsspec_records import fsspec_record
from rayjobs.datastore.kept import LeftOut
from rayjobs.datastore.nosecrets import check_settings
from rayjobs.datastore.progress import ProgressCallback, callback_for
from rayjobs.datastore.refs import DataReference, check_datastore_name, clean_path
from rayjobs.datastore.transfer import (
    Download,
    Moved,
    Upload,
    download,
    files_below,
    left_out_text,
    upload,
)
from rayjobs.injob import url_map


@runtime_checkable
class HasCatalogue(Protocol):
    """The part of a workspace that this package needs."""

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue of the workspace's datastores and datasets."""
        ...


@runtime_checkable
class HasUrls(Protocol):
    """A workspace that maps addresses of the web to local paths."""

    def urls(self) -> Mapping[str, str]:
        """Return the local path that replaces each address."""
        ...


def addresses_of(workspace: object) -> AbstractContextManager[None]:
    """Inside the context, map addresses as `workspace` does, whichever other ones are open."""
    return url_map.only(workspace.urls) if isinstance(workspace, HasUrls) else nullcontext()


def catalogue_of(workspace: Catalogue | HasCatalogue) -> Catalogue:
    """Return the catalogue of a workspace, or the catalogue itself.

    Raises:
        InvalidReference: `workspace` is neither.
    """
    # The workspace first: checking whether it is itself a catalogue would read its `datasets`,
    # which needs its catalogue.
    if isinstance(workspace, HasCatalogue):
        return workspace.catalogue
    if isinstance(workspace, Catalogue):
        return workspace
    raise InvalidReference(f"{workspace!r} is not a workspace: it has no catalogue of data.")


@with_absent("Datastore")
class Datastore:
    """A registered storage, looked up by name; without a name, the default one.

    Raises:
        DatastoreNotFound: no datastore has this name.
    """

    def __init__(self, workspace: Catalogue | HasCatalogue, name: str | None = None) -> None:
        catalogue = catalogue_of(workspace)
        record = catalogue.datastore(name or catalogue.default_datastore())
        self._open(record, catalogue, workspace)

    def _open(
        self,
        record: DatastoreRecord,
        catalogue: Catalogue | None = None,
        workspace: Catalogue | HasCatalogue | None = None,
    ) -> None:
        self.record = record
        self._catalogue = catalogue
        self._workspace = catalogue if workspace is None else workspace
        self._backend: Backend | None = None

    @classmethod
    def from_record(cls, record: DatastoreRecord, catalogue: Catalogue | None = None) -> Datastore:
        """Return the datastore that `record` describes, registered in `catalogue` if given."""
        self = cls.__new__(cls)
        self._open(record, catalogue)
        return self

    @classmethod
    def get(cls, workspace: Catalogue | HasCatalogue, datastore_name: str) -> Datastore:
        """Return the datastore with this name. Raises DatastoreNotFound."""
        return cls(workspace, datastore_name)

    @classmethod
    def get_default(cls, workspace: Catalogue | HasCatalogue) -> Datastore:
        """Return the default datastore."""
        return cls(workspace)

    @classmethod
    def register_folder(
        cls,
        workspace: Catalogue | HasCatalogue,
        datastore_name: str,
        path: str | Path,
        *,
        create_if_not_exists: bool = False,
        overwrite: bool = False,
    ) -> Datastore:
        """Register a folder of this machine, or of a file system with the same path on every node.

        Raises:
            DataNotFound: the folder does not exist.
            DatastoreExists: the name is taken.
        """
        root = Path(path).expanduser().absolute()
        if create_if_not_exists:
            root.mkdir(parents=True, exist_ok=True)
        if not root.is_dir():
            raise DataNotFound(
                f"{root} is not a folder. Create it first, or give create_if_not_exists=True."
            )
        record = DatastoreRecord(check_datastore_name(datastore_name), "local", {"root": str(root)})
        return cls._register(workspace, record, overwrite=overwrite)

    @classmethod
    def register_s3(
        cls,
        workspace: Catalogue | HasCatalogue,
        datastore_name: str,
        bucket: str,
        *,
        prefix: str = "",
        endpoint: str = "",
        region: str = "",
        profile: str = "",
        access_key_env: str = "",
        secret_key_env: str = "",
        session_token_env: str = "",
        connect_timeout_s: float | None = None,
        read_timeout_s: float | None = None,
        attempts: int | None = None,
        overwrite: bool = False,
        skip_validation: bool = False,
    ) -> Datastore:
        """Register a bucket, or a prefix of one, on any S3 server.

        Credentials are given only by reference: the names of environment variables
        (`access_key_env`, `secret_key_env`, `session_token_env`) or a profile. Without either, the
        usual AWS variables and files are used.

        Raises:
            InvalidReference: a setting is wrong, or could hold a secret (never repeated).
            DatastoreError: the storage cannot be read with these settings (unless
                `skip_validation`), or the name is taken.
        """
        given = {
            "bucket": bucket,
            "prefix": prefix,
            "endpoint": endpoint,
            "region": region,
            "profile": profile,
            "access_key_env": access_key_env,
            "secret_key_env": secret_key_env,
            "session_token_env": session_token_env,
            "connect_timeout_s": "" if connect_timeout_s is None else f"{connect_timeout_s:g}",
            "read_timeout_s": "" if read_timeout_s is None else f"{read_timeout_s:g}",
            "attempts": "" if attempts is None else str(attempts),
        }
        check_settings(given)
        given["prefix"] = clean_path(prefix)
        settings = {name: value for name, value in given.items() if value}
        record = DatastoreRecord(check_datastore_name(datastore_name), "s3", settings)
        backend = open_backend(record)
        if not skip_validation:
            backend.check()
        return cls._register(workspace, record, overwrite=overwrite)

    @classmethod
    def register_fsspec(
        cls,
        workspace: Catalogue | HasCatalogue,
        datastore_name: str,
        url: str,
        *,
        options: Mapping[str, Any] | None = None,
        option_env: Mapping[str, str] | None = None,
        overwrite: bool = False,
        skip_validation: bool = False,
    ) -> Datastore:
        """Register any storage with an fsspec file system, by its URL (`abfs://…`, `gs://…`).

        The package of its protocol (adlfs, gcsfs …) is needed wherever the data is used.

        Args:
            options: Options of the file system, without secrets.
            option_env: Options with secret values; each maps to the name of the variable with the
                value.

        Raises:
            InvalidReference: the protocol cannot be used here, or a setting could hold a secret.
            DatastoreError: the storage cannot be reached (unless `skip_validation`), or the name
                is taken.
        """
        record = fsspec_record(datastore_name, url, options or {}, option_env or {})
        backend = open_backend(record)
        if not skip_validation:
            backend.check()
        return cls._register(workspace, record, overwrite=overwrite)

    @classmethod
    def register_azure_blob_container(
        cls,
        workspace: Catalogue | HasCatalogue,
        datastore_name: str,
        container_name: str,
        account_name: str,
        sas_token: str | None = None,
        account_key: str | None = None,
        protocol: str | None = None,
        endpoint: str | None = None,
        overwrite: bool = False,
        create_if_not_exists: bool = False,
        skip_validation: bool = False,
        blob_cache_timeout: int | None = None,
        grant_workspace_access: bool = False,
        subscription_id: str | None = None,
        resource_group: str | None = None,
    ) -> Datastore:
        """Register the replacement of an Azure container; see `rayjobs.datastore.azure_names`.

        Args:
            sas_token: Stored in a variable of this process, like `account_key`; jobs get both at
                submit.
            protocol: Ignored, as are `create_if_not_exists` and the arguments after
                `skip_validation`.

        Raises:
            NotSupported: no available storage replaces it; the message says how to change that.
        """
        from rayjobs.datastore import azure_names as azure

        secrets = {"sas_token": sas_token, "account_key": account_key}
        with addresses_of(workspace):
            record = azure.record_of(
                catalogue_of(workspace),
                datastore_name,
                azure.BLOB,
                account=account_name,
                container=container_name,
                secrets=secrets,
                endpoint=endpoint,
            )
        return cls._register_found(workspace, record, overwrite, skip_validation)

    @classmethod
    def register_azure_file_share(
        cls,
        workspace: Catalogue | HasCatalogue,
        datastore_name: str,
        file_share_name: str,
        account_name: str,
        sas_token: str | None = None,
        account_key: str | None = None,
        protocol: str | None = None,
        endpoint: str | None = None,
        overwrite: bool = False,
        create_if_not_exists: bool = False,
        skip_validation: bool = False,
    ) -> Datastore:
        """Register the replacement of an Azure file share, like `register_azure_blob_container`."""
        from rayjobs.datastore import azure_names as azure

        with addresses_of(workspace):
            record = azure.record_of(
                catalogue_of(workspace),
                datastore_name,
                azure.FILES,
                account=account_name,
                container=file_share_name,
                secrets={},
                endpoint=endpoint,
            )
        return cls._register_found(workspace, record, overwrite, skip_validation)

    @classmethod
    def register_azure_data_lake_gen2(
        cls,
        workspace: Catalogue | HasCatalogue,
        datastore_name: str,
        filesystem: str,
        account_name: str,
        tenant_id: str | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        resource_url: str | None = None,
        authority_url: str | None = None,
        protocol: str | None = None,
        endpoint: str | None = None,
        overwrite: bool = False,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        grant_workspace_access: bool = False,
    ) -> Datastore:
        """Register the replacement of a data lake, like `register_azure_blob_container`."""
        from rayjobs.datastore import azure_names as azure

        with addresses_of(workspace):
            record = azure.record_of(
                catalogue_of(workspace),
                datastore_name,
                azure.LAKE,
                account=account_name,
                container=filesystem,
                secrets={
                    "tenant_id": tenant_id,
                    "client_id": client_id,
                    "client_secret": client_secret,
                },
                endpoint=endpoint,
            )
        return cls._register_found(workspace, record, overwrite, skip_validation=True)

    @classmethod
    def register_azure_data_lake(
        cls,
        workspace: Catalogue | HasCatalogue,
        datastore_name: str,
        store_name: str,
        tenant_id: str | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        resource_url: str | None = None,
        authority_url: str | None = None,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        overwrite: bool = False,
        grant_workspace_access: bool = False,
    ) -> Datastore:
        """Register the replacement of a first-generation data lake, which Azure has retired."""
        from rayjobs.datastore import azure_names as azure

        with addresses_of(workspace):
            record = azure.record_of(
                catalogue_of(workspace),
                datastore_name,
                azure.LAKE_GEN1,
                account=store_name,
                container="",
                secrets={},
            )
        return cls._register_found(workspace, record, overwrite, skip_validation=True)

    @classmethod
    def _register_found(
        cls,
        workspace: Catalogue | HasCatalogue,
        record: DatastoreRecord,
        overwrite: bool,
        skip_validation: bool,
    ) -> Datastore:
        if not skip_validation:
            open_backend(record).check()
        return cls._register(workspace, record, overwrite=overwrite)

    @classmethod
    def _register(
        cls, workspace: Catalogue | HasCatalogue, record: DatastoreRecord, *, overwrite: bool
    ) -> Datastore:
        catalogue = catalogue_of(workspace)
        catalogue.add_datastore(record, overwrite=overwrite)
        return cls.from_record(record, catalogue)

    # --- what it is ---

    @property
    def name(self) -> str:
        """The registered name."""
        return self.record.name

    @property
    def datastore_type(self) -> str:
        """`local`, `s3` or `fsspec`."""
        return self.record.kind

    @property
    def workspace(self) -> Catalogue | HasCatalogue:
        """The workspace in which it was found.

        Raises:
            InvalidReference: as for `catalogue`.
        """
        if self._workspace is None:
            return self.catalogue
        return self._workspace

    @property
    def is_sas(self) -> bool:
        """Whether an Azure token gives access to it."""
        return "sas_token" in self.record.settings.get("option_env", "")

    @property
    def sas_token(self) -> str | None:
        """The Azure token; None without one, or if its variable is not set."""
        return self._secret("sas_token")

    @property
    def account_key(self) -> str | None:
        """The key of its account; None without one, or if its variable is not set."""
        return self._secret("account_key")

    def _secret(self, option: str) -> str | None:
        named = json.loads(self.record.settings.get("option_env") or "{}")
        return credentials.variable(named[option]) or None if option in named else None

    @property
    def blob_service(self) -> NoReturn:
        """Azure's client, which does not exist here.

        Raises:
            NotSupported: always; `filesystem` reads and writes the files.
        """
        raise NotSupported("there is no blob_service; filesystem() reads and writes the files.")

    def filesystem(self) -> Any:
        """Return an fsspec file system whose paths are relative to the datastore's root.

        Its `fs` is s3fs for `s3`, the local file system for a folder, otherwise the file system of
        the protocol.

        Raises:
            CredentialNotSet: a variable with a credential is not set.
        """
        from rayjobs.datastore.filesystems import filesystem_of

        return filesystem_of(self.record)

    @property
    def container_name(self) -> str:
        """The bucket or folder."""
        settings = self.record.settings
        known = settings.get("container_name") or settings.get("bucket") or settings.get("root")
        return known or settings.get("url", "").partition("://")[2].partition("/")[0]

    @property
    def account_name(self) -> str:
        """The account or server; "" for a folder and for AWS itself."""
        settings = self.record.settings
        options = json.loads(settings.get("options") or "{}")
        known = settings.get("account_name") or settings.get("endpoint")
        return known or str(options.get("account_name", ""))

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue in which it was found.

        Raises:
            InvalidReference: it was not found in one, or was sent to another process.
        """
        if self._catalogue is None:
            raise InvalidReference(
                f"datastore {self.name!r} does not know its workspace here; look it up again with "
                "Datastore.get(workspace, name)."
            )
        return self._catalogue

    def set_as_default(self) -> None:
        """Make this the workspace's default datastore."""
        self.catalogue.set_default_datastore(self.name)

    def unregister(self, *, force: bool = False) -> None:
        """Remove this datastore; the data stays.

        Raises:
            DatastoreInUse: it belongs to every workspace, an unfinished job uses it, or (unless
                `force`) a registered dataset has files here.
        """
        self.catalogue.remove_datastore(self.name, force=force)

    @property
    def backend(self) -> Backend:
        """The storage itself."""
        if self._backend is None:
            self._backend = open_backend(self.record)
        return self._backend

    def __repr__(self) -> str:
        return f"Datastore({self.name!r}, {self.backend.where})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Datastore) and self.record == other.record

    def __hash__(self) -> int:
        return hash(self.record)

    def __getstate__(self) -> DatastoreRecord:
        return self.record

    def __setstate__(self, record: DatastoreRecord) -> None:
        self._open(record)

    # --- references ---

    def path(
        self, path: str | None = None, data_reference_name: str | None = None
    ) -> DataReference:
        """Return a reference to `path` in this datastore."""
        return DataReference(self, data_reference_name or "", path)

    def as_mount(self) -> DataReference:
        """Return a reference to the whole datastore, mounted."""
        return self.path().as_mount()

    def as_download(self, path_on_compute: str | None = None) -> DataReference:
        """Return a reference to the whole datastore, downloaded."""
        return self.path().as_download(path_on_compute)

    def as_upload(self, path_on_compute: str | None = None) -> DataReference:
        """Return a reference that stores a local folder at the datastore's root."""
        return self.path().as_upload(path_on_compute)

    # --- transfer ---

    def upload(
        self,
        src_dir: str | Path,
        target_path: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
        *,
        progress: ProgressCallback | None = None,
    ) -> DataReference:
        """Store a folder below `target_path` and return a reference to `target_path`.

        Existing files are kept unless `overwrite`, with a warning if one differs. Broken links and
        the like are left out, with a warning.

        Raises:
            InvalidReference: `target_path`, or a part of it, is a file.
            DatastoreError: a file could not be stored.
        """
        folder = Path(src_dir).expanduser()
        callback = callback_for(progress, show_progress=show_progress)
        left_out: list[str] = []
        files = files_below(folder, left_out)
        self.put(files, folder, target_path, overwrite, callback).tally.warn("stored")
        if left_out:
            warnings.warn(f"{folder}: {left_out_text(left_out)}", LeftOut, stacklevel=2)
        return self.path(target_path)

    def upload_files(
        self,
        files: Sequence[str | Path],
        relative_root: str | Path | None = None,
        target_path: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
        *,
        progress: ProgressCallback | None = None,
    ) -> DataReference:
        """Store files below `target_path` and return a reference to `target_path`.

        A file keeps its path relative to `relative_root`; without `relative_root`, only its name.

        Raises:
            InvalidReference: a file does not exist or is outside `relative_root`, or
                `target_path`, or a part of it, is a file.
            DatastoreError: a file could not be stored.
        """
        callback = callback_for(progress, show_progress=show_progress)
        self.put(files, relative_root, target_path, overwrite, callback).tally.warn("stored")
        return self.path(target_path)

    def put(
        self,
        files: Sequence[str | Path],
        relative_root: str | Path | None,
        target_path: str | None,
        overwrite: bool,
        progress: ProgressCallback | None,
    ) -> Moved:
        """Like `upload_files`, but return which files were stored or kept.

        Raises:
            InvalidReference: a file does not exist or is outside `relative_root`, or
                `target_path`, or a part of it, is a file.
            DatastoreError: a file could not be stored.
        """
        paths = [Path(file).expanduser() for file in files]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise InvalidReference(f"{missing[0]} is not a file; upload_files takes files only.")
        root = Path(relative_root).expanduser() if relative_root is not None else None
        target = clean_path(target_path)
        uploads = []
        for path in paths:
            try:
                shown = path.absolute().relative_to(root.absolute()) if root else Path(path.name)
            except ValueError as error:
                raise InvalidReference(f"{path} is not below {root}.") from error
            uploads.append(Upload(path, f"{target}/{shown.as_posix()}".lstrip("/")))
        if uploads:
            self._check_is_folder(target)
        return upload(self.backend, uploads, overwrite=overwrite, progress=progress, compared=True)

    def _check_is_folder(self, target: str) -> None:
        """Refuse `target` if it is a file or, in a folder, is below one."""
        parts = target.split("/")
        # A bucket has no folders, and each check costs a request.
        first = len(parts) if self.backend.local_path(target) is None else 1
        for count in range(first, len(parts) + 1):
            path = "/".join(parts[:count])
            if self.backend.stat(path) is not None:
                raise InvalidReference(f"{self.name}/{path} is a file; give a folder.")

    def download(
        self,
        target_path: str | Path,
        prefix: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
        *,
        progress: ProgressCallback | None = None,
    ) -> int:
        """Fetch every file below `prefix` (or the file `prefix`) to `target_path`.

        Each file keeps its path in the datastore. An existing file is kept unless `overwrite`, with
        a warning if it differs. Returns how many files were fetched.

        Raises:
            DataNotFound: there is nothing at `prefix`.
            DatastoreError: a file could not be fetched.
        """
        files = list(self.files(prefix))
        if not files:
            raise DataNotFound(
                f"there is nothing at {prefix or '/'!r} in datastore {self.name!r} "
                f"({self.backend.where})."
            )
        target = Path(target_path).expanduser()
        wanted = [Download(file, target / clean_path(file.path)) for file in files]
        callback = callback_for(progress, show_progress=show_progress)
        done = download(self.backend, wanted, overwrite=overwrite, progress=callback)
        done.warn("fetched")
        return done.moved

    def files(self, path: str | None = None) -> Iterator[StoredFile]:
        """Yield the file at `path`, or every file below folder `path`."""
        single = self.backend.stat(clean_path(path))
        if single is not None:
            yield single
        else:
            yield from self.backend.walk(clean_path(path))

    def children(self, path: str | None = None) -> list[StoredFile | Folder]:
        """Return the files and folders directly in folder `path`."""
        return self.backend.children(clean_path(path))

    def check(self) -> None:
        """Check that the storage responds.

        Raises:
            DatastoreError: it does not, or refuses access.
        """
        self.backend.check()


def ensure_default(workspace: Catalogue | HasCatalogue, record: DatastoreRecord) -> Datastore:
    """Register `record` as `workspaceblobstore` unless one exists; return the registered one."""
    catalogue = catalogue_of(workspace)
    known = {kept.name: kept for kept in catalogue.datastores()}
    if DEFAULT_DATASTORE not in known:
        kept = DatastoreRecord(DEFAULT_DATASTORE, record.kind, record.settings)
        if kept.kind == "local":
            Path(kept.settings["root"]).mkdir(parents=True, exist_ok=True)
        catalogue.add_datastore(kept)
        return Datastore.from_record(kept, catalogue)
    return Datastore.from_record(known[DEFAULT_DATASTORE], catalogue)

"""Every error the package raises.

    DatastoreError
    ├── InvalidReference        what was written cannot name data (also a ValueError)
    ├── DatastoreNotFound       no datastore of that name is registered
    ├── DatastoreExists         the name is taken and overwrite was not asked for
    ├── DatastoreInUse          it cannot be forgotten: the workspace or a dataset needs it
    │   └── DatastoreUsedByJobs an unfinished job needs it
    ├── DatasetNotFound         no dataset, or no such version of it
    ├── DatasetExists           the name is taken and create_new_version was not asked for
    ├── DatasetInUse            it cannot be forgotten: a job or a model needs it
    ├── DataExists              other bytes are there already and overwrite was not asked for
    ├── NotSupported            Azure ML has it, this package has not (also NotImplementedError)
    ├── DataNotFound            the storage answered: no such path, bucket or folder
    ├── AccessDenied            the storage answered: not with these credentials
    │   └── CredentialNotSet    a variable with a credential is not set in this process
    ├── DatastoreUnavailable    the storage refused, hung, broke off or answered 5xx
    ├── DataIntegrityError      bytes that are not the bytes of the version
    │   └── DataChanged         the source is no longer what the version recorded
    ├── TransferFailed          a local file of a transfer could not be written
    ├── CacheFull               the node cache cannot make room
    └── MountError
        ├── MountUnavailable    this machine cannot mount (no FUSE), or the mount did not come up
        └── MountLost           a mount that was there is dead

All are picklable: a worker on another node raises them and Ray carries them home.
"""

from __future__ import annotations

from rayjobs.injob.azureml.exceptions import UserErrorException


class DatastoreError(UserErrorException):
    """Something about storage or data went wrong; the message says what to do next.

    Attributes:
        is_permanent: A repetition fails, too, until something is changed.
    """

    is_permanent = False


class InvalidReference(DatastoreError, ValueError):
    """What was written cannot name data: a bad name, path, mode or URL."""

    is_permanent = True


class DatastoreNotFound(DatastoreError, LookupError):
    """No datastore of that name is registered."""

    is_permanent = True


class DatastoreExists(DatastoreError):
    """A datastore of that name is registered already."""


class DatastoreInUse(DatastoreError):
    """A datastore cannot be forgotten: the workspace, a dataset or an unfinished job needs it."""


class DatastoreUsedByJobs(DatastoreInUse):
    """A datastore cannot be forgotten: an unfinished job reads from it or writes to it."""


class DatasetNotFound(DatastoreError, LookupError):
    """No dataset of that name, or not in that version."""

    is_permanent = True


class DatasetExists(DatastoreError):
    """A dataset of that name is registered already."""


class DatasetInUse(DatastoreError):
    """A dataset cannot be forgotten: an unfinished job reads it, or a model was made of it."""


class DataExists(DatastoreError):
    """Where files were to be stored are others, and overwriting them was not asked for."""

    is_permanent = True


class NotSupported(DatastoreError, NotImplementedError):
    """Azure ML has this, and this package has not; the message says what to do instead."""

    is_permanent = True


class DataNotFound(DatastoreError, LookupError):
    """The storage answered, and there is nothing under that path."""

    is_permanent = True


class AccessDenied(DatastoreError):
    """The storage answered, and refuses these credentials."""

    is_permanent = True


class CredentialNotSet(AccessDenied):
    """A variable that holds a credential is not set in this process; nothing was contacted.

    Attributes:
        variable: Its name.
    """

    def __init__(self, message: str, variable: str = "") -> None:
        super().__init__(message)
        self.variable = variable


class DatastoreUnavailable(DatastoreError):
    """The storage refused, hung, broke off or answered that it cannot; a retry may help."""


class DataIntegrityError(DatastoreError):
    """The bytes are not those of the version that was asked for; they were not used."""


class DataChanged(DataIntegrityError):
    """The source is no longer what the version recorded."""

    is_permanent = True


class TransferFailed(DatastoreError):
    """A local file of a transfer could not be written; `__cause__` says why."""


class CacheFull(DatastoreError):
    """The node cache cannot make room for what was asked."""


class MountError(DatastoreError):
    """Something about a mount went wrong."""


class MountUnavailable(MountError):
    """This machine cannot mount, or the mount did not come up."""


class MountLost(MountError):
    """The process behind a mount is dead; the path answers "not connected"."""

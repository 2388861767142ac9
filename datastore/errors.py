"""Every error the package raises.

    DatastoreError
    ├── InvalidReference        a string cannot name data (also a ValueError)
    ├── DatastoreNotFound       no datastore of that name is registered
    ├── DatastoreExists         the name is taken, and overwrite was not requested
    ├── DatastoreInUse          it cannot be removed: the workspace or a dataset needs it
    │   └── DatastoreUsedByJobs an unfinished job needs it
    ├── DatasetNotFound         no such dataset, or no such version of it
    ├── DatasetExists           the name is taken, and create_new_version was not requested
    ├── DatasetInUse            it cannot be removed: a job or a model needs it
    ├── DataExists              different bytes are already there; overwrite was not requested
    ├── NotSupported            only Azure ML has it (also NotImplementedError)
    ├── DataNotFound            the storage answered: no such path or folder
    │   └── BucketNotFound      the storage answered: no such bucket
    ├── AccessDenied            the storage answered: not with these credentials
    │   └── CredentialNotSet    a variable with a credential is not set in this process
    ├── DatastoreUnavailable    the storage refused, hung, broke off or answered 5xx
    ├── DataIntegrityError      the bytes are not those of the version
    │   └── DataChanged         the source is no longer what the version recorded
    ├── TransferFailed          a local file of a transfer could not be written
    ├── CacheFull               the node cache cannot free enough space
    └── MountError
        ├── MountUnavailable    this machine cannot mount (no FUSE), or the mount did not start
        └── MountLost           a mount has died

All are picklable: a worker on another node raises them, and Ray sends them back.
"""

from __future__ import annotations

import copy
from typing import Self

from rayjobs.injob.azureml.exceptions import UserErrorException


class DatastoreError(UserErrorException):
    """A problem with storage or data; the message says what to do next.

    Attributes:
        is_permanent: A retry fails too, until something is changed.
    """

    is_permanent = False

    def with_message(self, message: str) -> Self:
        """Return the same error with another message."""
        changed = copy.copy(self)
        changed.message, changed.args = message, (message,)
        return changed


class InvalidReference(DatastoreError, ValueError):
    """A string cannot name data: a bad name, path, mode or URL."""

    is_permanent = True


class DatastoreNotFound(DatastoreError, LookupError):
    """No datastore of that name is registered."""

    is_permanent = True


class DatastoreExists(DatastoreError):
    """A datastore of that name is registered already."""


class DatastoreInUse(DatastoreError):
    """A datastore cannot be removed: the workspace, a dataset or an unfinished job needs it."""


class DatastoreUsedByJobs(DatastoreInUse):
    """A datastore cannot be removed: an unfinished job reads from it or writes to it."""


class DatasetNotFound(DatastoreError, LookupError):
    """There is no dataset of that name, or no such version of it."""

    is_permanent = True


class DatasetExists(DatastoreError):
    """A dataset of that name is registered already."""


class DatasetInUse(DatastoreError):
    """A dataset cannot be removed: an unfinished job reads it, or a model was made from it."""


class DataExists(DatastoreError):
    """Different files are at the destination, and overwriting them was not requested."""

    is_permanent = True


class NotSupported(DatastoreError, NotImplementedError):
    """Azure ML has this, but this package does not; the message says what to do instead."""

    is_permanent = True


class DataNotFound(DatastoreError, LookupError):
    """The storage answered: there is nothing under that path."""

    is_permanent = True


class BucketNotFound(DataNotFound):
    """The storage answered: the bucket does not exist."""


class AccessDenied(DatastoreError):
    """The storage answered: it refuses these credentials."""

    is_permanent = True


class CredentialNotSet(AccessDenied):
    """A variable with a credential is not set in this process; the storage was not contacted.

    Attributes:
        variable: The variable's name.
    """

    def __init__(self, message: str, variable: str = "") -> None:
        super().__init__(message)
        self.variable = variable


class DatastoreUnavailable(DatastoreError):
    """The storage refused, hung, broke off or reported an error of its own; a retry may help."""


class DataIntegrityError(DatastoreError):
    """The bytes are not those of the requested version; they were not used."""


class DataChanged(DataIntegrityError):
    """The source is no longer what the version recorded."""

    is_permanent = True


class TransferFailed(DatastoreError):
    """A local file of a transfer could not be written; `__cause__` says why."""


class CacheFull(DatastoreError):
    """The node cache cannot free enough space for the request."""


class MountError(DatastoreError):
    """A problem with a mount."""


class MountUnavailable(MountError):
    """This machine cannot mount, or the mount did not start."""


class MountLost(MountError):
    """The process behind a mount is dead; access to its path fails with "not connected"."""

"""The exceptions of Azure ML v1, from which those of rayjobs are derived.

Source: ``azureml.exceptions`` of azureml-core 1.61 and ``azureml.train.hyperdrive.exceptions`` of
azureml-train-core 1.62 (names, bases and constructor arguments).
"""

from __future__ import annotations

from typing import Any, Optional


class AzureMLException(Exception):
    """Base of all errors of Azure ML v1 and of rayjobs.

    Attributes:
        message: What is wrong.
        inner_exception: The error that caused it, if any.
    """

    def __init__(
        self,
        exception_message: str = "",
        inner_exception: Optional[BaseException] = None,
        target: Optional[str] = None,
        details: Any = None,
        **kwargs: Any,
    ) -> None:
        """Store the message; other arguments of the original (codes, formats) are accepted."""
        super().__init__(exception_message)
        self.message = exception_message
        self.inner_exception = inner_exception


class AzureMLAggregatedException(AzureMLException):
    """Several errors in one."""


class TrainingException(AzureMLException):
    """An estimator cannot be made from these arguments."""


class ExperimentExecutionException(AzureMLException):
    """A run cannot be submitted."""


class ProjectSystemException(AzureMLException):
    """A project's folder cannot be used."""


class SnapshotException(AzureMLException):
    """A source directory cannot be packed."""


class RunEnvironmentException(AzureMLException):
    """``Run.get_context(allow_offline=False)`` outside of a job."""


class WorkspaceException(AzureMLException):
    """A workspace cannot be found, or used."""

    def __init__(
        self, exception_message: str = "", found_multiple: bool = False, **kwargs: Any
    ) -> None:
        """Store the message, and whether several workspaces have the name."""
        super().__init__(exception_message, **kwargs)
        self.found_multiple = found_multiple


class WorkspacePrivateEndpointException(AzureMLException):
    """Never raised here: a workspace is a folder."""


class ComputeTargetException(AzureMLException):
    """A compute target does not exist, or cannot be used."""


class UserErrorException(AzureMLException):
    """A call, a name or an argument is invalid."""


class AuthenticationException(UserErrorException):
    """Never raised here: workspaces need no login."""


class RunConfigurationException(AzureMLException):
    """A run configuration cannot be used."""


class WebserviceException(AzureMLException):
    """No model has this name; web services do not exist here."""

    def __init__(
        self,
        exception_message: str = "",
        status_code: Optional[int] = None,
        logger: Any = None,
        **kwargs: Any,
    ) -> None:
        """Store the message and the status code."""
        super().__init__(exception_message, **kwargs)
        self.status_code = status_code


class ModelNotFoundException(AzureMLException):
    """No model has this name or id."""


class ModelPathNotFoundException(AzureMLException):
    """A model's files cannot be found."""


class DiscoveryUrlNotFoundException(AzureMLException):
    """Never raised here: there are no services to discover."""


class ActivityFailedException(AzureMLException):
    """A run has failed; raised by ``wait_for_completion``."""


class ActivityCanceledException(AzureMLException):
    """Never raised here: a canceled run is not an error of ``wait_for_completion``."""


class DatasetTimestampMissingError(AzureMLException):
    """No column of a table was declared as its timestamp."""


class ParallelRunException(AzureMLException):
    """A parallel run has failed."""


class ServiceException(Exception):
    """A service outside this process does not answer."""


class HyperDriveException(AzureMLException):
    """A sweep cannot be read, or refuses a request."""


class HyperDriveConfigException(HyperDriveException):
    """A sweep's definition is wrong."""


class HyperDriveScenarioNotSupportedException(HyperDriveConfigException):
    """A sweep's definition requires an unsupported feature."""


class HyperDriveNotImplementedException(HyperDriveScenarioNotSupportedException):
    """A call that sweeps do not support."""


class HyperDriveRehydrateException(HyperDriveException):
    """A stored sweep cannot be read."""


class HyperDriveServiceException(HyperDriveException):
    """The driver of a sweep does not answer."""


class WrongTypeError(UserErrorException, TypeError):
    """A value of a type that the call does not accept."""


class WrongValueError(UserErrorException, ValueError):
    """A value that the call does not accept."""


class NotProvidedError(ImportError, UserErrorException):
    """A part of Azure ML that rayjobs does not have; the message names the closest alternative."""

    def __init__(self, message: str, **kwargs: Any) -> None:
        """Store what is missing and what to use instead."""
        ImportError.__init__(self, message)
        self.message = message
        self.msg = message
        self.inner_exception = None

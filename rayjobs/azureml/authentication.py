"""Classes of ``azureml.core.authentication``: accepted but unused; a workspace needs no login.

Signatures: ``azureml.core.authentication`` of azureml-core 1.61. No token is made up: a call that
requests one raises an error.
"""

from __future__ import annotations

from typing import Any

from rayjobs.injob.azureml.exceptions import AuthenticationException


class AbstractAuthentication:
    """The base class; the subclasses differ only in their arguments."""

    def get_authentication_header(self) -> dict[str, str]:
        """Return an empty dict: rayjobs calls no Azure service."""
        return {}

    def get_token(self, *scopes: str, **kwargs: Any) -> Any:
        """Refuse: there is no token.

        Raises:
            AuthenticationException: always.
        """
        raise AuthenticationException(
            "rayjobs has no Azure token: a workspace is a folder, which needs no login"
        )

    def __repr__(self) -> str:
        """Return the class's name, without the arguments, which may be secret."""
        return f"{type(self).__name__}()"


class InteractiveLoginAuthentication(AbstractAuthentication):
    """Opens no browser."""

    def __init__(
        self,
        force: bool = False,
        tenant_id: str | None = None,
        cloud: str | None = None,
    ) -> None:
        self.tenant_id = tenant_id


class AzureCliAuthentication(AbstractAuthentication):
    """Runs no command-line tool."""

    def __init__(self, cloud: str | None = None) -> None:
        pass


class ArmTokenAuthentication(AbstractAuthentication):
    """Stores no token."""

    def __init__(self, arm_access_token: str, cloud: str | None = None) -> None:
        pass

    def update_arm_token(self, new_arm_access_token: str) -> None:
        """Do nothing: the token is not used."""

    def update_arm_access_token(self, new_arm_access_token: str) -> None:
        """Do nothing: the token is not used."""


class ServicePrincipalAuthentication(AbstractAuthentication):
    """Stores no password."""

    def __init__(
        self,
        tenant_id: str,
        service_principal_id: str,
        service_principal_password: str,
        cloud: str | None = None,
        _enable_caching: bool = True,
    ) -> None:
        self.tenant_id = tenant_id


class AzureMLTokenAuthentication(AbstractAuthentication):
    """Stores no token."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class MsiAuthentication(AbstractAuthentication):
    """Calls no identity service."""

    def __init__(self, identity_config: Any = None, cloud: str | None = None) -> None:
        pass


class TokenAuthentication(AbstractAuthentication):
    """Does not call the function that returns a token."""

    def __init__(self, get_token_for_audience: Any, cloud: str | None = None) -> None:
        pass

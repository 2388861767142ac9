"""OpenID Connect logins: exchange an ID token of the team's provider for a token of this server.

PyJWT checks the signature and the claims. The client gets the ID token itself, with the device flow
(RFC 8628), so this server needs neither a secret of the provider nor a web page.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any
from urllib.parse import urlsplit

import jwt

from rayjobs.core.errors import UnreachableError, UsageError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.server.access import Refusal
from rayjobs.store.base import Store
from rayjobs.workspace import users
from rayjobs.workspace.http_messages import LoginProvider
from rayjobs.workspace.users import Identity, Role, Token

WELL_KNOWN = "/.well-known/openid-configuration"
# Only public-key algorithms: with a symmetric one, the public key would be the password.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
LEEWAY_S = 60
TIMEOUT_S = 10.0
KEPT_S = 3600.0
DAYS = 7.0
GOOGLE = "https://accounts.google.com"
_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Settings:
    """The provider, and the meaning of its claims here.

    Attributes:
        issuer: The provider's address, as in ID tokens.
        client_id: The provider's id for rayjobs.
        claim: The claim that names the user.
        groups: The claim with a user's groups.
        roles: Group → role; a user gets the highest.
        default: The role of a user without such a group; None refuses the user.
        domains: The accepted mailbox domains; empty accepts all.
        days: How long a token is valid.
    """

    issuer: str
    client_id: str
    claim: str = "preferred_username"
    groups: str = "groups"
    roles: Mapping[str, Role] = field(default_factory=dict)
    default: Role | None = None
    domains: Sequence[str] = ()
    days: float = DAYS


class Provider:
    """A team's identity provider. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        """Store the settings; the provider is contacted at the first login.

        Raises:
            UsageError: its address is neither https nor on this machine.
        """
        parts = urlsplit(settings.issuer)
        if parts.scheme != "https" and parts.hostname not in _HERE:
            raise UsageError(f"the issuer {settings.issuer!r} is not an https:// address")
        self.settings = settings
        self._lock = threading.Lock()
        self._known: tuple[float, dict[str, Any]] | None = None
        self._keys: jwt.PyJWKClient | None = None

    def facts(self) -> LoginProvider:
        """Return the facts that a client needs for the device flow.

        Raises:
            UnreachableError: the provider does not answer, or its answer is invalid.
        """
        found = self._configuration()
        return LoginProvider(
            issuer=self.settings.issuer,
            client_id=self.settings.client_id,
            device_authorization_endpoint=found.get("device_authorization_endpoint"),
            token_endpoint=found["token_endpoint"],
            scope="openid profile email",
        )

    def login(self, store: Store, text: str) -> tuple[Token, str]:
        """Return a new token for the user that an ID token names.

        Raises:
            Refusal: the ID token is invalid here, the user has no role, or the name belongs to
                another user of this workspace.
            UnreachableError: the provider does not answer.
        """
        claims = self._claims(text)
        self._check_domain(claims)
        name, role = self._user(claims), self._role(claims)
        identity = Identity(issuer=claims["iss"], subject=claims["sub"])
        try:
            return users.login(store, name, role, identity, days=self.settings.days)
        except UsageError as error:
            raise Refusal(403, str(error)) from None

    def _claims(self, text: str) -> dict[str, Any]:
        settings = self.settings
        self._configuration()
        assert self._keys is not None
        try:
            key = self._keys.get_signing_key_from_jwt(text)
            claims: dict[str, Any] = jwt.decode(
                text,
                key.key,
                algorithms=list(ALGORITHMS),
                audience=settings.client_id,
                issuer=settings.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iat", "aud", "iss", "sub"]},
            )
        except jwt.PyJWKClientConnectionError as error:
            raise UnreachableError(f"the keys of {settings.issuer} cannot be read") from error
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Refusal(401, f"the ID token is invalid here: {error}") from None
        audience = claims["aud"]
        is_shared = isinstance(audience, list) and len(audience) > 1
        if is_shared and claims.get("azp") != settings.client_id:
            raise Refusal(401, "the ID token was issued for another program")
        return claims

    def _check_domain(self, claims: Mapping[str, Any]) -> None:
        """Refuse a user of another organization; a provider may serve everyone in the world."""
        domains = self.settings.domains
        if not domains:
            return
        # Anyone can have a Google account with any mailbox; `hd` names the account's organization.
        found = claims.get("hd")
        if (
            found is None
            and self.settings.issuer != GOOGLE
            and claims.get("email_verified") is True
        ):
            found = str(claims.get("email", "")).rpartition("@")[2]
        if not isinstance(found, str) or found.lower() not in domains:
            raise Refusal(403, f"only users of {', '.join(domains)} may log in here")

    def _user(self, claims: Mapping[str, Any]) -> str:
        claim = self.settings.claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name:
            raise Refusal(403, f"the ID token has no {claim!r}")
        if claim == "email" and claims.get("email_verified") is not True:
            raise Refusal(403, f"the provider has not verified {name}")
        return name

    def _role(self, claims: Mapping[str, Any]) -> Role:
        given = claims.get(self.settings.groups, ())
        groups: Sequence[Any] = given if isinstance(given, list) else (given,)
        names = [one for one in groups if isinstance(one, str)]
        found = [self.settings.roles[one] for one in names if one in self.settings.roles]
        role = max(found, default=self.settings.default)
        if role is None:
            raise Refusal(403, "no group of this user has a role here")
        return role

    def _configuration(self) -> dict[str, Any]:
        with self._lock:
            if self._known is not None and time.monotonic() - self._known[0] < KEPT_S:
                return self._known[1]
            issuer = self.settings.issuer
            try:
                address = issuer.rstrip("/") + WELL_KNOWN
                with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:  # noqa: S310
                    found: dict[str, Any] = json.loads(answer.read(1 << 20))
                if found["issuer"] != issuer:
                    raise ValueError(f"its issuer is {found['issuer']!r}")
                keys, _ = str(found["jwks_uri"]), str(found["token_endpoint"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UnreachableError(
                    f"the provider {issuer} cannot be reached: {error}"
                ) from error
            self._known = (time.monotonic(), found)
            self._keys = jwt.PyJWKClient(keys, timeout=int(TIMEOUT_S))
            return found

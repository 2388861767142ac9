"""Logins by OpenID Connect, and the audit of what was changed over HTTP."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from rayjobs.cli.oidc_login import token_of
from rayjobs.cli.serve import serve
from rayjobs.core.errors import UnreachableError, UsageError
from rayjobs.server import login as routes
from rayjobs.server import oidc
from rayjobs.server.access import Refusal
from rayjobs.server.app import make_app
from rayjobs.server.running import provider_of
from rayjobs.workspace import users
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from rayjobs.workspace.logins import Login
from rayjobs.workspace.users import Role
from tests.unit.server.provider import CLIENT, Provider

pytestmark = pytest.mark.long


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


class Site:
    """A server with logins by a provider."""

    def __init__(self, workspace: OpenWorkspace, provider: Provider) -> None:
        self.workspace = workspace
        self.known = oidc.Provider(
            oidc.Settings(
                provider.issuer,
                CLIENT,
                roles={"ml-admins": Role.ADMIN},
                default=Role.SUBMITTER,
            )
        )
        config = uvicorn.Config(
            make_app(workspace, self.known), host="127.0.0.1", port=0, log_level="warning"
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    def login(self, text: str) -> dict[str, str]:
        connection = Connection(Login(self.address, ""))
        try:
            made = connection.json("POST", routes.PATH, body={"id_token": text})
        finally:
            connection.close()
        return dict(made)

    def role(self, text: str) -> Role:
        token = users.find(self.workspace.store, self.login(text)["token"])
        assert token is not None
        return token.role


@pytest.fixture
def site(tmp_path: Path, provider: Provider) -> Iterator[Site]:
    with open_workspace(tmp_path / "workspace", create=True) as workspace:
        made = Site(workspace, provider)
        yield made
        made.server.should_exit = True
        made.thread.join()


def test_a_login_in_a_browser_gives_a_token(site: Site, provider: Provider) -> None:
    notes: list[str] = []
    text = token_of(Login(site.address, ""), notes.append, first_patience_s=2.0)
    assert "https://example.org/device and enter ABCD" in notes[0]
    with contextlib.closing(Connection(Login(site.address, text))) as connection:
        facts = connection.json("GET", "/v1/user")
    assert (facts["user"], facts["role"]) == ("ada", "submitter")
    assert provider.polls == 2
    assert users.audit(site.workspace.store)[-1]["by"] == "openid"


def test_refused_login_is_reported(site: Site, provider: Provider) -> None:
    provider.refuses = "access_denied"
    with pytest.raises(UsageError, match="refused: access_denied"):
        token_of(Login(site.address, ""), lambda _: None, first_patience_s=2.0)


def test_the_groups_give_the_role(site: Site, provider: Provider) -> None:
    assert site.role(provider.token(groups=["others", "ml-admins"])) is Role.ADMIN
    assert site.role(provider.token(groups=["others"])) is Role.SUBMITTER
    site.known.settings = replace(site.known.settings, default=None)
    with pytest.raises(UsageError, match="no group"):
        site.login(provider.token(groups=["others"]))


def test_a_provider_gives_no_role_by_itself(site: Site, provider: Provider) -> None:
    settings = oidc.Settings(provider.issuer, CLIENT, roles={"ml-admins": Role.ADMIN})
    site.known.settings = settings
    with pytest.raises(UsageError, match="no group"):
        site.login(provider.token())
    defaults = {one.name: one.default for one in serve.params}
    assert defaults["oidc_default"] == "none"
    with pytest.raises(UsageError, match="no user could log in"):
        provider_of(
            provider.issuer, CLIENT, claim="email", groups="groups", roles=(), default="none"
        )


VERIFIED: dict[str, Any] = {"email_verified": True}


@pytest.mark.parametrize(
    ("issuer", "claims", "is_let_in"),
    [
        ("", {"email": "ada@Example.org", **VERIFIED}, True),
        ("", {"email": "ada@example.org"}, False),
        ("", {"email": "ada@evil.org", **VERIFIED}, False),
        ("", {"email": "ada@example.org@evil.org", **VERIFIED}, False),
        ("", {"email": "ada@example.org", "hd": "evil.org", **VERIFIED}, False),
        ("", {"hd": "example.org"}, True),
        ("", {}, False),
        (oidc.GOOGLE, {"email": "ada@example.org", **VERIFIED}, False),
        (oidc.GOOGLE, {"hd": "example.org"}, True),
    ],
)
def test_only_the_named_organizations_are_let_in(
    issuer: str, claims: dict[str, Any], is_let_in: bool
) -> None:
    known = oidc.Provider(
        oidc.Settings(issuer or "https://example.org", CLIENT, domains=("example.org",))
    )
    if is_let_in:
        known._check_domain(claims)
        return
    with pytest.raises(Refusal, match=r"only users of example\.org"):
        known._check_domain(claims)


def test_a_login_of_another_organization_is_refused(site: Site, provider: Provider) -> None:
    site.known.settings = replace(site.known.settings, domains=("example.org",))
    with pytest.raises(UsageError, match="only users of"):
        site.login(provider.token(email="ada@evil.org", **VERIFIED))
    assert users.all_tokens(site.workspace.store) == []


def test_name_stays_with_the_first_user_who_logs_in_with_it(site: Site, provider: Provider) -> None:
    site.login(provider.token(sub="1"))
    with pytest.raises(UsageError, match=r"rayjobs user link ada --issuer .* --subject 2"):
        site.login(provider.token(sub="2"))
    site.login(provider.token(sub="1"))
    with pytest.raises(UsageError, match="belongs to another"):
        users.login(
            site.workspace.store,
            "ada",
            Role.SUBMITTER,
            users.Identity(issuer="https://other.example.org", subject="1"),
            days=1,
        )


def test_a_name_of_user_add_is_not_taken_over(site: Site, provider: Provider) -> None:
    store = site.workspace.store
    made, _ = users.add(store, "ada", Role.ADMIN, by="root")
    users.revoke(store, made.id, by="root")
    for key in store.meta_under("token:"):
        store.set_meta(key, None)  # it was pruned
    with pytest.raises(UsageError, match="belongs to another"):
        site.login(provider.token(sub="1"))
    users.link(store, "ada", users.Identity(issuer=provider.issuer, subject="1"), by="root")
    site.login(provider.token(sub="1"))
    assert [one["change"] for one in users.audit(store)] == ["add", "revoke", "link", "add"]


def test_a_name_that_an_earlier_version_added_is_not_taken_over(
    site: Site, provider: Provider
) -> None:
    store = site.workspace.store
    for name, by in (("ada", "root"), ("eve", users.OPENID)):
        users.add(store, name, Role.ADMIN, by=by)
        store.set_meta(f"identity:{name}", None)  # as earlier versions left it
    with pytest.raises(UsageError, match="belongs to another"):
        site.login(provider.token(sub="1"))
    site.login(provider.token(sub="2", preferred_username="eve"))


def forged(provider: Provider) -> str:
    """Return a token that is signed with the public key as if it were a password."""
    import hashlib
    import hmac

    head, body, _ = provider.token().split(".")
    named = json.loads(base64.urlsafe_b64decode(head + "=="))
    head = _encoded(json.dumps({**named, "alg": "HS256"}).encode())
    signed = hmac.new(provider.public_pem(), f"{head}.{body}".encode(), hashlib.sha256).digest()
    return f"{head}.{body}.{_encoded(signed)}"


def unsigned(provider: Provider) -> str:
    head, body, _ = provider.token().split(".")
    named = json.loads(base64.urlsafe_b64decode(head + "=="))
    return f"{_encoded(json.dumps({**named, 'alg': 'none'}).encode())}.{body}."


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_token_of_another_provider_or_program_is_refused(site: Site, provider: Provider) -> None:
    other = Provider()
    now = int(time.time())
    try:
        wrong = {
            "another's key": provider.token(key=next(iter(other.keys.values()))),
            "another issuer": provider.token(iss=other.issuer),
            "another program": provider.token(aud="mail"),
            "expired": provider.token(exp=now - 3600),
            "not yet": provider.token(nbf=now + 3600),
            "no end": provider.token(exp=None),
            "for another of two": provider.token(aud=[CLIENT, "mail"], azp="mail"),
            "not signed": unsigned(provider),
            "signed with the public key": forged(provider),
            "no token": "x",
            "nothing": "",
        }
        for what, text in wrong.items():
            with pytest.raises(UsageError, match=r"invalid here|another program"):
                pytest.fail(f"{what}: {site.login(text)}")
            time.sleep(0.1)  # five a second
    finally:
        other.close()
    assert users.all_tokens(site.workspace.store) == []


@pytest.mark.parametrize(
    "changes",
    [{"preferred_username": None}, {"preferred_username": "a b"}, {"preferred_username": 3}],
)
def test_a_user_without_a_usable_name_is_refused(
    site: Site, provider: Provider, changes: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"has no|is not a user"):
        site.login(provider.token(**changes))


def test_a_mailbox_counts_once_it_is_verified(site: Site, provider: Provider) -> None:
    site.known.settings = replace(site.known.settings, claim="email")
    with pytest.raises(UsageError, match="not verified"):
        site.login(provider.token(email="ada@example.org"))
    made = site.login(provider.token(email="ada@example.org", email_verified=True))
    found = users.find(site.workspace.store, made["token"])
    assert found is not None and found.user == "ada@example.org"


def test_new_keys_are_fetched(site: Site, provider: Provider) -> None:
    site.login(provider.token())
    provider.new_key("two")
    assert site.known._keys is not None
    site.known._keys.cooldown_duration = 0  # seconds between two looks for new keys
    site.login(provider.token())


def test_unavailable_provider_is_named(site: Site, provider: Provider) -> None:
    text = provider.token()
    provider.close()
    with pytest.raises(UnreachableError, match="cannot be reached"):
        site.login(text)


def test_an_issuer_in_plain_text_is_refused() -> None:
    with pytest.raises(UsageError, match="https"):
        oidc.Provider(oidc.Settings("http://example.org", CLIENT))

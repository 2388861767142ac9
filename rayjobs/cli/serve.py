"""`rayjobs serve`: serve a workspace over HTTP."""

from __future__ import annotations

import click

from rayjobs.cli.settings import Settings, common_options

EPILOG = """\b
Examples:
  rayjobs serve
  rayjobs serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key
"""


@click.command(epilog=EPILOG)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8400, show_default=True, type=click.IntRange(1, 65535))
@click.option("--tls-cert", metavar="FILE", help="The certificate chain, as PEM.")
@click.option("--tls-key", metavar="FILE", help="Its private key, as PEM.")
@click.option(
    "--bucket-address",
    metavar="URL",
    default="",
    help="Where clients reach the S3 server of the workspace's files, if not at its own address; "
    "'none': they cannot, and all bytes travel through this server.",
)
@click.option(
    "--oidc-issuer", metavar="URL", help="Log users in through this OpenID Connect provider."
)
@click.option("--oidc-client", metavar="ID", help="Client id of rayjobs at the provider.")
@click.option(
    "--oidc-claim",
    metavar="NAME",
    default="preferred_username",
    show_default=True,
    help="The claim that names the user.",
)
@click.option(
    "--oidc-groups",
    metavar="NAME",
    default="groups",
    show_default=True,
    help="The claim with the user's groups.",
)
@click.option(
    "--oidc-role",
    "oidc_roles",
    metavar="ROLE=GROUP",
    multiple=True,
    help="The role of a group's users; repeatable.",
)
@click.option(
    "--oidc-default",
    type=click.Choice(["none", "viewer", "submitter"]),
    default="none",
    show_default=True,
    help="The role of users without such a group, that is, of everyone at the provider. Whoever "
    "may submit runs code as the target's user.",
)
@click.option(
    "--oidc-domain",
    "oidc_domains",
    metavar="DOMAIN",
    multiple=True,
    help="Admit only users with a verified mailbox of this domain; repeatable.",
)
@common_options
@click.pass_obj
def serve(
    settings: Settings,
    host: str,
    port: int,
    tls_cert: str | None,
    tls_key: str | None,
    bucket_address: str,
    oidc_issuer: str | None,
    oidc_client: str | None,
    oidc_claim: str,
    oidc_groups: str,
    oidc_roles: tuple[str, ...],
    oidc_default: str,
    oidc_domains: tuple[str, ...],
) -> None:
    """Serve the workspace to clients with tokens (`rayjobs user add`).

    Without TLS, tokens and code travel in plain text: use --tls-cert and --tls-key, or a proxy that
    terminates TLS, on any shared network. A target is one trust domain: whoever may submit runs
    code as the user of the target.
    """
    from rayjobs.server.running import Listening, check_bucket_address, provider_of
    from rayjobs.server.running import serve as run
    from rayjobs.workspace import server_choice

    server_choice.allow(False)
    if (oidc_issuer is None) != (oidc_client is None):
        raise click.UsageError("give both --oidc-issuer and --oidc-client.")
    check_bucket_address(bucket_address)
    provider = None
    if oidc_issuer is not None and oidc_client is not None:
        provider = provider_of(
            oidc_issuer,
            oidc_client,
            claim=oidc_claim,
            groups=oidc_groups,
            roles=oidc_roles,
            default=oidc_default,
            domains=oidc_domains,
        )
        if oidc_default != "none" and not oidc_domains:
            settings.note(f"everyone at {oidc_issuer} gets the role {oidc_default}")
    with settings.open(create=True) as workspace:
        is_alone = host in ("127.0.0.1", "::1", "localhost")
        if tls_cert is None and not is_alone:
            settings.note(
                "without --tls-cert, tokens travel in plain text unless a proxy terminates TLS"
            )
        listening = Listening(host, port, tls_cert, tls_key, provider, bucket_address)
        run(workspace, listening, note=settings.note)

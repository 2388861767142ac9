"""`rayjobs datastore`: name, list, check and forget storage locations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from rayjobs.cli.exits import Exit, of_data_error
from rayjobs.cli.output import facts, print_json, table
from rayjobs.cli.params import Duration, ParamType
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option

EPILOG = """\b
Examples:
  rayjobs datastore ls
  rayjobs datastore add images /data/images
  rayjobs datastore add photos s3://my-bucket/photos --endpoint https://s3.example.org \\
      --access-key-env PHOTOS_KEY --secret-key-env PHOTOS_SECRET
  rayjobs datastore check photos
"""


class DatastoreName(ParamType):
    """A datastore's name; completes the names in the workspace."""

    name = "datastore"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return names that begin with `incomplete`."""
        from rayjobs.core.errors import RayjobsError

        settings = ctx.find_object(Settings) or Settings()
        try:
            with settings.open() as workspace:
                records = workspace.catalogue.datastores()
        except RayjobsError:
            return []  # an error would garble the shell's prompt
        return [CompletionItem(one.name) for one in records if one.name.startswith(incomplete)]


@click.group(cls=CommandList, epilog=EPILOG)
def datastore() -> None:
    """Name storage locations: a folder, or a bucket (or a prefix of one) on any S3 server.

    `workspaceblobstore`, a folder in the workspace, always exists. Credentials are
    given by reference: names of environment variables, or a profile of the usual AWS files. A
    submit passes exported variables on to the target (see `rayjobs target secret -h`). Secrets
    are not stored in the workspace.
    """


@datastore.command(epilog=EPILOG)
@click.argument("name", metavar="NAME")
@click.argument("url", metavar="FOLDER|s3://BUCKET[/PREFIX]")
@click.option("--endpoint", metavar="URL", default="", help="The S3 server (default: AWS).")
@click.option("--region", metavar="NAME", default="", help="Region of the bucket.")
@click.option("--profile", metavar="NAME", default="", help="Profile of the AWS files.")
@click.option("--access-key-env", metavar="VAR", default="", help="Variable with the access key.")
@click.option("--secret-key-env", metavar="VAR", default="", help="Variable with the secret key.")
@click.option(
    "--session-token-env", metavar="VAR", default="", help="Variable with the session token."
)
@click.option("--attempts", type=click.IntRange(min=1), help="Attempts per request [4].")
@click.option(
    "--connect-timeout", "connect_timeout_s", type=Duration(), help="Time to connect [10 s]."
)
@click.option(
    "--read-timeout", "read_timeout_s", type=Duration(), help="Time to wait for an answer [30 s]."
)
@click.option("--create", is_flag=True, help="Make the folder if it does not exist.")
@click.option("--overwrite", is_flag=True, help="Replace a datastore of this name.")
@click.option("--default", "as_default", is_flag=True, help="Make it the default datastore.")
@click.option("--no-check", is_flag=True, help="Do not check that the bucket can be reached.")
@json_option
@common_options
@click.pass_obj
def add(
    settings: Settings,
    /,
    name: str,
    url: str,
    *,
    create: bool,
    overwrite: bool,
    as_default: bool,
    no_check: bool,
    **s3: Any,
) -> None:
    """Give a storage location a name. A bucket is checked first."""
    from rayjobs.datastore.sources import record_of_url
    from rayjobs.datastore.stores import Datastore

    record = record_of_url(name, url)
    with settings.open(create=True) as workspace:
        if record.kind == "local":
            folder = Path(record.settings["root"])
            if not folder.is_dir() and not create:
                raise click.UsageError(f"{folder} is not a folder; give --create to make it")
            if any(s3.values()):
                option = next(key for key, value in s3.items() if value)
                name_of = option.removesuffix("_s").replace("_", "-")
                raise click.UsageError(f"--{name_of} is for buckets (s3://…)")
            store = Datastore.register_folder(
                workspace,
                name,
                record.settings["root"],
                create_if_not_exists=create,
                overwrite=overwrite,
            )
        else:
            store = Datastore.register_s3(
                workspace,
                name,
                record.settings["bucket"],
                prefix=record.settings.get("prefix", ""),
                overwrite=overwrite,
                skip_validation=no_check,
                **s3,
            )
        if as_default:
            store.set_as_default()
        if settings.as_json:
            print_json(_as_json(store, workspace.catalogue.default_datastore()))
            return
    click.echo(f"datastore {name} is {store.backend.where}")
    settings.note(f"put data there: rayjobs data put FOLDER {name}/PATH")


@datastore.command(epilog="\b\nExample:\n  rayjobs datastore ls --json\n")
@json_option
@common_options
@click.pass_obj
def ls(settings: Settings) -> None:
    """List the datastores of the workspace."""
    from rayjobs.datastore.stores import Datastore

    with settings.open() as workspace:
        default = workspace.catalogue.default_datastore()
        stores = [Datastore.from_record(one) for one in workspace.catalogue.datastores()]
    if settings.as_json:
        print_json([_as_json(store, default) for store in stores])
        return
    rows = [
        (
            store.name,
            store.datastore_type,
            "yes" if store.name == default else "",
            _credentials(store.record.settings),
            _where(store),
        )
        for store in stores
    ]
    click.echo(table(rows, ("NAME", "KIND", "DEFAULT", "CREDENTIALS", "WHERE")))


@datastore.command(epilog="\b\nExample:\n  rayjobs datastore rm photos\n")
@click.argument("name", metavar="NAME", type=DatastoreName())
@click.option("--force", is_flag=True, help="Even if registered datasets have files there.")
@common_options
@click.pass_obj
def rm(settings: Settings, name: str, *, force: bool) -> None:
    """Forget a datastore; its data stays where it is.

    Refused while an unfinished job reads from it or writes to it, or (without --force) while a
    registered dataset has its files there. `workspaceblobstore` always stays.
    """
    from rayjobs.datastore.stores import Datastore

    with settings.open() as workspace:
        found = Datastore.get(workspace, name)
        before = workspace.catalogue.default_datastore()
        found.unregister(force=force)
        after = workspace.catalogue.default_datastore()
    settings.note(f"removed datastore {name}; its data stays")
    if after != before:
        settings.note(f"the default datastore is {after} again")


@datastore.command(epilog="\b\nExamples:\n  rayjobs datastore check\n")
@click.argument("names", metavar="[NAME]...", nargs=-1, type=DatastoreName())
@json_option
@common_options
@click.pass_obj
def check(settings: Settings, names: tuple[str, ...]) -> int:
    """Check that datastores can be reached with the credentials of this machine."""
    from rayjobs.datastore.errors import DatastoreError
    from rayjobs.datastore.stores import Datastore

    with settings.open() as workspace:
        catalogue = workspace.catalogue
        records = [catalogue.datastore(name) for name in names] or catalogue.datastores()
    found = []
    worst = Exit.DONE
    for record in records:
        problem = ""
        try:
            Datastore.from_record(record).check()
        except DatastoreError as error:
            problem = str(error)
            worst = worst or of_data_error(error)
        found.append({"name": record.name, "ok": not problem, "problem": problem})
    if settings.as_json:
        print_json(found)
    else:
        click.echo(facts([(str(one["name"]), str(one["problem"]) or "ok") for one in found]))
    return worst


def _credentials(settings: Mapping[str, str]) -> str:
    """Describe where the credentials are, never their values."""
    if settings.get("profile"):
        return f"profile {settings['profile']}"
    named = [value for name, value in settings.items() if name.endswith("_env")]
    return ", ".join(f"${name}" for name in sorted(named))


def _where(store: Any) -> str:
    from rayjobs.datastore.errors import DatastoreError

    try:
        return str(store.backend.where)
    except DatastoreError as error:  # such as settings of a newer release
        return str(error)


def _as_json(store: Any, default: str) -> dict[str, Any]:
    return {
        "name": store.name,
        "kind": store.datastore_type,
        "where": _where(store),
        "settings": dict(store.record.settings),
        "default": store.name == default,
    }

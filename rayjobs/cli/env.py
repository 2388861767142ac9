"""`rayjobs env`: list, show, build, lock, compare, export and remove environments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayjobs.cli.output import ago_text, facts, local_time, print_json, table
from rayjobs.cli.params import Duration
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option
from rayjobs.core.errors import UsageError
from rayjobs.core.text import counted, duration_text, size_text

if TYPE_CHECKING:
    from rayjobs.environments.listing import Built
    from rayjobs.jobs.records import EnvironmentVersion
    from rayjobs.spec.model import Packages

EPILOG = """\b
Examples:
  rayjobs env ls
  rayjobs env build environment.yml
  rayjobs env lock requirements.txt -o locked.txt
  rayjobs env show 3f2a
  rayjobs env diff 3f2a train-7
  rayjobs env export 3f2a --as conda -o environment.yml
  rayjobs env prune --max-size 20GiB

ENVIRONMENT is a file (requirements.txt, environment.yml, job.yaml) or the name of a registered
or curated environment (NAME or NAME:VERSION). `show`, `lock`, `diff` and `export` also take the
key of one that is built here; `lock`, `diff` and `export` also take a job.
"""
_JOB_FILES = (".yaml", ".yml", ".json")
_ARGUMENT = click.argument("environment", metavar="ENVIRONMENT")


@click.group("env", cls=CommandList, epilog=EPILOG)
def env() -> None:
    """List, show, build, lock, compare and remove environments.

    The first job that requests an environment on a node builds it there; `env build` builds it on
    this machine beforehand.
    """


@env.command("ls", epilog="\b\nExample:\n  rayjobs env ls")
@json_option
@common_options
@click.pass_obj
def list_(settings: Settings, /) -> None:
    """List the environments that are built on this machine, and those that are registered."""
    built = _built()
    registered = _registered_ones(settings)
    if settings.as_json:
        print_json(
            {
                "built": [_as_dict(one) for one in built],
                "registered": [
                    {"name": one.name, "version": one.version, "labels": list(one.labels)}
                    for one in registered
                ],
            }
        )
        return
    if built:
        header = ("KEY", "NAME", "KIND", "PYTHON", "PACKAGES", "SIZE", "USED", "BY")
        click.echo(_table([header, *(_row(one) for one in built)]))
    if registered:
        rows = [("REGISTERED", "VERSION", "LABELS", "CREATED")]
        rows += [
            (one.name, str(one.version), ", ".join(one.labels), local_time(one.created_at))
            for one in registered
        ]
        click.echo(_table(rows))
    if not built and not registered:
        settings.note("no environment is built here or registered")


@env.command("show", epilog="\b\nExample:\n  rayjobs env show 3f2a")
@_ARGUMENT
@json_option
@common_options
@click.pass_obj
def show(settings: Settings, /, environment: str) -> None:
    """Show an environment's requested, substituted and installed packages."""
    from rayjobs.environments import locks

    found = _find_built(environment)
    if found is not None:
        lock = _lock_of_built(found)
        packages = locks.packages(lock)
        if settings.as_json:
            print_json({**_as_dict(found), "list": [vars(one) for one in packages]})
            return
        click.echo(facts([
            ("Key", found.key),
            ("Name", found.name),
            ("Kind", found.kind),
            ("Python", found.python),
            ("Size", size_text(found.bytes)),
            ("Built in", duration_text(found.took_s)),
            ("Used", local_time(found.used_at)),
            *[("Used by", one) for one in found.used_by],
        ]))  # fmt: skip
        rows = [("PACKAGE", "VERSION", "FROM")]
        click.echo(_table([*rows, *((one.name, one.version, one.source) for one in packages)]))
        return
    from rayjobs.submit import environments

    spec = environments.packages_of(_packages(settings, environment))
    key = environments.key_here(_packages(settings, environment))
    if settings.as_json:
        print_json(
            {
                "environment": spec.model_dump(mode="json")["environment"],
                "substitutes": [one.model_dump() for one in spec.substitutes],
                "key": key,
            }
        )
        return
    click.echo(facts([
        ("Asks for", spec.environment_text),
        *[("Substitute", str(one)) for one in spec.substitutes],
        ("Built here", key or "no"),
    ]))  # fmt: skip


@env.command("build", epilog="\b\nExample:\n  rayjobs env build environment.yml")
@_ARGUMENT
@click.option("--strict", is_flag=True, help="Refuse if a package would be substituted.")
@click.option("--log", "with_log", is_flag=True, help="Print the build's output.")
@json_option
@common_options
@click.pass_obj
def build(settings: Settings, /, environment: str, strict: bool, with_log: bool) -> None:
    """Build an environment on this machine, so that jobs find it; print its key."""
    from rayjobs.submit import environments

    packages = _packages(settings, environment)
    found, log = environments.build_here(packages, strict=strict, tell=settings.note)
    if with_log:
        click.echo(log, err=True)
    if settings.as_json:
        print_json({"key": found.key, "built": found.built, "python": found.python})
    else:
        if not found.built:
            settings.note("it is already built")
        click.echo(found.key)


@env.command("lock", epilog="\b\nExample:\n  rayjobs env lock requirements.txt -o locked.txt")
@_ARGUMENT
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
@common_options
@click.pass_obj
def lock(settings: Settings, /, environment: str, output: Path | None) -> None:
    """Resolve an environment, and print every package with its version and hash.

    On this machine, the same request gives the same lock until the lock is pruned.
    """
    _write(_lock(settings, environment), output)


@env.command("diff", epilog="\b\nExample:\n  rayjobs env diff 3f2a train-7")
@click.argument("one", metavar="ENVIRONMENT")
@click.argument("other", metavar="ENVIRONMENT")
@json_option
@common_options
@click.pass_obj
def diff(settings: Settings, /, one: str, other: str) -> None:
    """Show which packages differ; exit with 1 if any do."""
    from rayjobs.environments import locks

    rows = locks.differences(_lock(settings, one), _lock(settings, other))
    if settings.as_json:
        print_json([{"package": a, "first": b, "second": c} for a, b, c in rows])
    elif rows:
        shown = [(name, first or "-", second or "-") for name, first, second in rows]
        click.echo(_table([("PACKAGE", one, other), *shown]))
    else:
        settings.note("the same packages in the same versions")
    if rows:
        click.get_current_context().exit(1)


@env.command(
    "export", epilog="\b\nExample:\n  rayjobs env export 3f2a --as conda -o environment.yml"
)
@_ARGUMENT
@click.option(
    "--as",
    "form",
    type=click.Choice(["requirements", "conda"]),
    default="requirements",
    show_default=True,
    help="A requirements file with hashes, or a conda specification with versions.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
@common_options
@click.pass_obj
def export(settings: Settings, /, environment: str, form: str, output: Path | None) -> None:
    """Export an environment for pip, uv or conda elsewhere."""
    from rayjobs.environments import locks

    text = _lock(settings, environment)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(environment).stem) or "environment"
    _write(locks.as_conda(name, text) if form == "conda" else text, output)


@env.command(
    "vendor",
    epilog="\b\nExamples:\n  rayjobs env vendor requirements.txt offline\n"
    "  rayjobs submit --env offline/requirements.txt train.py\n"
    "  rayjobs env vendor environment.yml offline\n"
    "  rayjobs submit --env offline/environment.yml train.py\n"
    "  rayjobs env vendor --image python:3.13 offline-image\n"
    "  rayjobs submit --image ./offline-image train.py",
)
@click.argument("environment", metavar="[ENVIRONMENT]")
@click.argument("folder", type=click.Path(), metavar="FOLDER", required=False)
@click.option("--image", metavar="IMAGE", help="Take a container image instead.")
@json_option
@common_options
@click.pass_obj
def vendor(settings: Settings, /, environment: str, folder: str | None, image: str | None) -> None:
    """Put all packages of an environment, or an image, into FOLDER, for nodes without network.

    Jobs that name the printed file carry the packages and contact no index or channel; jobs that
    name the folder of an image carry the image.
    """
    if (folder is None) != (image is not None):
        raise UsageError("name an environment and a folder, or --image IMAGE and a folder")
    if folder is None:
        assert image is not None
        _vendor_image(settings, image, Path(environment))  # the only argument is the folder
        return
    from rayjobs.submit import vendoring

    made = vendoring.vendor(_packages(settings, environment), Path(folder), tell=settings.note)
    if settings.as_json:
        print_json({"file": str(made.file), "wheels": made.wheels, "conda": made.conda})
        return
    if made.conda:
        count = counted(len(made.conda), "conda package")
        settings.note(f"{count} in {Path(folder, vendoring.CHANNEL)}")
    if made.wheels or not made.conda:
        settings.note(f"{counted(len(made.wheels), 'wheel')} in {Path(folder, vendoring.WHEELS)}")
    click.echo(made.file)


def _vendor_image(settings: Settings, image: str, folder: Path) -> None:
    from rayjobs.submit import vendoring_images

    saved = vendoring_images.vendor(image, folder, tell=settings.note)
    if settings.as_json:
        print_json({"image": str(folder), "digest": saved.digest, "bytes": saved.bytes})
        return
    settings.note(f"{counted(saved.layers, 'layer')}, {size_text(saved.bytes)}")
    click.echo(folder)


@env.command("prune", epilog="\b\nExample:\n  rayjobs env prune --max-size 20GiB")
@click.option(
    "--older-than",
    "older_than_s",
    type=Duration(),
    help="Remove those not used for this time [30d].",
)
@click.option(
    "--max-size", metavar="SIZE", help="Remove the least recently used until the rest fits."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@json_option
@common_options
@click.pass_obj
def prune(
    settings: Settings, /, older_than_s: float | None, max_size: str | None, dry_run: bool
) -> None:
    """Remove environments of this machine that are not in use.

    A later job that requests a removed environment builds it again.
    """
    from rayjobs.core.units import parse_size
    from rayjobs.environments import listing

    root = _root()
    gone: list[Built] = []
    if max_size is not None:
        gone, _ = listing.prune_to_size(root, int(parse_size(max_size, unit=1)), dry_run=dry_run)
    if older_than_s is not None or max_size is None:
        old = listing.prune_unused(
            root, 30 * 86_400 if older_than_s is None else older_than_s, dry_run=dry_run
        )
        gone += [one for one in old if one.key not in {other.key for other in gone}]
    if settings.as_json:
        print_json({"dry_run": dry_run, "removed": [_as_dict(one) for one in gone]})
        return
    for one in gone:
        click.echo(f"{one.key[:12]}  {size_text(one.bytes)}  used {ago_text(one.used_at)}")
    verb = "would remove" if dry_run else "removed"
    total = size_text(sum(one.bytes for one in gone))
    settings.note(f"{verb} {counted(len(gone), 'environment')}, {total}")


def _row(one: Built) -> tuple[str, ...]:
    by = counted(len(one.used_by), "attempt") if one.used_by else ""
    size, used = size_text(one.bytes), ago_text(one.used_at)
    return (one.key[:12], one.name, one.kind, one.python, str(one.packages), size, used, by)


def _table(rows: Sequence[Sequence[str]]) -> str:
    return table(rows[1:], rows[0])


# -- which environment -----------------------------------------------------------------------------


def _root() -> Path:
    from rayjobs.core.paths import home
    from rayjobs.target.node_settings import node_root

    return node_root(home())


def _built() -> list[Built]:
    from rayjobs.environments import listing

    return listing.built(_root() / "environments")


def _find_built(text: str) -> Built | None:
    from rayjobs.core.errors import NotFoundError
    from rayjobs.environments import listing

    if re.fullmatch(r"[0-9a-f]{4,32}", text) is None:
        return None
    try:
        return listing.find(_root() / "environments", text)
    except NotFoundError:
        return None


def _lock_of_built(found: Built) -> str:
    from rayjobs.environments.cache import Cache

    return Cache(_root() / "environments").lock_text(found.key) or ""


def _lock(settings: Settings, text: str) -> str:
    """Return the lock of the environment that `text` names."""
    from rayjobs.submit import environments

    found = _find_built(text)
    if found is not None:
        return _lock_of_built(found)
    kept = _lock_of_job(settings, text)
    if kept is not None:
        return kept
    return environments.lock_here(_packages(settings, text), tell=settings.note)


def _lock_of_job(settings: Settings, text: str) -> str | None:
    from rayjobs.core.errors import RayjobsError
    from rayjobs.environments import locks

    if Path(text).exists():
        return None
    try:
        with settings.open() as workspace:
            job = workspace.store.find(text)
            lock = locks.stored(workspace, job.id)
    except RayjobsError:
        return None  # not a job; it may be the name of an environment
    if lock is None:
        raise UsageError(f"job {job.id} has no environment of packages")
    return lock


def _packages(settings: Settings, text: str) -> Packages:
    """Return the packages that a file, a registered name or a curated name requests.

    Raises:
        NotFoundError: there is no such file or environment.
        UsageError: it requests no packages.
    """
    from rayjobs.spec.environment import resolved
    from rayjobs.spec.model import Packages

    request: Any
    path = Path(text).expanduser()
    if path.exists() or "/" in text or text.endswith((".txt", ".in", *_JOB_FILES)):
        request = _of_job_file(path) if _is_job_file(path) else resolved(str(path))
    else:
        request = _registered(settings, text)
    if not isinstance(request, dict):
        raise UsageError(f"{text!r} requests no packages: there is nothing to build")
    return Packages.model_validate(request)


def _is_job_file(path: Path) -> bool:
    if not path.name.endswith(_JOB_FILES) or not path.is_file():
        return False
    return (
        re.search(r"^\s*\"?(script|command)\"?\s*:", path.read_text(errors="replace"), re.M)
        is not None
    )


def _of_job_file(path: Path) -> Any:
    from rayjobs.spec.environment import resolved
    from rayjobs.spec.file import load_spec_file

    return resolved(load_spec_file(path).get("environment"))


def _registered_ones(settings: Settings) -> list[EnvironmentVersion]:
    """Return the environments registered in the workspace; none without a workspace."""
    from rayjobs.core.errors import NotFoundError

    try:
        with settings.open() as workspace:
            return workspace.store.environments()
    except NotFoundError:
        return []


def _registered(settings: Settings, text: str) -> Any:
    from rayjobs.api.environment import Environment, curated_environment
    from rayjobs.api.workspace import Workspace

    name, _, version = text.partition(":")
    made = curated_environment(name)
    if made is not None:
        return made.to_spec()
    with settings.open() as opened:
        return Environment.get(Workspace._of(opened), name, version or None).to_spec()


def _write(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=not text.endswith("\n"))
    else:
        output.write_text(text)


def _as_dict(one: Built) -> dict[str, Any]:
    values: dict[str, Any] = {**vars(one), "used_at": one.used_at.isoformat()}
    names: Sequence[str] = one.used_by
    return {**values, "used_by": list(names)}

"""`rayjobs model`: register, list, show, name and fetch models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from rayjobs.cli.output import ago_text, facts, local_time, print_json, table
from rayjobs.cli.params import JobId, ParamType, pairs
from rayjobs.cli.settings import CommandList, Settings, common_options, json_option, quiet_option
from rayjobs.core.text import counted, size_text

if TYPE_CHECKING:
    from rayjobs.jobs.records import ModelVersion

EPILOG = """\b
Examples:
  rayjobs model register mnist --run 1f3c --path outputs/model.pt
  rayjobs model register bert --from ~/models/bert
  rayjobs model ls
  rayjobs model lineage mnist:3
  rayjobs model alias mnist:3 live
  rayjobs model download mnist@live -o models
  rayjobs model export mnist --onnx --input 1,1,28,28 --code train.py:Net
  rayjobs model rm mnist:1

A model is named NAME (its newest version), NAME:VERSION or NAME@ALIAS.
"""


class ModelName(ParamType):
    """A model's name as users type it; completes names and versions."""

    name = "model"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return names, and versions once a name is typed."""
        from rayjobs.core.errors import RayjobsError

        settings = ctx.find_object(Settings) or Settings()
        try:
            with settings.open() as workspace:
                found = workspace.store.models()
        except RayjobsError:
            return []  # an error would garble the shell's prompt
        names = sorted({one.name for one in found}) + [f"{m.name}:{m.version}" for m in found]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


MODEL = click.argument("model", metavar="MODEL", type=ModelName())


@click.group("model", cls=CommandList, epilog=EPILOG)
def model() -> None:
    """Register, list, show, name and fetch models.

    A model is a file or folder that a completed run stored, with a version and its lineage:
    run, code, environment, data, configuration, metrics and digests. A file or folder of this
    machine can become a model too; its lineage records who uploaded it, and from where.
    """


@model.command(
    epilog="\b\nExamples:\n"
    "  rayjobs model register mnist --run 1f3c --path outputs/model.pt\n"
    "  rayjobs model register mnist --run 1f3c --path outputs --metric accuracy --alias live\n"
    "  rayjobs model register bert --from ~/models/bert\n"
)
@click.argument("name", metavar="NAME")
@click.option("--run", type=JobId(), metavar="JOB", help="The run that produced it.")
@click.option("--from", "source", metavar="PATH", help="A file or folder here, in place of --run.")
@click.option(
    "--path", metavar="FILE", help="The run's file or folder (default: the model's name)."
)
@click.option(
    "--metric", metavar="NAME", help="A metric that must be finite; recorded with the version."
)
@click.option(
    "--alias",
    "aliases",
    multiple=True,
    metavar="ALIAS",
    help="Point this alias at the new version.",
)
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="A label; repeatable.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="K=V",
    help="A property; cannot be changed later.",
)
@click.option("--description", metavar="TEXT", help="A description for people.")
@click.option("--framework", default="", metavar="NAME", help="Framework, e.g. PyTorch.")
@quiet_option("Print only name and version.")
@json_option
@common_options
@click.pass_obj
def register(
    settings: Settings,
    name: str,
    run: str | None,
    source: str | None,
    path: str | None,
    metric: str | None,
    aliases: tuple[str, ...],
    tags: tuple[str, ...],
    properties: tuple[str, ...],
    description: str | None,
    framework: str,
) -> None:
    """Register a file or folder of a completed run, or of this machine, as a version of NAME.

    Registering the same files of the same run again returns the same version. A run that has not
    completed, a metric that is not finite and an incomplete file are refused.
    """
    from rayjobs.models import registry
    from rayjobs.models.facts import ModelFacts, RunChoice

    if (run is None) == (source is None):
        raise click.UsageError("give --run JOB for a run's files, or --from PATH for files here.")
    if source is not None and (path or metric):
        raise click.UsageError("--path and --metric apply to a run; with --from, leave them out.")
    facts = ModelFacts(
        description=description,
        tags=pairs(tags, option="--tag", example="stage=dev"),
        properties=pairs(properties, option="--property", example="owner=ada"),
        aliases=aliases,
        framework=framework,
    )
    choice = RunChoice(metric=metric) if metric else None
    with settings.open() as workspace:
        if source is not None:
            done = registry.register_path(workspace, name=name, path=source, facts=facts)
        else:
            done = registry.register(
                workspace, name=name, run=str(run), path=path, facts=facts, choice=choice
            )
    if settings.as_json:
        print_json(_json(done))
        return
    click.echo(f"{done.name}:{done.version}")
    settings.note(
        f"{counted(len(done.files), 'file')}, {size_text(done.size)}, of {done.run or source}"
    )
    for left_out in done.lineage.get("left_out", ()):
        settings.note(f"left out, because no completed attempt stored it: {left_out}")


@model.command("ls", epilog="\b\nExamples:\n  rayjobs model ls\n  rayjobs model ls -a mnist\n")
@click.argument("name", required=False, metavar="[NAME]")
@click.option("-a", "--all", "show_all", is_flag=True, help="All versions, not only the newest.")
@click.option("--run", type=JobId(), metavar="JOB", help="Only versions that this run produced.")
@json_option
@common_options
@click.pass_obj
def ls(settings: Settings, name: str | None, show_all: bool, run: str | None) -> None:
    """List models; with a NAME, its versions."""
    with settings.open() as workspace:
        store = workspace.store
        if name is not None:
            store.model(name)  # its error lists the existing models
        found = store.models(
            name=name,
            run=None if run is None else store.find(run).id,
            latest=not (show_all or name or run),
        )
    if settings.as_json:
        print_json([_json(one) for one in found])
        return
    if not found:
        settings.note("no models; `rayjobs model register NAME --run JOB --path FILE` makes one")
        return
    rows = [
        [
            one.name,
            str(one.version),
            ", ".join(one.aliases) or "-",
            size_text(one.size),
            ago_text(one.created_at),
            _metric_text(one),
            one.run or "(uploaded)",
        ]
        for one in found
    ]
    header = ["NAME", "VERSION", "ALIASES", "SIZE", "REGISTERED", "METRIC", "RUN"]
    click.echo(table(rows, header, right=(1, 3)))


@model.command(epilog="\b\nExample:\n  rayjobs model show mnist:3\n")
@MODEL
@json_option
@common_options
@click.pass_obj
def show(settings: Settings, model: str) -> None:
    """Show all details of a version: files, tags, who registered it and when."""
    found = _find(settings, model)
    if settings.as_json:
        print_json(_json(found))
        return
    click.echo(
        facts(
            [
                ("Model", f"{found.name}:{found.version}"),
                ("Aliases", ", ".join(found.aliases)),
                ("Description", found.description),
                ("Framework", f"{found.framework} {found.framework_version}".strip()),
                ("Run", found.run),
                ("From", _uploaded_text(found)),
                ("Path", found.path),
                ("Metric", _metric_text(found)),
                ("Registered", f"{local_time(found.created_at)} by {found.created_by or '-'}"),
                ("Tags", _pairs_text(found.tags)),
                ("Properties", _pairs_text(found.properties)),
                ("Digest", found.digest),
            ]
        )
    )
    click.echo()
    rows = [[one.name, size_text(one.size), one.digest] for one in found.files]
    click.echo(table(rows, ["FILE", "SIZE", "DIGEST"], right=(1,)))


@model.command(epilog="\b\nExample:\n  rayjobs model lineage mnist:3\n")
@MODEL
@json_option
@common_options
@click.pass_obj
def lineage(settings: Settings, model: str) -> None:
    """Show the origin of a version: run, code, environment, data, settings, metrics."""
    found = _find(settings, model)
    if settings.as_json:
        print_json({"model": f"{found.name}:{found.version}", **found.lineage})
        return
    from rayjobs.core.terminal import plain_text
    from rayjobs.jobs.hosts import described
    from rayjobs.snapshots import git

    kept: Mapping[str, Any] = found.lineage
    if not found.run:
        lines = [
            ("Model", f"{found.name}:{found.version}"),
            ("Made from", _derived_text(kept)),
            ("From", _uploaded_text(found)),
        ]
        lines += [("Data", _data_text(one)) for one in kept["data"]]
        lines += [("File", f"{name}  {digest}") for name, digest in kept["files"].items()]
        click.echo(facts(lines))
        return
    environment, configuration = kept["environment"], kept["configuration"]
    lines = [
        ("Model", f"{found.name}:{found.version}"),
        ("Made from", _derived_text(kept)),
        ("Run", f"{kept['run']} (attempt {kept['attempt']}, experiment {kept['experiment']})"),
        ("Sweep", kept.get("sweep") or ""),
        ("Code", f"{kept['entry']} of snapshot {kept['snapshot']}"),
        ("Git", plain_text(git.one_line(kept.get("git") or {}))),
        ("Arguments", " ".join(configuration["arguments"])),
        ("Parameters", _pairs_text(configuration.get("parameters") or {})),
        ("Environment", f"{environment['interpreter']} on {environment['target']}"),
        ("Ran on", plain_text("; ".join(line for line in described(environment) if line))),
        ("Resumed from", kept.get("resume_from") or ""),
    ]
    lines += [("Data", _data_text(one)) for one in kept["data"]] or [("Data", "no named inputs")]
    lines += [("Metric", _metric_text(found))] if kept.get("primary_metric") else []
    lines += [("Metrics", _pairs_text(kept["metrics"]))]
    lines += [("File", f"{name}  {digest}") for name, digest in kept["files"].items()]
    lines += [("Left out", name) for name in kept.get("left_out", ())]
    click.echo(facts(lines))


@model.command(
    epilog="\b\nExamples:\n  rayjobs model alias mnist:3 live\n"
    "  rayjobs model alias mnist live --remove\n"
)
@MODEL
@click.argument("alias", metavar="ALIAS")
@click.option("--remove", is_flag=True, help="Remove the alias.")
@common_options
@click.pass_obj
def alias(settings: Settings, model: str, alias: str, remove: bool) -> None:
    """Point ALIAS at one version of a model."""
    from rayjobs.models import registry
    from rayjobs.models.names import check_alias

    with settings.open() as workspace:
        if remove:
            name = model.partition("@")[0].partition(":")[0]
            workspace.store.set_model_alias(name, alias, None)
            click.echo(f"removed {name}@{alias}")
            return
        found = registry.find(workspace.store, model)
        workspace.store.set_model_alias(found.name, check_alias(alias), found.version)
    click.echo(f"{found.name}@{alias} is {found.name}:{found.version}")


@model.command(
    epilog="\b\nExamples:\n  rayjobs model download mnist@live\n"
    "  rayjobs model download mnist:3 -o models\n"
)
@MODEL
@click.option("-o", "--output", default=".", metavar="DIR", help="Folder to download into [here].")
@click.option("--force", is_flag=True, help="Replace existing files.")
@json_option
@common_options
@click.pass_obj
def download(settings: Settings, model: str, output: str, force: bool) -> None:
    """Fetch a version's file or folder; every byte is checked against its digest."""
    from rayjobs.core.terminal import one_line
    from rayjobs.models import registry

    with settings.open() as workspace:
        found = registry.find(workspace.store, model)
        path = registry.download(workspace.blobs, found, output, exist_ok=force)
    if settings.as_json:
        print_json({"model": f"{found.name}:{found.version}", "path": str(path)})
    else:
        click.echo(one_line(str(path)))


@model.command(
    epilog="\b\nExamples:\n"
    "  rayjobs model export mnist --onnx --input 1,1,28,28 --code train.py:Net\n"
    "  rayjobs model export mnist@live --onnx --input 1,3,224,224 -o mnist.onnx --register\n"
)
@MODEL
@click.option("--onnx", is_flag=True, required=True, help="Export to ONNX.")
@click.option("--input", "shapes", multiple=True, metavar="N,N,…", help="Shape of an input.")
@click.option("--code", metavar="FILE:NAME", help="For plain weights: what creates the module.")
@click.option(
    "--file", "inside", metavar="NAME", help="The file to export, if the model has several."
)
@click.option("-o", "--output", metavar="FILE", help="The file to write [NAME-VERSION.onnx].")
@click.option("--opset", type=click.IntRange(min=1), help="Version of the ONNX operators.")
@click.option("--fixed-batch", is_flag=True, help="Keep the batch size of --input.")
@click.option("--allow-pickle", is_flag=True, help="Load a pickled module: runs its code.")
@click.option("--register", "is_registered", is_flag=True, help="Register it, as NAME-onnx.")
@json_option
@common_options
@click.pass_obj
def export(
    settings: Settings,
    model: str,
    onnx: bool,
    shapes: tuple[str, ...],
    code: str | None,
    inside: str | None,
    output: str | None,
    opset: int | None,
    fixed_batch: bool,
    allow_pickle: bool,
    is_registered: bool,
) -> None:
    """Export a PyTorch model to ONNX, and check that ONNX Runtime computes the same.

    The model is an exported program (.pt2), TorchScript, or weights (a state dict, with --code).
    """
    import tempfile
    from pathlib import Path

    from rayjobs.models import onnx_export, registry
    from rayjobs.models.facts import ModelFacts

    with settings.open() as workspace, tempfile.TemporaryDirectory() as folder:
        found = registry.find(workspace.store, model)
        title = f"{found.name}:{found.version}"
        name = f"{found.name}-{found.version}.onnx"
        target = Path(output or name)
        if target.is_dir():
            target /= name
        fetched = Path(registry.download(workspace.blobs, found, folder))
        settings.note(f"exporting {title} …")
        done = onnx_export.export(
            fetched / inside if inside else fetched,
            target,
            shapes=[_shape(text) for text in shapes],
            code=code,
            allow_pickle=allow_pickle,
            opset=opset,
            fixed_batch=fixed_batch,
            on_stage=lambda text: settings.note(f"{text} …"),
        )
        registered = None
        if is_registered:
            kept = registry.register_path(
                workspace,
                name=f"{found.name}-onnx",
                path=target,
                facts=ModelFacts(framework="Onnx", tags={"exported_from": title}),
                derived_from=found,
            )
            registered = f"{kept.name}:{kept.version}"
    if settings.as_json:
        facts = {"model": title, "path": str(done.path), "opset": done.opset}
        facts |= {"inputs": list(done.inputs), "outputs": list(done.outputs)}
        print_json({**facts, "difference": done.difference, "registered": registered})
        return
    click.echo(str(done.path))
    compared = "ONNX Runtime is not installed, so the results were not compared"
    if done.difference is not None:
        compared = f"ONNX Runtime's results differ by at most {done.difference:.2g}"
    settings.note(f"opset {done.opset}; {compared}")
    if registered is not None:
        settings.note(f"registered as {registered}")


def _shape(text: str) -> list[int]:
    parts = text.replace("x", ",").split(",")
    if not parts or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise click.UsageError(f"--input {text!r} is not a shape; write it as 1,3,224,224.")
    return [int(part) for part in parts]


@model.command(
    epilog="\b\nExamples:\n  rayjobs model rm mnist:3\n  rayjobs model rm mnist:3 --force\n"
)
@MODEL
@click.option("--force", is_flag=True, help="Delete it even if aliases point to it.")
@json_option
@common_options
@click.pass_obj
def rm(settings: Settings, model: str, force: bool) -> None:
    """Delete one version of a model; its number is not reused.

    Name the version: NAME:VERSION. `rayjobs prune` frees the files that nothing else needs.
    """
    from rayjobs.models import registry

    with settings.open() as workspace:
        if ":" not in model:
            registry.find(workspace.store, model)
            raise click.UsageError(
                f"{model!r} names no version; `rayjobs model ls -a` lists them. Write NAME:VERSION."
            )
        found = registry.find(workspace.store, model)
        aliases = workspace.store.delete_model(found.name, found.version, force=force)
    title = f"{found.name}:{found.version}"
    if settings.as_json:
        print_json({"deleted": title, "aliases": list(aliases)})
        return
    click.echo(f"deleted {title}")
    for one in aliases:
        settings.note(f"deleted its alias {found.name}@{one}")


def _find(settings: Settings, text: str) -> ModelVersion:
    from rayjobs.models import registry

    with settings.open() as workspace:
        return registry.find(workspace.store, text)


def _json(one: ModelVersion) -> dict[str, Any]:
    return {**asdict(one), "id": f"{one.name}:{one.version}", "size": one.size}


def _derived_text(lineage: Mapping[str, Any]) -> str:
    """Return the model that this one was converted from; empty for none."""
    known = lineage.get("derived_from")
    return f"{known['model']} (digest {known['digest']})" if known else ""


def _uploaded_text(one: ModelVersion) -> str:
    from rayjobs.core.terminal import one_line
    from rayjobs.models import uploaded

    return "" if one.run else one_line(uploaded.sentence(one.lineage))


def _metric_text(one: ModelVersion) -> str:
    primary = one.lineage.get("primary_metric")
    if not primary:
        return "-"
    text = f"{primary['name']} {primary['value']:g}"
    # The files are from the end of the run, so a different last value is shown too.
    last = one.lineage.get("metrics", {}).get(primary["name"], primary["value"])
    if last != primary["value"]:
        text += f" (last {last:g})" if isinstance(last, float | int) else f" (last {last})"
    return text


def _pairs_text(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in values.items()
    )


def _data_text(one: Mapping[str, Any]) -> str:
    version = f", version {one['version']}" if one.get("version") else ""
    return f"{one['name']}: {one.get('source', '-')}{version}"

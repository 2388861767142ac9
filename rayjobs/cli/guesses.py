"""Suggests a command or option for one that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

# Below this share of equal characters a guess misleads more often than it helps: `--epochs` is
# not `--detach`.
SIMILAR_ENOUGH = 0.8
LIKELY = 0.6  # enough where a list of names follows or a wrong guess is harmless

# Names of our commands in other tools.
COMMANDS: Mapping[str, str] = {
    "run": "rayjobs submit SCRIPT",
    "start": "rayjobs submit SCRIPT (or `rayjobs target start`)",
    "launch": "rayjobs submit SCRIPT",
    "sbatch": "rayjobs submit SCRIPT",
    "attach": "rayjobs logs -f JOB",
    "tail": "rayjobs logs -f JOB",
    "follow": "rayjobs logs -f JOB",
    "output": "rayjobs logs JOB",
    "squeue": "rayjobs queue",
    "jobs": "rayjobs ls",
    "runs": "rayjobs ls",
    "history": "rayjobs ls -a (of one job: rayjobs events JOB)",
    "experiments": "rayjobs ls -e NAME",
    "info": "rayjobs show JOB",
    "describe": "rayjobs show JOB",
    "get": "rayjobs show JOB (its files: rayjobs download JOB)",
    "stop": "rayjobs cancel JOB (or `rayjobs target stop`)",
    "kill": "rayjobs cancel JOB",
    "abort": "rayjobs cancel JOB",
    "scancel": "rayjobs cancel JOB",
    "delete": "rayjobs prune",
    "rm": "rayjobs prune",
    "clean": "rayjobs prune",
    "retry": "rayjobs rerun JOB",
    "clone": "rayjobs rerun JOB",
    "restart": "rayjobs rerun JOB",
    "diff": "rayjobs compare JOB JOB",
    "upload": "rayjobs data put FILE DATASTORE/PATH",
    "dataset": "rayjobs data",
    "datasets": "rayjobs data ls",
    "models": "rayjobs model ls",
    "sweeps": "rayjobs sweep ls",
    "hyperdrive": "rayjobs sweep",
    "tune": "rayjobs sweep",
    "targets": "rayjobs target ls",
    "cluster": "rayjobs target",
    "compute": "rayjobs target",
    "nodes": "rayjobs top",
    "check": "rayjobs doctor",
    "new": "rayjobs init",
}
# Names of the options of `submit` in other tools.
OPTIONS: Mapping[str, str] = {
    "--gpus": "--gpus-per-proc",
    "--gpu": "--gpus-per-proc",
    "--num-gpus": "--gpus-per-proc",
    "--gpus-per-task": "--gpus-per-proc",
    "--cpus": "--cpus-per-proc",
    "--cpu": "--cpus-per-proc",
    "--num-cpus": "--cpus-per-proc",
    "--cpus-per-task": "--cpus-per-proc",
    "--memory": "--memory-per-proc",
    "--mem": "--memory-per-proc",
    "--num-nodes": "--nodes",
    "--node-count": "--nodes",
    "--nnodes": "--nodes",
    "--nproc-per-node": "--procs-per-node",
    "--ntasks-per-node": "--procs-per-node",
    "--process-count-per-node": "--procs-per-node",
    "--time": "--max-duration",
    "--timeout": "--max-duration",
    "--time-limit": "--max-duration",
    "--compute-target": "--target",
    "--compute": "--target",
    "--cluster": "--target",
    "--partition": "--target",
    "--queue": "--target",
    "--job-name": "--name",
    "--experiment-name": "--experiment",
    "--display-name": "--name",
    "--dependency": "--after",
    "--depends-on": "--after",
    "--no-wait": "--detach",
    "--async": "--detach",
    "--working-dir": "--source",
    "--workdir": "--source",
    "--source-directory": "--source",
    "--environment": "--env",
    "--env-vars": "--env-var",
    "--conda": "--env",
    "--requirements": "--env",
    "--data": "--input",
    "--max-retries": "--retries",
    "--label": "--tag",
}


# Words of other tools for commands that our groups have under another name.
SUBCOMMANDS: Mapping[str, str] = {
    "add": "create",
    "attach": "create",
    "cancel": "stop",
    "delete": "rm",
    "describe": "show",
    "get": "show",
    "info": "show",
    "list": "ls",
    "new": "create",
    "remove": "rm",
    "status": "show",
    "upload": "put",
}


def near(
    text: str, known: Iterable[str], *, most: int = 2, least: float = SIMILAR_ENOUGH
) -> list[str]:
    """Return the known words that `text` is probably a misspelling of.

    Args:
        least: The minimum share of equal characters in a word, from 0 to 1.
    """
    return difflib.get_close_matches(text, list(known), n=most, cutoff=least)


def option_for(text: str, known: Iterable[str]) -> str:
    """Return the option that the unknown option probably stands for; empty if that is unclear."""
    listed = [one for one in known if one.startswith("--")]
    foreign = OPTIONS.get(text.replace("_", "-"), "")
    if foreign in listed:
        return foreign
    dashed = text.replace("_", "-")
    if dashed in listed:
        return dashed
    found = near(text, listed)
    return " or ".join(found)


def unknown_option(text: str, known: Iterable[str]) -> str:
    """Return the message for an unknown option."""
    meant = option_for(text, known)
    return f"there is no option {text!r}." + (f" Did you mean {meant}?" if meant else "")


def unknown_command(text: str, known: Iterable[str], *, group: str = "") -> str:
    """Return the message for an unknown command.

    Args:
        group: The group in which the command was typed, such as ``target``.
    """
    if not group and text.endswith((".py", ".sh", ".yaml", ".yml")):
        option = "-f " if text.endswith((".yaml", ".yml")) else ""
        return f"there is no command {text!r}; did you mean `rayjobs submit {option}{text}`?"
    if not group and text in COMMANDS:
        return f"there is no command {text!r}; use: {COMMANDS[text]}"
    names = list(known)
    found = near(text, names, least=LIKELY)
    if group and SUBCOMMANDS.get(text) in names:
        found = [SUBCOMMANDS[text]]
    hint = f"; did you mean {' or '.join(found)}?" if found else f". Commands: {', '.join(names)}."
    return f"there is no command {f'{group} {text}'.strip()!r}{hint}"

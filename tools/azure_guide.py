"""Write docs/guides/azure.md: its text here, its tables from the names and signatures in the code.

Usage: python tools/azure_guide.py > docs/guides/azure.md (a test compares the two)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rayjobs.azureml.signatures import source
from rayjobs.azureml.substituted import SUBSTITUTED
from rayjobs.azureml.surface import classes, compare
from rayjobs.azureml.variables import VARIABLES
from rayjobs.injob.azureml import names

HEAD = """\
# Programs of the Azure ML SDK v1

A driver script or notebook that was written for the Azure ML SDK v1 runs unchanged:

```sh
rayjobs azureml check driver.py                  # what it uses, line by line; nothing is run
rayjobs azureml run driver.py --epochs 3         # `import azureml` is answered by rayjobs
rayjobs azureml run --allow-cpu notebook.ipynb   # a notebook, cell by cell
```

In a program of your own, `import rayjobs.azureml.install` as the first line does the same. In
every job process, whatever its environment, `azureml` is answered by rayjobs as well: the folder
that answers comes before the installed packages on `PYTHONPATH`. Where the real SDK is installed,
a line says that it is not used; a plain `import azureml` elsewhere is left alone. In an
environment without the packages of rayjobs, `azureml.core.Run`, `azureml.exceptions` and
`azureml.telemetry` work; other names say what is missing.

## Workspaces

`Workspace.from_config()` reads Azure's `config.json` and opens the workspace of this folder
(`RAYJOBS_WORKSPACE`, the nearest `.rayjobs/`, else the user's own), and in a job the job's own.
Name, subscription and resource group stay those of the file, also in the variables
`AZUREML_ARM_…` of its jobs. Names of two Azure workspaces in one folder mean the same workspace
here.

## Compute

`ComputeTarget.create` keeps what the program asked for. Which target runs the jobs is looked up at
each submit:

1. a target of that name (`rayjobs target create gpu-cluster …`),
2. the workspace's mapping (`rayjobs azureml map gpu-cluster=big`),
3. `local`, this machine. A line says so. A name that is close to a known one is taken for a typing
   mistake and refused; `rayjobs azureml map NAME=local` accepts it. Names that differ in `cpu` and
   `gpu`, or in a number, are those of different clusters.

A process gets its share of the machine's CPUs and GPUs, by the size's name (`STANDARD_NC6`: 6
CPUs, 1 GPU), at most those of the target's largest node. Where the target has no GPU, a job that
asks for some is refused, unless CPUs are allowed (`azureml run --allow-cpu`, or `rayjobs azureml
allow-cpu` for the workspace): nccl is gloo then. A script that calls `init_process_group("nccl")`
itself still needs GPUs. Node counts, idle time and priority of machines are kept and shown; they
mean what the target's own limits allow.

## Data from the web

`rayjobs azureml map URL=PATH` lets a local file or folder answer for an address, or for all
addresses below it: for data that no longer exists, or machines without a connection. It
holds for datasets, and for what drivers, scripts and commands of jobs open themselves by `urllib`
or `requests`: torchvision, scikit-learn and `pandas.read_csv` do.

## Notebooks

Cells run one after the other without Jupyter; the first that fails ends the program and is named.
`%%writefile`, `%%time`, `!commands`, `%cd` and `%env` do what they say, magics of display do
nothing, and installing packages is left out: a driver does not change the environment that it runs
in.

## What differs from Azure

- A time limit ends a run as `Failed`, with the failure class `time_limit`; Azure cancels it.
- Distributed jobs are not tied to `AmlCompute`: they run on every target, also several nodes on
  one machine.
- Sweeps and pipelines run on `local`, too.
- `get_best_run_by_primary_metric` leaves out failed and canceled runs unless it is asked for them.
- Ids of sweeps are like those of runs, without `HD_`.
- With `resume_from`, points that an earlier sweep completed are not tried again; Azure's grid and
  random sampling may repeat them. A run in `resume_child_runs` needs a whole checkpoint.
- `debug_flag` and `pipeline` of `HyperDriveConfig` are refused.
- `TensorflowConfiguration` with several workers, and parameter servers, are refused.
- `AZ_BATCHAI_PYTORCH_INIT_METHOD` is `tcp://`, not a file of a shared disk.
- Run configurations and environments refuse attributes that they do not have; Azure's ignore some.
- Experiments are deleted when they have no runs; they cannot be renamed.
"""


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield name, state and what to know of each name that can be imported."""
    for module, table in sorted(names.MODULES.items()):
        for name in sorted(table):
            if name.startswith("_"):
                continue
            how, value = names.provided(module, name)
            note = SUBSTITUTED.get(f"{module}.{name}") or SUBSTITUTED.get(name, "")
            if how == "refused":
                yield f"{module}.{name}", "refused", value
            elif note:
                yield f"{module}.{name}", "substituted", note
            else:
                yield f"{module}.{name}", "supported", f"`{value.replace(':', '.')}`"


def guide() -> str:
    """Return the whole guide."""
    out = [HEAD]
    out.append("## Variables in a job\n\n| variable | set in | value |\n|---|---|---|")
    out += [f"| `{name}` | {one.when} | {one.value} |" for name, one in VARIABLES.items()]
    out.append("")
    wheels = ", ".join(f"{name} {version}" for name, version in source().items())
    out.append(f"## Names\n\nCompared with the wheels {wheels}.\n")
    out.append("| `azureml` | state | here |\n|---|---|---|")
    out += [f"| `{name}` | {state} | {note} |" for name, state, note in rows()]
    out.append("\nOf these packages every name can be imported, and is refused when it is used:\n")
    out += [f"- `{package}`: {names.SENTENCES[why]}" for package, why in names.PACKAGES.items()]
    out.append("\n## Members that are refused\n\n| class | members | instead |\n|---|---|---|")
    for full in classes():
        found = compare(full)
        by_reason: dict[str, list[str]] = {}
        for member, sentence in (found.refused if found else {}).items():
            by_reason.setdefault(sentence, []).append(member)
        for sentence, members in by_reason.items():
            listed = ", ".join(f"`{one}`" for one in members)
            out.append(f"| `{full}` | {listed} | {sentence} |")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    sys.stdout.write(guide())

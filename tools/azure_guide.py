"""Write docs/guides/azure.md: text from here, tables from names and signatures in the code.

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
rayjobs azureml run driver.py --epochs 3         # `import azureml` loads rayjobs' own modules
rayjobs azureml run --allow-cpu notebook.ipynb   # a notebook, cell by cell
```

In your own program, `import rayjobs.azureml.install` as the first line does the same. In every job
process, whatever its environment, rayjobs also provides `azureml`: its folder comes before the
installed packages on `PYTHONPATH`. Where the real SDK is installed, a message says that it is not
used. In other Python processes, rayjobs does not change what `import azureml` does. In an
environment without the packages of rayjobs, `azureml.core.Run`, `azureml.exceptions` and
`azureml.telemetry` work; for any other name, the error says what is missing.

## Workspaces

`Workspace.from_config()` reads Azure's `config.json` and opens the workspace of this folder
(`RAYJOBS_WORKSPACE`, the nearest `.rayjobs/`, else the user's own); in a job, it opens the job's
workspace. Name, subscription and resource group are those of the file, also in the variables
`AZUREML_ARM_…` of its jobs. In one folder, the names of two Azure workspaces refer to
the same workspace.

## Compute

`ComputeTarget.create` stores what the program requested; for an existing name it replaces the
configuration and keeps the creation time. Each submit looks up the target that runs the job:

1. a target of that name (`rayjobs target create gpu-cluster …`),
2. the workspace's mapping (`rayjobs azureml map gpu-cluster=big`),
3. `local`, this machine; a message says so. A name that is similar to a known one is treated as a
   typing mistake and refused; `rayjobs azureml map NAME=local` accepts it. Names that differ in
   `cpu` and `gpu`, or in a number, count as different clusters.

A process gets its share of the CPUs and GPUs that the name of the VM size states (`STANDARD_NC6`: 6
CPUs, 1 GPU), but not more than the target's largest node has. If the target has no GPU, a job that
requests GPUs is refused, unless CPUs are allowed (`azureml run --allow-cpu`, or `rayjobs azureml
allow-cpu` for the workspace); gloo then replaces nccl. A script that calls
`init_process_group("nccl")` itself still needs GPUs. Node counts, idle time and priority of
machines are stored and shown; the target's own limits apply.

## Data from the web

`rayjobs azureml map URL=PATH` replaces a URL, and all URLs below it, with a local file or folder:
for data that no longer exists, or for machines without internet access. The mapping applies to
datasets, and to everything that drivers, scripts and commands of jobs open through `urllib` or
`requests`, as torchvision, scikit-learn and `pandas.read_csv` do.

## Notebooks

Cells run one after the other without Jupyter; the first one that fails ends the program, and the
error names it. `%%writefile`, `%%time`, `!commands`, `%cd` and `%env` work, display magics do
nothing, and commands that install packages are skipped: a driver does not change the environment
that it runs in.

## What differs from Azure

- A time limit ends a run as `Failed`, with the failure class `time_limit`; Azure cancels the run.
- Distributed jobs are not tied to `AmlCompute`: they run on every target, even with several nodes
  on one machine.
- Sweeps and pipelines run on `local`, too.
- `get_best_run_by_primary_metric` leaves out failed and canceled runs unless they are requested.
- Ids of sweeps are like those of runs, without `HD_`.
- With `resume_from`, points that an earlier sweep completed are not tried again; Azure's grid and
  random sampling may repeat them. A run in `resume_child_runs` needs a whole checkpoint.
- `debug_flag` and `pipeline` of `HyperDriveConfig` are refused.
- `TensorflowConfiguration` with several workers, and parameter servers, are refused.
- `AZ_BATCHAI_PYTORCH_INIT_METHOD` is `tcp://`, not a file of a shared disk.
- Run configurations and environments refuse attributes that they do not have; Azure's ignore some.
- Only experiments without runs can be deleted; they cannot be renamed.
"""


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield the name, state and note of each name that can be imported."""
    for module, table in sorted(names.MODULES.items()):
        for name in sorted(table):
            if name.startswith("_"):
                continue
            how, value = names.provided(module, name)
            note = SUBSTITUTED.get(f"{module}.{name}") or SUBSTITUTED.get(name, "")
            if how == "refused":
                yield f"{module}.{name}", "refused", names.SENTENCES[value]
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
    out.append("\nEvery name in these packages can be imported, but is refused when it is used:\n")
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

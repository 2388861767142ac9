"""Submits a HyperDriveConfig for `Experiment.submit`, and returns the sweep's run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayjobs.core.text import name_from
from rayjobs.spec.model import JobSpec
from rayjobs.tuning.config import NO_PIPELINES, HyperDriveConfig
from rayjobs.tuning.errors import SweepUsageError
from rayjobs.tuning.runs import HyperDriveRun
from rayjobs.tuning.submitter import submit_sweep

if TYPE_CHECKING:
    from rayjobs.api.experiment import Experiment


def submit(
    experiment: Experiment,
    config: HyperDriveConfig,
    *,
    tags: dict[str, str] | None = None,
    **options: Any,
) -> HyperDriveRun:
    """Submit a HyperDriveConfig under an experiment (called by `Experiment.submit`)."""
    register_as = options.pop("register_as", None)
    key = options.pop("idempotency_key", None)
    if options:
        raise SweepUsageError(
            f"submit() does not accept {', '.join(sorted(options))} for a {type(config).__name__}; "
            f"its options are tags, register_as and idempotency_key."
        )
    if config.pipeline is not None:
        raise SweepUsageError(NO_PIPELINES)
    base = config.base
    if hasattr(base, "to_script_run_config"):
        base = base.to_script_run_config()
    if hasattr(base, "to_spec"):
        workspace = experiment.workspace
        job = base.to_spec(keep=workspace.catalogue.put_manifest, workspace=workspace)
    else:
        job = base
    if not isinstance(job, JobSpec):
        raise SweepUsageError(
            f"a {type(config.base).__name__} cannot be swept. Give run_config=ScriptRunConfig(...)"
        )
    spec = config.sweep_spec(
        job.model_dump(mode="json"),
        name=name_from(experiment.name, default="sweep"),
        register_as=register_as,
    )
    done = submit_sweep(
        experiment.workspace.opened,
        spec,
        experiment=experiment.name,
        tags=tags or {},
        idempotency_key=key,
        run_id=config.custom_run_id,
    )
    run = HyperDriveRun(experiment, done.sweep.job.id, config)
    run.warnings, run.notes = done.warnings, done.notes
    return run

"""Names of jobs, workspaces and allocations."""

from __future__ import annotations

import re
import secrets
import time

_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")


def job_id(experiment: str, *, epoch_s: int | None = None) -> str:
    """Return a new job id, ``<experiment>_<epoch seconds>_<8 hex>``.

    Source: the run id form of Azure ML SDK v1. The command line accepts the random part alone
    wherever it accepts an id.
    """
    name = _UNFIT.sub("-", experiment).strip("-_")[:60] or "job"
    return f"{name}_{int(time.time()) if epoch_s is None else epoch_s}_{secrets.token_hex(4)}"


def token(bytes_count: int = 16) -> str:
    """Return a random name in hex."""
    return secrets.token_hex(bytes_count)


def marker(job: str, attempt: int, node: int) -> str:
    """Return the value that marks every process of one attempt on one node.

    The random part of the job's id keeps jobs apart; 8 random hex digits keep launches with the
    same attempt number apart.
    """
    return f"{marker_start(job, attempt, node)}{secrets.token_hex(4)}"


def marker_start(job: str, attempt: int, node: int) -> str:
    """Return how all markers of one attempt on one node begin."""
    return f"rj-{job[-40:]}-a{attempt}-n{node}-"

"""Submit with one key from many processes at once: PATH COUNT; prints [[id, is new], …]."""

from __future__ import annotations

import json
import sys

from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.folder import open_workspace
from tests.faults.store_scripts.forks import at_once


def submit(_: int) -> tuple[str, bool]:
    with open_workspace(sys.argv[1], busy_timeout_s=100) as workspace:
        job, is_new = workspace.store.submit(
            NewJob(
                spec=JobSpec(script="train.py"),
                experiment="mnist",
                snapshot=None,
                user="ada",
                idempotency_key="one",
            )
        )
        return job.id, is_new


print(json.dumps(at_once(int(sys.argv[2]), submit)))

"""Verifies that a script resumes: kills it at random, and compares it with an undisturbed run."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rayjobs.core import ids
from rayjobs.core.errors import JobFailedError, RayjobsError, UsageError
from rayjobs.core.paths import home
from rayjobs.housekeeping.verify_resume.compare import (
    CurveFinding,
    FileFinding,
    Tolerance,
    curves,
    weights,
)
from rayjobs.housekeeping.verify_resume.kills import Hunter, Kill, Pace, choose, pace_of, restarts
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.results import checkpoints, resuming
from rayjobs.spec.model import JobSpec, Retries
from rayjobs.submit import attaching
from rayjobs.submit.submitting import Entry, submit
from rayjobs.target import starting

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace

TAG = "verify-resume"
# The maximum number of disturbed runs: a short script may end before it can be killed.
TRIES = 3
MOST_OF_NAME = 128  # characters of a job's name, see `rayjobs.spec.model`


@dataclass(frozen=True)
class Asked:
    """A request for a verification.

    Attributes:
        kills: The number of kills.
        seed: Determines the steps and the ranks; the same seed chooses the same steps.
        ignore: Metrics that are not compared (times, throughput).
    """

    spec: JobSpec
    experiment: str
    kills: int = 2
    seed: int = 0
    tolerance: Tolerance = field(default_factory=Tolerance)
    ignore: Collection[str] = ()


@dataclass(frozen=True)
class Verdict:
    """The result of a verification.

    Attributes:
        undisturbed: The run that was not disturbed.
        resumed: The run whose ranks were killed, and which continued with retries.
        not_compared: Metrics that were logged without a step.
        problems: What differs, one sentence each; empty: the script resumes exactly.
    """

    undisturbed: str
    resumed: str
    seed: int
    tolerance: Tolerance
    kills: tuple[Kill, ...]
    curves: tuple[CurveFinding, ...]
    not_compared: tuple[str, ...]
    checkpoint_step: int | None
    files: tuple[FileFinding, ...]
    problems: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether the resumed run equals the undisturbed one, within the tolerance."""
        return not self.problems


def verify(
    workspace: OpenWorkspace, asked: Asked, *, say: Callable[[str], None] = lambda _text: None
) -> Verdict:
    """Run a job undisturbed, run it again under kills, and compare the two. Blocks for both.

    Both are ordinary jobs in the queue, with the tag ``verify-resume`` and the job's name with
    ``-undisturbed`` or ``-disturbed`` and a number. The second continues with
    retries, each from the newest whole checkpoint. An interrupt or an error cancels both jobs.

    Raises:
        SpecError: the spec is wrong; nothing was submitted.
        JobFailedError: one of the runs failed, or was canceled.
        UsageError: the script logs too few metrics with a step, or runs on another machine.
        RayjobsError: each run ended before it could be killed, or saved no checkpoint.
        UnreachableError: the store or the target cannot be reached.
    """
    verification = _Verification(workspace, asked, say)
    try:
        return verification.run()
    except BaseException as error:
        verification.cancel("failed" if isinstance(error, Exception) else "was interrupted")
        raise


class _Verification:
    def __init__(self, workspace: OpenWorkspace, asked: Asked, say: Callable[[str], None]) -> None:
        self._workspace = workspace
        self._store = workspace.store
        self._asked = asked
        self._say = say
        self._tag = ids.token(4)
        self._jobs: list[str] = []

    def run(self) -> Verdict:
        asked = self._asked
        before = self._submit("undisturbed", asked.spec.retries)
        self._say(f"undisturbed run {before.id}")
        self._wait(before)
        pace = self._pace(before)
        generator = random.Random(asked.seed)  # noqa: S311 - only chooses steps
        steps = choose(pace, asked.kills, generator)
        self._say(
            f"seed {asked.seed}: kills after step{'s' if len(steps) > 1 else ''} "
            f"{', '.join(str(step) for step in steps)} of {pace.steps[-1]} ({pace.name})"
        )
        after, kills = self._disturbed(pace, steps, generator)
        return self._verdict(before, after, kills, pace)

    def cancel(self, end: str) -> None:
        """Cancel the jobs that still run; `end`: what the verification did, for their history."""
        for job in self._jobs:
            try:
                if not self._store.request_cancel(
                    job, by=f"`rayjobs verify-resume`, which {end}"
                ).is_final:
                    starting.wake(
                        self._asked.spec.target, home=home(), workspace=self._workspace.path
                    )
                    self._say(f"canceling {job}, which is no longer needed")
            except (RayjobsError, OSError, TimeoutError):
                continue  # the interrupt or the error is reported, not this

    def _submit(self, role: str, retries: Retries) -> Job:
        spec = self._asked.spec
        shown = spec.display_name
        changes = {
            "name": f"{spec.name[: MOST_OF_NAME - len(role) - 1]}-{role}",
            "display_name": None if shown is None else f"{shown} ({role})",
            "tags": {**spec.tags, TAG: self._tag, f"{TAG}-role": role},
            "retries": retries,
        }
        done = submit(
            self._workspace,
            spec.model_copy(update=changes),
            experiment=self._asked.experiment,
            entry=Entry(is_numbered=True),
        )
        self._jobs.append(done.job.id)
        for warning in done.warnings:
            self._say(f"warning: {warning}")
        return done.job

    def _wait(self, job: Job) -> Job:
        """Wait for a job and return it. Raises JobFailedError if it did not complete."""
        ended = attaching.attach(self._workspace, job.id)
        attaching.raise_for_end(ended)
        if ended.state is not JobState.COMPLETED:
            raise JobFailedError(f"{job.id} ended as {ended.state}; there is nothing to compare")
        return ended

    def _pace(self, job: Job) -> Pace:
        pace = pace_of(self._store.metrics(job.id))
        if pace is None:
            raise UsageError(
                f"{job.id} logged no metric with a step, so its progress is unknown; log one "
                f'in each step: run.log("loss", loss, step=step)'
            )
        if checkpoints.newest(self._store, self._workspace.blobs, job.id) is None:
            raise RayjobsError(resuming.no_checkpoint(self._store, job.id))
        return pace

    def _disturbed(
        self, pace: Pace, steps: Sequence[int], generator: random.Random
    ) -> tuple[Job, list[Kill]]:
        """Run the job with kills, and run it again if it ended before the last kill."""
        kills: list[Kill] = []
        tried: list[str] = []
        for number in range(1, TRIES + 1):
            # Add the kills to the job's own budget.
            budget = min(100, self._asked.spec.retries.user + len(steps))
            retries = self._asked.spec.retries.model_copy(update={"user": budget})
            job = self._submit("disturbed", retries)
            tried.append(job.id)
            self._say(f"disturbed run {job.id}")
            kills = self._kill(job, pace, steps, generator)
            job = self._wait(job)
            if len(kills) == len(steps):
                return job, kills
            again = "; running it again" if number < TRIES else ""
            self._say(f"it ended after {len(kills)} of {len(steps)} kills{again}")
        if kills:
            return job, kills
        raise RayjobsError(
            f"{', '.join(tried)} ended before one of their ranks could be killed between the first "
            f"checkpoint and the end; let the script run longer, or save more often"
        )

    def _kill(
        self, job: Job, pace: Pace, steps: Sequence[int], generator: random.Random
    ) -> list[Kill]:
        starting.ensure_target(
            job.target, home=home(), workspace=self._workspace.path, on_stage=self._say
        )
        hunter = Hunter(self._store, job.id, pace, generator)
        kills: list[Kill] = []
        for number, step in enumerate(steps, start=1):
            kill = hunter.kill(number, step)
            if kill is None:
                break
            kills.append(kill)
            self._say(f"killed rank {kill.rank} of attempt {number} after step {kill.step}")
        return kills

    # -- compare -------------------------------------------------------------------------------
    def _verdict(self, before: Job, after: Job, kills: Sequence[Kill], pace: Pace) -> Verdict:
        asked = self._asked
        compared, left_out = curves(
            self._store.metrics(before.id),
            self._store.metrics(after.id),
            tolerance=asked.tolerance,
            ignore=asked.ignore,
        )
        brought = [one.attempt for one in self._store.events(after.id) if one.kind == "resumed"]
        every = self._store.metrics(after.id, name=pace.name, all_attempts=True)
        problems = restarts(every, pace, attempts=after.attempt, brought=brought)
        for curve in compared:
            problems += curve.sentences
        step, files, unlike = self._weights(before, after)
        problems += unlike
        return Verdict(
            undisturbed=before.id,
            resumed=after.id,
            seed=asked.seed,
            tolerance=asked.tolerance,
            kills=tuple(kills),
            curves=tuple(compared),
            not_compared=tuple(left_out),
            checkpoint_step=step,
            files=tuple(files),
            problems=tuple(problems),
        )

    def _weights(self, before: Job, after: Job) -> tuple[int | None, list[FileFinding], list[str]]:
        """Compare the last checkpoints; return their step, the findings, and the problems."""
        store, blobs = self._store, self._workspace.blobs
        with TemporaryDirectory(prefix="rayjobs-verify-") as folder:
            folders = (Path(folder) / "undisturbed", Path(folder) / "resumed")
            one = checkpoints.bring_newest(store, blobs, before.id, folders[0])
            other = checkpoints.bring_newest(store, blobs, after.id, folders[1])
            if one is None or other is None:
                return None, [], ["the last checkpoint of one of the runs cannot be read"]
            if one.step != other.step:
                return (
                    one.step,
                    [],
                    [
                        f"the last checkpoint is of step {other.step}, in the undisturbed run of "
                        f"step {one.step}"
                    ],
                )
            named = self._asked.spec.environment
            files = weights(
                one,
                other,
                folders,
                tolerance=self._asked.tolerance,
                # An environment of packages exists only on the target's nodes.
                python=named if isinstance(named, str) else None,
            )
        return one.step, files, [text for file in files for text in file.sentences]

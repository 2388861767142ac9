"""The keeper: a small process outside Ray that starts, watches and stops one target's head.

Standard library only. `python -P -m rayjobs.target.keeper HOME TARGET START` detaches from its
caller; a short-lived child, the starter (`engine.starter`), does what needs Ray. The keeper holds
`keeper.lock` for its lifetime: so a target has only one keeper, whichever client starts it, and the
lock shows that it is alive. Killing it is harmless: the head continues, and the next command starts
another keeper that takes over.

The keeper restarts what dies: immediately for the first `RESTARTS` deaths within
`RESTARTS_WITHIN_S`, and after that with pauses that grow from `FIRST_PAUSE_S` to `LONGEST_PAUSE_S`.
It retries a failed start in the same way as long as there are unfinished jobs, which it checks at
the end of each pause.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rayjobs.core.errors import RayjobsError
from rayjobs.core.files import write_message
from rayjobs.core.text import duration_text
from rayjobs.injob import open_files
from rayjobs.injob.identity import own_identity
from rayjobs.target import local_head, stop_record, stopping, timekeeper, wake_client
from rayjobs.target.keeper_state import Pause, keeper_lock, leave_caller
from rayjobs.target.local_head import StartError
from rayjobs.target.machine import LocalSettings
from rayjobs.target.progress import Line, Progress, read
from rayjobs.target.reports import Activity
from rayjobs.target.stop_request import StopAnswer, StopRequest
from rayjobs.target.stopping import TargetLocation

START_LIMIT_S = 300.0  # per try; Ray alone took 31 s on a busy machine
START_TRIES = 3
JOBS_LIMIT_S = 60.0  # for reading the stores
NO_JOBS = 20  # the exit code of `rayjobs.target.unfinished`; Python's own failures do not use it
WATCH_EVERY_S = 1.0
LOOKS_PER_TIMEKEEPER = 30
ACTOR_GONE_S = 20.0  # Ray restarts the actor by itself well within this
RESTARTS = 3  # immediately; then with pauses
RESTARTS_WITHIN_S = 600.0
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0
LOG_LIMIT_BYTES = 4 * 2**20
_WAKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)


class LateError(StartError):
    """A head did not start in time; another try may succeed."""


class Keeper:
    """One target's keeper; `run` returns when the head has stopped or cannot start."""

    def __init__(self, location: TargetLocation, start: str, *, is_patient: bool = False) -> None:
        self.location = location
        self.paths = location.paths
        self.progress = Progress(self.paths.progress, start)
        self.idle_s = LocalSettings.read().idle_s
        # Whether unfinished jobs are known, which is the reason to retry a failed start.
        self._is_wanted = is_patient
        self._idle_since_s: float | None = None
        self._actor_gone_since_s: float | None = None
        self._restarts: list[float] = []
        self._failures = 0
        self._looks = 0
        self._paused_until_s: float | None = None
        self._environment = local_head.head_environment(location.home, self.paths.token)
        soft = open_files.original()
        self._environment[open_files.SOFT_VARIABLE] = "" if soft is None else str(soft)

    def run(self) -> int:
        """Start what does not run, watch it, and finally stop it; return the exit code."""
        self.paths.pause.unlink(missing_ok=True)
        if not self._tries(self._bring_up):
            return 1
        timekeeper.ensure(home=self.location.home)
        while True:
            number = signal.sigtimedwait(_WAKING, WATCH_EVERY_S)
            _reap()
            self._looks += 1
            if self._looks % LOOKS_PER_TIMEKEEPER == 0:
                timekeeper.mend(home=self.location.home)
            ending = number is not None and number.si_signo in (signal.SIGTERM, signal.SIGINT)
            if ending and not self.paths.stop_request.exists():
                return 0  # only the keeper has to end; the next client starts another one
            if self._stop_if_asked():
                return 0
            if self._paused_until_s is not None:
                if _now_s() < self._paused_until_s:
                    continue
                self._end_pause()
                if not self._has_jobs():
                    self._say("no job waits for the target: stopping")
                    self._stop(force=True, request="idle")  # clients do not wait for an answer
                    return 0
                if not self._tries(self._bring_up):
                    return 1
            elif self._stop_if_idle():
                return 0
            elif not self._tries(self._mend):
                return 1

    def _tries(self, work: Callable[[], None]) -> bool:
        """Do the work, and pause if it fails. Return False if it is not to be tried again."""
        try:
            work()
        except (RayjobsError, OSError) as exc:  # a full disk must not end the keeper
            reason = exc.message if isinstance(exc, RayjobsError) else f"it cannot start: {exc}"
            self._say(reason)
            if not self._is_wanted or self.paths.stop_request.exists():
                return False
            # The advice would be wrong: the keeper tries again by itself.
            self._pause(exc.cause if isinstance(exc, StartError) else reason)
        return True

    def _pause(self, reason: str) -> None:
        self._failures += 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10))
        self._paused_until_s = _now_s() + pause_s
        next_at = time.strftime("%H:%M:%S", time.localtime(time.time() + pause_s))
        self._say(f"trying again in {duration_text(pause_s)}")
        with contextlib.suppress(OSError):  # a full disk must not end the keeper
            own = own_identity()
            write_message(self.paths.keeper, own)
            Pause(
                failures=self._failures,
                reason=reason,
                next_at=next_at,
                **own.to_json(),
            ).write(self.paths)

    def _end_pause(self) -> None:
        self._paused_until_s = None
        self.paths.progress.unlink(missing_ok=True)  # clients follow the new try
        self.paths.pause.unlink(missing_ok=True)

    def _has_jobs(self) -> bool:
        """Whether a job still waits for the target: all may have been canceled. True if unknown.

        Reading stores needs libraries that the keeper must not load, so a child does it.
        """
        try:
            code = self._run_child("rayjobs.target.unfinished", [], JOBS_LIMIT_S, "jobs.log")
        except OSError as error:
            self._say(f"cannot check whether a job waits: {error}")
            return True
        return code != NO_JOBS

    # --- starting ---------------------------------------------------------------------------------

    def _bring_up(self) -> None:
        record = local_head.load_record(self.paths)
        answers = wake_client.is_listening(self.location.socket)
        if record is None or not record.is_running:
            if answers:
                cause = (
                    f"a target answers at {self.location.socket}, but the record of its head is "
                    f"missing or names a dead head. The target is left as it is; "
                    f"`rayjobs target stop {self.location.name}` stops it."
                )
                self.progress.failed(cause)
                raise StartError(cause)
            self._start_head()
        elif answers:
            self.progress.ready()
        else:
            self._starter("replace")

    def _start_head(self) -> None:
        """Start Ray and the actor; on a machine that is too busy, try `START_TRIES` times."""
        for number in range(1, START_TRIES + 1):
            # What an earlier head left after a power cut or a crash would block this one.
            with contextlib.suppress(RayjobsError):
                stopping.clear_ray(self.location)
            local_head.new_token(self.paths)
            local_head.remember_settings(self.paths, self._environment)
            try:
                self._starter("head")
                return
            except RayjobsError as exc:
                stopping.clear_ray(self.location)
                stop_is_wanted = self.paths.stop_request.exists()
                if isinstance(exc, LateError) and number < START_TRIES and not stop_is_wanted:
                    self._say(exc.message)
                    self.progress.stage(
                        f"Ray did not come up in time; trying again ({number + 1} of {START_TRIES})"
                    )
                    continue
                if isinstance(exc, LateError):
                    self.progress.failed(exc.cause, advice=exc.advice)
                stopping.remove_files(self.location, keep_progress=True)
                raise

    def _starter(self, what: str) -> None:
        """Run the starter; if it fails, raise an error with its message.

        Raises:
            LateError: A head did not start in time; clients get no failure report.
            StartError: It failed otherwise; clients get a failure report.
        """
        log = self.paths.log / "start.log"
        code = self._run_child(
            "rayjobs.engine.starter", [self.progress.start, what], START_LIMIT_S, log.name
        )
        if what == "head" and code in (None, local_head.EXIT_LATE):
            late = self._last_if("late")
            reported = (
                late.text
                if late is not None
                else f"the starter was not done after {duration_text(START_LIMIT_S)}"
            )
            raise LateError(
                f"Ray did not come up in time for target {self.location.name!r}, as happens on a "
                f"busy machine: {reported.rstrip('.')}. Details are in {log}.",
                advice=local_head.start_again(self.location.name),
            )
        if code != 0:
            why = f"the starter ended with exit code {code}"
            if code is None:
                why = f"the starter was not done after {duration_text(START_LIMIT_S)}"
            failed = self._last_if("failed")
            if failed is not None:
                raise StartError(failed.text, advice=failed.advice)
            message = f"target {self.location.name!r} did not start: {why}. See {log}."
            self.progress.failed(message)
            raise StartError(message)

    def _run_child(
        self, module: str, arguments: list[str], limit_s: float, log_name: str
    ) -> int | None:
        """Run a module for this target; return its exit code, or None if it took too long."""
        self.paths.log.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self.paths.log / log_name
        _shorten(log)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # Its own session: Ray's processes stay in it, separate from the keeper's.
            child = os.posix_spawn(
                sys.executable,
                [
                    *(sys.executable, "-P", "-m", module),
                    *(str(self.location.home), self.location.name, *arguments),
                ],
                self._environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, descriptor, 1),
                    (os.POSIX_SPAWN_DUP2, descriptor, 2),
                ],
                setsid=True,
                setsigmask=[],
            )
        finally:
            os.close(descriptor)
        return _wait(child, limit_s)

    def _last_if(self, kind: str) -> Line | None:
        """Return the last line of this start if it is of this kind."""
        lines = [line for line in read(self.paths.progress) if line.start == self.progress.start]
        return lines[-1] if lines and lines[-1].kind == kind else None

    # --- watching ---------------------------------------------------------------------------------

    def _mend(self) -> None:
        """Restart what died, unless it dies too often."""
        record = local_head.load_record(self.paths)
        if record is None or not record.is_running:
            self._say("Ray ended by itself; starting it again")
            self._count_restart()
            self._start_head()
            return
        if wake_client.is_listening(self.location.socket):
            self._actor_gone_since_s = None
            if self._failures and not self._recent_restarts():
                self._failures = 0
            return
        now_s = _now_s()
        self._actor_gone_since_s = self._actor_gone_since_s or now_s
        if now_s - self._actor_gone_since_s >= ACTOR_GONE_S:
            self._say("the target actor is gone; starting it again")
            self._count_restart()
            self._starter("replace")
            self._actor_gone_since_s = None

    def _recent_restarts(self) -> list[float]:
        return [at for at in self._restarts if _now_s() - at < RESTARTS_WITHIN_S]

    def _count_restart(self) -> None:
        """Count a restart; raise if there were too many recently and a pause is due."""
        self._restarts = [*self._recent_restarts(), _now_s()]
        if len(self._restarts) > RESTARTS:
            with contextlib.suppress(RayjobsError):
                stopping.clear_ray(self.location)
                stopping.remove_files(self.location)
            raise RayjobsError(
                f"Ray or the actor of target {self.location.name!r} ended {len(self._restarts)} "
                f"times within {duration_text(RESTARTS_WITHIN_S)}. See {self.paths.log}."
            )

    # --- stopping ---------------------------------------------------------------------------------

    def _stop_if_asked(self) -> bool:
        request = StopRequest.read(self.paths)
        if request is None:
            return False
        self.paths.stop_request.unlink(missing_ok=True)
        return self._stop(force=request.force, request=request.id)

    def _stop_if_idle(self) -> bool:
        activity = Activity.read(self.paths)
        if activity is not None and activity.busy:
            self._idle_since_s, self._is_wanted = None, True
            return False
        if activity is not None:
            self._is_wanted = False
        self._idle_since_s = self._idle_since_s or _now_s()
        if _now_s() - self._idle_since_s < self.idle_s:
            return False
        self._idle_since_s = None  # a refusal means that there is new work
        self._say(f"no job for {duration_text(self.idle_s)}: stopping")
        return self._stop(force=False, request="idle")

    def _stop(self, *, force: bool, request: str) -> bool:
        stop = stop_record.last(self.paths)
        try:
            with stopping.retired(self.location, force=force):
                stopping.stop_head(self.location, say=self._say)
        except RayjobsError as exc:
            self._say(exc.message)
            is_refused = isinstance(exc, stopping.StopRefusedError)
            self._answer(request, error=exc.message, is_refused=is_refused)
            if is_refused and request != "idle":
                # In case the client is gone; otherwise it does so itself.
                stop_record.lift_if_free(self.paths, stop.id)
            return False
        self._answer(request, error="")
        return True

    def _answer(self, request: str, *, error: str, is_refused: bool = False) -> None:
        if request != "idle":
            with contextlib.suppress(OSError):  # a full disk must not end the keeper
                StopAnswer(request, error, is_refused).write(self.paths)

    def _say(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with contextlib.suppress(OSError):  # a full disk must not end the keeper
            self.paths.log.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = self.paths.log / "keeper.log"
            _shorten(log)
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{stamp} {text}\n")


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _shorten(log: Path) -> None:
    """Rotate a log above the size limit; one older log is retained."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > LOG_LIMIT_BYTES:
            log.replace(log.with_suffix(".log.1"))


def _reap() -> None:
    """Collect ended children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _wait(child: int, limit_s: float) -> int | None:
    """Wait for one child; kill it and return None if it takes too long."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        signal.sigtimedwait([signal.SIGCHLD], 0.2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def main(argv: list[str] | None = None) -> int:
    """Detach from the caller and run the keeper."""
    parser = argparse.ArgumentParser(prog="rayjobs.target.keeper")
    parser.add_argument("home", type=Path)
    parser.add_argument("target")
    parser.add_argument("start")
    parser.add_argument("--patient", action="store_true")
    options = parser.parse_args(argv)
    location = TargetLocation(options.target, options.home)
    # Taken before the fork and inherited: when the caller's wait ends, the lock is held.
    with keeper_lock(location.paths, patience_s=0.5) as mine:
        if not mine:
            return 0  # a keeper already runs
        leave_caller(_WAKING)
        write_message(location.paths.keeper, own_identity())
        open_files.raise_limit()  # the keeper's children inherit it
        keeper = Keeper(location, options.start, is_patient=options.patient)
        try:
            return keeper.run()
        finally:
            location.paths.keeper.unlink(missing_ok=True)
            location.paths.pause.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())

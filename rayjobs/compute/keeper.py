"""The keeper: a small process outside Ray that starts, watches and stops one target's head.

Standard library only. `python -P -m rayjobs.compute.keeper HOME TARGET START` forks itself away
from its caller; whatever needs Ray is done by the starter (`raylaunch`), a child that ends.
The keeper holds `keeper.lock` for life, so there is one per target whoever starts it, and holding
the lock is being alive. Killing it harms nothing: the head goes on, and the next client starts
another keeper that takes over.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rayjobs.compute import headstop, localhead, wakeclient
from rayjobs.compute.headstop import Place
from rayjobs.compute.machine import LocalSettings
from rayjobs.compute.progress import Progress, read
from rayjobs.errors import RayjobsError, TargetError
from rayjobs.injob.identity import Identity, is_alive, own_identity
from rayjobs.paths import TargetPaths

START_LIMIT_S = 300.0  # of one try; Ray alone took 31 s on a busy machine
START_TRIES = 3
WATCH_EVERY_S = 1.0
ACTOR_GONE_S = 20.0  # Ray restarts the actor by itself well within this
RESTARTS = 3  # within RESTARTS_WITHIN_S; then the keeper gives up and says why
RESTARTS_WITHIN_S = 600.0
LOG_LIMIT_BYTES = 4 * 2**20
_WAKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)


def lock_path(paths: TargetPaths) -> Path:
    """Return the file whose lock says that a keeper lives."""
    return paths.root / "keeper.lock"


def request_path(paths: TargetPaths) -> Path:
    """Return where `target stop` writes what it wants; the keeper answers beside it."""
    return paths.root / "stop.json"


def answer_path(paths: TargetPaths) -> Path:
    """Return where the keeper says how the stop went."""
    return paths.root / "stopped.json"


@contextlib.contextmanager
def keeper_lock(paths: TargetPaths, *, patience_s: float = 0.0) -> Iterator[bool]:
    """Take the keeper's lock for the block; gives False when a keeper has it.

    Args:
        patience_s: How long to try: those who only look hold it for an instant.
    """
    paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(lock_path(paths), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience_s
    try:
        while not (mine := _lock(descriptor, fcntl.LOCK_EX)) and time.monotonic() < deadline:
            time.sleep(0.01)
        yield mine
    finally:
        os.close(descriptor)


def is_kept(paths: TargetPaths) -> bool:
    """Whether a keeper lives."""
    try:
        descriptor = os.open(lock_path(paths), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class LateError(TargetError):
    """A head did not come up in time; another try may succeed."""


class Keeper:
    """One target's keeper; `run` returns when the head is stopped, or cannot be started."""

    def __init__(self, place: Place, start: str) -> None:
        self.place = place
        self.paths = place.paths
        self.progress = Progress(self.paths.progress, start)
        self.idle_s = LocalSettings.read().idle_s
        self._idle_since_s: float | None = None
        self._actor_gone_since_s: float | None = None
        self._restarts: list[float] = []
        self._environment = localhead.head_environment(place.home, self.paths.token)

    def run(self) -> int:
        """Start what is not there, watch it, and stop it in the end; return the exit code."""
        try:
            self._bring_up()
        except RayjobsError as exc:
            self._say(exc.message)
            return 1
        while True:
            number = signal.sigtimedwait(_WAKING, WATCH_EVERY_S)
            _reap()
            ending = number is not None and number.si_signo in (signal.SIGTERM, signal.SIGINT)
            if ending and not request_path(self.paths).exists():
                return 0  # only the keeper is to end; the next client brings another
            if self._stop_if_asked() or self._stop_if_idle():
                return 0
            try:
                self._mend()
            except RayjobsError as exc:
                self._say(exc.message)
                return 1

    # --- starting ---------------------------------------------------------------------------------

    def _bring_up(self) -> None:
        record = localhead.load_record(self.paths)
        answers = wakeclient.is_listening(self.place.socket)
        if record is None or not record.is_running:
            if answers:
                raise RayjobsError(
                    f"a target answers at {self.place.socket}, and no running head is on record; "
                    f"it is left alone"
                )
            self._start_head()
        elif answers:
            self.progress.ready()
        else:
            self._starter("replace")

    def _start_head(self) -> None:
        """Start Ray and the actor; a machine that is too busy for that is given `START_TRIES`."""
        for number in range(1, START_TRIES + 1):
            # What an earlier life left (a power cut, a crash) would be in the way of this one.
            with contextlib.suppress(RayjobsError):
                headstop.clear_ray(self.place)
            localhead.new_token(self.paths)
            try:
                self._starter("head")
                return
            except RayjobsError as exc:
                headstop.clear_ray(self.place)
                stop_is_wanted = request_path(self.paths).exists()
                if isinstance(exc, LateError) and number < START_TRIES and not stop_is_wanted:
                    self._say(exc.message)
                    self.progress.stage(
                        f"Ray did not come up in time; trying again ({number + 1} of {START_TRIES})"
                    )
                    continue
                if isinstance(exc, LateError):
                    self.progress.failed(exc.message)
                headstop.remove_files(self.place, keep_progress=True)
                raise

    def _starter(self, what: str) -> None:
        """Run the starter; raises with what it said when it fails.

        Raises:
            LateError: a head was not up in time; the clients are not told of a failure.
            TargetError: it failed otherwise; the clients are told.
        """
        self.paths.log.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self.paths.log / "start.log"
        _shorten(log)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # A session of its own: Ray's processes stay in it, apart from the keeper's.
            child = os.posix_spawn(
                sys.executable,
                [
                    *(sys.executable, "-P", "-m", "rayjobs.compute.raylaunch"),
                    *(str(self.place.home), self.place.name, self.progress.start, what),
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
        code = _wait(child, START_LIMIT_S)
        if what == "head" and code in (None, localhead.EXIT_LATE):
            said = self._last_of("late") or f"the starter was not done after {START_LIMIT_S:g} s"
            raise LateError(
                f"Ray did not come up in time for target {self.place.name!r}, as happens on a busy "
                f"machine: {said.rstrip('.')}. Details are in {log}. "
                f"{localhead.start_again(self.place.name)}"
            )
        if code != 0:
            why = f"the starter ended with exit code {code}"
            if code is None:
                why = f"the starter was not done after {START_LIMIT_S:g} s"
            message = f"target {self.place.name!r} did not start: {why}. See {log}."
            if not self._last_of("failed"):
                self.progress.failed(message)
            raise RayjobsError(message)

    def _last_of(self, kind: str) -> str:
        """Return what this start said last, if that was of the kind."""
        lines = [line for line in read(self.paths.progress) if line.start == self.progress.start]
        return lines[-1].text if lines and lines[-1].kind == kind else ""

    # --- watching ---------------------------------------------------------------------------------

    def _mend(self) -> None:
        """Start again what died by itself, as long as that does not happen again and again."""
        record = localhead.load_record(self.paths)
        if record is None or not record.is_running:
            self._say("Ray ended by itself; starting it again")
            self._count_restart()
            self._start_head()
            return
        if wakeclient.is_listening(self.place.socket):
            self._actor_gone_since_s = None
            return
        now_s = _now_s()
        self._actor_gone_since_s = self._actor_gone_since_s or now_s
        if now_s - self._actor_gone_since_s >= ACTOR_GONE_S:
            self._say("the target actor is gone; starting it again")
            self._count_restart()
            self._starter("replace")
            self._actor_gone_since_s = None

    def _count_restart(self) -> None:
        now_s = _now_s()
        recent = [at for at in self._restarts if now_s - at < RESTARTS_WITHIN_S]
        self._restarts = [*recent, now_s]
        if len(self._restarts) > RESTARTS:
            with contextlib.suppress(RayjobsError):
                headstop.clear_ray(self.place)
                headstop.remove_files(self.place)
            raise RayjobsError(
                f"Ray or the target actor ended {len(self._restarts)} times within "
                f"{RESTARTS_WITHIN_S:g} s; the target is stopped. See {self.paths.log}."
            )

    # --- stopping ---------------------------------------------------------------------------------

    def _stop_if_asked(self) -> bool:
        asked = localhead.read_json(request_path(self.paths))
        if asked is None:
            return False
        request_path(self.paths).unlink(missing_ok=True)
        return self._stop(force=bool(asked.get("force")), request=str(asked.get("id", "")))

    def _stop_if_idle(self) -> bool:
        activity = localhead.read_json(self.place.activity)
        if activity is not None and activity.get("busy"):
            self._idle_since_s = None
            return False
        self._idle_since_s = self._idle_since_s or _now_s()
        if _now_s() - self._idle_since_s < self.idle_s:
            return False
        self._idle_since_s = None  # a refusal means that there is work again
        self._say(f"no job for {self.idle_s:g} s: stopping")
        return self._stop(force=False, request="idle")

    def _stop(self, *, force: bool, request: str) -> bool:
        try:
            with headstop.retired(self.place, force=force):
                headstop.stop_head(self.place, say=self._say)
        except RayjobsError as exc:
            self._say(exc.message)
            self._answer(request, error=exc.message)
            return False
        self._answer(request, error="")
        return True

    def _answer(self, request: str, *, error: str) -> None:
        if request != "idle":
            localhead.write_private(
                answer_path(self.paths), json.dumps({"id": request, "error": error})
            )

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
    """Keep one older log of limited size."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > LOG_LIMIT_BYTES:
            log.replace(log.with_suffix(".log.1"))


def _reap() -> None:
    """Collect ended children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _wait(child: int, limit_s: float) -> int | None:
    """Wait for one child; None (and the child killed) when it takes too long."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        signal.sigtimedwait([signal.SIGCHLD], 0.2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _leave_caller() -> None:
    """Become nobody's child, in a session of its own; the caller sees exit code 0 at once."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAKING)


def keeper_of(paths: TargetPaths) -> Identity | None:
    """Return the identity of the living keeper, or None."""
    values = localhead.read_json(paths.root / "keeper.json")
    try:
        identity = Identity.from_dict(values or {})
    except (KeyError, TypeError, ValueError):
        return None
    return identity if is_alive(identity) else None


def main(argv: list[str] | None = None) -> int:
    """Detach from the caller and keep the target."""
    parser = argparse.ArgumentParser(prog="rayjobs.compute.keeper")
    parser.add_argument("home", type=Path)
    parser.add_argument("target")
    parser.add_argument("start")
    options = parser.parse_args(argv)
    place = Place(options.target, options.home)
    # Taken before forking and inherited: the caller's wait for us ends with the lock held.
    with keeper_lock(place.paths, patience_s=0.5) as mine:
        if not mine:
            return 0  # there is one already
        _leave_caller()
        localhead.write_private(
            place.paths.root / "keeper.json", json.dumps(own_identity().as_dict())
        )
        keeper = Keeper(place, options.start)
        try:
            return keeper.run()
        finally:
            (place.paths.root / "keeper.json").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())

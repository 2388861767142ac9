"""Routes of targets: clients' requests to them, and their start."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from starlette.requests import Request

from rayjobs.core.errors import ServedElsewhereError
from rayjobs.core.paths import home
from rayjobs.injob import session_steps
from rayjobs.jobs.serving import Serving
from rayjobs.policy.capacity import Capacity
from rayjobs.server import hiding
from rayjobs.server.access import Caller, Refusal
from rayjobs.server.bodies import body_of
from rayjobs.server.own_view import own_status, own_view
from rayjobs.server.routes import HandlerRoute, Routes
from rayjobs.server.workers import in_thread, with_target
from rayjobs.submit import credentials
from rayjobs.submit.submitting import wake_or_start
from rayjobs.target import elsewhere, revive, starting, targets, wake_client
from rayjobs.target.answers import ANSWERS, ForwardedAnswer
from rayjobs.target.condition import ServedCondition
from rayjobs.target.record import load_target
from rayjobs.target.requests import TargetRequest
from rayjobs.target.targets import TargetView
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.http_messages import StartedTarget
from rayjobs.workspace.users import Role

ANSWER_S = 20.0
SAME_START_S = 60.0  # requests that are further apart belong to different starts
# Requests that clients may send to a target; others, such as ending it, are not allowed.
READ = ("ping", "status", "explain")
OF_A_JOB = ("evict", "stacks", "store", "session")


def routes(workspace: OpenWorkspace) -> Routes:
    """Return the routes."""
    starts = _Starts()

    async def listed(_request: Request, _caller: Caller) -> list[TargetView]:
        return await with_target(targets.list_targets)

    async def shown(request: Request, _caller: Caller) -> TargetView:
        asks = request.query_params.get("ask") == "1"
        view = await with_target(targets.target_status, _name_of(request), ask=asks)
        if view.detail is not None:
            view = replace(view, detail=own_status(view.detail, str(workspace.path)))
        return view

    def elsewhere_of(request: Request) -> Serving | None:
        name = str(request.path_params["target"])
        return elsewhere.find_quietly(workspace.path, name, home=home())

    async def capacity(request: Request, _caller: Caller) -> Capacity:
        def call() -> Capacity:
            # Local files say nothing about a target on another machine.
            unknown = Capacity((), 0)
            return unknown if elsewhere_of(request) else targets.capacity_of(_name_of(request))

        return await with_target(call)

    async def wake(request: Request, _caller: Caller) -> bool:
        name = str(request.path_params["target"])

        def call() -> bool:
            if elsewhere_of(request) is not None:
                return starting.wake(name, home=home(), workspace=workspace.path)
            _name_of(request)
            if request.query_params.get("start") == "1":
                credentials.hand_on_own(workspace, name, home=home())
                is_starting = wake_or_start(workspace, name)
                _note_start(request, name, has_begun=starts.has_begun(name, is_starting))
                return not is_starting
            try:
                return starting.wake(name, home=home(), workspace=workspace.path)
            except TimeoutError:
                return True  # it is alive and busy; its poll will notice

        return await with_target(call)

    async def start(request: Request, _caller: Caller) -> StartedTarget:
        def call() -> str:
            name = _name_of(request)
            credentials.hand_on_own(workspace, name, home=home())
            is_starting = not starting.wake(name, home=home(), workspace=workspace.path)
            _note_start(request, name, has_begun=starts.has_begun(name, is_starting))
            with starts.waiting(name):
                return starting.ensure_target(name, home=home(), workspace=workspace.path).version

        return StartedTarget(await with_target(call))

    async def look(request: Request, _caller: Caller) -> ServedCondition:
        request.state.is_change = True
        name = str(request.path_params["target"])
        found = await with_target(revive.look_after, name, home=home(), workspace=workspace.path)
        # Each `ls` makes this request, and `logs -f` every two seconds: only one starts the target.
        _note_start(request, name, has_begun=found.has_begun)
        return ServedCondition(found.standing, found.reason, found.may_run_on)

    top, viewer, submitter = "/v1/targets", Role.VIEWER, Role.SUBMITTER
    one, ask = f"{top}/{{target}}", _asking(workspace)
    return [
        HandlerRoute("GET", top, viewer, listed, list[TargetView], hides_store=True),
        HandlerRoute("GET", one, viewer, shown, TargetView, hides_store=True),
        HandlerRoute("GET", f"{one}/capacity", viewer, capacity, Capacity),
        HandlerRoute("POST", f"{one}/wake", submitter, wake, bool),
        HandlerRoute("POST", f"{one}/start", submitter, start, StartedTarget),
        HandlerRoute("POST", f"{one}/look", viewer, look, ServedCondition, hides_store=True),
        HandlerRoute("POST", f"{one}/ask", viewer, ask, ForwardedAnswer, body=TargetRequest),
    ]


class _Starts:
    """Remembers which targets are being started: one start is one change. Thread-safe.

    A start continues while a request waits for it, or while requests that find the target not yet
    running follow each other closely.
    """

    def __init__(self) -> None:
        self._seen_s: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()

    def has_begun(self, name: str, is_starting: bool) -> bool:
        """Return whether a request begins a start; `is_starting`: the target was not running."""
        now_s = time.monotonic()
        with self._lock:
            if not is_starting:
                self._seen_s.pop(name, None)
                return False
            is_recent = now_s - self._seen_s.get(name, -math.inf) < SAME_START_S
            is_known = is_recent or self._waiting[name] > 0
            self._seen_s[name] = now_s
            return not is_known  # fault 223: once

    @contextlib.contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Count the caller among the requests that wait for a start to end."""
        with self._lock:
            self._waiting[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[name] -= 1
                if not self._waiting[name]:
                    self._seen_s.pop(name, None)


def _note_start(request: Request, name: str, *, has_begun: bool) -> None:
    """Make the audit record the start of a target if this request began it."""
    request.state.is_change = has_begun
    request.state.change = f"start of target {name}"


def _name_of(request: Request) -> str:
    name = str(request.path_params["target"])
    load_target(name, home=home())  # raises an error if there is no such target
    return name


async def _check_allowed(workspace: OpenWorkspace, asked: TargetRequest, caller: Caller) -> None:
    """Refuse a request that this client may not send to a target."""
    if asked.op in OF_A_JOB:
        if caller.token.role < Role.SUBMITTER:
            role = caller.token.role.name.lower()
            raise Refusal(403, f"{caller.user} has the role {role}; this needs the role submitter")
        job = await in_thread(workspace.store.job, asked.job)
        if job.user != caller.user and caller.token.role < Role.ADMIN:
            raise Refusal(403, f"job {job.id} is {job.user}'s")
    elif asked.op not in READ:
        raise Refusal(403, f"a client may not request from a target: {asked.op!r:.40}")
    elif asked.op == "explain" and not asked.key.startswith(f"{workspace.path}::"):
        raise Refusal(403, "a client may ask only why jobs of its own workspace wait")


def _asking(workspace: OpenWorkspace) -> Callable[[Request, Caller], Awaitable[ForwardedAnswer]]:
    """Return the handler that passes a client's request to a target."""

    async def ask(request: Request, caller: Caller) -> ForwardedAnswer:
        asked = await body_of(request, TargetRequest)
        name = str(request.path_params["target"])
        at = home()
        serving = await with_target(elsewhere.find_quietly, workspace.path, name, home=at)
        if serving is None:
            _name_of(request)
        await _check_allowed(workspace, asked, caller)
        step = None if asked.step is None else asked.step.op
        if asked.op in ("evict", "store") or step in (session_steps.EXEC, session_steps.PORT):
            request.state.is_change = True
            request.state.change = f"{step or asked.op} at {asked.job}"
        asked = replace(asked, workspace=str(workspace.path))
        if serving is not None:
            if asked.op in OF_A_JOB:
                raise ServedElsewhereError(
                    f"{serving.sentence}: only a server there can reach its jobs"
                )
            return ForwardedAnswer(is_late=serving.is_live, answer=None)
        try:
            path = wake_client.socket_of(name, home())
            answer = await wake_client.ask_async(path, asked, ANSWERS[asked.op], timeout_s=ANSWER_S)
        except TimeoutError:
            return ForwardedAnswer(is_late=True, answer=None)
        if answer is None:
            return ForwardedAnswer(is_late=False, answer=None)
        shown = own_view(answer, str(workspace.path)).to_json()
        if asked.op in READ:  # other answers may contain output of jobs, which stays as it is
            shown = hiding.texts_without_store(shown)
        return ForwardedAnswer(is_late=False, answer=shown)

    return ask

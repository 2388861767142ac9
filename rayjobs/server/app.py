"""The server's application: routes for the table of operations, and the other routes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rayjobs.core.errors import (
    RayjobsError,
    SpecError,
    StoreBusyError,
    StoreFullError,
    StoreUnreachableError,
    UsageError,
)
from rayjobs.core.store_address import without_address
from rayjobs.datastore.errors import DatastoreError, DatastoreUnavailable
from rayjobs.injob.uploads import clean_name
from rayjobs.jobs.records import ModelDraft
from rayjobs.jobs.writers import Writer
from rayjobs.models.uploaded import UPLOADED
from rayjobs.remote import operations
from rayjobs.remote.operations import OPERATIONS, MadeRecord, Operation
from rayjobs.server import (
    datastores,
    events,
    hiding,
    jobs,
    login,
    metrics,
    notifications,
    openapi,
    people,
    schedules,
    targets,
    timekeeping,
    uploads,
)
from rayjobs.server.access import Caller, Guard, Handler, Refusal, answer_of, error_answer
from rayjobs.server.audit import Audit
from rayjobs.server.bodies import MOST_BODY, MOST_QUESTION, bytes_of, object_in
from rayjobs.server.known_targets import KnownTargets
from rayjobs.server.lines import USER, Lines
from rayjobs.server.objects import object_of
from rayjobs.server.pages import page_of, size_of
from rayjobs.server.routes import HandlerRoute, Routes
from rayjobs.server.routing import in_order
from rayjobs.server.workers import in_thread, with_token
from rayjobs.spec.model import JobSpec
from rayjobs.store.base import Store
from rayjobs.store.requests import DRIVER, NewJob, NewPipeline, NewRun, NewSweep
from rayjobs.submit import submitting
from rayjobs.submit.project import LOCAL, TARGET_VARIABLE, stored_choice
from rayjobs.workspace import plain
from rayjobs.workspace.blobs import check_key
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.http_messages import CurrentUser, ErrorFacts, WorkspaceFacts
from rayjobs.workspace.users import Role

if TYPE_CHECKING:
    from rayjobs.server.oidc import Provider

PAGING = {"page_size", "cursor"}
AWAY = (StoreUnreachableError, StoreBusyError, DatastoreUnavailable)
# Pieces of an upload, which change nothing until the upload is kept; wake-ups; uses of a blob.
UNAUDITED = ("/v1/uploads/{name}", "/v1/uploads/{name}/parts", "/wake", "/v1/blob-uses/{key:path}")
UNREAD = (400, 408, 413, 429)  # requests without any effect
Submission = NewJob | NewSweep | NewPipeline | NewRun


def make_app(
    workspace: OpenWorkspace,
    provider: Provider | None = None,
    *,
    bucket: str = "",
    lines: Lines | None = None,
) -> Starlette:
    """Return the application that serves `workspace`.

    Args:
        provider: The provider of OpenID Connect logins; None: users only have tokens.
        bucket: See `uploads.presigned_of`.
        lines: The log of requests and changes, written immediately; None: no log.
    """
    lines = lines or Lines(None)
    guard = Guard(workspace.store)
    requests = metrics.Requests(lines)
    audit = Audit(workspace.store, lines)
    gate = _Gate(guard, requests, audit, lines)
    known = KnownTargets(workspace)
    by_hand = routes_by_hand(workspace, requests, bucket)
    routes = [
        gate.route(
            one.verb, one.path, one.role, one.respond, may_repeat=_may_repeat(one.verb, one.path)
        )
        for one in by_hand
    ]
    routes += [
        gate.route(
            one.verb,
            one.path,
            one.role,
            _operation(workspace, one, known),
            may_repeat=one.repeats,
        )
        for one in OPERATIONS
    ]
    document = openapi.document(by_hand)

    async def healthy(_request: Request) -> Response:
        return JSONResponse({"ok": True})

    async def described(_request: Request) -> Response:
        return JSONResponse(document)

    routes += [
        Route("/v1/health", healthy, methods=["GET"]),
        Route("/healthz", healthy, methods=["GET"]),
        Route("/v1/openapi.json", described, methods=["GET"]),
    ]
    if provider is not None:
        routes += [
            Route(path, requests.timed(verb, path, endpoint), methods=[verb])
            for verb, path, endpoint in login.routes(workspace.store, provider, audit, lines)
        ]

    @contextlib.asynccontextmanager
    async def life(_app: Starlette) -> AsyncIterator[None]:
        keeping = asyncio.create_task(timekeeping.keep(workspace))
        yield
        keeping.cancel()
        await in_thread(audit.close)

    async def no_route(request: Request, error: Exception) -> Response:
        answer = _http_error(error)
        lines.request(request, answer.status_code, 0.0)
        return answer

    return Starlette(
        routes=in_order(routes), lifespan=life, exception_handlers={HTTPException: no_route}
    )


def routes_by_hand(workspace: OpenWorkspace, requests: metrics.Requests, bucket: str) -> Routes:
    """Return the routes with handlers of their own; see `make_app`."""
    return [
        HandlerRoute("GET", "/v1/workspace", Role.VIEWER, _about(workspace), WorkspaceFacts),
        HandlerRoute("GET", "/v1/user", Role.VIEWER, _whoami, CurrentUser),
        metrics.route(workspace, requests),
        *jobs.routes(workspace),
        *events.routes(workspace),
        *targets.routes(workspace),
        *notifications.routes(workspace),
        *people.routes(workspace),
        *uploads.routes(workspace, uploads.presigned_of(workspace, bucket)),
        *datastores.routes(workspace),
    ]


@dataclass(frozen=True)
class _Gate:
    """What every request passes before and after its handler: access, timing, audit and log."""

    guard: Guard
    requests: metrics.Requests
    audit: Audit
    lines: Lines

    def route(
        self, verb: str, path: str, role: Role, handler: Handler, *, may_repeat: bool
    ) -> Route:
        """Return the route of `handler`, for users who have `role`."""

        def note(request: Request, caller: Caller, status: int) -> None:
            """Record a change, even a refused one: a failed request may have had an effect."""
            is_change = verb != "GET" and role > Role.VIEWER and not path.endswith(UNAUDITED)
            if status not in UNREAD and getattr(request.state, "is_change", is_change):
                self.audit.add(
                    user=caller.user,
                    token_id=caller.token.id,
                    what=getattr(request.state, "change", f"{verb} {request.scope['path']}"),
                    status=status,
                    client="" if request.client is None else request.client.host,
                    named=getattr(request.state, "object", ""),
                )

        async def answered(request: Request, caller: Caller) -> Response:
            try:
                for text in (*request.path_params.values(), *request.query_params.values()):
                    plain.decoder(str)(text)  # stores only keep text
                return await handler(request, caller)
            except Refusal as refusal:
                return error_answer(refusal.status, "UsageError", str(refusal), refusal.headers)
            except plain.PlainFormError as error:
                return error_answer(400, "UsageError", f"the request cannot be read: {error}")
            except (RayjobsError, DatastoreError) as error:
                return _refused(error, self.lines, may_repeat=may_repeat)

        async def endpoint(request: Request) -> Response:
            try:
                header = request.headers.get("authorization", "")
                caller = self.guard.known(header, role)
                if caller is None:
                    client = "" if request.client is None else request.client.host
                    caller = await with_token(self.guard.admit, header, role, client)
                request.scope[USER] = caller.user
                request.state.check = partial(self.guard.check, header, role)
            except Refusal as refusal:
                if refusal.caller is not None:
                    request.scope[USER] = refusal.caller.user
                    if refusal.status == 403:  # 401: an expired or revoked token changes nothing
                        note(request, refusal.caller, refusal.status)
                return error_answer(refusal.status, "UsageError", str(refusal), refusal.headers)
            except RayjobsError as error:
                return _refused(error, self.lines, may_repeat=True)  # the handler did not run
            status = 500
            try:
                answer = await answered(request, caller)
                status = answer.status_code
                return answer
            finally:
                note(request, caller, status)

        return Route(path, self.requests.timed(verb, path, endpoint), methods=[verb])


def _may_repeat(verb: str, path: str) -> bool:
    """Whether repeating a request is harmless, for a route outside the operations' table."""
    return verb != "POST" or path.startswith(("/v1/blob", "/v1/uploads/", "/v1/targets/"))


def _http_error(error: Exception) -> Response:
    known = cast(HTTPException, error)
    return error_answer(
        known.status_code,
        "NotFoundError",
        f"this server has no such route ({known.detail}); GET /v1/openapi.json lists its routes",
    )


def _status_of(error: Exception) -> int:
    if isinstance(error, AWAY):
        return 503
    if isinstance(error, StoreFullError):
        return 507
    if isinstance(error, RayjobsError):
        return {2: 422, 3: 404, 4: 422, 5: 500}.get(error.exit_code, 409)
    return 404 if isinstance(error, LookupError) else 409


def _refused(error: Exception, lines: Lines, *, may_repeat: bool) -> Response:
    status = _status_of(error)
    # A request must not be repeated if it may have had an effect that a repetition would double:
    # after an error, clients repeat a request only if the answer has this header.
    headers = {"Retry-After": "1"} if status == 503 and may_repeat else None
    whole = error.headline if isinstance(error, SpecError) else str(error)
    message = without_address(whole)
    if message != whole and status >= 500:
        lines.add(f"{status} {' '.join(whole.split())}")
        message += "; the server's log says more"
    matches = error.values.get("matches") if isinstance(error, RayjobsError) else None
    facts = ErrorFacts(
        kind=type(error).__name__,
        message=message,
        problems=list(error.problems) if isinstance(error, SpecError) else None,
        matches=None if matches is None else list(matches),
    )
    return answer_of(status, facts, headers)


def _about(workspace: OpenWorkspace) -> Callable[[Request, Caller], Awaitable[WorkspaceFacts]]:
    async def about(_request: Request, _caller: Caller) -> WorkspaceFacts:
        target = os.environ.get(TARGET_VARIABLE) or await in_thread(stored_choice) or LOCAL
        return WorkspaceFacts(
            id=workspace.id,
            name=workspace.name,
            path=str(workspace.path),
            default_target=target,
        )

    return about


async def _whoami(_request: Request, caller: Caller) -> CurrentUser:
    token = caller.token
    return CurrentUser(
        user=token.user,
        role=token.role.name.lower(),
        token=token.id,
        expires_at=token.expires_at.isoformat(),
    )


def _operation(workspace: OpenWorkspace, one: Operation, known: KnownTargets) -> Handler:
    """Return the handler of one row of the table."""
    part: Any = workspace.catalogue if one.method.startswith("catalogue.") else workspace.store
    method = getattr(part, one.name)
    if one.method == "put_schedule":
        method = partial(schedules.put, workspace)
    signature = operations.signature_of(one.method)
    kind = operations.answer_of(one)
    encode = plain.encoder(kind)

    most = MOST_BODY if one.role > Role.VIEWER else MOST_QUESTION
    read = _reader(one)

    async def handle(request: Request, caller: Caller) -> Response:
        sent: bytes | dict[str, Any] = dict(request.query_params)
        if one.in_body:
            sent = await bytes_of(request, most, "a request")

        def call() -> bytes:  # all in one thread: each switch of threads costs a tenth of a ms
            given, paging = read(sent, request.path_params, caller)
            if one.user == "new":
                given["new"] = _checked(workspace, given.get("new"), caller, known)
            elif one.user == "draft":
                given["draft"] = _checked_draft(given.get("draft"), caller)
            elif one.user:
                given[one.user] = caller.user
            if one.method == "put_schedule":
                given["record"] = schedules.checked(workspace, given.get("record"), caller)
            try:
                bound = signature.bind(**given)
            except TypeError as error:
                raise Refusal(400, str(error)) from None
            _check_owner(workspace, one, given, caller)
            if one.spec:
                _check_spec(workspace, given[one.spec], known)
            size, cursor = _paging(one, paging)
            if one.role > Role.VIEWER:
                request.state.object = object_of(one, given, None)
            if not one.is_paged:
                made = method(*bound.args, **bound.kwargs)
                if one.role > Role.VIEWER:
                    request.state.object = object_of(one, given, made)
                answer = encode(made)
            else:
                page = page_of(one, partial(method, **given), given, size, cursor)
                answer = encode(kind(*page))
            return hiding.text_for(answer, caller).encode()

        started_s = time.perf_counter()
        answer = await in_thread(call)
        spent = f"store;dur={1000 * (time.perf_counter() - started_s):.1f}"
        return Response(answer, media_type="application/json", headers={"Server-Timing": spent})

    return handle


def _reader(
    one: Operation,
) -> Callable[
    [bytes | dict[str, Any], Mapping[str, Any], Caller], tuple[dict[str, Any], dict[str, Any]]
]:
    """Return the function that reads a request's arguments and the requested page."""
    hints = operations.hints_of(one.method)
    known = {parameter.name for parameter in operations.others(one)}

    def read(
        sent: bytes | dict[str, Any], in_path: Mapping[str, Any], caller: Caller
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        values = object_in(sent) if isinstance(sent, bytes) else sent
        paging = {name: values.pop(name) for name in PAGING & values.keys() if one.is_paged}
        if one.in_body:
            _set_user(one, values, caller)
        if unknown := values.keys() - known:
            raise Refusal(400, f"there is no argument {', '.join(sorted(unknown))}")
        given: dict[str, Any] = {}
        for name, value in (values | dict(in_path)).items():
            is_text = not one.in_body or name in in_path
            try:
                given[name] = (
                    plain.from_query(hints[name], value)
                    if is_text
                    else plain.decoder(hints[name], strict=True)(value)
                )
            except plain.PlainFormError as error:
                raise Refusal(400, f"{name}: {error}") from None
        return given, paging

    return read


def _check_owner(
    workspace: OpenWorkspace, one: Operation, given: dict[str, Any], caller: Caller
) -> None:
    """Refuse a change of another user's record, unless the caller is an admin."""
    if one.own:
        for job_id in _jobs_named(given, one.own):
            _own(workspace, job_id, caller, one.kind)
    if one.maker and caller.token.role < Role.ADMIN:
        maker = _maker_of(workspace.store, one.maker, given, one.in_path)
        if maker not in ("", caller.user):
            raise Refusal(403, f"{maker} made it: only an admin may change what others own")


def _maker_of(
    store: Store, kind: MadeRecord, given: Mapping[str, Any], in_path: Sequence[str]
) -> str:
    """Return who made the record that a path names; empty: nobody is known."""
    name: str = given[in_path[0]]
    match kind:
        case "published_pipeline":
            return store.published_pipeline(name).created_by
        case "schedule":
            return store.schedule(name).created_by
        case "model":
            return store.model(name, version=given["version"]).created_by
        case _:
            assert_never(kind)


def _jobs_named(given: dict[str, Any], own: str) -> list[str]:
    """Return the jobs that an argument names: by itself, in its field, or in a list."""
    argument, _, part = own.partition(".")
    named = given.get(argument)
    if part and named is not None:
        named = getattr(named, part)
    if named is None:
        return []
    return [named] if isinstance(named, str) else [*named]


def _check_spec(workspace: OpenWorkspace, spec: JobSpec, known: KnownTargets) -> None:
    """Refuse a spec that is invalid here."""
    submitting.check(
        workspace,
        spec.model_copy(update={"source_directory": None}),
        known=known.of(spec.target),
    )


def _set_user(one: Operation, sent: dict[str, Any], caller: Caller) -> None:
    """Set the submitter: a client need not send it, and cannot choose it."""
    if one.user in operations.RECORDS and isinstance(sent.get(one.user), dict):
        sent[one.user]["user"] = caller.user


def _paging(one: Operation, given: dict[str, Any]) -> tuple[int, str]:
    size = size_of(str(given.get("page_size", one.page)), one.page)
    cursor = given.get("cursor", "")
    if not isinstance(cursor, str) or ("cursor" in given and not cursor):
        raise Refusal(400, f"{cursor!r:.60} is not a cursor")
    return size, cursor


def _checked_draft(draft: object, caller: Caller) -> ModelDraft:
    """Return the model to register, with the caller as its owner."""
    if not isinstance(draft, ModelDraft):
        raise Refusal(400, "`draft` is not a model")
    for file in draft.files:
        try:
            if clean_name(file.name) != file.name:
                raise UsageError(f"{file.name!r} is not the name of a model's file")
        except ValueError as error:
            raise UsageError(str(error)) from None
        check_key(file.blob)
    lineage = dict(draft.lineage)
    if isinstance(by_hand := lineage.get(UPLOADED), Mapping):
        # Not the user's name on the client's machine.
        lineage[UPLOADED] = {**by_hand, "by": caller.user}
    return replace(draft, user=caller.user, lineage=lineage)


def _check_writer(new: NewRun) -> None:
    """Refuse a run whose writer a store cannot read."""
    fields = {name: value for name, value in new.writer.items() if name != "kind"}
    try:
        writer: Writer = plain.decoder(Writer, strict=True)(fields)
    except plain.PlainFormError as error:
        raise Refusal(400, f"writer: {error}") from None
    if writer.to_json() != new.writer:
        raise Refusal(400, "writer: give its kind and all of its fields")


def _own(workspace: OpenWorkspace, job_id: str, caller: Caller, kind: str) -> None:
    """Refuse a change of another user's job by a non-admin, or of another kind of job."""
    job = workspace.store.job(job_id)
    if kind and job.kind != kind:
        raise Refusal(403, f"{job.id} is a {job.kind}; this changes runs of kind {kind} only")
    if caller.token.role < Role.ADMIN and job.user != caller.user:
        raise Refusal(
            403, f"job {job.id} is {job.user}'s: only an admin may change what others own"
        )


def _check_job(workspace: OpenWorkspace, new: NewJob, caller: Caller, known: KnownTargets) -> None:
    if new.kind != "job" or new.claim is not None or new.id is not None:
        raise Refusal(403, "only the server sets kind, id and claim of a job")
    if new.parent is not None:
        parent = workspace.store.job(new.parent)
        if parent.user != caller.user:
            raise Refusal(403, f"the parent {parent.id} is {parent.user}'s")
    _check_spec(workspace, new.spec, known)
    if new.snapshot is not None:
        submitting.check_snapshot(workspace, new.snapshot)


def _checked(
    workspace: OpenWorkspace, new: object, caller: Caller, known: KnownTargets
) -> Submission:
    """Return the submission with the caller as its owner, after checking its spec."""
    if not isinstance(new, Submission):
        raise Refusal(400, "`new` is not a job, a sweep, a pipeline or a run")
    match new:
        case NewRun():
            if new.parent is not None:
                _own(workspace, new.parent, caller, "")
            _check_writer(new)
            return replace(new, user=caller.user)
        case NewJob():
            _check_job(workspace, new, caller, known)
        case NewSweep():
            _check_driver(new.driver)
        case NewPipeline():
            for step in new.steps:
                if step.driver is not None:
                    _check_driver(step.driver)
        case _:
            assert_never(new)
    key = new.idempotency_key
    if key is not None:
        # Each user has separate keys: guessing a key never gives another user's job.
        key = f"{caller.user}:{key}"
    return replace(new, user=caller.user, idempotency_key=key)


def _check_driver(driver: str) -> None:
    """Refuse any other driver: the target's actor imports it by its name."""
    if driver != DRIVER:
        raise UsageError(f"{driver!r} is not a driver of sweeps")

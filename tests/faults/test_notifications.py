"""Notifications of ends: receivers that are unreachable, hang or refuse, and target crashes."""

from __future__ import annotations

import asyncio
import http.server
import json
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.clock import SystemClock
from rayjobs.core.errors import SpecError, StoreError, UsageError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.engine import notice_senders
from rayjobs.engine import notifications as engine
from rayjobs.engine.board import Served
from rayjobs.engine.notifications import Notifications
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobChanges, NewJob
from rayjobs.workspace import notifications
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.unit.results.played import begin, end


class Clock(SystemClock):
    """The machine's clock, advanced by tests."""

    moved_s = 0.0

    def now(self) -> Any:
        return super().now() + timedelta(seconds=self.moved_s)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.moved_s


class Receiver:
    """A web server that records its requests; `status` is its response."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, dict[str, Any]]] = []
        self.status = 200
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.status == 200:
                    key = self.headers["X-Rayjobs-Delivery"]
                    receiver.got.append((self.path, key, json.loads(body)))
                self.send_response(receiver.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


class Place:
    """A workspace whose jobs end, and the target that notifies."""

    def __init__(self, folder: Path) -> None:
        self.workspace: OpenWorkspace = open_workspace(folder / "workspace", create=True)
        self.store = self.workspace.store
        self.clock = Clock()
        self.secrets: dict[str, str] = {}
        self._served = Served("/w", "w", self.store)
        self._folder = folder
        self._serial = 0

    def ended(self, *notify: str, failed: bool = False, user: str = "ada") -> Job:
        self._serial += 1
        spec = JobSpec(command="true", name="train", notify=notify)
        new = NewJob(spec=spec, experiment="e", snapshot=None, user=user)
        job, _ = self.store.submit(new)
        root = self._folder / f"a{self._serial}"
        begin(self.workspace, job, root)
        state = JobState.FAILED if failed else JobState.COMPLETED
        failure = Failure(FailureClass.USER, "it failed") if failed else None
        end(self.workspace, job, root, state=state, failure=failure)
        return job

    def notify(self, is_enough: Callable[[], bool], turns: int = 5000) -> None:
        """Let one run of the target notify until a condition holds."""

        async def target_run() -> None:
            found = Notifications("local", lambda: [self._served], self.clock, lambda: self.secrets)
            for _ in range(turns):
                await found.turn()
                await asyncio.sleep(0.01)
                if is_enough():
                    break
            else:
                pytest.fail("the condition never held")
            found._threads.shutdown(wait=True)

        asyncio.run(target_run())

    def events(self, job: Job) -> list[tuple[str, str]]:
        return [(one.kind, one.message) for one in self.store.events(job.id)]

    @property
    def due(self) -> list[notifications.Due]:
        return notifications.all_due(self.store, "local")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.workspace.close()


def test_each_end_notifies_its_subscribers_once(place: Place, receiver: Receiver) -> None:
    good = place.ended(f"{receiver.address}/all", f"failed={receiver.address}/failed")
    bad = place.ended(f"failed={receiver.address}/failed", failed=True)
    place.ended()
    place.notify(lambda: len(receiver.got) == 2 and not place.due)
    place.notify(lambda: True)
    assert sorted((path, body["id"], body["state"]) for path, _, body in receiver.got) == [
        ("/all", good.id, "Completed"),
        ("/failed", bad.id, "Failed"),
    ]
    assert (engine.SENT, "notified http://127.0.0.1/…") in place.events(good)


def test_unreachable_receiver_is_notified_by_the_restarted_target(
    place: Place, receiver: Receiver
) -> None:
    receiver.status = 503
    job = place.ended(receiver.address)
    place.notify(lambda: bool(place.due) and place.due[0].tries > 0)
    assert any(kind == engine.NOT_SENT and "503" in text for kind, text in place.events(job))
    receiver.status = 200
    place.notify(lambda: not place.due)
    ((_, key, body),) = receiver.got
    assert body["id"] == job.id and key


def test_restarted_target_sends_pending_notifications(place: Place, receiver: Receiver) -> None:
    job = place.ended(receiver.address)
    assert [due.job for due in engine._look(place.store, "local")] == [job.id]  # and crashes here
    place.notify(lambda: bool(receiver.got) and not place.due)
    assert [body["id"] for _, _, body in receiver.got] == [job.id]


def test_target_death_between_writing_and_reading_loses_nothing(
    place: Place, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = place.ended(receiver.address)

    def die(*_: object) -> None:
        raise StoreError("the target died here")

    with monkeypatch.context() as patch:
        patch.setattr(notifications, "set_seen", die)
        place.notify(lambda: bool(place.due))
    place.notify(lambda: bool(receiver.got) and not place.due)
    assert {body["id"] for _, _, body in receiver.got} == {job.id}
    assert len({key for _, key, _ in receiver.got}) == 1  # a receiver can drop repeats


@pytest.mark.parametrize("status", [200, 503])
def test_target_death_after_a_try_repeats_its_event_and_loses_none(
    place: Place, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    receiver.status = status
    job = place.ended(receiver.address)
    kind = engine.SENT if status == 200 else engine.NOT_SENT

    def die(*_: object) -> None:
        raise StoreError("the target died here")

    with monkeypatch.context() as patch:
        patch.setattr(notifications, "drop_due", die)
        place.notify(lambda: any(one == kind for one, _ in place.events(job)))
    receiver.status = 200
    place.notify(lambda: not place.due)
    assert kind in [one for one, _ in place.events(job)]
    assert len({key for _, key, _ in receiver.got}) == 1


def test_hanging_receiver_delays_no_other(place: Place, receiver: Receiver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        hung = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        for _ in range(12):
            place.ended(hung)
        job = place.ended(receiver.address)

        async def target_run() -> None:
            served = Served("/w", "w", place.store)
            found = Notifications("local", lambda: [served], place.clock, dict)
            turns_left = 20  # after both were contacted: time for a second connection
            for _ in range(5000):
                await found.turn()
                await asyncio.sleep(0.01)
                if receiver.got and select.select([silent], [], [], 0)[0]:
                    turns_left -= 1
                    if not turns_left:
                        break
            found._threads.shutdown(wait=False, cancel_futures=True)

        asyncio.run(target_run())
        silent.setblocking(False)
        held = []
        while True:
            try:
                held.append(silent.accept()[0])
            except BlockingIOError:
                break
        for one in held:
            one.close()
    assert len(held) == 1  # of twelve that are due
    assert [body["id"] for _, _, body in receiver.got] == [job.id]


@pytest.mark.parametrize("status", [301, 307, 404, 500])
def test_rejected_notification_is_retried_and_dropped_after_days(
    place: Place, receiver: Receiver, status: int
) -> None:
    receiver.status = status
    job = place.ended(receiver.address)
    place.notify(lambda: bool(place.due) and place.due[0].tries > 0)
    place.clock.moved_s = 4 * 86400.0
    place.notify(lambda: not place.due)
    kind, text = place.events(job)[-1]
    assert kind == engine.NOT_SENT and "in 3 days" in text and str(status) in text
    assert receiver.got == []


def test_receiver_that_does_not_speak_http_is_dropped(place: Place) -> None:
    class Other(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")
            self.rfile.readline()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        job = place.ended(f"http://127.0.0.1:{server.server_address[1]}/")
        place.notify(lambda: bool(place.due) and place.due[0].tries > 0)
        assert "its answer is not valid HTTP" in place.events(job)[-1][1]
        place.clock.moved_s = 4 * 86400.0
        place.notify(lambda: not place.due)
        server.shutdown()
    assert place.events(job)[-1][0] == engine.NOT_SENT


def test_unexpected_failure_blocks_no_other_notification(
    place: Place, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = place.ended(receiver.address), place.ended(receiver.address)

    def fails(to: Any, facts: Any, **more: Any) -> None:
        if facts["id"] == bad.id:
            raise LookupError("hunter2")
        notice_senders.send(to, facts, **more)

    monkeypatch.setattr(engine, "send", fails)

    def is_enough() -> bool:
        place.clock.moved_s += 60.0
        return len(place.due) == 1 and place.due[0].tries > 0

    place.notify(is_enough)
    assert [body["id"] for _, _, body in receiver.got] == [good.id]
    (left,) = place.due
    assert left.job == bad.id and left.tries > 0
    kind, text = place.events(bad)[-1]
    assert kind == engine.NOT_SENT and "LookupError" in text and "hunter2" not in text


@pytest.mark.parametrize("secret", ["hunter\n2", "hunter 2"])
def test_secret_invalid_in_an_address_is_never_shown(
    place: Place, receiver: Receiver, secret: str
) -> None:
    job = place.ended(f"{receiver.address}/$RAYJOBS_SECRET_HOOK")
    place.secrets["RAYJOBS_SECRET_HOOK"] = secret
    place.notify(lambda: bool(place.due) and place.due[0].tries > 0)
    assert "is not a web address" in place.events(job)[-1][1]
    assert "hunter" not in str(place.events(job))


def test_notifications_for_a_removed_receiver_are_dropped(place: Place, receiver: Receiver) -> None:
    receiver.status = 500
    of_ada = notifications.subscribe(place.store, receiver.address, user="ada", by="ada")
    by_itself, of_user, of_eve = (
        place.ended(receiver.address),
        place.ended(),
        place.ended(user="eve"),
    )
    found: set[str] = set()

    async def target_run() -> None:
        served = Served("/w", "w", place.store)
        one = Notifications("local", lambda: [served], place.clock, dict)
        for _ in range(5000):
            await one.turn()
            await asyncio.sleep(0.01)
            # What the target still has in memory is sent or dropped as well.
            if found and not place.due and not one._workspaces["/w"]._due:
                break
            place.clock.moved_s += 60.0
            tries = [due.tries for due in place.due]
            if not found and len(tries) == 2 and all(tries) and not one._workspaces["/w"]._sending:
                notifications.unsubscribe(place.store, of_ada.id)
                found.update(due.job for due in place.due)
                receiver.status = 200
        one._threads.shutdown(wait=True)

    asyncio.run(target_run())
    assert found == {by_itself.id}, "the job itself names the receiver"
    assert {body["id"] for _, _, body in receiver.got} == {by_itself.id}
    assert place.due == [] and engine.SENT not in {kind for kind, _ in place.events(of_user)}
    assert engine.NOT_SENT not in {kind for kind, _ in place.events(of_eve)}


def test_secret_in_an_address_is_substituted_and_never_shown(
    place: Place, receiver: Receiver
) -> None:
    job = place.ended(f"{receiver.address}/$RAYJOBS_SECRET_HOOK/x")
    place.notify(lambda: any(kind == engine.NOT_SENT for kind, _ in place.events(job)))
    assert "target secret set RAYJOBS_SECRET_HOOK" in place.events(job)[-1][1]
    place.secrets["RAYJOBS_SECRET_HOOK"] = "hunter2"
    place.notify(lambda: not place.due)
    assert [path for path, _, _ in receiver.got] == ["/hunter2/x"]
    assert "hunter2" not in str(place.events(job)) + str(place.store.meta_under(""))


def test_users_and_workspaces_have_receivers(place: Place, receiver: Receiver) -> None:
    earlier = place.ended()
    notifications.subscribe(place.store, f"{receiver.address}/ada", user="ada", by="ada")
    notifications.subscribe(place.store, f"{receiver.address}/all", user=None, by="root")
    ada, eve = place.ended(user="ada"), place.ended(user="eve")
    place.notify(lambda: len(receiver.got) == 3 and not place.due)
    assert sorted((path, body["id"]) for path, _, body in receiver.got) == sorted(
        [("/ada", ada.id), ("/all", ada.id), ("/all", eve.id)]
    )
    assert earlier.id not in {body["id"] for _, _, body in receiver.got}


class Mailbox(socketserver.StreamRequestHandler):
    """As much of a mail server as smtplib needs."""

    mails: list[str]

    def handle(self) -> None:
        self._say("220 ready")
        while line := self.rfile.readline().decode().strip():
            word = line.split(" ")[0].upper()
            if word == "DATA":
                self._say("354 go on")
                text = ""
                while (part := self.rfile.readline().decode()) != ".\r\n":
                    text += part
                self.mails.append(text)
            self._say("221 bye" if word == "QUIT" else "250 ok")
            if word == "QUIT":
                return

    def _say(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


def test_mail_is_sent_when_a_server_is_available(place: Place) -> None:
    job = place.ended("ada@example.org", failed=True)
    place.notify(lambda: any(kind == engine.NOT_SENT for kind, _ in place.events(job)))
    assert "no mail server" in place.events(job)[-1][1]
    Mailbox.mails = []
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"smtp://127.0.0.1:{server.server_address[1]}"
        made = notifications.mailer_of(address, "robot@example.org")
        notifications.set_mailer(place.store, made)
        place.notify(lambda: not place.due)
        server.shutdown()
    (mail,) = Mailbox.mails
    assert f"Subject: train failed ({job.id})" in mail.replace("\r\n ", " ")
    assert "To: ada@example.org" in mail and "Message-ID: <rayjobs-" in mail


def test_a_name_with_a_line_feed_is_mailed_in_one_line(place: Place) -> None:
    job = place.ended("ada@example.org")
    place.store.update(job.id, JobChanges(display_name="a\nb"))
    Mailbox.mails = []
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"smtp://127.0.0.1:{server.server_address[1]}"
        made = notifications.mailer_of(address, "robot@example.org")
        notifications.set_mailer(place.store, made)
        place.notify(lambda: not place.due)
        server.shutdown()
    (mail,) = Mailbox.mails
    assert f"Subject: a b completed ({job.id})" in mail.replace("\r\n ", " ")


def test_mail_server_with_an_invalid_port_is_dropped(place: Place) -> None:
    with pytest.raises(UsageError, match="is not smtp"):
        notifications.mailer_of("smtp://127.0.0.1:99999", "robot@example.org")
    earlier = notifications.Mailer(server="smtp://127.0.0.1:99999", sender="robot@example.org")
    notifications.set_mailer(place.store, earlier)
    job = place.ended("ada@example.org")
    place.notify(lambda: bool(place.due) and place.due[0].tries > 0)
    assert "the mail server's address" in place.events(job)[-1][1]


@pytest.mark.parametrize(
    "text", ["here", "ftp://host/x", "https://ada:pw@host/", "x@y z", "failed=", "http:///x"]
)
def test_invalid_receiver_is_refused_at_submit(text: str) -> None:
    with pytest.raises(SpecError, match=r"web address|stored with the job"):
        JobSpec(command="true", notify=(text,))

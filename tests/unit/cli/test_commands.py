"""Commands on a workspace with jobs in it, while no target runs."""

from __future__ import annotations

import getpass
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

import rayjobs
import rayjobs.cli.ls as ls_module
from rayjobs.cli.settings import Settings
from rayjobs.cli.summary import summary_lines
from rayjobs.core.failures import FailureClass
from rayjobs.data.events import InputChanged
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.records import Job, MetricPoint
from rayjobs.jobs.states import JobState
from tests.unit.cli.conftest import LOG, Queue, Terminal
from tests.unit.cli.fake_target import target


def tail(job: Job) -> str:
    return job.id.rpartition("_")[2]


# -- ls ----------------------------------------------------------------------------------------


def test_ls_without_a_workspace_is_an_empty_list(terminal: Terminal) -> None:
    done = terminal.type("ls", "--json")
    assert (done.code, json.loads(done.out)) == (0, [])
    assert "there is no workspace" in done.err


@pytest.mark.long
def test_ls_shows_waiting_and_recently_ended_jobs(queue: Queue, terminal: Terminal) -> None:
    old = queue.completed("old")
    ended = [queue.completed() for _ in range(10)]
    waiting = queue.submit("next")
    lines = terminal.type("ls").out.splitlines()
    # EXPERIMENT is omitted if it equals NAME for every job.
    assert lines[0].split() == ["ID", "NAME", "STATE", "SUBMITTED", "WAITED", "RAN", "REASON"]
    assert lines[1].split()[:3] == [tail(waiting), "next", "Queued"]
    assert [line.split()[0] for line in lines[2:]] == [tail(job) for job in reversed(ended)]
    assert tail(old) not in "\n".join(lines)
    assert tail(old) in terminal.type("ls", "-a").out


def seconds(since: str, until: str) -> float:
    return (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds()


@pytest.mark.parametrize("end", ["waits again", "canceled while it waits again", "completed"])
def test_ran_is_the_time_of_all_attempts_and_waited_is_the_rest(
    end: str, queue: Queue, terminal: Terminal
) -> None:
    store = queue.workspace.store
    job = queue.start(queue.submit())
    assert store.requeue(job.id, attempt=1, reason="lost", outcome=Outcome.CLUSTER_LOST)
    job = store.job(job.id)
    if end == "completed":
        queue.finish(queue.start(job))
    elif end != "waits again":
        store.request_cancel(job.id)
    shown = json.loads(terminal.type("show", "--json", job.id).out)
    (listed,) = json.loads(terminal.type("ls", "--json").out)
    attempts_s = [seconds(one["started_at"], one["ended_at"]) for one in shown["attempts"]]
    assert len(attempts_s) == (2 if end == "completed" else 1)
    assert all(attempts_s)
    for one in (shown, listed):
        assert one["ran_s"] == pytest.approx(sum(attempts_s), abs=0.002)
        if end != "waits again":
            whole_s = seconds(one["submitted_at"], one["ended_at"])
            assert one["ran_s"] + one["waited_s"] == pytest.approx(whole_s, abs=0.002)
    assert "Ran " in terminal.type("show", job.id).out


def test_ls_has_a_common_alias(queue: Queue, terminal: Terminal) -> None:
    job = queue.completed()
    assert tail(job) in terminal.type("ps").out


def test_queue_lists_running_and_waiting_jobs_in_queue_order(
    queue: Queue, terminal: Terminal
) -> None:
    queue.completed("old")
    assert terminal.type("queue").err.startswith("No job is running or waiting")
    jobs = [queue.submit(f"j{n}", priority=n) for n in range(4)]
    running = queue.start(queue.submit("running"))
    places = {jobs[0].id: 3, jobs[1].id: 1, jobs[2].id: 2}
    where = queue.workspace.path
    answer = {
        "ok": True,
        "waiting": {
            f"{where}::{job}": {"reason": "waits for 1 CPU", "position": place}
            for job, place in places.items()
        },
    }
    with target(answer):
        listed = json.loads(terminal.type("queue", "--json").out)
        assert [one["name"] for one in listed] == ["running", "j1", "j2", "j0", "j3"]
        first = json.loads(terminal.type("queue", "--json", "-n", "2").out)
        assert [one["name"] for one in first] == ["running", "j1"]
        assert "PRIORITY" in terminal.type("queue").out.splitlines()[0]
    assert tail(running) in terminal.type("queue").out


def test_a_new_workspace_has_no_jobs_yet(queue: Queue, terminal: Terminal) -> None:
    done = terminal.type("ls")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith(f"No jobs yet in {queue.workspace.path}. Submit one: rayjobs submit")
    queue.completed()
    assert "No job in" in terminal.type("ls", "-s", "failed").err


def trained(queue: Queue, lr: str, accuracy: object, **spec: object) -> Job:
    """Write a running job with arguments and metrics."""
    job = queue.start(queue.submit("train", arguments=("--lr", lr, "--batch-size=32"), **spec))
    at = datetime.now(UTC)
    points = [
        MetricPoint(attempt=1, rank=0, sequence=n, name=name, value=value, step=n, at=at)
        for n, (name, value) in enumerate([("accuracy", 0.1), ("accuracy", accuracy), ("lr", 9)])
    ]
    queue.workspace.store.add_metrics(job.id, points)
    return job


@pytest.mark.long
def test_ls_shows_sorts_and_filters_by_metrics_arguments_and_tags(
    queue: Queue, terminal: Terminal
) -> None:
    low = trained(queue, "0.1", 0.5, tags={"owner": "ada"})
    high = queue.finish(trained(queue, "1e-2", 0.95))
    odd = trained(queue, "0.1", "NaN")
    bare = queue.submit("bare")
    shown = terminal.type(
        "ls", "--columns", "arg:lr,accuracy", "-c", "owner", "--sort", "-accuracy"
    )
    lines = shown.out.splitlines()
    assert lines[0].split()[-4:] == ["arg:lr", "accuracy", "owner", "REASON"]
    in_order = [tail(job) for job in (high, low, bare, odd)]
    assert [line.split()[0] for line in lines[1:]] == in_order
    assert "0.1 0.5 ada" in " ".join(lines[2].split())
    both = terminal.type("ls", "-c", "lr")
    assert "lr is read as metric:lr; there is also arg:lr." in both.err

    def names(*conditions: str) -> list[str]:
        words = [word for text in conditions for word in ("--filter", text)]
        done = terminal.type("ls", "--json", *words)
        assert done.code == 0, done.err
        return [one["id"] for one in json.loads(done.out)]

    assert names("accuracy>0.9") == [high.id]
    assert names("arg:lr=0.01") == [high.id]
    assert names("arg:lr = 0.1", "accuracy<=0.5") == [low.id]
    assert names("batch_size=32", "state=running") == [odd.id, low.id]
    assert names("state!=Running") == [bare.id, high.id]
    assert names("name~BAR") == [bare.id]
    assert names("name=tra*", "owner=ada") == [low.id]
    assert names("ran>1h") == names("ran~foo") == []
    assert names("kind=pipeline") == names("kind=interactive") == []
    [row] = json.loads(terminal.type("ls", "--json", "-c", "accuracy", "--filter", "owner=ada").out)
    assert row["columns"] == {"accuracy": 0.5}
    limited = json.loads(terminal.type("ls", "--json", "--sort", "accuracy", "-n", "1").out)
    assert [one["id"] for one in limited] == [low.id]


def test_cancel_works_for_a_user_without_a_name(
    queue: Queue, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose uid is not in its passwd."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", nameless)
    job = queue.submit()
    assert terminal.type("cancel", job.id).code == 0
    assert "uid " in (queue.workspace.store.job(job.id).reason or "")


def test_ls_refuses_invalid_columns_and_conditions(queue: Queue, terminal: Terminal) -> None:
    trained(queue, "0.1", 0.5)
    unknown = terminal.type("ls", "--columns", "acuracy")
    assert unknown.code == 2
    assert "no listed job has a metric, argument or tag named 'acuracy'" in unknown.err
    assert "Did you mean accuracy?" in unknown.err
    missing = terminal.type("ls", "--columns", "owner_of_all")
    assert missing.code == 0
    assert "no listed job has a metric, argument or tag named 'owner_of_all'" in missing.err
    assert "owner_of_all" in missing.out
    assert "is not a condition" in terminal.type("ls", "--filter", "accuracy").err
    assert terminal.type("ls", "--filter", "ran>soon").code == 2


def test_ls_drops_columns_on_a_narrow_terminal(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    queue.failed(name="a-name-of-a-good-length")
    monkeypatch.setattr(ls_module, "width", lambda: 80)
    narrow = terminal.type("ls").out.splitlines()
    assert max(map(len, narrow)) <= 80
    assert narrow[0].split() == ["ID", "NAME", "STATE", "RAN", "REASON"]
    assert "rank 0 exited with code 1" in narrow[1]


def test_ls_shows_why_jobs_wait_or_failed(queue: Queue, terminal: Terminal) -> None:
    queue.failed()
    queue.submit()
    shown = terminal.type("ls").out
    assert "target 'local' does not run" in shown
    assert "ValueError: no" in shown


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("-s", "failed"), ["bad"]),
        (("-e", "mnist"), ["mnist"]),
        (("--tag", "seed=3"), ["tagged"]),
        (("-n", "1"), ["tagged"]),
        (("-s", "canceled"), []),
    ],
)
def test_ls_filters(
    options: tuple[str, ...], names: list[str], queue: Queue, terminal: Terminal
) -> None:
    queue.completed("mnist")
    queue.failed(name="bad")
    queue.submit("tagged", tags={"seed": "3"})
    listed = json.loads(terminal.type("ls", "--json", *options).out)
    assert [one["name"] for one in listed] == names


def test_live_job_of_an_unresponsive_target_is_marked(queue: Queue, terminal: Terminal) -> None:
    job = queue.start(queue.submit())
    [listed] = json.loads(terminal.type("ls", "--json").out)
    assert (listed["state"], listed["shown_state"]) == ("Running", "NotResponding")
    assert "NotResponding" in terminal.type("show", job.id).out
    assert queue.workspace.store.job(job.id).state is JobState.RUNNING


def test_ls_does_not_watch_in_json(terminal: Terminal) -> None:
    assert terminal.type("ls", "-w", "--json").code == 2


# -- show --------------------------------------------------------------------------------------


def test_show_prints_all_details_of_a_job(queue: Queue, terminal: Terminal) -> None:
    job = queue.completed(arguments=("--lr", "0.1 0.2"), tags={"owner": "ada"})
    brief = terminal.type("show", tail(job)).out
    titles = [line.split()[0] for line in brief.splitlines() if line.strip()]
    assert titles[:4] == ["Job", "Name", "Script", "State"]
    assert "Metrics" in titles
    assert "Attempt" not in titles
    shown = terminal.type("show", "-v", tail(job)).out
    for part in (
        job.id,
        "Completed",
        "train.py --lr '0.1 0.2'",
        "owner=ada",
        "Attempt 1",
        "rj-local-1-1",
        "loss",
        "2 (",
    ):
        assert part in shown


def test_show_gives_the_root_cause_without_its_escapes(queue: Queue, terminal: Terminal) -> None:
    job = queue.failed()
    shown = terminal.type("show", job.id).out
    assert "Failure (user, rank 0)" in shown
    assert "    ValueError: no data" in shown
    assert "\x1b" not in shown


def test_show_as_json_contains_the_spec_and_attempts(queue: Queue, terminal: Terminal) -> None:
    job = queue.failed(FailureClass.OUT_OF_MEMORY)
    data = json.loads(terminal.type("show", "--json", job.id).out)
    assert data["spec"]["script"] == "train.py"
    assert data["failure"]["failure_class"] == "out_of_memory"
    assert [attempt["number"] for attempt in data["attempts"]] == [1]
    assert data["files"] == []


def test_a_job_is_found_by_parts_of_its_id_and_by_its_name(
    queue: Queue, terminal: Terminal
) -> None:
    job = queue.completed("lonely")
    for text in (job.id, job.id[:12], tail(job), tail(job)[:5], "lonely"):
        assert json.loads(terminal.type("show", "--json", text).out)["id"] == job.id


def test_an_unknown_or_ambiguous_job_is_reported(queue: Queue, terminal: Terminal) -> None:
    jobs = [queue.completed(), queue.completed()]
    assert terminal.type("show", "zzz").code == 3
    done = terminal.type("show", "mnist_")
    assert done.code == 2
    assert all(job.id in done.err for job in jobs)


# -- logs --------------------------------------------------------------------------------------


# -- a name that several jobs have -------------------------------------------------------------


def test_newest_of_several_jobs_of_a_name_is_read_with_a_notice(
    queue: Queue, terminal: Terminal
) -> None:
    older, newer = queue.completed("train"), queue.completed("train")
    for command in ("logs --list", "show", "metrics", "files", "events", "why", "wait"):
        done = terminal.type(*command.split(), "train")
        notice = f"train: the newest of 2 is {newer.id}, Completed, submitted"
        assert (done.code, notice in done.err, older.id in done.out) == (0, True, False), command
    assert terminal.type("files", "train").out == terminal.type("files", newer.id).out


def test_no_job_is_changed_if_several_have_the_name(queue: Queue, terminal: Terminal) -> None:
    older, newer = queue.submit("train"), queue.submit("train")
    for arguments in (("cancel", "train"), ("update", "train", "--priority", "3")):
        done = terminal.type(*arguments)
        assert (done.code, done.out) == (2, "")
        assert "'train' names 2 jobs; give the id of one, its last part, or a name that" in done.err
    for job in (older, newer):
        assert queue.workspace.store.job(job.id) == job


@pytest.mark.long
def test_default_names_are_numbered_and_their_common_part_selects_the_newest(
    queue: Queue, terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    script = str(tmp_path / "train.py")
    with target({"ok": True, "version": rayjobs.__version__}):
        for options in ([], [], ["--array", "0-1"], ["-n", "train-4"], []):
            done = terminal.type("submit", "-q", *options, script)
            assert done.code == 0, done.err
    listed = json.loads(terminal.type("ls", "--json", "--expand").out)
    names = sorted(job["name"] for job in listed)
    assert names == [
        "train-1",
        "train-2",
        "train-3",
        "train-3[0]",
        "train-3[1]",
        "train-4",
        "train-5",
    ]
    assert {job["experiment"] for job in listed} == {"train", "train-4"}
    assert terminal.type("cancel", "train-2").code == 0
    done = terminal.type("show", "train")
    assert "train-5" in done.out
    assert "train: the newest of 4 is train-5 (" in done.err


# -- wait, cancel, update, why, events ---------------------------------------------------------


def test_wait_exits_with_the_code_of_the_job(queue: Queue, terminal: Terminal) -> None:
    good, bad = queue.completed(), queue.failed()
    late = queue.failed(FailureClass.TIME_LIMIT)
    assert terminal.type("wait", good.id).code == 0
    assert terminal.type("wait", late.id).code == 124
    assert terminal.type("wait", good.id, late.id).code == 124
    assert terminal.type("wait", bad.id, late.id).code == 1
    waited = terminal.type("wait", bad.id)
    assert waited.code == 1
    assert "ValueError: no data" in waited.out
    silent = terminal.type("wait", "-q", bad.id)
    assert (silent.code, silent.out, silent.err) == (1, "", "")


@pytest.mark.long
def test_wait_gives_up_after_its_timeout(queue: Queue, terminal: Terminal) -> None:
    done = terminal.type("wait", "--timeout", "0.1s", queue.submit().id)
    assert done.code == 124
    assert "not ended after" in done.err


def test_cancel_ends_a_waiting_job_immediately(queue: Queue, terminal: Terminal) -> None:
    job = queue.submit()
    done = terminal.type("cancel", job.id)
    assert (done.code, done.out) == (0, f"{job.id}: Canceled\n")


def test_cancel_of_a_live_job_is_a_request(queue: Queue, terminal: Terminal) -> None:
    job = queue.start(queue.submit())
    for _ in range(2):
        done = terminal.type("cancel", "--json", job.id)
        assert done.code == 0
        assert json.loads(done.out) == [{"id": job.id, "state": "Running", "was": "Running"}]
    assert queue.workspace.store.job(job.id).cancel_requested_at is not None


def test_cancel_of_a_finished_job_changes_nothing(queue: Queue, terminal: Terminal) -> None:
    job = queue.completed()
    done = terminal.type("cancel", job.id)
    assert done.code == 0
    assert "has already ended (Completed)" in done.out
    assert queue.workspace.store.job(job.id) == job


def test_cancel_of_an_experiment_cancels_its_unfinished_jobs(
    queue: Queue, terminal: Terminal
) -> None:
    queue.completed("a")
    first, second, other = queue.submit("a"), queue.submit("a"), queue.submit("b")
    done = terminal.type("cancel", "-e", "a", "--json")
    assert {one["id"] for one in json.loads(done.out)} == {first.id, second.id}
    assert queue.workspace.store.job(other.id).state is JobState.QUEUED


@pytest.mark.parametrize("arguments", [(), ("x", "--all"), ("--all", "-e", "a")])
def test_cancel_requires_exactly_one_selection(
    arguments: tuple[str, ...], terminal: Terminal
) -> None:
    assert terminal.type("cancel", *arguments).code == 2


def test_update_changes_priority_and_tags(queue: Queue, terminal: Terminal) -> None:
    job = queue.submit(tags={"draft": "1"})
    done = terminal.type(
        *("update", job.id, "--priority", "9", "--tag", "k=v", "--untag", "draft"),
        *("--display-name", "The one"),
    )
    assert done.code == 0
    after = queue.workspace.store.job(job.id)
    assert (after.priority, dict(after.tags), after.display_name) == (9, {"k": "v"}, "The one")
    assert terminal.type("update", job.id).code == 2
    assert terminal.type("update", job.id, "--priority", "many").code == 2


def test_why_reports_what_a_job_waits_for(queue: Queue, terminal: Terminal) -> None:
    waiting, ended = queue.submit(), queue.failed()
    assert "is Queued: target 'local' does not run" in terminal.type("why", waiting.id).out
    assert "is not waiting: it is Failed" in terminal.type("why", ended.id).out


def test_events_show_the_full_error_with_v(queue: Queue, terminal: Terminal) -> None:
    job = queue.submit()
    queue.workspace.store.add_event(
        job.id, "agent_lost", "it is replaced: died.", attempt=1, data={"detail": "died. At x\ny"}
    )
    assert "At x" not in terminal.type("events", job.id).out
    assert "it is replaced: died. (died. At x y)" in terminal.type("events", "-v", job.id).out


def test_stacks_of_a_job_without_processes_report_the_reason(
    queue: Queue, terminal: Terminal
) -> None:
    ended, waits = queue.completed(), queue.submit()
    done = terminal.type("stacks", ended.id)
    assert done.code == 2
    assert f"job {ended.id} has ended (Completed), so it has no processes" in done.err
    assert "rayjobs why" not in done.err
    done = terminal.type("stacks", waits.id)
    assert (done.code, f"`rayjobs why {waits.id}`" in done.err) == (2, True)


def test_events_are_the_history(queue: Queue, terminal: Terminal) -> None:
    job = queue.completed()
    whole = terminal.type("events", job.id).out
    assert "Finalizing → Completed" in whole
    listed = json.loads(terminal.type("events", "--json", job.id).out)
    assert [one["job"] for one in listed] == [job.id] * len(listed)
    followed = terminal.type("events", "-f", "--json", job.id).out.splitlines()
    assert [json.loads(line)["serial"] for line in followed] == [one["serial"] for one in listed]


# -- metrics and files -------------------------------------------------------------------------


def test_metrics_are_a_table_and_json(queue: Queue, terminal: Terminal) -> None:
    job = queue.completed()
    row = terminal.type("metrics", job.id).out.splitlines()[1].split()
    assert row[:5] == ["loss", "0.125", "0.125", "0.5", "3"]
    data = json.loads(terminal.type("metrics", "--json", job.id, "loss").out)
    assert [point["value"] for point in data["metrics"]["loss"]] == [0.5, 0.25, 0.125]
    wrong = terminal.type("metrics", job.id, "lsos")
    assert wrong.code == 3
    assert "loss" in wrong.err


def test_metrics_of_a_job_without_metrics(queue: Queue, terminal: Terminal) -> None:
    done = terminal.type("metrics", queue.submit().id)
    assert (done.code, done.out) == (0, "")
    assert "has logged no metrics yet" in done.err


def test_files_are_listed_by_name_folder_and_pattern(queue: Queue, terminal: Terminal) -> None:
    job = queue.completed()
    listed = json.loads(terminal.type("files", "--json", job.id).out)
    assert [one["name"] for one in listed] == ["azureml-logs/70_driver_log.txt", "outputs/model.pt"]
    for wanted in ("outputs/model.pt", "outputs", "outputs/", "*.pt", "./outputs/"):
        assert terminal.type("files", job.id, wanted).out.splitlines()[1:][0].endswith("model.pt")
    missing = terminal.type("files", job.id, "model.onnx")
    assert missing.code == 3
    assert "outputs/model.pt" in missing.err


def test_download_uses_predictable_folders(
    queue: Queue, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = queue.completed()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for arguments, place in (
        (("outputs/model.pt",), "model.pt"),
        (("outputs/model.pt", "-o", "best.pt"), "best.pt"),
        (("outputs/model.pt", "-o", "folder"), "folder/model.pt"),
        (("outputs/model.pt", "-o", "new/"), "new/model.pt"),
        (("outputs/", "-o", "results"), "results/outputs/model.pt"),
        ((), f"{job.id}/outputs/model.pt"),
    ):
        assert terminal.type("download", job.id, *arguments).code == 0
        assert (tmp_path / place).read_bytes() == b"weights"
    assert (tmp_path / job.id / "azureml-logs" / "70_driver_log.txt").read_bytes() == LOG
    assert terminal.type("download", job.id, "outputs/model.pt", "-o", "-").out == "weights"


def test_downloaded_files_are_not_packed_with_the_next_job(
    queue: Queue, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = queue.completed()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    assert terminal.type("download", job.id).code == 0
    done = terminal.type("submit", "--dry-run", "train.py")
    text = " ".join(f"{done.out} {done.err}".split())
    assert f"fetched are left out: {job.id}/" in text
    assert "1 file" in text
    (tmp_path / job.id / ".rayjobs-download").unlink()
    done = terminal.type("submit", "--dry-run", "train.py")
    assert "left out" not in f"{done.out} {done.err}"
    assert terminal.type("download", job.id, "-o", "pretrained").code == 0
    done = terminal.type("submit", "--dry-run", "train.py")
    assert "left out" not in f"{done.out} {done.err}"  # also excludes a folder named with -o


def test_a_dry_run_shows_the_scratch_folder_that_the_user_names(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYJOBS_SCRATCH", str(tmp_path / "fast"))
    (tmp_path / "train.py").write_text("")
    done = terminal.type("submit", "--dry-run", "--json", "train.py")
    (host,) = json.loads(done.out)["plan"]["hosts"]
    assert host["root"].startswith(f"{tmp_path}/fast/attempts/")


OPEN = "--cluster-without-token-anyone-can-run-code"


@pytest.mark.parametrize(
    "command",
    [
        ("submit", "no.py"),
        ("submit", "-f", "no.yaml"),
        ("submit", "-d", "--source", "no", "a.py"),
        ("submit", "-d", "--command", "true", "--env", "no.txt"),
        ("db", "restore", "no.db"),
        ("model", "register", "m", "--from", "no"),
        ("data", "put", "no", "workspaceblobstore/x"),
        ("sweep", "create", "-f", "no.yaml"),
        ("pipeline", "run", "-f", "no.yaml"),
        ("simulate", "no.csv"),
        ("azureml", "check", "no.py"),
        ("target", "create", "lab", "--address", "127.0.0.1:1", "--token-file", "no"),
        ("target", "create", "lab", "--address", "127.0.0.1:1", "--cluster", "no", OPEN),
    ],
    ids=" ".join,
)
def test_a_missing_file_has_one_exit_code(
    queue: Queue,
    terminal: Terminal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    done = terminal.type(*command)
    assert done.code == 3, done.err


def test_download_replaces_files_only_on_request(
    queue: Queue, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = queue.completed()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.pt").write_bytes(b"mine")
    done = terminal.type("download", job.id, "outputs/model.pt")
    assert done.code == 2
    assert (tmp_path / "model.pt").read_bytes() == b"mine"
    assert terminal.type("download", job.id, "outputs/model.pt", "--force").code == 0
    assert (tmp_path / "model.pt").read_bytes() == b"weights"
    again = terminal.type("download", job.id, "outputs/model.pt")
    assert "1 file already there" in again.err


def test_name_that_leads_outside_is_refused(
    queue: Queue, terminal: Terminal, tmp_path: Path
) -> None:
    job = queue.start(queue.submit(), until=JobState.FINALIZING)
    blob = queue.workspace.blobs.put_bytes(b"x", "t/evil")
    from datetime import UTC, datetime

    from rayjobs.jobs.records import StoredFile

    evil = StoredFile(
        name="outputs/../../evil",
        attempt=1,
        size=1,
        digest=blob.digest,
        blob=blob.key,
        stored_at=datetime.now(UTC),
    )
    queue.workspace.store.publish_files(job.id, attempt=1, files=[evil])
    done = terminal.type("download", job.id, "-o", str(tmp_path / "a" / "b"))
    assert done.code == 2
    assert not (tmp_path / "evil").exists()


# -- the rest ----------------------------------------------------------------------------------


def test_targets_are_listed_when_none_is_running(terminal: Terminal) -> None:
    [local] = json.loads(terminal.type("target", "ls", "--json").out)
    assert (local["name"], local["state"]) == ("local", "stopped")
    assert terminal.type("target", "show", "nowhere").code == 3
    assert "was not running" in terminal.type("target", "stop").out


def test_dashboard_needs_a_running_target(terminal: Terminal) -> None:
    done = terminal.type("dashboard")
    assert done.code == 5
    assert "rayjobs target start" in done.err


@pytest.mark.parametrize("ports", ["0", "0:0", "6006:0", "65536", "65536:1", "1:65536"])
def test_ports_that_cannot_be_forwarded_are_refused(terminal: Terminal, ports: str) -> None:
    done = terminal.type("port", "1f3c", ports)
    assert done.code == 2
    assert (
        f"{ports!r}: a job's port is between 1 and 65535; the local port may also be 0" in done.err
    )


def test_the_schema_is_json(terminal: Terminal) -> None:
    schema = json.loads(terminal.type("schema").out)
    assert "max_duration" in schema["properties"]


def test_the_workspace_may_be_named_before_and_after_the_command(
    queue: Queue, terminal: Terminal, tmp_path: Path
) -> None:
    job = queue.completed()
    where = str(queue.workspace.path)
    for arguments in (("--workspace", where, "ls"), ("ls", "--workspace", where)):
        assert tail(job) in terminal.type(*arguments).out
    done = terminal.type("ls", "--workspace", str(tmp_path / "none"))
    assert done.code == 3


def test_unstored_files_are_shown_with_the_job(queue: Queue, terminal: Terminal) -> None:
    job = queue.completed()
    lost = "metrics of rank 0: metrics/rank-0.jsonl is a named pipe\x1b[2J"
    queue.workspace.store.add_event(job.id, "left_out", lost, attempt=job.attempt)
    shown = terminal.type("show", job.id).out
    assert "Left out" in shown
    assert "metrics/rank-0.jsonl is a named pipe" in shown
    assert "\x1b" not in shown
    lines = summary_lines(Settings(), queue.workspace, job)
    assert any(line.startswith("  left out: metrics of rank 0") for line in lines)


def test_a_changed_input_is_named_when_the_job_ends(queue: Queue) -> None:
    job = queue.completed()
    changed = "input 'x': 1 file changed while the job ran: /data/1.txt is gone"
    queue.workspace.store.add_event(job.id, InputChanged.KIND, changed, attempt=job.attempt)
    lines = summary_lines(Settings(), queue.workspace, job)
    assert f"  changed: {changed}" in lines


def test_cancel_with_an_unknown_name_reports_that_nothing_was_canceled(
    queue: Queue, terminal: Terminal
) -> None:
    job = queue.submit()
    done = terminal.type("cancel", job.id, "nosuch")
    assert done.code == 3
    assert "nothing was canceled, because of the name 'nosuch'" in done.err
    assert queue.workspace.store.job(job.id).state is JobState.QUEUED
    assert "nothing was canceled" not in terminal.type("cancel", "nosuch").err

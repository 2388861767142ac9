"""What commands suggest next fits the job; lists shorten names and numbers without hiding them."""

from __future__ import annotations

from rayjobs.jobs.records import Job
from rayjobs.spec.model import Array, JobSpec
from rayjobs.store.requests import NewJob
from tests.unit.cli.conftest import Queue, Terminal


def tail(job: Job) -> str:
    return job.id.rpartition("_")[2]


def test_next_steps_fit_the_job(queue: Queue, terminal: Terminal) -> None:
    def steps(job: Job) -> list[str]:
        found = terminal.type("wait", job.id).err.splitlines()
        return [line.partition(tail(job))[0].strip() for line in found if "rayjobs" in line]

    assert steps(queue.completed()) == []
    failed = ["rayjobs show", "rayjobs logs --failed", "rayjobs logs", "rayjobs rerun"]
    assert steps(queue.failed()) == failed
    waiting = queue.submit()
    terminal.type("cancel", waiting.id)
    assert steps(waiting) == ["rayjobs show", "rayjobs rerun"]


def test_next_steps_of_an_array_list_its_members(queue: Queue, terminal: Terminal) -> None:
    spec = JobSpec(script="train.py", name="shards", array=Array(indices="0-1"))
    array, _ = queue.workspace.store.submit_array(
        NewJob(spec=spec, experiment="shards", snapshot=None, user="ada")
    )
    terminal.type("cancel", array.id)
    assert f"rayjobs ls --parent {tail(array)}" in terminal.type("wait", array.id).err


def test_a_long_name_keeps_its_end_in_a_list(queue: Queue, terminal: Terminal) -> None:
    for number in (1, 2):
        queue.submit(f"digits-with-much-augmentation-{number}")
    names = [line.split()[1] for line in terminal.type("ls").out.splitlines()[1:]]
    assert names == ["digits-with-…mentation-2", "digits-with-…mentation-1"]


def test_numbers_of_arguments_are_short_in_a_list(queue: Queue, terminal: Terminal) -> None:
    queue.submit(arguments=("--lr", "0.07340659336461612"))
    assert " 0.0734066 " in terminal.type("ls", "-c", "lr").out

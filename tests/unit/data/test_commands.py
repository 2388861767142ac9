"""The commands for datastores and data, as typed, with mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayjobs.cli.main import run
from tests.unit.cli.conftest import Terminal, terminal  # noqa: F401


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "a.txt").write_text("a")
    (tmp_path / "src" / "deep" / "b.txt").write_text("bb")
    (tmp_path / "train.py").write_text("print(1)")
    return tmp_path


def test_data_round_trips(terminal: Terminal, folder: Path) -> None:  # noqa: F811
    done = terminal.type("data", "put", "src", "workspaceblobstore/src")
    assert (done.code, done.out) == (0, "stored 2 files (3 B) in workspaceblobstore/src\n")
    assert "upload: 2/2 files" in done.err
    listed = terminal.type("data", "ls", "workspaceblobstore/src", "--json")
    assert json.loads(listed.out) == [
        {"path": "src/a.txt", "size": 1},
        {"path": "src/deep", "size": None},
    ]
    done = terminal.type("data", "get", "workspaceblobstore/src", "back", "-q", "--json")
    assert (done.code, done.err, len(json.loads(done.out)["files"])) == (0, "", 2)
    assert (folder / "back" / "deep" / "b.txt").read_text() == "bb"
    done = terminal.type("data", "get", "workspaceblobstore/src/a.txt", "one", "-q")
    assert (folder / "one" / "a.txt").read_text() == "a"


def test_unstorable_paths_are_named(terminal: Terminal, folder: Path) -> None:  # noqa: F811
    (folder / "src" / "up").symlink_to(folder)
    (folder / "src" / "gone").symlink_to(folder / "nothing")
    (folder / "src" / "ring").symlink_to(folder / "src" / "ring")
    done = terminal.type("data", "put", "src", "workspaceblobstore/src", "-q")
    assert done.code == 0
    assert "warning: 3 entries left out: src/gone (a broken link)" in done.err
    done = terminal.type("data", "put", "src", "workspaceblobstore/src", "-q", "--json")
    left_out = json.loads(done.out)["left_out"]
    assert [text.partition(" (")[0] for text in left_out[:2]] == ["src/gone", "src/ring"]
    assert left_out[2].endswith("(a link that leads back to a folder above it)")


@pytest.mark.parametrize("target", ["dogs/2.jpg", "dogs/2.jpg/more"])
def test_a_file_is_not_a_destination(
    terminal: Terminal,  # noqa: F811
    folder: Path,
    target: str,
) -> None:
    (folder / "src" / "2.jpg").write_text("dog")
    terminal.type("data", "put", "src/2.jpg", "workspaceblobstore/dogs", "-q")
    done = terminal.type("data", "put", "src/a.txt", f"workspaceblobstore/{target}")
    assert (done.code, done.out) == (2, "")
    assert "error: workspaceblobstore/dogs/2.jpg is a file; give a folder." in done.err


@pytest.mark.long
def test_files_that_are_kept_are_reported_and_counted(
    terminal: Terminal,  # noqa: F811
    folder: Path,
) -> None:
    put = ("data", "put", "src", "workspaceblobstore/src", "-q")
    get = ("data", "get", "workspaceblobstore/src", "back", "-q")
    assert (terminal.type(*put).code, terminal.type(*get).code) == (0, 0)
    done = terminal.type(*put)
    assert (done.code, done.out) == (
        0,
        "workspaceblobstore/src: 0 stored, 2 kept (there already)\n",
    )
    (folder / "src" / "a.txt").write_text("changed")
    done = terminal.type(*put)
    assert (done.code, done.out) == (
        1,
        "workspaceblobstore/src: 0 stored, 2 kept (there already), "
        "1 of them differs in size (src/a.txt): use --overwrite\n",
    )
    done = terminal.type(*put, "--json")
    counts = json.loads(done.out)
    assert (done.code, counts["stored"], counts["kept"], counts["differing"]) == (1, 0, 2, 1)
    assert terminal.type("data", "get", "workspaceblobstore/src", "new", "-q").code == 0
    assert (folder / "new" / "a.txt").read_text() == "a"  # a.txt was not replaced
    done = terminal.type(*put, "--overwrite")
    assert (done.code, done.out) == (0, "stored 2 files (9 B) in workspaceblobstore/src\n")
    (folder / "back" / "deep" / "b.txt").unlink()
    done = terminal.type(*get)
    assert (done.code, done.out) == (
        1,
        "back: 1 fetched, 1 kept (there already), "
        "1 of them differs in size (src/a.txt): use --overwrite\n",
    )
    assert terminal.type(*get, "--overwrite").code == 0
    assert (folder / "back" / "a.txt").read_text() == "changed"


@pytest.mark.long
def test_versions_are_registered_listed_and_fetched(
    terminal: Terminal,  # noqa: F811
    folder: Path,
) -> None:
    terminal.type("data", "put", "src", "workspaceblobstore/src", "-q")
    assert json.loads(terminal.type("data", "ls", "--json").out) == []
    register = ("data", "register", "src", "workspaceblobstore/src", "-q")
    assert terminal.type(*register, "--tag", "a=b").out == "dataset src:1 has 2 files (3 B)\n"
    same = terminal.type(*register[:-1])
    assert "register:" not in same.err  # no file was read again
    assert (same.code, same.out) == (0, "dataset src:1 is unchanged: 2 files (3 B)\n")
    again = terminal.type("data", "register", "src", "workspaceblobstore/src/a.txt")
    assert (again.code, again.out) == (2, "")
    assert "--new-version" in again.err
    assert "create_new_version" not in again.err
    done = terminal.type("data", "register", "src", "workspaceblobstore/src/a.txt", "--new-version")
    assert done.code == 0
    assert "register: 1/1 files" in done.err
    (listed,) = json.loads(terminal.type("data", "ls", "--json").out)
    assert (listed["name"], listed["version"], listed["files"]) == ("src", 2, 1)
    assert "src" in terminal.type("data", "ls").out
    assert len(json.loads(terminal.type("data", "ls", "dataset:src", "--json").out)) == 2
    shown = json.loads(terminal.type("data", "show", "src:1", "--json").out)
    assert (shown["tags"], shown["versions"]) == ({"a": "b"}, [1, 2])
    assert [one["path"] for one in shown["entries"]] == ["a.txt", "deep/b.txt"]
    assert "a.txt" in terminal.type("data", "show", "src").out
    terminal.type("data", "get", "dataset:src:1", "back", "-q")
    assert (folder / "back" / "deep" / "b.txt").read_text() == "bb"


@pytest.mark.long
def test_a_new_version_with_the_files_of_an_earlier_one_is_made_and_noted(
    terminal: Terminal,  # noqa: F811
    folder: Path,
) -> None:
    terminal.type("data", "put", "src", "workspaceblobstore/src", "-q")
    register = ("data", "register", "src", "workspaceblobstore/src", "--new-version")
    first = terminal.type(*register)
    assert (first.code, "same files" in first.err) == (0, False)
    other = terminal.type("data", "register", "src", "workspaceblobstore/src/a.txt", register[-1])
    assert (other.code, "same files" in other.err) == (0, False)
    again = terminal.type(*register)
    assert (again.code, again.out) == (0, "dataset src:3 has 2 files (3 B)\n")
    assert "version 3 of 'src' has the same files as version 1\n" in again.err
    terminal.type("data", "put", "src", "workspaceblobstore/src", "-q", "--overwrite")
    written_again = terminal.type(*register)
    assert "version 4 of 'src' has the same files as version 3\n" in written_again.err


def test_datastores_are_added_checked_and_forgotten(
    terminal: Terminal,  # noqa: F811
    folder: Path,
) -> None:
    assert terminal.type("datastore", "add", "here", "new").code == 2
    assert terminal.type("datastore", "add", "here", "new", "--create").code == 0
    assert terminal.type("datastore", "add", "here", "src").code == 2
    done = terminal.type("datastore", "add", "here", "src", "--overwrite", "--default", "--json")
    assert json.loads(done.out)["default"] is True
    listed = json.loads(terminal.type("datastore", "ls", "--json").out)
    assert [(one["name"], one["default"]) for one in listed] == [
        ("here", True),
        ("workspaceblobstore", False),
        ("workspacefilestore", False),
    ]
    assert terminal.type("datastore", "check").out.split() == [
        *("here", "ok"),
        *("workspaceblobstore", "ok"),
        *("workspacefilestore", "ok"),
    ]
    (folder / "src").rename(folder / "moved")
    checked = terminal.type("datastore", "check", "here")
    assert checked.code == 3
    assert "does not exist" in checked.out
    assert terminal.type("datastore", "rm", "here").code == 0
    assert terminal.type("datastore", "rm", "here").code == 3
    assert (folder / "moved" / "a.txt").exists()


def test_a_bucket_is_added_with_names_of_credentials_only(
    terminal: Terminal,  # noqa: F811
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PHOTOS_KEY", "the-key")
    monkeypatch.setenv("PHOTOS_SECRET", "the-secret")
    done = terminal.type(
        *("datastore", "add", "photos", "s3://bucket/prefix", "--no-check"),
        *("--access-key-env", "PHOTOS_KEY", "--secret-key-env", "PHOTOS_SECRET"),
        *("--endpoint", "http://127.0.0.1:9"),
    )
    assert done.code == 0
    shown = terminal.type("datastore", "ls")
    assert "$PHOTOS_KEY, $PHOTOS_SECRET" in shown.out
    assert "s3://bucket/prefix at http://127.0.0.1:9" in shown.out
    assert "the-secret" not in terminal.type("datastore", "ls", "--json").out


@pytest.mark.parametrize(
    "words",
    [
        ("s3://bucket/p", "--endpoint", "http://AK:wJalrXUtnFEMI7@127.0.0.1:9"),
        ("s3://AK:wJalrXUtnFEMI7@bucket/p",),
        ("s3://bucket/p?secret=wJalrXUtnFEMI7",),
        ("s3://bucket", "--access-key-env", "AKIAIOSFODNN7EXAMPLE", "--secret-key-env", "S"),
        ("s3://bucket", "--access-key-env", "K", "--secret-key-env", "wJalrXUtnFEMI7/K7MDENG"),
    ],
)
@pytest.mark.parametrize("check", [(), ("--no-check",)])
def test_a_bucket_with_a_secret_in_it_is_refused(
    terminal: Terminal,  # noqa: F811
    folder: Path,
    words: tuple[str, ...],
    check: tuple[str, ...],
) -> None:
    done = terminal.type("datastore", "add", "photos", *words, *check, "-v")
    assert (done.code, done.out) == (2, "")
    assert "wJalr" not in done.err
    assert "AKIA" not in done.err
    assert "photos" not in terminal.type("datastore", "ls").out


def test_a_datastore_that_is_needed_is_kept(terminal: Terminal, folder: Path) -> None:  # noqa: F811
    assert terminal.type("data", "put", "src", "workspaceblobstore/src", "-q").code == 0
    for words in (("workspaceblobstore",), ("workspaceblobstore", "--force")):
        done = terminal.type("datastore", "rm", *words)
        assert (done.code, done.out) == (1, "")
        assert "--default" in done.err
    assert terminal.type("datastore", "add", "here", "src", "--default").code == 0
    assert terminal.type("data", "register", "cats", "here/deep", "-q").code == 0
    done = terminal.type("datastore", "rm", "here")
    assert done.code == 1
    assert "cats:1" in done.err
    assert "--force" in done.err
    done = terminal.type("datastore", "rm", "here", "--force")
    assert done.code == 0
    assert "workspaceblobstore again" in done.err


def test_missing_resume_path_is_refused_in_one_sentence(
    terminal: Terminal,  # noqa: F811
    folder: Path,
) -> None:
    done = terminal.type("submit", "train.py", "--resume-from", "workspaceblobstore/nope")
    assert done.code == 2
    assert done.err.count("nothing at 'nope'") == 1
    assert "caused by" not in done.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("data", "put", "src", "nowhere/x"), 3, "it has: workspaceblobstore"),
        (
            ("data", "put", "nothing", "workspaceblobstore/x"),
            3,
            "there is no file or folder nothing",
        ),
        (("data", "ls", "workspaceblobstore/nope"), 3, "nothing at 'nope'"),
        (("data", "get", "workspaceblobstore/nope", "x"), 3, "nothing at 'nope'"),
        (("data", "register", "x", "workspaceblobstore/nope"), 3, "nothing at 'nope'"),
        (("data", "show", "nope"), 3, "there is no dataset 'nope'"),
        (("submit", "train.py", "--input", "a=workspaceblobstore/src:moun"), 2, "mount, download"),
        (("datastore", "add", "a b", "src"), 2, "datastore name"),
        (("datastore", "add", "x", "src", "--profile", "p"), 2, "--profile"),
    ],
)
def test_mistakes_are_reported(
    terminal: Terminal,  # noqa: F811
    folder: Path,
    words: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    terminal.type("data", "put", "src", "workspaceblobstore/src", "-q")
    done = terminal.type(*words)
    assert (done.code, done.out) == (code, "")
    assert message in done.err


def test_a_dataset_is_found_by_its_plain_name(
    terminal: Terminal,  # noqa: F811
    folder: Path,
) -> None:
    terminal.type("data", "put", "src", "workspaceblobstore/src", "-q")
    terminal.type("data", "register", "pets", "workspaceblobstore/src", "-q")
    listed = terminal.type("data", "ls", "pets", "--json")
    assert [row["name"] for row in json.loads(listed.out)] == ["pets"]
    assert terminal.type("data", "get", "pets:1", "back", "-q").code == 0
    assert (folder / "back" / "a.txt").read_text() == "a"


def test_a_dry_run_shows_the_pinned_version(
    terminal: Terminal,  # noqa: F811
    folder: Path,
) -> None:
    terminal.type("data", "put", "src", "workspaceblobstore/src", "-q")
    terminal.type("data", "register", "src", "workspaceblobstore/src", "-q")
    shown = terminal.type("submit", "train.py", "--input", "a=dataset:src:download", "--dry-run")
    assert shown.code == 0, shown.err
    assert "dataset:src:1 (download)" in shown.out


def test_limits_are_accepted_for_a_bucket_and_refused_for_a_folder(
    terminal: Terminal,  # noqa: F811
    folder: Path,
) -> None:
    add = ("datastore", "add", "photos", "s3://bucket", "--no-check", "--json")
    limits = ("--attempts", "7", "--connect-timeout", "2s", "--read-timeout", "1m")
    done = terminal.type(*add, *limits)
    assert done.code == 0
    settings = json.loads(done.out)["settings"]
    assert {name: settings[name] for name in settings if name != "bucket"} == {
        "attempts": "7",
        "connect_timeout_s": "2",
        "read_timeout_s": "60",
    }
    done = terminal.type("datastore", "add", "here", str(folder), "--connect-timeout", "2s")
    assert done.code == 2
    assert "--connect-timeout is for buckets" in done.err
    assert terminal.type(*add, "--attempts", "0").code == 2


def test_a_dataset_is_named_as_a_model_is(terminal: Terminal, folder: Path) -> None:  # noqa: F811
    terminal.type("data", "put", "src", "workspaceblobstore/src", "-q")
    done = terminal.type("data", "register", "bad name", "workspaceblobstore/src")
    assert done.code == 2
    assert "a dataset cannot be called 'bad name'; use letters, digits" in done.err
    (folder / "job.yaml").write_text(
        "script: train.py\noutputs: {o: {register_as: {name: bad name}}}\n"
    )
    done = terminal.type("submit", "-f", "job.yaml")
    assert done.code == 2
    assert "outputs.o.register_as.name: a dataset cannot be called 'bad name'" in done.err


def test_two_values_for_one_tag_are_refused(terminal: Terminal, folder: Path) -> None:  # noqa: F811
    terminal.type("data", "put", "src", "workspaceblobstore/src", "-q")
    done = terminal.type(
        *("data", "register", "pets", "workspaceblobstore/src", "--tag", "a=1", "--tag", "a=2")
    )
    assert done.code == 2
    assert "--tag 'a' is given as '1' and as '2'; give one" in done.err


def test_a_datastore_may_be_a_folder_above_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    assert run(["datastore", "add", "images", "../data"]) == 0
    assert run(["datastore", "ls", "--json"]) == 0
    assert str(tmp_path / "data") in capsys.readouterr().out


def test_local_folder_as_input_suggests_how_to_store_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert run(["submit", "-d", "train.py", "--input", "d=./digits"]) == 2
    assert "`rayjobs data put ./digits workspaceblobstore/digits`" in capsys.readouterr().err

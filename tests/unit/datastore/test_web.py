"""Files of a web server as datasets: fetched once, by their digest, or replaced by local files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rayjobs.datastore import Dataset, FileDataset, MemoryCatalogue
from rayjobs.datastore.backends.base import StoredFile
from rayjobs.datastore.backends.web import WebBackend
from rayjobs.datastore.digests import digest_of
from rayjobs.datastore.errors import (
    AccessDenied,
    DataNotFound,
    DatastoreUnavailable,
    InvalidReference,
    NotSupported,
)
from rayjobs.datastore.inputs import resolve_input
from rayjobs.datastore.materialise import materialise, release
from rayjobs.housekeeping import scratch
from rayjobs.injob import url_map
from rayjobs.launch.plan import with_azureml
from tests.unit.datastore.web_server import WebServer

DAY_S = 86_400.0
PLAIN_PYTHON = Path(sys.base_prefix) / "bin" / "python3"  # without the packages of the tests


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer().running() as made:
        yield made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DATASTORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def backend_of(server: WebServer, cache: Path, **limits: float) -> WebBackend:
    given = {"attempts": 2, "timeout_s": 20.0, "pause_s": 0.01, **limits}
    return WebBackend(server.root, cache / "web", **given)  # type: ignore[arg-type]


def test_a_file_is_fetched_once_and_known_by_its_digest(server: WebServer, tmp_path: Path) -> None:
    server.files["/demo/titanic.csv"] = b"name,age\nann,7\n"
    table = Dataset.Tabular.from_delimited_files(f"{server.root}/demo/titanic.csv")
    assert table.to_pandas_dataframe().to_dict("list") == {"name": ["ann"], "age": [7]}
    files = Dataset.File.from_files(f"{server.root}/demo/titanic.csv")
    (entry,) = files.manifest
    assert (entry.path, entry.digest) == ("titanic.csv", digest_of(b"name,age\nann,7\n"))
    files.download(tmp_path / "here", show_progress=False)
    assert (tmp_path / "here" / "titanic.csv").read_bytes() == b"name,age\nann,7\n"
    # The second listing asked the server whether the file had changed, and it had not.
    assert server.statuses("/demo/titanic.csv") == [200, 304]


def test_job_gets_the_recorded_bytes_after_the_server_lost_them(
    server: WebServer, tmp_path: Path
) -> None:
    server.files["/a.csv"] = b"1\n"
    catalogue = MemoryCatalogue()
    dataset = Dataset.File.from_files(f"{server.root}/a.csv").register(catalogue, "a")
    del server.files["/a.csv"]
    source = resolve_input("dataset:a", catalogue, name="a")
    held = materialise(
        replace(source, mode="download"), tmp_path / "node", into=tmp_path / "inputs"
    )
    assert Path(held.path).read_bytes() == b"1\n" and dataset.version == 1
    release(held)


def test_several_files_keep_their_structure(server: WebServer) -> None:
    for name in ("train/x.gz", "train/y.gz", "test/x.gz"):
        server.files[f"/mnist/{name}"] = name.encode()
    names = [f"{server.root}/mnist/{name}" for name in ("train/x.gz", "train/y.gz", "test/x.gz")]
    dataset = Dataset.File.from_files(names)
    assert dataset.to_path() == ["/test/x.gz", "/train/x.gz", "/train/y.gz"]


def test_a_file_that_changed_on_the_server_is_another_file(server: WebServer, cache: Path) -> None:
    server.files["/a"] = b"one"
    backend = backend_of(server, cache)
    first = backend.stat("a")
    server.files["/a"] = b"two"
    second = backend.stat("a")
    assert first is not None and second is not None
    assert (first.digest, second.digest) == (digest_of(b"one"), digest_of(b"two"))
    backend.fetch(first, cache / "back")  # the recorded bytes are still kept
    assert (cache / "back").read_bytes() == b"one"


def test_missing_or_protected_url_is_reported(server: WebServer, cache: Path) -> None:
    backend = backend_of(server, cache)
    assert backend.stat("nothing") is None
    with pytest.raises(DataNotFound, match="nothing at 'nothing'"):
        Dataset.File.from_files(f"{server.root}/nothing")
    server.faults = ["403"]
    with pytest.raises(AccessDenied, match="answers 403"):
        backend.stat("a")
    for refused in (f"{server.root}/folder/", f"{server.root}/a/*.csv"):
        with pytest.raises(InvalidReference, match="Name each file"):
            Dataset.File.from_files(refused)
    with pytest.raises(InvalidReference, match="has a query"):
        Dataset.File.from_files(f"{server.root}/a.csv?sig=secret")
    with pytest.raises(NotSupported, match="read-only"):
        backend.put(cache, "a")
    with pytest.raises(DatastoreUnavailable):
        WebBackend("http://127.0.0.1:1", cache / "w", attempts=1).fetch(
            StoredFile("a", 1, ""), cache / "back"
        )


def test_a_mapping_replaces_an_address_and_all_addresses_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnist" / "train").mkdir(parents=True)
    for name in ("train/x.gz", "train/y.gz", "read.me"):
        (tmp_path / "mnist" / name).write_text(name)
    (tmp_path / "small.csv").write_text("a,b\n1,2\n")
    urls = {
        "https://example.test/mnist/": str(tmp_path / "mnist"),
        "https://example.test/data/Titanic%20all.csv": str(tmp_path / "small.csv"),
        "https://example.test/gone/": str(tmp_path / "nowhere"),
    }
    monkeypatch.setenv("RAYJOBS_URLS", json.dumps(urls))
    glob = Dataset.File.from_files("https://example.test/mnist/**/*.gz")
    assert glob.to_path() == ["/train/x.gz", "/train/y.gz"]
    both = Dataset.File.from_files(
        ["https://example.test/mnist/train/x.gz", "https://example.test/mnist/read.me"]
    )
    assert both.to_path() == ["/read.me", "/train/x.gz"]
    folder = Dataset.File.from_files("https://example.test/mnist")
    assert isinstance(folder, FileDataset) and len(folder.manifest) == 3
    one = Dataset.File.from_files("https://example.test/data/Titanic%20all.csv?raw=1")
    assert one.to_path() == ["/Titanic all.csv"]
    assert one.sources[0].datastore == "https://example.test"
    table = Dataset.Tabular.from_delimited_files("https://example.test/data/Titanic%20all.csv")
    assert table.to_pandas_dataframe().to_dict("list") == {"a": [1], "b": [2]}
    with pytest.raises(DataNotFound, match="is mapped to"):
        Dataset.File.from_files("https://example.test/gone/x.csv")


def test_the_longest_mapping_of_the_newest_source_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYJOBS_URLS", json.dumps({"https://h/": "/env", "https://h/a/": "/a"}))
    assert url_map.map_url("https://h/a/b.csv?x=1#top") == "/a/b.csv"
    assert url_map.map_url("https://h/c%20d") == "/env/c d"
    assert url_map.map_url("https://h") == url_map.map_url("https://h/") == "/env"
    assert url_map.map_url("https://hh/a") is None

    def newer() -> dict[str, str]:
        return {"https://h/a": "/newer"}

    url_map.add_source(newer)
    try:
        assert url_map.map_url("https://h/a/b") == "/newer/b"
        assert url_map.map_url("https://h/z") == "/env/z"
    finally:
        url_map.remove_source(newer)
    assert url_map.map_url("https://h/a/b") == "/a/b"


def test_unused_kept_files_are_removed_after_a_while(
    server: WebServer, cache: Path, tmp_path: Path
) -> None:
    backend = backend_of(server, cache)
    for name in ("/used", "/unused"):
        server.files[name] = name.encode()
        assert backend.stat(name[1:]) is not None
    plan = partial(scratch.plan, tmp_path / "home", older_than_s=DAY_S)
    assert plan().items == []
    for path in (cache / "web").rglob("*"):
        os.utime(path, (0, 0))
    used = backend.stat("used")  # the server answers that the file is unchanged
    assert used is not None
    made = plan()
    assert {(item.kind, item.name.split("/")[0]) for item in made.items} == {
        ("web", "objects"), ("web", "index"),
    }  # fmt: skip
    assert scratch.apply(made).files == 2
    assert [path.read_bytes() for path in (cache / "web" / "objects").iterdir()] == [b"/used"]
    del server.files["/used"]
    backend.fetch(used, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"/used"


def test_a_file_that_is_pruned_while_it_is_copied_is_fetched_again(
    server: WebServer, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/a"] = b"one"
    backend = backend_of(server, cache)
    file = backend.stat("a")
    assert file is not None
    copy = shutil.copyfile
    pruned: list[Path] = []

    def prune_before(source: Path, target: Path) -> None:
        if not pruned:
            source.unlink()
            pruned.append(source)
        copy(source, target)

    monkeypatch.setattr("rayjobs.datastore.backends.web.shutil.copyfile", prune_before)
    assert backend.fetch(file, tmp_path / "copy") == digest_of(b"one")
    assert (tmp_path / "copy").read_bytes() == b"one" and pruned


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from rayjobs.injob import url_map
{before}
url_map.install()
url_map.install()
import urllib.request, requests
url = "https://data.invalid/files/a.csv"
with urllib.request.urlopen(url) as answer:
    print(answer.status, answer.read().decode())
print(urllib.request.urlretrieve(url, "copy.csv")[0], open("copy.csv").read())
opener = urllib.request.build_opener()
print(opener.open(urllib.request.Request(url)).read().decode())
got = requests.get(url, params={{"sv": "1"}})
print(got.status_code, got.text, requests.head(url).headers["Content-Length"])
print(b"".join(requests.get(url, stream=True).iter_content(2)).decode())
try:
    requests.get("https://data.invalid/other.csv", timeout=5)
except requests.ConnectionError:
    print("not mapped")
"""


@pytest.mark.long
def test_mapping_applies_to_commands_of_a_job(tmp_path: Path) -> None:
    """Also in an environment with nothing but Python, whose own sitecustomize still runs."""
    (tmp_path / "a.csv").write_text("1,2")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("import sys; sys.own = __file__")
    source = (
        "import urllib.request as u, sys; print(u.urlopen('https://data.invalid/files/a.csv')"
        ".read().decode(), sys.own, sys.modules['sitecustomize'].__file__)"
    )
    urls = {url_map.VARIABLE: json.dumps({"https://data.invalid/files": str(tmp_path)})}
    env = with_azureml(urls, str(Path(url_map.__file__).parents[2]))
    own = str(tmp_path / "own")
    env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{own}"
    # In a folder with no rayjobs, by an interpreter of the system: no package is there.
    done = subprocess.run(
        ["/bin/sh", "-c", f'"{PLAIN_PYTHON}" -c "$0"', source],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answer, own_status, own_module = done.stdout.split()
    assert (answer, own_status, own_module) == ("1,2", *[f"{own}/sitecustomize.py"] * 2)


@pytest.mark.parametrize("before", ["", "import urllib.request, requests; urllib.request._opener"])
@pytest.mark.long
def test_mapping_applies_to_urls_opened_by_a_script(tmp_path: Path, before: str) -> None:
    """By urllib and requests, imported before or after; other addresses go to the web."""
    (tmp_path / "a.csv").write_text("1,2")
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(root=root, before=before)],
        cwd=tmp_path,
        env={
            **os.environ,
            "RAYJOBS_URLS": json.dumps({"https://data.invalid/files": str(tmp_path)}),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *("200 1,2", "copy.csv 1,2", "1,2", "200 1,2 3", "1,2", "not mapped")
    ]

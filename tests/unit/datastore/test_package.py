"""The package as a whole: cheap to import, picklable errors, settings without secrets."""

import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs import datastore
from rayjobs.datastore import errors
from rayjobs.datastore.backends import open_backend
from rayjobs.datastore.backends.s3_settings import S3Settings
from rayjobs.datastore.catalogue import DatastoreRecord, parse_version
from rayjobs.datastore.digests import digest_of, digest_of_file, hex_of
from rayjobs.datastore.errors import AccessDenied, DatastoreError, InvalidReference
from rayjobs.datastore.mountfiles import is_mounted, mount_points
from rayjobs.injob.identity import Identity, identity_of, is_alive, own_identity

HEAVY = ("botocore", "s3fs", "fsspec", "pyarrow", "pandas", "mfusepy", "numpy", "ray", "torch")


def modules_after(statements: str) -> set[str]:
    code = f"import sys\n{statements}\nprint(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
        cwd=Path(datastore.__file__).parents[2],
    )
    return set(done.stdout.split())


@pytest.mark.long
def test_import_loads_no_heavy_or_job_module() -> None:
    loaded = modules_after(
        "from rayjobs import datastore\n"
        "for name in datastore.__all__: getattr(datastore, name)\n"
        "from rayjobs.datastore.materialise import materialise"
    )
    assert {name for name in loaded if name.split(".")[0] in HEAVY} == set()
    ours = {name for name in loaded if name.split(".")[0] == "rayjobs"}
    others = {name for name in ours if not name.startswith("rayjobs.datastore")}
    inside = {
        "after_import",
        "files",
        "identity",
        "lazy_dataclass",
        "messages",
        "open_files",
        "text",
        "url_map",
    }
    inside |= {"azureml", "azureml.exceptions", "azureml.names"}
    below = {f"rayjobs.injob.{name}" for name in inside}
    below |= {"rayjobs.core.files", "rayjobs.core.refusing", "rayjobs.core.text"}
    assert others == {"rayjobs", "rayjobs.core", "rayjobs.injob", *below}


def test_every_public_name_exists() -> None:
    assert all(getattr(datastore, name) for name in datastore.__all__)
    assert set(datastore.__all__) <= set(dir(datastore))
    with pytest.raises(AttributeError, match=r"'rayjobs\.datastore' has no attribute 'Nothing'"):
        _ = datastore.Nothing


def test_a_star_import_brings_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from rayjobs.datastore import *", names)
    assert set(datastore.__all__) <= set(names)


def test_errors_travel_between_processes() -> None:
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, DatastoreError)
    ]
    assert len(kinds) > 10
    for kind in kinds:
        again = pickle.loads(pickle.dumps(kind("what was requested")))
        assert (type(again), str(again)) == (kind, "what was requested")


def test_digests(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    digest = digest_of(b"abc")
    assert digest == digest_of_file(tmp_path / "f")
    assert hex_of(digest).startswith("ba7816bf")
    with pytest.raises(InvalidReference):
        hex_of("md5:123")


def s3(**settings: str) -> DatastoreRecord:
    return DatastoreRecord("store", "s3", {"bucket": "b", **settings})


def test_s3_settings() -> None:
    settings = S3Settings.from_record(
        s3(prefix="/a/", endpoint="http://host:1", read_timeout_s="2.5", attempts="2")
    )
    assert settings.where == "s3://b/a at http://host:1"
    assert (settings.read_timeout_s, settings.attempts) == (2.5, 2)


@pytest.mark.parametrize(
    "settings",
    [
        {"bucket": ""},
        {"buckett": "x"},
        {"secret_key": "hidden"},
        {"endpoint": "host:1"},
        {"access_key_env": "A"},
        {"read_timeout_s": "soon"},
        {"attempts": "-1"},
    ],
)
def test_wrong_s3_settings_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidReference, match="store") as caught:
        open_backend(s3(**settings))
    assert "hidden" not in str(caught.value)


def test_a_missing_credential_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    settings = S3Settings.from_record(s3(access_key_env="NO_SUCH_KEY", secret_key_env="NO_SUCH"))
    with pytest.raises(AccessDenied, match="NO_SUCH_KEY"):
        settings.client()


def test_unknown_profile_is_reported() -> None:
    with pytest.raises(AccessDenied, match="nobody"):
        S3Settings.from_record(s3(profile="nobody")).client()


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(InvalidReference, match="ftp"):
        open_backend(DatastoreRecord("x", "ftp", {}))
    with pytest.raises(InvalidReference):
        open_backend(DatastoreRecord("x", "local", {"root": "relative"}))


@pytest.mark.parametrize(("text", "number"), [("latest", None), (None, None), ("3", 3), (2, 2)])
def test_versions(text: str | int | None, number: int | None) -> None:
    assert parse_version(text) == number


def test_process_identity_includes_start_time_and_boot() -> None:
    me = own_identity()
    assert is_alive(me)
    assert not is_alive(Identity(me.pid, me.start_time + 1, me.boot_id))
    assert not is_alive(Identity(me.pid, me.start_time, "another boot"))
    assert Identity.from_json(me.to_json()) == me
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    identity = identity_of(child.pid)
    child.wait()
    assert identity is None or not is_alive(identity)


def test_mount_points_are_known_without_touching_them(tmp_path: Path) -> None:
    assert "/" in mount_points()
    assert not is_mounted(tmp_path)
    assert is_mounted(Path("/proc"))

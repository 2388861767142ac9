"""Fault 11: secrets in the source directory do not leave with the snapshot."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import zstandard

from rayjobs.snapshots import Snapshot, blob_key, pack
from rayjobs.workspace.blobs import FolderBlobs

CANARY = "canary-7c1b09"
DECOYS = (
    ".env", ".env.local", ".envrc", "prod.env", ".ENV", "config/.env.production",
    "server.pem", "server.key", "Keys/CA.PEM", "app.p12", "app.pfx", "putty.ppk",
    "id_rsa", "id_ed25519", "id_rsa.bak", "keys/id_ecdsa", ".ssh/config", ".ssh/known",
    ".aws/credentials", ".aws/config", ".azure/token", ".kube/config", ".gnupg/secring",
    ".docker/config.json", ".netrc", "_netrc", ".pgpass", ".pypirc", ".npmrc", ".boto",
    ".git-credentials", ".git/config", "credentials", "credentials.json", "conf/Credentials.yml",
    "secrets.yaml", "secrets.toml", ".streamlit/secrets.toml", "client_secret_12.json",
    "my-service-account.json", "kaggle.json", ".kaggle/key", ".vault-token", "a.tfstate",
    "passwords.kdbx", ".rayjobs/store.db", "venv/pyvenv.cfg", "venv/etc/token",
)  # fmt: skip
INNOCENT = (
    "train.py", "environment.yml", "keys.py", "tokenizer.json", "pem.txt", "envs/cartpole.py",
    "src/secrets_of_war.txt", "idea.md", "id_mapping.csv", "credit.csv", "monkey.py",
)  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in (*DECOYS, *INNOCENT):
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CANARY if name in DECOYS else "plain")
    return tmp_path / "source"


def archived(source: Path, blobs: FolderBlobs) -> tuple[Snapshot, bytes]:
    snapshot = pack(source, blobs_put=blobs.put_file, blobs_has=blobs.exists)
    with blobs.open(blob_key(snapshot.digest)) as file:
        content = zstandard.ZstdDecompressor().stream_reader(file).read()
    return snapshot, content


def test_secrets_are_excluded_and_each_is_named(source: Path, tmp_path: Path) -> None:
    snapshot, content = archived(source, FolderBlobs(tmp_path / "blobs"))
    assert CANARY.encode() not in content
    files = {entry.path for entry in snapshot.manifest if entry.kind == "file"}
    assert files == set(INNOCENT)
    left = {one.path for one in snapshot.left_out}
    for decoy in DECOYS:
        assert any(decoy == path or decoy.startswith(path) for path in left if path), decoy
    warning = snapshot.warnings[0]
    assert "likely secrets" in warning
    assert ".env" in warning


def test_only_the_requested_secret_file_is_included(source: Path, tmp_path: Path) -> None:
    (source / ".rayjobsignore").write_text("!server.pem\n")
    snapshot, content = archived(source, FolderBlobs(tmp_path / "blobs"))
    assert content.count(CANARY.encode()) == 1
    files = {entry.path for entry in snapshot.manifest if entry.kind == "file"}
    assert files == {*INNOCENT, "server.pem", ".rayjobsignore"}


@pytest.mark.parametrize(
    "content",
    [
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE",
        "-----BEGIN PRIVATE KEY-----\nMIIE",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl",
        "aws_access_key_id = AKIA" + "QWERTYUIOPASDFGH",
        "token: ghp_" + "a1" * 18,
    ],
)
def test_key_inside_a_file_causes_a_warning_without_its_value(tmp_path: Path, content: str) -> None:
    source = tmp_path / "plain"
    source.mkdir()
    (source / "settings.txt").write_text(f"x = 1\n{content}\n")
    snapshot, _ = archived(source, FolderBlobs(tmp_path / "blobs"))
    (warning,) = snapshot.warnings
    assert "settings.txt" in warning
    assert content[-10:] not in warning


def test_key_inside_an_unchanged_file_causes_the_warning_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayjobs.snapshots.stat_cache.SETTLED_NS", -(10**15))
    source = tmp_path / "plain"
    source.mkdir()
    (source / "settings.txt").write_text("-----BEGIN PRIVATE KEY-----")
    blobs = FolderBlobs(tmp_path / "blobs")
    for _ in range(2):
        snapshot = pack(
            source, blobs_put=blobs.put_file, blobs_has=blobs.exists, cache=tmp_path / "cache"
        )
        assert any("settings.txt" in warning for warning in snapshot.warnings)
    assert not snapshot.is_new


def test_archive_is_plain_tar(source: Path, tmp_path: Path) -> None:
    import tarfile

    snapshot, content = archived(source, FolderBlobs(tmp_path / "blobs"))
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        names = {info.name for info in tar.getmembers()}
        assert {(info.mtime, info.uid, info.gid) for info in tar.getmembers()} == {(0, 0, 0)}
    assert names == {entry.path for entry in snapshot.manifest}

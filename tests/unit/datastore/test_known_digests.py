"""Only a file with unchanged metadata keeps the digest of the previous version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayjobs.datastore.manifest import FileEntry, Manifest

ENTRY = FileEntry("a.txt", "mine", "src/a.txt", 3, "5-3")


@pytest.mark.parametrize(
    ("field", "value"),
    [("path", "b.txt"), ("datastore", "other"), ("key", "b"), ("size", 4), ("etag", "6-3")],
)
def test_only_the_unchanged_file_keeps_its_digest(field: str, value: object) -> None:
    before = Manifest.of([replace(ENTRY, digest="sha256:1")])
    assert Manifest.of([ENTRY]).with_digests_of(before) == before
    other = Manifest.of([replace(ENTRY, **{field: value})])  # type: ignore[arg-type]
    assert other.with_digests_of(before) == other


def test_a_digest_of_the_storage_is_kept() -> None:
    before = Manifest.of([replace(ENTRY, digest="sha256:1")])
    now = Manifest.of([replace(ENTRY, digest="sha256:2")])
    assert now.with_digests_of(before) == now

"""Sentences about a store are shown to clients without its address or path."""

from __future__ import annotations

import pytest

from rayjobs.core.store_address import without_address


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "no job 'x' in the store /srv/team a/store.db; `rayjobs ls --all` lists the jobs.",
            "no job 'x' in the workspace's store; `rayjobs ls --all` lists the jobs.",
        ),
        (
            "no job 'x' in the store postgresql://ada@db/jobs?schema=w; look",
            "no job 'x' in the workspace's store; look",
        ),
        ("the script reads /data/store.db", "the script reads /data/store.db"),
    ],
)
def test_a_sentence_has_no_address(text: str, shown: str) -> None:
    assert without_address(text) == shown

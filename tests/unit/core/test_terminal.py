"""Foreign output moves no cursor, sets no title, and breaks no terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayjobs.core.terminal import Shower, plain_text, safe_text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain\ttext\r\n", "plain\ttext\r\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[H\x1bcwiped", "wiped"),
        ("\x1bP+q\x1b\\dcs", "dcs"),
        ("a\x00b\x07c\x08d", "a\\x00b\\x07c\\x08d"),
        ("\x9b31mred", "red"),
        ("\u202eexe.txt", "\\u202eexe.txt"),
        ("end\x1b", "end"),
        ("ünïcode ✓", "ünïcode ✓"),
    ],
)
def test_escapes_are_removed(raw: str, shown: str) -> None:
    assert plain_text(raw) == shown


def test_colours_may_stay() -> None:
    raw = "\x1b[1;31mred\x1b[0m\x1b[2J\x1b]0;t\x07"
    assert safe_text(raw, colour=True) == "\x1b[1;31mred\x1b[0m"
    assert safe_text(raw, colour=False) == "red"


def test_cuts_between_parts_do_not_matter() -> None:
    raw = "é\x1b[31mred\x1b[0m\x1b]0;title\x07 ✓ end".encode()
    for size in range(1, len(raw)):
        shower = Shower(colour=True)
        parts = [raw[start : start + size] for start in range(0, len(raw), size)]
        text = "".join(shower.show(part) for part in parts) + shower.show(b"", final=True)
        assert text == "é\x1b[31mred\x1b[0m ✓ end"


def test_bytes_that_are_not_text_are_replaced() -> None:
    shower = Shower(colour=False)
    assert shower.show(b"caf\xe9\xff!\n") + shower.show(b"", final=True) == "caf\ufffd\ufffd!\n"


@given(data=st.binary(max_size=300), size=st.integers(min_value=1, max_value=50))
@pytest.mark.long
def test_output_never_contains_dangerous_sequences(data: bytes, size: int) -> None:
    shower = Shower(colour=False)
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    text = "".join(shower.show(part) for part in parts) + shower.show(b"", final=True)
    assert not [char for char in text if ord(char) < 32 and char not in "\t\n\r"]
    assert not [char for char in text if 0x7F <= ord(char) < 0xA0]

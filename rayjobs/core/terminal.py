"""Makes foreign output safe to show on a terminal: escapes, controls, bytes that are not text."""

from __future__ import annotations

import re

# CSI with its parameters, OSC and the other strings up to their end, and two-byte escapes.
# `re` compiles these when they are first used: the large sets of characters take milliseconds.
_COLOUR = r"\x1b\[[0-9;:]*m"
_ESCAPE = (
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b"
)
# All controls except tab, newline and carriage return; DEL; C1; and the marks that change text
# direction, which can disguise text.
_CONTROL = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"

# Also tab, newline, carriage return, other line ends, and characters without a glyph.
_ANY_CONTROL = "[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def plain_text(text: str) -> str:
    r"""Return text without escape sequences; other control characters become ``\x..``."""
    if text.isprintable():
        return text
    return re.sub(_CONTROL, _shown, re.sub(_ESCAPE, "", text))


def one_line(text: str) -> str:
    r"""Return text that stays on one line; every control character is escaped.

    For names that a job or another user chose: of files, jobs, outputs, data. A newline becomes
    ``\n``, an escape ``\x1b``. Idempotent.
    """
    return text if text.isprintable() else re.sub(_ANY_CONTROL, _escaped, text)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, or its first line if that ends earlier."""
    line = text.strip().partition("\n")[0]
    return re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0].strip()


def safe_text(text: str, *, colour: bool) -> str:
    """Return text that cannot move the cursor or set a title; with `colour`, colours stay."""
    if not colour:
        return plain_text(text)
    parts = []
    start = 0
    for match in re.finditer(_COLOUR, text):
        parts += [plain_text(text[start : match.start()]), match.group()]
        start = match.end()
    parts.append(plain_text(text[start:]))
    return "".join(parts)


class Shower:
    """Turns chunks of a log into terminal text, across chunk boundaries.

    Bytes that are not UTF-8 are replaced; a character or escape sequence that a chunk cuts in
    two is held back until the rest arrives (at most 4 kB).
    """

    def __init__(self, *, colour: bool) -> None:
        import codecs

        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._colour = colour
        self._held = ""

    def show(self, chunk: bytes, *, final: bool = False) -> str:
        """Return what can be shown now; with `final` all that is left."""
        text = self._held + self._decoder.decode(chunk, final)
        self._held = ""
        if not final:
            start = text.rfind("\x1b")
            if start >= 0 and len(text) - start < 4096 and _is_cut(text[start:]):
                text, self._held = text[:start], text[start:]
        return safe_text(text, colour=self._colour)


def _is_cut(escape: str) -> bool:
    if len(escape) < 2:
        return True
    if escape[1] == "[":
        return re.fullmatch(r"\x1b\[[0-?]*[ -/]*", escape) is not None
    if escape[1] in "]PX^_":
        return re.search("[\x07\x9c]", escape) is None
    return False


def _escaped(match: re.Match[str]) -> str:
    return _SHORT.get(match.group()) or _shown(match)


def _shown(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

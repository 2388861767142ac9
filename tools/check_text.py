"""Checks that no text names a developer's machine, a registry's host, an issue or unfinished work.

A line that must do so, for example in a test of this check, has the words `text-check: allow` and
the reason.
"""

from __future__ import annotations

import re
import sys

from files import ROOT, project_files, read_text

ALLOW = "text-check: allow"

# Put together from pieces, so that this file passes its own check.
_HOSTS = [
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "npmjs" + ".org",
    "npmjs" + ".com",
    "deb.debian" + ".org",
    "archive.ubuntu" + ".com",
    "crates" + ".io",
    "download.pytorch" + ".org",
    "conda.anaconda" + ".org",
]
RULES = [
    (
        "an absolute path of one machine",
        re.compile(
            r"(?<![\w./~$}>-])/(?:root|work|home/(?!user\b|alice\b|me\b)\w+|Users/\w+)/[\w.]"
        ),
    ),
    ("a package registry's host", re.compile("|".join(map(re.escape, _HOSTS)))),
    (
        # owner/name#123 is a source in another project, and is allowed
        "an issue number",
        re.compile(r"(?:(?<![\w/&#\"'(=\[:])#\d{1,4}\b(?![\w.]))|\b[Ii]ssue \d+\b"),
    ),
    ("unfinished work", re.compile(r"\b(?:TO" + "DO|FIX" + r"ME|X{3})\b")),
]


def main() -> int:
    problems = []
    checked = 0
    for path in project_files():
        text = read_text(path)
        if text is None or path.name == "LICENSE":
            continue
        checked += 1
        for number, line in enumerate(text.splitlines(), start=1):
            if ALLOW in line:
                continue
            for what, pattern in RULES:
                found = pattern.search(line)
                if found:
                    place = f"{path.relative_to(ROOT)}:{number}"
                    problems.append(f"{place}: {what}: {found.group(0)!r}")
    print("\n".join(problems) if problems else f"{checked} files")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""Bash completion of values that contain ``=`` or ``:``, which bash splits into words.

Bash splits ``--input data=dataset:di`` into five words and replaces only the last one. So the
script passes the line as typed, and each candidate drops what bash keeps on the line.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

BREAKS = "=:"  # the characters of COMP_WORDBREAKS that our values contain
SOURCE = """\
%(complete_func)s() {
    local IFS=$'\\n'
    local response

    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \
_RAYJOBS_LINE="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete $1)

    for completion in $response; do
        IFS=',' read type value <<< "$completion"

        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=($value)
            [[ $value == *[=:/] ]] && compopt -o nospace
        fi
    done

    return 0
}

%(complete_func)s_setup() {
    complete -o nosort -F %(complete_func)s %(prog_name)s
}

%(complete_func)s_setup;
"""


class LineBashComplete(BashComplete):
    """Completes the typed line, not bash's words."""

    source_template: ClassVar[str] = SOURCE
    _kept = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one that is completed, and that one."""
        line = os.environ.get("_RAYJOBS_LINE")
        if line is None:  # a script printed by an older rayjobs
            return super().get_completion_args()
        words = split_arg_string(line)
        incomplete = ""
        if words and not line[-1:].isspace():
            incomplete = words.pop()
        last = max(incomplete.rfind(char) for char in BREAKS)
        self._kept = incomplete[: last + 1]
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return a candidate without what bash keeps on the line."""
        value: Any = item.value
        if isinstance(value, str) and self._kept and value.startswith(self._kept):
            value = value[len(self._kept) :]
        return f"{item.type},{value}"


def install() -> None:
    """Make click use `LineBashComplete` for bash."""
    add_completion_class(LineBashComplete)

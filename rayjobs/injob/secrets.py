"""Secrets of a job by name: variables that its target provides by reference."""

from __future__ import annotations

import os
import re


def secret_of(name: str) -> str:
    """Return the secret `name`: the variable of this name or of its usual spelling.

    A variable has no dashes and is usually in capitals: ``db-password`` is also looked up as
    ``DB_PASSWORD``.

    Raises:
        KeyError: there is no such variable.
    """
    for spelling in (name, re.sub(r"[^A-Za-z0-9]", "_", name).upper()):
        if spelling in os.environ:
            return os.environ[spelling]
    raise KeyError(
        "there is no secret %r: no variable of this name is set. Pass it to the job by reference: "
        "`rayjobs submit --secret NAME=…`" % name
    )

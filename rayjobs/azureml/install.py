"""Importing this module first makes rayjobs answer ``import azureml`` in this process.

Raises:
    AlreadyImportedError: the real azureml has been imported already.
"""

from __future__ import annotations

import sys

from rayjobs.azureml.program import become_azure_program
from rayjobs.injob.azureml import finder

_real = finder.install()
if _real is not None:
    print(finder.notice(_real), file=sys.stderr)  # noqa: T201 - a notice for the user
become_azure_program()

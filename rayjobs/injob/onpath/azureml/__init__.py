"""Makes ``import azureml`` load rayjobs' own modules, in all of a job's processes.

It installs the finder.

This folder's parent is on ``PYTHONPATH`` in every job, before the installed packages.
"""

import importlib.util
import os
import sys


def _hand_over() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    entry = os.path.dirname(here)
    if importlib.util.find_spec("rayjobs") is None:
        # …/rayjobs/injob/onpath/azureml: the folder that contains `rayjobs`, at the end of the
        # path.
        sys.path.append(os.path.abspath(os.path.join(here, "..", "..", "..", "..")))
    from rayjobs.injob.azureml import finder

    del sys.modules["azureml"]
    real = finder.real_package(without=entry)
    finder.install()
    if real is not None and not os.environ.get(finder.SAID_VARIABLE):
        os.environ[finder.SAID_VARIABLE] = "1"  # child processes do not repeat it
        print(finder.notice(real), file=sys.stderr)
    __import__("azureml")


_hand_over()

"""Enables the address map in every interpreter that a job starts, including those of commands.

This folder is on ``PYTHONPATH`` in jobs of workspaces that have such a map. The interpreter's own
`sitecustomize` runs after it.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _install_map() -> None:
    added = None
    if importlib.util.find_spec("rayjobs") is None:
        # …/rayjobs/injob/onpath_mapped: the folder that contains `rayjobs`, at the end of the path.
        here = os.path.dirname(os.path.abspath(__file__))
        added = os.path.abspath(os.path.join(here, "..", "..", ".."))
        sys.path.append(added)
    from rayjobs.injob import url_map

    url_map.install()
    if added is not None:
        sys.path.remove(added)


def _run_own() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    path = [one for one in sys.path if os.path.abspath(one or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    del sys.modules["sitecustomize"]
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("RAYJOBS_URLS"):
    _install_map()
_run_own()

"""Builds environments on this machine's node without a job, and finds existing ones."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rayjobs.core import paths
from rayjobs.core.errors import SpecError, UsageError
from rayjobs.core.ids import token
from rayjobs.environments.building import Control
from rayjobs.environments.realise import Environments
from rayjobs.environments.steps import cannot_be_used
from rayjobs.environments.work import Realised, Work
from rayjobs.spec.model import JobSpec, Packages
from rayjobs.submit import checks
from rayjobs.submit.substituting import substituted
from rayjobs.target.node_settings import node_root

ANY = "environment"  # a script that is never run


def packages_of(asked: Packages | Mapping[str, Any], *, strict: bool = False) -> JobSpec:
    """Return a spec with packages available here; its `substitutes` list the replacements.

    Raises:
        SpecError: something is wrong with it.
        UsageError: nothing is left to install: the target's own Python has everything.
    """
    packages = asked if isinstance(asked, Packages) else Packages.model_validate(dict(asked))
    spec = JobSpec(script=ANY, environment=packages, strict=strict)
    spec, _, problems = substituted(spec, source=None, is_here=True)
    problems += [one for one in checks.check(spec) if one.path.startswith("environment")]
    if problems:
        raise SpecError(problems=problems)
    if not isinstance(spec.environment, Packages):
        raise UsageError("the target's own Python has everything: there is nothing to build")
    return spec


def build_here(
    asked: Packages | Mapping[str, Any],
    *,
    strict: bool = False,
    tell: Callable[[str], None] = lambda _text: None,
) -> tuple[Realised, str]:
    """Build an environment unless it exists; return it and the build's log.

    Args:
        tell: Called with each stage.

    Raises:
        SpecError, UsageError: see `packages_of`.
        PrepareError: it cannot be built; the message is the resolver's.
    """
    spec = packages_of(asked, strict=strict)
    for one in spec.substitutes:
        tell(str(one))
    assert isinstance(spec.environment, Packages)
    values = spec.environment.model_dump()
    with working(tell) as (environments, work):
        found = asyncio.run(environments.realise(values, work))
        log = work.paths.build_log
        return found, log.read_text() if log.exists() else ""


def lock_here(
    asked: Packages | Mapping[str, Any], *, tell: Callable[[str], None] = lambda _text: None
) -> str:
    """Resolve an environment on this machine; return its lock.

    Raises:
        SpecError, UsageError, PrepareError: see `build_here`.
    """
    spec = packages_of(asked)
    for one in spec.substitutes:
        tell(str(one))
    assert isinstance(spec.environment, Packages)
    with working(tell) as (environments, work):
        return asyncio.run(environments.lock(spec.environment.model_dump(), work))


def key_here(asked: Packages | Mapping[str, Any]) -> str | None:
    """Return the key of an environment if it is built on this machine's node, else None.

    Raises:
        PrepareError: see `Environments.known`.
    """
    try:
        spec = packages_of(asked)
    except (SpecError, UsageError):
        return None
    assert isinstance(spec.environment, Packages)
    with working() as (environments, work):
        return asyncio.run(environments.known(spec.environment.model_dump(), work))


@contextmanager
def working(
    tell: Callable[[str], None] = lambda _text: None,
) -> Iterator[tuple[Environments, Work]]:
    """Yield this machine's environments, and a `Work` without a job, in a temporary folder.

    Raises:
        PrepareError: the folder of the environments cannot be used.
    """
    node = paths.NodePaths(node_root(paths.home()))
    try:
        node.root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="environment-", dir=node.root))
    except OSError as error:
        raise cannot_be_used(node.environments, error) from error
    try:
        attempt = paths.AttemptPaths(folder)
        attempt.tmp.mkdir()
        control = Control(marker=f"rj-environment-{token()}")
        work = Work(attempt, control, lambda text, _data: tell(text))
        try:
            yield Environments(node.environments, sys.executable), work
        finally:
            work.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)

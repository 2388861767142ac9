"""Provides environments on a node: resolves and builds each once, then reuses it by its lock."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.files import locked_if_free
from rayjobs.core.paths import AttemptPaths
from rayjobs.core.text import duration_text
from rayjobs.datastore import credentials
from rayjobs.environments import base as bases
from rayjobs.environments import changes, condas, locks, settings
from rayjobs.environments import interpreter as interpreters
from rayjobs.environments.attempt_files import UsedEnvironment
from rayjobs.environments.base import Base
from rayjobs.environments.cache import Cache
from rayjobs.environments.horovod import adding
from rayjobs.environments.inside import Image
from rayjobs.environments.interpreter import Interpreter
from rayjobs.environments.request import Request
from rayjobs.environments.steps import Steps, cannot_be_kept, cannot_be_used
from rayjobs.environments.work import Realised, Work
from rayjobs.spec import requirements

log = logging.getLogger(__name__)

# A file that is not a Python of this version is not an error.
_COMPILE = """
import compileall, sys
for folder in sys.argv[1:]:
    compileall.compile_dir(folder, quiet=2)
"""
_SOURCES = "RAYJOBS_SOURCES"
_RESOLVED = "# the pip part is resolved"


class Environments:
    """The environments of one node. Its methods run on one event loop."""

    def __init__(
        self, root: Path, own_python: str, is_open: Callable[[], bool] = lambda: False
    ) -> None:
        """Keep environments below `root`; `own_python` is the default interpreter.

        Args:
            is_open: Whether jobs can write to their environments on this node. If so, each has its
                own files, and is checked for changes before use.
        """
        self._cache = Cache(root)
        self._steps = Steps(self._cache)
        self._own_python = own_python
        self._is_open = is_open
        # Facts about the Pythons of images, by image and path.
        self._pythons: dict[tuple[str, str], tuple[Interpreter, tuple[str, ...]]] = {}

    async def realise(self, asked: Mapping[str, Any], work: Work) -> Realised:
        """Return an environment with the requested packages, building it if needed.

        One attempt builds it, in any event loop or process of this node; others with the same
        request wait.

        Args:
            asked: The ``environment`` of a spec, as JSON data.

        Raises:
            PrepareError: class ``environment``: it cannot be resolved or built, with the resolver's
                message; ``storage``: the disk is full; ``time_limit``; ``system``: the build was
                killed.
        """
        try:
            self._cache.make()
            async with self._steps.building():
                return await self._realise(asked, work)
        except OSError as error:
            raise cannot_be_kept(self._cache.root, error) from error
        finally:
            work.close()

    async def _realise(self, asked: Mapping[str, Any], work: Work) -> Realised:
        work.name = asked.get("name") or work.name
        request, base, of_conda = await self._request(asked, work)
        if of_conda is not None:
            return await self._realise_conda(of_conda, request, work)
        lock = await self._resolved(request, base, work)
        key = request.key(lock)
        if adds_horovod := work.uses_horovod and work.image is None and locks.needs_horovod(lock):
            key = adding.key_with(key)
        async with self._placed(key, work) as (key, is_usable):
            if not is_usable:
                await self._build(key, lock, request, base, work, adds_horovod=adds_horovod)
            self._cache.touch(key)
            found = Realised(str(self._cache.python(key)), key, lock, built=not is_usable)
            _note_use(work.paths, found)
        return found

    @asynccontextmanager
    async def _placed(self, key: str, work: Work) -> AsyncIterator[tuple[str, bool]]:
        """Hold the lock of an environment; yield its name, and whether it is usable.

        If it is not usable, no running attempt uses the name, so it may be built there.
        """
        for name in self._cache.names(key):
            async with self._steps.alone(name, work):
                is_usable = await self._is_usable(name, work)
                if is_usable or not await asyncio.to_thread(self._is_in_use, name):
                    yield name, is_usable
                    return

    def _is_in_use(self, name: str) -> bool:
        return self._cache.folder(name).exists() and bool(self._cache.used_by().get(name))

    async def _is_usable(self, key: str, work: Work) -> bool:
        """Whether an environment is complete and unchanged. The caller holds the lock."""
        if not self._cache.is_whole(key, in_image=work.image is not None):
            return False
        if not await self._is_open_to(work):
            return True
        changed = await asyncio.to_thread(changes.found, self._cache.folder(key))
        if changed:
            self._cache.discard(key)  # so that no other attempt gets it
            text = f"a changed environment is built again: {changes.sentence(changed)}"
            work.tell(text, {"step": "changed", "key": key, "files": changed[:100]})
        return not changed

    async def _is_open_to(self, work: Work) -> bool:
        return work.image is None and await asyncio.to_thread(self._is_open)

    def changed_since(self, key: str) -> str:
        """Return how an environment was changed since it was built, or "". Blocks.

        No new attempt uses a changed environment; all attempts that ran in it are informed.
        """
        if not self._is_open():
            return ""
        with locked_if_free(self._cache.lock_of(key)) as alone:
            folder = self._cache.folder(key)
            if not alone or not (folder / changes.LOOKS).exists():
                return ""  # an attempt that is about to use it checks it itself
            changed = changes.found(folder)
            if not changed:
                return ""
            self._cache.discard(key)
        return (
            f"its environment was changed while the job ran, and is built again for the next job: "
            f"{changes.sentence(changed)}"
        )

    async def lock(self, asked: Mapping[str, Any], work: Work) -> str:
        """Return the lock of an environment without building it; for conda, without its pip part.

        Raises:
            PrepareError: see `realise`.
        """
        try:
            self._cache.make()
            async with self._steps.building():
                request, base, of_conda = await self._request(asked, work)
                if of_conda is None:
                    return await self._resolved(request, base, work)
                return await self._solved(of_conda, self._conda(work), request, work)
        except OSError as error:
            raise cannot_be_kept(self._cache.root, error) from error
        finally:
            work.close()

    async def fetch_conda(self, lock: str, channel: Path, work: Work) -> None:
        """Make a channel in a folder from the conda packages of a lock.

        Raises:
            PrepareError: a package cannot be fetched.
        """
        try:
            await self._conda(work).fetch(condas.split(lock)[0], channel)
        finally:
            work.close()

    async def interpreter_for(self, asked: Mapping[str, Any], work: Work) -> Interpreter:
        """Return the interpreter of the node for which pip packages would be installed.

        Raises:
            PrepareError: there is none.
        """
        return await self._interpreter(asked.get("python"), work)

    async def known(self, asked: Mapping[str, Any], work: Work) -> str | None:
        """Return the name of a complete environment on this node; None if it must be built.

        Raises:
            PrepareError: the folder of the environments cannot be used, or a requested Python does
                not exist.
        """
        try:
            self._cache.make()
            return await self._known(asked, work)
        except OSError as error:
            raise cannot_be_used(self._cache.root, error) from error

    async def _known(self, asked: Mapping[str, Any], work: Work) -> str | None:
        request, _, of_conda = await self._request(asked, work)
        lock = self._cache.resolved(request.digest())
        if lock is None:
            return None
        key = request.key(lock) if of_conda is None else _key_of_conda(request, of_conda, lock)
        for name in self._cache.names(key):
            if self._cache.is_whole(name):
                return name
            if not self._cache.folder(name).exists():
                break
        return None

    async def _request(
        self, asked: Mapping[str, Any], work: Work
    ) -> tuple[Request, Base | None, condas.Asked | None]:
        """Return the request to pip, its base, and the request to conda."""
        lines = self._with_sources(asked["pip"], asked.get("sources") or {})
        work.env = settings.variables(
            credentials.environment(),
            secrets=[one for one in requirements.secrets_of(lines) if one != _SOURCES],
            pip_files=settings.pip_files(os.environ),
        )
        work.env[_SOURCES] = str(self._cache.sources)
        constraints = tuple(str(line) for line in asked.get("constraints") or ())
        image = None if work.image is None else work.image.key
        if asked.get("conda"):
            own = await interpreters.ask(self._own_python)
            name_of = lambda digest: self._cache.source(digest).name  # noqa: E731
            of_conda = condas.asked_of(asked, own.version, name_of)
            key = of_conda.key()
            return Request(lines, own, constraints, conda=key, image=image), None, of_conda
        if work.image is not None:
            python, base = await self._in_image(asked.get("python"), work.image, work)
            return Request(lines, python, constraints, base.digest(), image=image), base, None
        target: Base | None = None
        if asked.get("base") is not None:
            target = await asyncio.to_thread(bases.installed)
        python = await self._interpreter(asked.get("python"), work)
        digest = None if target is None else target.digest()
        return Request(lines, python, constraints, digest), target, None

    async def _in_image(
        self, named: str | None, image: Image, work: Work
    ) -> tuple[Interpreter, Base]:
        """Return the Python of an image, and the packages that it has."""
        path = image.python  # the job's Python, if it names one
        if path is None:
            raise PrepareError(
                f"packages cannot be added to {image.name}: {image.why_no_python}. Use an image "
                f"with Python 3.8 or newer, or use conda packages, which bring their own Python",
                failure_class=FailureClass.ENVIRONMENT,
                is_permanent=True,
            )
        known = (image.key, path)
        if known not in self._pythons:
            self._pythons[known] = await self._ask_in_image(path, image, work)
        python, folders = self._pythons[known]
        if named is not None and "/" not in named and not interpreters.is_version(python, named):
            raise PrepareError(
                f"the job asks for Python {named}, but {image.name} has {python.version_text}: "
                f"name another image, or leave out the version",
                failure_class=FailureClass.ENVIRONMENT,
                is_permanent=True,
            )
        return python, await asyncio.to_thread(bases.of, folders, str(image.root))

    async def _ask_in_image(
        self, path: str, image: Image, work: Work, *, reads: Sequence[Path] = ()
    ) -> tuple[Interpreter, tuple[str, ...]]:
        file = work.paths.tmp / "python.json"
        words = [path, *interpreters.asking(file)]
        try:
            doing = f"{path} in {image.name} does not answer"
            await self._steps.run(words, work, doing, reads=reads, quietly=True)
            return interpreters.answered(path, file.read_bytes())
        finally:
            file.unlink(missing_ok=True)

    def _with_sources(self, lines: Sequence[str], sources: Mapping[str, str]) -> tuple[str, ...]:
        """Return requirements in which packages that travel with the job have their local path.

        The path contains a variable, so that a lock is the same on every node.
        """
        result = []
        for line in lines:
            path = "" if line.startswith("-") else requirements.path_of(line)
            if (folder := requirements.folder_of(line)) in sources:
                line = f"--find-links ${{{_SOURCES}}}/{self._cache.source(sources[folder]).name}"
            if path in sources:
                stored = f"${{{_SOURCES}}}/{self._cache.source(sources[path]).name}"
                if path.endswith(requirements.ARCHIVES):
                    stored += f"/{Path(path).name}"
                line = stored + line[len(path) :]
            result.append(str(line))
        return tuple(result)

    async def _realise_conda(self, wanted: condas.Asked, request: Request, work: Work) -> Realised:
        conda = self._conda(work)
        digest = request.digest()
        lock = await self._solved(wanted, conda, request, work)
        key = _key_of_conda(request, wanted, lock)
        if work.uses_horovod and work.image is None:
            key = adding.key_with(key)
        async with self._placed(key, work) as (key, is_usable):
            if not is_usable:
                lock = await self._build_conda(key, lock, wanted, conda, request, work)
            else:
                lock = self._cache.lock_text(key) or lock
            self._cache.keep_resolved(digest, lock)
            await asyncio.to_thread(work.publish, lock)
            self._cache.touch(key)
            found = Realised(str(self._cache.python(key)), key, lock, built=not is_usable)
            _note_use(work.paths, found)
        return found

    def _conda(self, work: Work) -> condas.Conda:
        path = settings.search_path(work.env)
        run = partial(self._step, work)
        return condas.Conda(self._cache.conda, self._cache.sources, work.paths.tmp, run, path)

    async def _solved(
        self, wanted: condas.Asked, conda: condas.Conda, request: Request, work: Work
    ) -> str:
        """Return the lock of a conda request: stored here, from an earlier attempt, or new."""
        digest = request.digest()
        # Wait without the lock: the job's first node may be on this machine and need it.
        given = await _given(request, work)
        async with self._steps.alone(digest, work):
            lock = given or self._cache.resolved(digest)
            if lock is None:
                work.tell(f"solving {_listed(list(wanted.specs))}", {"step": "resolve"})
                solved = await conda.solve(wanted)
                lock = request.head() + condas.joined(solved)
            self._cache.keep_resolved(digest, lock)
        return lock

    async def _build_conda(
        self,
        key: str,
        lock: str,
        wanted: condas.Asked,
        conda: condas.Conda,
        request: Request,
        work: Work,
    ) -> str:
        """Make a conda prefix and install the pip part into it; return the complete lock."""
        began_s = time.monotonic()
        solved, of_pip = condas.split(lock)
        is_resolved = _RESOLVED in of_pip
        work.tell("building a conda environment", {"step": "build", "key": key})
        prefix = await asyncio.to_thread(self._cache.begin_in_place, key)
        try:
            installed = await conda.install(wanted, solved, prefix)
            version, path = _version_of(prefix), str(prefix / "bin" / "python")
            if request.packages:
                if work.image is None:
                    python = await interpreters.ask(path)
                else:
                    python, _ = await self._ask_in_image(path, work.image, work, reads=(prefix,))
                base = await asyncio.to_thread(_packages_of, prefix)
                inside = Request(request.lines, python, request.constraints)
                if not is_resolved:
                    of_pip = request.head() + await self._resolve(inside, base, work)
                await self._install_into(prefix, of_pip, request, base, work)
            if work.uses_horovod and work.image is None:
                has = await asyncio.to_thread(_packages_of, prefix)
                if adding.TORCH in has.versions and "horovod" not in has.versions:
                    await self._add_horovod(prefix, work)
            # Jobs see it read-only, so their scripts cannot write bytecode there.
            if folders := await asyncio.to_thread(condas.to_compile, prefix):
                compiling = [path, "-I", "-S", "-c", _COMPILE, *folders]
                doing = "the packages cannot be compiled"
                await self._steps.run(compiling, work, doing, writes=(prefix,))
            if await self._is_open_to(work):
                await asyncio.to_thread(changes.unshare, prefix)
                await asyncio.to_thread(changes.keep, prefix)
            of_pip = of_pip if is_resolved else f"{of_pip}{_RESOLVED}\n"
            head, body = request.head(), of_pip.removeprefix(request.head())
            whole = head + condas.joined(installed) + body
            took_s = round(time.monotonic() - began_s, 3)
            record = _record(key, "conda", version, work, took_s, whole)
            await asyncio.to_thread(self._cache.finish_in_place, key, whole, record)
        except BaseException:
            shutil.rmtree(prefix, ignore_errors=True)
            raise
        work.log().write(f"built in {duration_text(took_s)}: {prefix}")
        work.tell(
            f"built a conda environment for Python {version} in {duration_text(took_s)}",
            {"step": "built", "key": key, "took_s": took_s},
        )
        return whole

    async def _add_horovod(self, prefix: Path, work: Work) -> None:
        work.tell("building Horovod for the torch of the environment", {"step": "horovod"})
        await adding.add(prefix / "bin" / "python", partial(self._step, work))

    async def _install_into(
        self, prefix: Path, lock: str, request: Request, base: Base, work: Work
    ) -> None:
        """Install the pip part of a lock next to the conda packages."""
        file = work.paths.tmp / "pip-lock.txt"
        file.write_text(lock)
        stand_ins = await asyncio.to_thread(bases.wheels, base, self._cache.base)
        command = [
            *(settings.find_uv(), "pip", "install", "--no-deps", "--compile-bytecode"),
            *("--python", str(prefix / "bin" / "python"), "--find-links", str(stand_ins)),
            *("--requirements", str(file)),
        ]
        try:
            doing = "the pip packages cannot be installed"
            reads = (stand_ins, *_local_paths(request))
            await self._steps.run(command, work, doing, writes=(prefix,), reads=reads)
        finally:
            file.unlink(missing_ok=True)

    async def _step(self, work: Work, arguments: list[str], doing: str) -> None:
        """Run a program of the node itself."""
        await self._steps.run(arguments, work, doing, on_node=True)

    async def _interpreter(self, named: str | None, work: Work) -> Interpreter:
        if named is None:
            return await interpreters.ask(self._own_python)
        if not requirements.is_version(named):
            return await interpreters.ask(interpreters.path_of(named))
        found = await interpreters.found_by_uv(named, work.env, work.paths.tmp)
        return await interpreters.ask(found)

    async def _resolved(self, request: Request, base: Base | None, work: Work) -> str:
        """Return the lock of a request: stored here, from an earlier attempt, or new."""
        digest = request.digest()
        # Wait without the lock: the job's first node may be on this machine and need it.
        given = await _given(request, work)
        async with self._steps.alone(digest, work):
            lock = given or self._cache.resolved(digest)
            if lock is None:
                lock = request.head() + await self._resolve(request, base, work)
            self._cache.keep_resolved(digest, lock)
        await asyncio.to_thread(work.publish, lock)
        return lock

    async def _resolve(self, request: Request, base: Base | None, work: Work) -> str:
        """Return the lines of a lock for a request's packages, without its head."""
        head = "".join(f"{line}\n" for line in request.options)
        if not request.packages:
            return head
        work.tell(f"resolving {_listed(request.packages)}", {"step": "resolve"})
        folder = work.paths.tmp
        wanted, made = folder / "requirements.in", folder / "requirements.lock"
        limits = folder / "constraints.in"
        wanted.write_text("".join(f"{line}\n" for line in [*request.options, *request.packages]))
        arguments = [
            *(settings.find_uv(), "pip", "compile", "--generate-hashes", "--no-header"),
            *("--no-annotate", "--quiet", "--python", request.interpreter.path),
            *("--output-file", str(made), str(wanted)),
        ]
        if requirements.PRE in request.lines:
            arguments += ["--prerelease", "allow"]
        if request.constraints:
            limits.write_text("".join(f"{line}\n" for line in request.constraints))
            arguments += ["--constraints", str(limits)]
        if base is not None:
            stand_ins = await asyncio.to_thread(bases.wheels, base, self._cache.base)
            made.write_text(base.preferences())
            arguments += ["--find-links", str(stand_ins)]
        try:
            shown = [self._cache.base, *_local_paths(request)]
            python = Path(request.interpreter.path)
            if python.is_relative_to(self._cache.root):  # it belongs to the conda packages
                shown.append(python.parents[1])
            await self._steps.run(arguments, work, "the packages cannot be resolved", reads=shown)
            text = made.read_text()
        finally:
            for file in (wanted, made, limits):
                file.unlink(missing_ok=True)
        if base is not None:
            text, own = base.without_own(text)
            text += "".join(f"# of the {base.owner}: {line}\n" for line in own)
        for name in requirements.secrets_of(request.lines):
            if work.env.get(name):
                text = text.replace(work.env[name], f"${{{name}}}")
        return head + text

    async def _build(
        self,
        key: str,
        lock: str,
        request: Request,
        base: Base | None,
        work: Work,
        *,
        adds_horovod: bool,
    ) -> None:
        began_s = time.monotonic()
        packages = [line for line in lock.splitlines() if line and line[0] not in "#- "]
        count = f"{len(packages)} package{'s' * (len(packages) != 1)}"
        work.tell(f"building an environment of {count}", {"step": "build", "key": key})
        folder = await asyncio.to_thread(self._cache.begin, key)
        with _removed_at_end(folder):
            uv, venv = settings.find_uv(), folder / "venv"
            python = ("--python", request.interpreter.path)
            await self._steps.run(
                [uv, "venv", "--relocatable", "--no-project", *python, str(venv)],
                work,
                "the virtual environment cannot be created",
                writes=(folder,),
            )
            if packages:
                (folder / "lock.txt").write_text(lock)
                sync = [uv, "pip", "sync", "--compile-bytecode"]
                if await self._is_open_to(work):
                    sync += ["--link-mode", "copy"]
                if base is not None:
                    # For the build requirements of source archives.
                    sync += ["--find-links", str(bases.wheels(base, self._cache.base))]
                await self._steps.run(
                    [*sync, "--python", str(venv / "bin" / "python"), str(folder / "lock.txt")],
                    work,
                    "the packages cannot be installed",
                    writes=(folder,),
                    reads=(self._cache.base, *_local_paths(request)),
                )
            if base is not None:
                base.open_to(venv)
            if adds_horovod:
                await self._add_horovod(venv, work)
            if await self._is_open_to(work):
                await asyncio.to_thread(changes.keep, venv)
            took_s = round(time.monotonic() - began_s, 3)
            version = request.interpreter.version_text
            kind = "pip" if work.image is None else "image"
            record = _record(key, kind, version, work, took_s, lock)
            await asyncio.to_thread(self._cache.finish, key, venv, lock, record)
        work.log().write(f"built in {duration_text(took_s)}: {self._cache.folder(key)}")
        work.tell(
            f"built an environment of {count} for Python {request.interpreter.version_text} in "
            f"{duration_text(took_s)}",
            {"step": "built", "key": key, "took_s": took_s, "packages": len(packages)},
        )


def _local_paths(request: Request) -> list[Path]:
    """Return the files and folders of the node that a request names."""
    return [path for path in request.local_paths() if path.is_absolute()]


async def _given(request: Request, work: Work) -> str | None:
    """Return the lock of the job's first node or of an earlier attempt, if it fits a request.

    Other nodes wait for the first one. Nodes that differ in a way that matters for packages, such
    as the version of Python, each have their own lock.
    """
    if work.first_lock is not None:
        has_waited = False
        while (lock := await asyncio.to_thread(work.first_lock)) is None:
            if not has_waited:
                work.tell("waiting for the lock of the first node", {"step": "wait"})
            has_waited = True
            await work.control.pause()
        if request.is_answered_by(lock):
            return lock
        work.log().write("this node differs from the first one: it resolves for itself")
    if work.known_lock and request.is_answered_by(work.known_lock):
        return work.known_lock
    return None


def _version_of(prefix: Path) -> str:
    """Return the version of Python in a conda prefix, from the records of its packages.

    Raises:
        PrepareError: it has no Python, or one that is too old for jobs.
    """
    found = [json.loads(one.read_text()) for one in prefix.glob("conda-meta/python-[0-9]*.json")]
    version = next((str(one["version"]) for one in found if one.get("name") == "python"), "")
    if not version or not (prefix / "bin" / "python").exists():
        raise PrepareError(
            "the conda packages bring no Python, which a job needs: name `python` among them",
            failure_class=FailureClass.ENVIRONMENT,
            is_permanent=True,
        )
    if tuple(int(part) for part in version.split(".")[:2]) < requirements.LEAST_PYTHON:
        raise PrepareError(
            f"the conda packages bring Python {version}; jobs need 3.8 or newer",
            failure_class=FailureClass.ENVIRONMENT,
            is_permanent=True,
        )
    return version


def _key_of_conda(request: Request, wanted: condas.Asked, lock: str) -> str:
    """Return an environment's name; a program of the node makes its lock only when it installs."""
    return request.key_of_conda("" if wanted.command else condas.split(lock)[0])


def _packages_of(prefix: Path) -> Base:
    return bases.of([str(one) for one in prefix.glob("lib/python*/site-packages")])


def _record(
    key: str, kind: str, python: str, work: Work, took_s: float, lock: str
) -> dict[str, Any]:
    return {
        "key": key,
        "kind": kind,
        "name": work.name,
        "python": python,
        "packages": locks.count(lock),
        "took_s": took_s,
    }


def _note_use(paths: AttemptPaths, found: Realised) -> None:
    """Record the environment that an attempt uses, so that it stays as long as its folder."""
    paths.environment_lock.write_text(found.lock)
    UsedEnvironment(found.key, found.python).write(paths)


@contextmanager
def _removed_at_end(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _listed(names: list[str]) -> str:
    shown = ", ".join(name.split(";")[0].strip()[:60] for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")

"""Prepares images on a node: fetches, checks, unpacks once, and queries them."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from rayjobs.containers import asking, container_tools, reference, sources, unpacking
from rayjobs.containers.attempt_files import MeantImage, UsedImage
from rayjobs.containers.cache import LOGIN, ImageCache, Known, key_of
from rayjobs.containers.container_tools import Login, Step
from rayjobs.containers.layers import MOST_BYTES, BadImageError
from rayjobs.containers.reference import Kind, Reference
from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.files import locked_if_free
from rayjobs.core.paths import AttemptPaths
from rayjobs.core.safe_delete import OwnFolder
from rayjobs.environments.building import (
    POLL_S,
    BuildLog,
    Control,
    ProgramFailedError,
    run,
    tied_to_this_process,
)
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.processes import MARKER_VARIABLE

log = logging.getLogger(__name__)

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
Tell = Callable[[str, Mapping[str, Any]], None]
"""Reports progress to users: a sentence, and data."""


@dataclass(frozen=True)
class AskedImage:
    """A job's image request.

    Attributes:
        image: The image as named in the job; None: built from `dockerfile`.
        dockerfile: The text of a Dockerfile.
        context: The build context folder.
        context_digest: A fingerprint of that folder's files.
        login: The login for the registry; None: the settings of the node's engine.
        always_pull: Check the registry even if the image is already here.
        carried: Digest of the image that travels with the job, or None.
        bring: Writes that image into a folder in the OCI layout; blocks.
        meant: What the name meant on the job's first node, or in an earlier attempt.
        called: Its display name; None: `image`.
    """

    image: str | None = None
    dockerfile: str | None = None
    context: Path | None = None
    context_digest: str = ""
    login: Login | None = None
    always_pull: bool = False
    carried: str | None = None
    bring: Callable[[Path], None] = lambda _folder: None
    meant: MeantImage | None = None
    called: str | None = None

    @property
    def text(self) -> str:
        """Its display name."""
        return self.called or self.image or "the image of the job's Dockerfile"

    @property
    def words(self) -> str:
        """The words for it in a sentence."""
        return self.text if self.image is None else f"the image {self.text!r}"

    def as_pinned(self, name: str) -> AskedImage:
        """Return the request for the image under its name with a digest."""
        return replace(self, image=name, always_pull=False, called=self.text)


@dataclass(frozen=True)
class ReadyImage:
    """An image that ranks can enter.

    Attributes:
        root: Its root file system.
        key: Its name in the cache; None: a folder that is used in place.
        digest: Digest of its configuration, or else of its bytes; None if unknown.
        variables: Its own environment variables.
        answer: The facts of its Python.
        fetched: Whether this attempt fetched it.
    """

    root: Path
    key: str | None
    digest: str | None
    variables: Mapping[str, str]
    answer: asking.ImageFacts
    fetched: bool


@dataclass
class ImageWork:
    """One attempt's request for an image, while it is processed.

    Attributes:
        control: Cancels it.
        tell: Called with messages for users.
        secrets: Values that must not appear in logs.
        overlay: Whether this node can put a writable layer over an image.
        publish: Called as soon as the image's meaning is known, for which other nodes wait.
    """

    paths: AttemptPaths
    control: Control
    tell: Tell
    secrets: Sequence[str] = ()
    overlay: bool = True
    publish: Callable[[MeantImage], None] = lambda _meant: None
    has_waited: bool = False
    has_published: bool = False
    opened_log: BuildLog | None = field(default=None)

    def tell_meant(self, meant: MeantImage) -> None:
        """Publish the image's meaning on the first call. Blocks."""
        if not self.has_published:
            self.has_published = True
            self.publish(meant)

    def log(self) -> BuildLog:
        """Return the log, created on first use: an existing image needs none."""
        if self.opened_log is None:
            self.opened_log = BuildLog(self.paths.build_log, self.secrets)
        return self.opened_log

    def close(self) -> None:
        """Close the log; a later use continues it. Idempotent."""
        if self.opened_log is not None:
            self.opened_log.close()
            self.opened_log = None


class Images:
    """The images of one node. Its methods run on one event loop."""

    def __init__(self, root: Path, most_bytes: int = MOST_BYTES) -> None:
        """Keep images below `root`, each with at most `most_bytes` unpacked."""
        self._cache = ImageCache(root)
        self._most_bytes = most_bytes

    async def realise(self, asked: AskedImage, work: ImageWork) -> ReadyImage:
        """Return the image that a job requests, fetching and unpacking it if needed.

        One attempt fetches and one unpacks, in any event loop or process of this node; others with
        the same request wait.

        Raises:
            PrepareError: class ``environment``: it cannot be fetched, or is damaged, too large or
                unsafe to unpack; ``storage``: the disk is full; ``time_limit``; ``system``: the
                program that fetched or unpacked it was killed.
        """
        try:
            self._cache.make()
            return await self._realise(asked, work)
        except OSError as error:
            is_full = error.errno in _DISK_FULL
            raise PrepareError(
                f"the image cannot be stored in {self._cache.root}: {error.strerror}",
                failure_class=FailureClass.STORAGE if is_full else FailureClass.SYSTEM,
            ) from error
        finally:
            work.close()

    async def _realise(self, asked: AskedImage, work: ImageWork) -> ReadyImage:
        is_elsewhere = asked.image is None or asked.carried is not None
        source = None if is_elsewhere else reference.parse(str(asked.image))
        if source is not None and source.kind is Kind.FOLDER:
            root = await writable_root(source.path, work)
            answer = await asking.ask(root, {}, work.paths, work.control, overlay=work.overlay)
            await asyncio.to_thread(work.tell_meant, MeantImage())
            return ReadyImage(source.path, None, None, {}, answer, fetched=False)
        pinned = None if asked.meant is None else asked.meant.pinned
        if pinned and source is not None and source.kind is Kind.NAME:
            asked, source = asked.as_pinned(pinned), reference.parse(pinned)
        name_key = _name_key(asked, source)
        async with self._alone(name_key, work):
            key, fetched = await self._found(asked, source, name_key, work)
            while not await self._use(key, work):  # it has been pruned since it was found
                key, fetched = await self._found(asked, source, name_key, work)
        found = await self._ready(key, work, fetched=fetched)
        if source is not None:  # images that are built or travel with the job are always the same
            _require_meant(asked, found)
        return found

    async def _found(
        self, asked: AskedImage, source: Reference | None, name_key: str, work: ImageWork
    ) -> tuple[str, bool]:
        """Return a name's image, and whether it was fetched. The caller holds the name's lock."""
        if asked.meant is not None and asked.meant.digest is not None:
            key = key_of(asked.meant.digest)
            if self._cache.is_whole(key):
                return key, False
        known = self._cache.known(name_key)
        is_sure = known is not None and (
            asked.carried is not None or (source is not None and source.is_pinned)
        )
        stamp = known.stamp if is_sure and known else await asyncio.to_thread(_stamp, source)
        if known is not None and known.stamp == stamp and not self._is_to_be_asked(asked, source):
            digest = str(self._cache.record(known.key)["digest"])
            await asyncio.to_thread(work.tell_meant, MeantImage(digest, known.pinned))
            return known.key, False
        pinned = await self._pinned(asked, source, stamp, name_key, work)
        if pinned is None:
            known = await self._fetch(asked, source, name_key, stamp, work)
            digest = str(self._cache.record(known.key)["digest"])
            await asyncio.to_thread(work.tell_meant, MeantImage(digest))
            self._cache.keep_known(name_key, known)
            return known.key, True
        # The job's other nodes can then fetch it at the same time.
        await asyncio.to_thread(work.tell_meant, MeantImage(pinned=pinned.name))
        exact = asked.as_pinned(pinned.name)
        exact_key = _name_key(exact, pinned)
        async with self._alone(exact_key, work):
            key, fetched = await self._found(exact, pinned, exact_key, work)
        self._cache.keep_known(name_key, Known(key, stamp, pinned.name))
        return key, fetched

    async def _pinned(
        self,
        asked: AskedImage,
        source: Reference | None,
        stamp: str | None,
        name_key: str,
        work: ImageWork,
    ) -> Reference | None:
        """Return a name with its digest in the registry; None if unknown or not needed."""
        if source is None or source.kind is not Kind.NAME or source.is_pinned:
            return None
        if stamp is not None and not asked.always_pull:
            return None  # an engine of the node already has it
        folder = await asyncio.to_thread(self._cache.begin, name_key)
        try:
            login = None if asked.login is None else asked.login.write(folder / LOGIN)
            words = container_tools.words_to_pin(source, login)
            return (
                None
                if words is None
                else container_tools.pinned(source, await _output_of(words, work))
            )
        finally:
            await asyncio.to_thread(self._discard, folder)

    async def _use(self, key: str, work: ImageWork) -> bool:
        """Record that an attempt uses an image, so that it is not pruned; return whether it exists.

        Several names may stand for one image, and a prune holds none of their locks.
        """
        async with self._alone(key, work):
            if not self._cache.is_whole(key):
                return False
            # This record, and so the image, stays as long as the attempt's folder.
            UsedImage(key).write(work.paths)
            self._cache.touch(key)
        return True

    @staticmethod
    def _is_to_be_asked(asked: AskedImage, source: Reference | None) -> bool:
        is_name = source is not None and source.kind is Kind.NAME and not source.is_pinned
        return asked.always_pull and is_name

    async def _ready(self, key: str, work: ImageWork, *, fetched: bool) -> ReadyImage:
        record = await asyncio.to_thread(self._cache.record, key)
        variables = asking.variables_of(record["config"])
        if "answer" not in record:
            root = await writable_root(self._cache.rootfs(key), work)
            answer = await asking.ask(
                root, variables, work.paths, work.control, overlay=work.overlay
            )
            record["answer"] = answer.to_json()
            await asyncio.to_thread(self._cache.keep_record, key, record)
        answer = asking.ImageFacts.from_json(record["answer"])
        return ReadyImage(
            self._cache.rootfs(key), key, str(record["digest"]), variables, answer, fetched=fetched
        )

    # -- fetching ---------------------------------------------------------------------------------

    async def _fetch(
        self,
        asked: AskedImage,
        source: Reference | None,
        name_key: str,
        stamp: str | None,
        work: ImageWork,
    ) -> Known:
        """Fetch an image into files, and unpack it unless the cache already has it."""
        folder = await asyncio.to_thread(self._cache.begin, name_key)
        try:
            path, tag = folder / "image", None
            if source is not None and source.kind is Kind.FILE:
                path, tag = source.path, source.tag
            elif asked.carried is not None:
                work.tell(f"taking {asked.text} from the workspace", {"step": "fetch"})
                await asyncio.to_thread(asked.bring, path)
            else:
                for step in self._steps(asked, source, stamp, folder, path):
                    await self._run(step, asked, work)
                tag = "image" if path.is_dir() else None
            key = await self._unpacked(path, tag, asked, work)
        finally:
            await asyncio.to_thread(self._discard, folder)
        if source is not None and source.kind is Kind.NAME:
            stamp = await asyncio.to_thread(_stamp, source)  # an engine may have it by now
        return Known(key, stamp)

    def _steps(
        self,
        asked: AskedImage,
        source: Reference | None,
        stamp: str | None,
        folder: Path,
        path: Path,
    ) -> Iterator[Step]:
        login = None if asked.login is None else asked.login.write(folder / LOGIN)
        if source is None:
            assert asked.dockerfile is not None
            file = folder / "Dockerfile"
            file.write_text(asked.dockerfile)
            context = asked.context or folder / "context"
            context.mkdir(exist_ok=True)
            name = f"localhost/rayjobs-build:{folder.name[-40:].lower()}"
            yield from container_tools.steps_to_build(file, context, name, login)
            yield from container_tools.steps_to_save_built(name, path)
        elif stamp is not None and not asked.always_pull:
            engine = stamp.partition(" ")[0]  # it already has the image
            yield from container_tools.steps_to_save(engine, source.name, path)
        else:
            yield from container_tools.steps_to_fetch(source, path, login)

    async def _run(self, step: Step, asked: AskedImage, work: ImageWork) -> None:
        program = Path(step.arguments[0]).name
        if not work.has_waited:
            work.has_waited = True
            verb = "building" if asked.image is None else "fetching"
            work.tell(f"{verb} {asked.text} with {program}", {"step": "fetch"})
        doing = "it cannot be built" if asked.image is None else "it cannot be fetched"
        try:
            await run(
                step.arguments,
                env={**container_tools.variables(), **step.variables},
                cwd=work.paths.tmp,
                build_log=work.log(),
                control=work.control,
                doing=f"{asked.words}: {program if asked.image else doing}",
            )
        except PrepareError as error:
            raise container_tools.in_words(error, f"{asked.words}: {doing}") from error

    async def _unpacked(
        self, path: Path, tag: str | None, asked: AskedImage, work: ImageWork
    ) -> str:
        """Unpack the fetched image, unless it is already unpacked under another name."""
        try:
            digest = await asyncio.to_thread(_digest, path, tag, self._most_bytes)
        except BadImageError as error:
            raise _bad(asked, error) from error
        key = key_of(digest)
        async with self._alone(key, work):
            if self._cache.is_whole(key):
                return key
            work.tell(f"unpacking {asked.text}", {"step": "unpack", "digest": digest})
            folder = await asyncio.to_thread(self._cache.begin, key)
            try:
                await self._unpack(path, tag, folder, asked, work)
                await asyncio.to_thread(self._cache.finish, key, folder)
            finally:
                await asyncio.to_thread(self._discard, folder)
        return key

    async def _unpack(
        self, path: Path, tag: str | None, folder: Path, asked: AskedImage, work: ImageWork
    ) -> None:
        words = [sys.executable, str(unpacking.__file__), str(path), str(folder)]
        try:
            await run(
                [*words, str(self._most_bytes), *([tag] if tag else [])],
                env={**container_tools.variables(), "PYTHONPATH": _module_path()},
                cwd=work.paths.tmp,
                build_log=work.log(),
                control=work.control,
                doing=f"{asked.words} cannot be unpacked",
            )
        except ProgramFailedError as error:
            refusal = unpacking.refusal(folder) if error.status == unpacking.REFUSED else None
            if refusal is None:
                raise
            raise _bad(asked, BadImageError(refusal), error.lines) from error

    def _discard(self, folder: Path) -> None:
        with OwnFolder(self._cache.building) as building:
            building.remove(folder.name)

    @asynccontextmanager
    async def _alone(self, name: str, work: ImageWork) -> AsyncIterator[None]:
        """Hold the lock of an image or a name; waits for other holders."""
        is_noted = False
        while True:
            work.control.check()
            with ExitStack() as stack:
                if stack.enter_context(locked_if_free(self._cache.lock_of(name))):
                    yield
                    return
            if not is_noted:
                is_noted = True
                work.tell("waiting for another attempt that fetches it", {"step": "wait"})
            await work.control.pause()


async def _output_of(words: Sequence[str], work: ImageWork) -> str:
    """Return the output of a short program; "" if it fails or takes too long.

    Raises:
        StoppedError, PrepareError: see `Control.check`.
    """
    process = await asyncio.create_subprocess_exec(
        *tied_to_this_process(words),
        env={**container_tools.variables(), MARKER_VARIABLE: work.control.marker},
        cwd=work.paths.tmp,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    talking = asyncio.ensure_future(process.communicate())
    until_s = asyncio.get_running_loop().time() + container_tools.ASK_S
    try:
        while not talking.done() and asyncio.get_running_loop().time() < until_s:
            await asyncio.wait({talking}, timeout=POLL_S)
            work.control.check()
        if not talking.done() or process.returncode:
            return ""  # the fetch will report the cause
        return talking.result()[0].decode("utf-8", "replace")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        talking.cancel()


def _require_meant(asked: AskedImage, found: ReadyImage) -> None:
    """Check that an image is the same as on the job's first node.

    Raises:
        PrepareError: class ``environment``: this node has another image under the name.
    """
    meant = asked.meant
    if meant is None or meant.digest is None or found.digest in (None, meant.digest):
        return
    raise PrepareError(
        f"the image {asked.text!r} differs on this node ({found.digest}) from the one on the job's "
        f"first node ({meant.digest}). Put the same image on all nodes, or name it with its digest "
        f"(name@sha256:…), so that each node fetches the same one from the registry",
        failure_class=FailureClass.ENVIRONMENT,
        is_permanent=True,
    )


async def writable_root(root: Path, work: ImageWork) -> Path:
    """Return a root file system for an attempt's processes, whose writes other attempts do not see.

    If the node cannot put a writable layer over the image, this is a copy in the attempt's folder,
    made on first use.

    Raises:
        PrepareError: it cannot be copied (``storage`` for a full disk); see also `Control.check`.
    """
    if work.overlay:
        return root
    target = work.paths.container / "image"
    if target.is_dir():
        return target
    part = target.with_name("image.part")
    await asyncio.to_thread(target.parent.mkdir, mode=0o700, exist_ok=True)
    await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
    copy = shutil.which("cp") or "/bin/cp"
    try:
        await run(
            [copy, "--archive", "--reflink=auto", "--no-target-directory", str(root), str(part)],
            env=container_tools.variables(),
            cwd=work.paths.tmp,
            build_log=work.log(),
            control=work.control,
            doing="the image cannot be copied for the attempt",
        )
    finally:
        work.close()
    await asyncio.to_thread(part.rename, target)
    return target


def _digest(path: Path, tag: str | None, most_bytes: int) -> str:
    with sources.opened(path, tag, most_bytes=most_bytes) as image:
        return image.digest


def _module_path() -> str:
    return str(Path(unpacking.__file__).resolve().parents[2])


def _name_key(asked: AskedImage, source: Reference | None) -> str:
    made_of: list[str | None]
    if asked.carried is not None:
        made_of = ["carried", asked.carried]
    elif source is None:
        made_of = ["dockerfile", asked.dockerfile, asked.context_digest]
    elif source.kind is Kind.NAME:
        made_of = ["name", source.name]
    else:
        made_of = ["file", str(source.path), source.tag]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:32]


def _stamp(source: Reference | None) -> str | None:
    """Return evidence that a name or file is unchanged; None if this node has none."""
    if source is None:
        return None
    if source.kind is Kind.NAME:
        kept = container_tools.kept_by(source)
        return None if kept is None else " ".join(kept)
    index = source.path / "index.json" if source.path.is_dir() else source.path
    info = index.stat()
    return f"{info.st_size} {info.st_mtime_ns}"


def _bad(asked: AskedImage, error: BadImageError, lines: Sequence[str] = ()) -> PrepareError:
    return PrepareError(
        f"{asked.words} cannot be used: {error}",
        failure_class=FailureClass.ENVIRONMENT,
        lines=tuple(lines),
        is_permanent=True,
    )

"""Containers of attempts on one node: prepares images, and plans the containers for hosts."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rayjobs import snapshots
from rayjobs.containers import asking, devices
from rayjobs.containers.attempt_files import MeantImage, UsedImage
from rayjobs.containers.cache import ImageCache
from rayjobs.containers.container_tools import Login
from rayjobs.containers.images import (
    AskedImage,
    Images,
    ImageWork,
    ReadyImage,
    writable_root,
)
from rayjobs.containers.layers import MOST_BYTES
from rayjobs.containers.reference import DEFAULT_REGISTRY
from rayjobs.containers.reference import parse as parse_reference
from rayjobs.core.errors import NotFoundError, PrepareError, SnapshotError, StoreError
from rayjobs.core.failures import FailureClass
from rayjobs.core.paths import IMAGE_RECORD, AttemptPaths
from rayjobs.environments import interpreter, locks
from rayjobs.environments.attempt_files import UsedEnvironment
from rayjobs.environments.building import Control
from rayjobs.environments.horovod import in_image, recipe
from rayjobs.environments.inside import Image
from rayjobs.injob import container as injob_container
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.plan import Bind, ContainerPlan, LaunchPlan, Limit, MemoryFolder
from rayjobs.launch import openmpi
from rayjobs.node import probe
from rayjobs.node.build_logs import store_build_log, store_file
from rayjobs.node.hosts import read_secrets
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import AttemptOnNode, ContainerRequest, LaunchRequest
from rayjobs.spec.container_arguments import parse as parse_arguments
from rayjobs.spec.model import Container

log = logging.getLogger(__name__)

EVENT = "environment"
INSTEAD = (
    "You can start the node itself from the image and omit the job's `container`, or "
    "list the image's packages in the job's `environment`"
)
_COPIES = re.compile(r"^\s*(COPY|ADD|ONBUILD)\b|--mount=", re.MULTILINE | re.IGNORECASE)
_NODE_FILES = ("/etc/resolv.conf", "/etc/hosts")


@dataclass(frozen=True)
class Capability:
    """What a node can do with images.

    Attributes:
        why: Why it cannot run images; empty if it can.
        why_no_overlay: Why each attempt needs a copy of its image; empty if it does not.
        is_certain: Whether a probe gave this answer, and did not fail itself.
    """

    why: str = ""
    why_no_overlay: str = ""
    is_certain: bool = True


def capability_of(folder: Path) -> Capability:
    """Try a container below `folder`. Blocks.

    Raises:
        ProbeError: see `probe.run`.
    """
    answer = probe.run(injob_container, injob_container.ContainerProbe, str(folder))
    return Capability(answer.why, answer.why_no_overlay)


def _uncertain(cause: str) -> Capability:
    return Capability(why=cause, is_certain=False)


class NodeContainers:
    """The containers of the attempts of one node. Its methods run on one event loop."""

    def __init__(
        self,
        root: Path,
        workspaces: Workspaces,
        shared: snapshots.NodeSnapshots,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Keep images below `root`; report on them in the workspaces of their jobs.

        Args:
            shared: Unpacks the files that travel with a job.
            most_bytes: The largest size of an unpacked image.
        """
        self._root = root
        self._images = Images(root, most_bytes)
        self._workspaces = workspaces
        self._snapshots = shared
        self._controls: dict[str, Control] = {}
        self._answers: dict[tuple[str, str], asking.ImageFacts] = {}
        self._capability = probe.ProbeResult(self._try, failed=_uncertain)

    def capability(self) -> Capability:
        """Return this node's capability. Blocks briefly at its first use."""
        return self._capability.get()

    def _try(self) -> Capability:
        self._root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return capability_of(self._root.parent)

    # -- before the launch ------------------------------------------------------------------------

    async def bring(self, request: LaunchRequest) -> ReadyImage | None:
        """Prepare an attempt's image; return None if it requests none.

        Raises:
            PrepareError: see `Images.realise`; class ``user``: this node lacks the path of a
                volume; class ``environment``: this node cannot run images, or the image lacks
                something that the job needs.
        """
        asked = request.container
        if asked is None:
            return None
        await asyncio.to_thread(_check_volumes, asked)
        able = await asyncio.to_thread(self.capability)
        if able.why:
            raise PrepareError(
                f"container images cannot be run on this node: {able.why}. {INSTEAD}",
                failure_class=FailureClass.ENVIRONMENT,
                is_permanent=able.is_certain,
            )
        on = request.on
        paths = AttemptPaths(Path(on.root))
        limit_s = on.max_duration_s
        control = Control(
            marker=on.marker,
            deadline_s=asyncio.get_running_loop().time() + limit_s if limit_s else None,
            limit_s=limit_s,
        )
        self._controls[control.marker] = control
        try:
            login = _login(asked)
            work = ImageWork(
                paths=paths,
                control=control,
                tell=partial(self._report, on),
                secrets=[login.password] if login else [],
                overlay=not able.why_no_overlay,
            )
            image = self._asked_image(asked, login, request)
            if on.node == 0:
                work.publish = partial(self._publish_meant, on)
            if image.image is not None and image.carried is None:
                image = replace(image, meant=await self._meant(on, work))
            found = await self._images.realise(image, work)
            found = replace(found, root=await writable_root(found.root, work))
            if asked.interpreter is not None:
                answer = await asking.ask(
                    found.root,
                    found.variables,
                    paths,
                    control,
                    named=_python_of(asked.interpreter),
                    overlay=work.overlay,
                    binds=_volumes(asked),
                )
                found = replace(found, answer=answer)
            await self._check(request, found, work)
        except BaseException:
            await asyncio.to_thread(store_build_log, self._workspaces, on, paths)
            raise
        finally:
            self._controls.pop(control.marker, None)
        self._note(on, asked, found)
        used = UsedImage(
            found.key, str(found.root), found.variables, is_private=bool(able.why_no_overlay)
        )
        await asyncio.to_thread(used.write, paths)
        return found

    def building_in(self, request: LaunchRequest, found: ReadyImage) -> Image:
        """Return an attempt's image as the installation of packages needs it."""
        key = found.key
        if key is None:  # a folder that is used in place
            info = Path(found.root).stat()
            key = f"{found.root} {info.st_ino} {info.st_mtime_ns}"
        asked, python = request.container, found.answer.python
        volumes = () if asked is None else _volumes(asked)
        if python is not None:  # it may be on the node, in a volume
            sources = [one.source for one in volumes if python.startswith(f"{one.target}/")]
            key = " ".join([key, *sources])
        return Image(
            name=self._name_of(request),
            key=key,
            root=found.root,
            variables={"PATH": asking.DEFAULT_PATH, **found.variables},
            python=found.answer.python,
            why_no_python=found.answer.why,
            overlay=not self.capability().why_no_overlay,
            binds=volumes,
        )

    async def asked_again(
        self, request: LaunchRequest, found: ReadyImage, python: str
    ) -> ReadyImage:
        """Query an environment's interpreter in an image; return the image with the answer.

        Raises:
            PrepareError: it does not answer.
        """
        paths, folder = AttemptPaths(Path(request.on.root)), str(_environment_of(python))
        volumes = () if request.container is None else _volumes(request.container)
        known = (str(found.root), python)
        answer = self._answers.get(known)
        if answer is None:
            control = Control(marker=request.on.marker)
            self._controls[control.marker] = control
            try:
                answer = await asking.ask(
                    found.root,
                    found.variables,
                    paths,
                    control,
                    named=python,
                    overlay=not self.capability().why_no_overlay,
                    binds=[*volumes, Bind(folder, folder, read_only=True)],
                )
            finally:
                self._controls.pop(control.marker, None)
            if answer.python is None:
                raise PrepareError(
                    f"the environment that was built for {self._name_of(request)} does not work "
                    f"in it: {answer.why}",
                    failure_class=FailureClass.ENVIRONMENT,
                    is_permanent=True,
                )
            self._answers[known] = answer
        return replace(found, answer=answer)

    @staticmethod
    def has_horovod(found: ReadyImage) -> ReadyImage:
        """Return an image whose list of packages includes the Horovod that was built for it."""
        facts = dict(found.answer.facts)
        packages = facts.get("packages")
        if isinstance(packages, list):
            others = (one for one in packages if one[0] != "horovod")
            facts["packages"] = sorted([*others, ["horovod", recipe.VERSION]])
        return replace(found, answer=replace(found.answer, facts=facts))

    @staticmethod
    def _name_of(request: LaunchRequest) -> str:
        asked = request.container
        image = None if asked is None else asked.image
        return f"the image {image!r}" if image else "the Dockerfile's image"

    def _note(self, on: AttemptOnNode, asked: ContainerRequest, found: ReadyImage) -> None:
        what = asked.image or "the Dockerfile's image"
        digest = f" ({found.digest[:19]}…)" if found.digest else ""
        python = f", Python {found.answer.python_version}" if found.answer.python_version else ""
        self._report(
            on,
            f"the ranks run in {what}{digest}{python}; they start cold",
            {
                "step": "image",
                "image": asked.image,
                "digest": found.digest,
                "fetched": found.fetched,
                "python": found.answer.python,
            },
        )

    async def _check(self, request: LaunchRequest, found: ReadyImage, work: ImageWork) -> None:
        plan = request.plan
        # A conda environment has its own Python; a pip environment gives the better error message.
        needs_python = request.environment is None and (plan.kind == "script" or plan.is_mpi)
        if found.answer.python is None and needs_python:
            raise PrepareError(
                f"the image has no Python that can run the script: {found.answer.why}. Use an "
                f"image with Python 3.8 or newer, or run another program as the job's command",
                failure_class=FailureClass.ENVIRONMENT,
                is_permanent=True,
            )
        assert request.container is not None
        binds = _volumes(request.container)
        if plan.kind == "command" and not asking.find(found.root, {"PATH": "/bin"}, "sh", binds):
            raise PrepareError(
                "the image has no /bin/sh, which runs the job's command. Use an image with a shell "
                "(that of busybox is enough), or run a Python script instead of a command",
                failure_class=FailureClass.ENVIRONMENT,
                is_permanent=True,
            )
        if not plan.is_mpi:
            return
        program = asking.find(found.root, found.variables, "mpirun", binds)
        orted = asking.find(found.root, found.variables, "orted", binds)
        version = ""
        if program is not None and orted is not None:
            version = await asking.run_in(
                found.root,
                found.variables,
                [program, "--version"],
                work.paths,
                work.control,
                overlay=work.overlay,
                binds=binds,
            )
        problem = (
            openmpi.version_problem(program or "mpirun", version)
            if version
            else "its PATH lacks mpirun or orted, or `mpirun --version` prints nothing"
        )
        if problem:
            raise PrepareError(
                f"ranks cannot be started by MPI in the image: {problem}. Use an image with Open "
                f"MPI {openmpi.MAJOR}, or the backend gloo or nccl",
                failure_class=FailureClass.ENVIRONMENT,
                is_permanent=True,
            )

    def _asked_image(
        self, asked: ContainerRequest, login: Login | None, request: LaunchRequest
    ) -> AskedImage:
        carried = asked.sources.get(asked.image or "")
        return AskedImage(
            image=asked.image,
            dockerfile=asked.dockerfile,
            context=AttemptPaths(Path(request.on.root)).work,
            context_digest=(request.snapshot or "") if _reads_context(asked.dockerfile) else "",
            login=login,
            always_pull=parse_arguments(asked.arguments).always_pull,
            carried=carried,
            bring=partial(self._bring, request.on, carried or ""),
        )

    async def _meant(self, on: AttemptOnNode, work: ImageWork) -> MeantImage | None:
        """Return the resolved image of the job; other nodes wait for the result of the first one.

        A retry uses the image to which the tag resolved in the previous attempt.

        Raises:
            PrepareError: the record of the first node cannot be read.
        """
        if on.node == 0:
            if on.attempt <= 1:
                return None
            try:
                before = await asyncio.to_thread(self._stored_meant, on, None)
            except ValueError as error:
                log.warning("%s resolves its image again: %s", on.job, error)
                return None
            return None if before is None else MeantImage(pinned=before.pinned)
        has_waited = False
        try:
            while (found := await asyncio.to_thread(self._stored_meant, on, on.attempt)) is None:
                if not has_waited:
                    has_waited = True
                    text = "waiting until the first node has resolved the image"
                    work.tell(text, {"step": "wait"})
                await work.control.pause()
        except ValueError as error:
            raise PrepareError(
                f"the image that the job's first node resolved is not known: {error}"
            ) from error
        return found

    def _publish_meant(self, on: AttemptOnNode, meant: MeantImage) -> None:
        if on.node_count == 1 and meant.pinned is None:
            return  # nothing reads it
        path = AttemptPaths(Path(on.root)).meant_image
        path.write_text(json.dumps(meant.to_json()))
        store_file(self._workspaces, on, path, IMAGE_RECORD)

    def _stored_meant(self, on: AttemptOnNode, attempt: int | None) -> MeantImage | None:
        """Return the resolved image that is stored with a job, for one attempt or for any.

        Raises:
            ValueError: the record is damaged or comes from a later version.
        """
        try:
            workspace = self._workspaces.of(on)
        except (StoreError, NotFoundError, OSError) as error:
            log.info("the workspace of %s cannot be opened: %s", on.job, error)
            return None
        text = locks.stored(workspace, on.job, attempt=attempt, name=IMAGE_RECORD)
        return None if text is None else MeantImage.from_json(json.loads(text))

    def _bring(self, on: AttemptOnNode, digest: str, folder: Path) -> None:
        """Unpack an image that travels with a job. Blocks.

        Raises:
            PrepareError: it cannot be read, or is damaged.
        """
        opened = partial(self._workspaces.of(on).blobs.open, snapshots.blob_key(digest))
        try:
            self._snapshots.ensure(digest, opened)
            self._snapshots.copy_into(digest, folder)
        except (SnapshotError, StoreError, NotFoundError, OSError) as error:
            raise PrepareError(
                f"the image that travels with the job cannot be unpacked: {error}",
                failure_class=FailureClass.STORAGE,
            ) from error

    def prune(self) -> None:
        """Remove the leftovers of an earlier agent's interrupted fetches. Blocks."""
        ImageCache(self._root).remove_logins()

    def stop(self, on: AttemptOnNode) -> None:
        """Make `bring` of this attempt end soon; has no effect afterwards."""
        control = self._controls.get(on.marker)
        if control is not None:
            control.stopped.set()

    def _report(self, on: AttemptOnNode, text: str, data: Mapping[str, Any]) -> None:
        if on.node == 0:
            self._workspaces.note(on, EVENT, text, data)

    # -- the launch -------------------------------------------------------------------------------

    def plan(self, request: LaunchRequest, shown: tuple[Bind, ...]) -> LaunchPlan:
        """Return the plan of an attempt whose image is ready, with its container. Blocks.

        Args:
            shown: Its inputs and outputs outside its folder.

        Raises:
            PrepareError: class ``system``: the attempt's record of its image cannot be read.
        """
        asked, plan = request.container, request.plan
        assert asked is not None
        paths = AttemptPaths(Path(plan.root))
        used = _image_of_attempt(paths)
        environment = _environment_of_attempt(paths)
        horovod = _horovod_of_attempt(paths)
        arguments = parse_arguments(asked.arguments)
        gpus = devices.find() if plan.env.get("CUDA_VISIBLE_DEVICES") else devices.Devices()
        binds = (
            *(Bind(path, path, read_only=True, replaces=True)
              for path in _NODE_FILES if Path(path).exists()),
            *gpus.binds,
            *_volumes(asked),
            *shown,
            *_injob_binds(plan),
            *_mpi_binds(plan),
            *(Bind(str(one), str(one), read_only=True)
              for one in (*environment, *([horovod] if horovod else []))),
            Bind(plan.root, plan.root),
            *_tmp_binds(plan, paths),
        )  # fmt: skip
        return replace(
            plan,
            containment=("namespace",),
            env=in_image.with_horovod(_variables(plan, used.variables, gpus, environment), horovod),
            container=ContainerPlan(
                image=str(used.root),
                scratch=str(paths.container),
                is_private=used.is_private,
                shm_bytes=None if arguments.host_ipc else _shm_bytes(asked),
                binds=binds,
                memory_folders=tuple(MemoryFolder(*one) for one in arguments.tmpfs),
                devices=gpus.nodes,
                links=gpus.links,
                limits=tuple(Limit(*one) for one in arguments.ulimits),
            ),
        )


def _volumes(asked: ContainerRequest) -> tuple[Bind, ...]:
    volumes = parse_arguments(asked.arguments).volumes
    return tuple(Bind(one.source, one.target, one.read_only, of_job=True) for one in volumes)


def _check_volumes(asked: ContainerRequest) -> None:
    """Check that the node has the paths of the job's volumes. Blocks.

    Raises:
        PrepareError: class ``user``: it lacks one, which a retry cannot change.
    """
    for one in _volumes(asked):
        try:
            Path(one.source).stat()
        except OSError as error:
            raise PrepareError(
                f"{injob_container.volume_problem(one, error)}. A volume shows a path of the node "
                f"on which the job runs: create it on each node of the target, or correct the path",
                failure_class=FailureClass.USER,
                is_permanent=True,
            ) from error


def _shm_bytes(asked: ContainerRequest) -> int:
    return Container(image="any", shm_mib=asked.shm_mib, arguments=asked.arguments).shm_bytes


def _variables(
    plan: LaunchPlan,
    image: Mapping[str, str],
    gpus: devices.Devices,
    environment: Sequence[Path] = (),
) -> dict[str, str]:
    """Return the variables of the ranks, from the image, the node's driver and the job."""
    is_root = os.getuid() == 0
    found = {"PATH": asking.DEFAULT_PATH, "HOME": "/root" if is_root else f"{plan.root}/tmp"}
    with contextlib.suppress(OSError, KeyError):  # a user without a name
        found |= dict.fromkeys(("USER", "LOGNAME"), getpass.getuser())
    found |= {**image, **gpus.variables, **plan.env}
    if gpus.library_folders:
        before = found.get("LD_LIBRARY_PATH")
        found["LD_LIBRARY_PATH"] = ":".join([*gpus.library_folders, *([before] if before else [])])
    for folder in environment:
        found = interpreter.variables(str(folder / "bin" / "python"), found)
    return found


def _environment_of(python: str) -> Path:
    """Return the folder of the environment that has this interpreter."""
    return Path(python).parents[1]


def _image_of_attempt(paths: AttemptPaths) -> UsedImage:
    """Return the ready image of an attempt.

    Raises:
        PrepareError: class ``system``: its record is missing or cannot be read.
    """
    try:
        used = UsedImage.read(paths)
    except (OSError, ValueError) as error:
        raise PrepareError(f"the record of the attempt's image cannot be read: {error}") from error
    if used is None or used.root is None:
        raise PrepareError("the record of the attempt's image names no image that is ready")
    return used


def _environment_of_attempt(paths: AttemptPaths) -> tuple[Path, ...]:
    """Return the folder of the environment that is added to an attempt's image, if any."""
    try:
        used = UsedEnvironment.read(paths)
    except (OSError, ValueError) as error:
        raise PrepareError(
            f"the record of the attempt's environment cannot be read: {error}"
        ) from error
    return () if used is None else (_environment_of(used.python),)


def _horovod_of_attempt(paths: AttemptPaths) -> Path | None:
    """Return the folder with the Horovod that was built for an attempt's image, if any."""
    try:
        return in_image.of_attempt(paths)
    except (OSError, ValueError) as error:
        raise PrepareError(
            f"the record of the attempt's Horovod cannot be read: {error}"
        ) from error


def _injob_binds(plan: LaunchPlan) -> tuple[Bind, ...]:
    """Return the binds for `from rayjobs import Run`: a folder of links, and their targets."""
    folder = Path(plan.injob_path)
    targets = {str(path.resolve()) for path in folder.iterdir() if path.is_symlink()}
    return tuple(Bind(path, path, read_only=True) for path in (*sorted(targets), str(folder)))


def _tmp_binds(plan: LaunchPlan, paths: AttemptPaths) -> tuple[Bind, ...]:
    """Return the bind of the temporary folder at its short path, if it has one."""
    at = plan.env.get("TMPDIR", str(paths.tmp))
    return () if at == str(paths.tmp) else (Bind(str(paths.tmp), at),)


def _mpi_binds(plan: LaunchPlan) -> tuple[Bind, ...]:
    if plan.extras is None or not plan.is_mpi:
        return ()
    return (Bind(plan.extras.socket, plan.extras.socket),)


def _python_of(named: str) -> str:
    """Return the interpreter at a path in an image."""
    return named if Path(named).name.startswith("python") else f"{named.rstrip('/')}/bin/python"


def _login(asked: ContainerRequest) -> Login | None:
    registry = asked.registry
    if registry is None or registry.username is None or registry.password is None:
        return None
    if asked.image in asked.sources:
        return None  # no registry is needed
    password = read_secrets({"of the image's registry": registry.password})
    address = registry.address
    if address is None:
        image = asked.image
        address = DEFAULT_REGISTRY if image is None else parse_reference(image).registry
    return Login(address, registry.username, next(iter(password.values())))


def _reads_context(dockerfile: str | None) -> bool:
    """Whether a Dockerfile's image depends on the files of the job."""
    return dockerfile is not None and _COPIES.search(dockerfile) is not None

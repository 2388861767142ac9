"""An attempt's container on one node: an unpacked image plus the mounts that its processes need.

The host makes it in its own mount namespace before it forks, so all ranks of the node share files,
/dev/shm and System V memory; a rank only has to make the container its root. The kernel removes
everything with the last process, however that ends.

As a program it probes this machine (`python container.py FOLDER` prints one JSON line, see `probe`)
or runs one command in an image (`python container.py --run FILE`, see `run`).
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import tempfile
from typing import Mapping, Sequence

if __name__ == "__main__":
    # Run by its path: take this folder, whose module names are general words, off the module path.
    _package_home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[:1] = [_package_home]

from rayjobs.injob import kernel, views
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.namespace import Namespace
from rayjobs.injob.plan import Bind, ContainerPlan

_HERE = os.path.dirname(os.path.abspath(__file__))
_MOST_LINKS = 40  # the kernel's limit for one path
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_DEV_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)


class ContainerError(OSError):
    """An image cannot become the root here; the message says why."""


class VolumeError(ContainerError):
    """A volume that the job requested cannot be mounted in its container.

    No other attempt could mount it either.
    """


def volume_problem(bind: Bind, error: OSError) -> str:
    """Return why a volume cannot be mounted, without a final period."""
    return (
        f"the node {os.uname().nodename} has no {bind.source}, the source of the volume "
        f"{bind.target}: {error.strerror}"
    )


def make(plan: ContainerPlan, *, has_own_users: bool) -> str:
    """Mount a container in a new mount namespace of the calling process; return its root.

    Args:
        has_own_users: The process made a user namespace, and keeps its rights in it.

    Raises:
        ContainerError: a path of the image or of the node is in the way.
        OSError: the kernel refused a step.
    """
    kernel.unshare(kernel.CLONE_NEWNS)
    if plan.shm_bytes is not None:
        kernel.unshare(kernel.CLONE_NEWIPC)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    root = os.path.join(plan.scratch, "root")
    os.makedirs(root, exist_ok=True)
    _mount_image(plan, root, of_user=has_own_users)
    for folder in ("/proc", "/sys", "/dev"):
        _folder(root, folder)
    kernel.mount("/sys", inside(root, "/sys"), None, kernel.MS_BIND | kernel.MS_REC)
    _make_dev(root, plan)
    # What ranks import, and the stub that MPI starts.
    for bind in (Bind(_HERE, _HERE, read_only=True), *plan.binds):
        _bind(root, bind)
    for memory in plan.memory_folders:
        at = _folder(root, memory.target)
        size = f"size={memory.size_bytes}," if memory.size_bytes else ""
        kernel.mount("tmpfs", at, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, size + "mode=1777")
    _hide(root, plan)
    for link in plan.links:
        _link(root, link.path, link.target)
    return root


def _mount_image(plan: ContainerPlan, root: str, *, of_user: bool) -> None:
    if plan.is_private:
        kernel.mount(plan.image, root, None, kernel.MS_BIND)
        flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount(None, root, None, flags)
        return
    upper, work = (os.path.join(plan.scratch, name) for name in ("upper", "work"))
    for folder in (upper, work):
        os.makedirs(folder, exist_ok=True)
    # The container's root gets the mode of the upper folder.
    os.chmod(upper, stat.S_IMODE(os.stat(plan.image).st_mode) | 0o700)
    option = "userxattr" if of_user else "redirect_dir=on"
    layers = (
        f"lowerdir={views.escaped(plan.image)}",
        f"upperdir={views.escaped(upper)}",
        f"workdir={views.escaped(work)}",
    )
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("overlay", root, "overlay", flags, ",".join([*layers, option]))


def _make_dev(root: str, plan: ContainerPlan) -> None:
    dev = inside(root, "/dev")
    kernel.mount("tmpfs", dev, "tmpfs", kernel.MS_NOSUID, "mode=755,size=64k")
    for name in _NODES:
        _bind(root, Bind(f"/dev/{name}", f"/dev/{name}"))
    for path in plan.devices:
        if os.path.exists(path):
            _bind(root, Bind(path, path))
    for name in ("pts", "shm", "mqueue"):
        os.mkdir(os.path.join(dev, name))
    kernel.mount(
        "devpts",
        os.path.join(dev, "pts"),
        "devpts",
        kernel.MS_NOSUID | kernel.MS_NOEXEC,
        "newinstance,ptmxmode=0666,mode=0620",
    )
    for name, target in _DEV_LINKS:
        os.symlink(target, os.path.join(dev, name))
    shm = os.path.join(dev, "shm")
    if plan.shm_bytes is None:
        kernel.mount("/dev/shm", shm, None, kernel.MS_BIND)
        return
    size = f"mode=1777,size={plan.shm_bytes}"
    kernel.mount("shm", shm, "tmpfs", kernel.MS_PLAIN, size)
    kernel.mount("mqueue", os.path.join(dev, "mqueue"), "mqueue", kernel.MS_PLAIN)


def _bind(root: str, bind: Bind) -> None:
    try:
        info = os.stat(bind.source)
    except OSError as error:
        if bind.of_job:
            raise VolumeError(error.errno, volume_problem(bind, error)) from error
        raise ContainerError(
            error.errno, f"{bind.source} cannot be mounted in the container: {error.strerror}"
        ) from error
    try:
        if stat.S_ISDIR(info.st_mode):
            at = _folder(root, bind.target)
        else:
            at = _file(root, bind.target, replaces=bind.replaces)
    except ContainerError as error:
        if bind.of_job:
            raise VolumeError(error.errno, error.strerror) from error
        raise
    kernel.mount(bind.source, at, None, kernel.MS_BIND | kernel.MS_REC)
    if bind.read_only:
        kernel.mount(
            None, at, None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _flags_of(at)
        )


def _flags_of(point: str) -> int:
    """Return the mount flags that a remount must keep: an unprivileged user may not drop them."""
    known = (
        (os.ST_NOSUID, kernel.MS_NOSUID),
        (os.ST_NODEV, kernel.MS_NODEV),
        (os.ST_NOEXEC, kernel.MS_NOEXEC),
        (os.ST_NOATIME, kernel.MS_NOATIME),
        (os.ST_NODIRATIME, kernel.MS_NODIRATIME),
        (os.ST_RELATIME, kernel.MS_RELATIME),
    )
    found = os.statvfs(point).f_flag
    return sum(flag for bit, flag in known if found & bit)


def _hide(root: str, plan: ContainerPlan) -> None:
    """Hide the container's own scratch, which would be visible in the attempt's folder."""
    at = inside(root, plan.scratch)
    if os.path.isdir(at):
        flags = kernel.MS_PLAIN | kernel.MS_RDONLY
        kernel.mount("tmpfs", at, "tmpfs", flags, "mode=555,size=4k")


def _link(root: str, path: str, target: str) -> None:
    at = os.path.join(_folder(root, os.path.dirname(path)), os.path.basename(path))
    if os.path.lexists(at):
        os.unlink(at)
    os.symlink(target, at)


def inside(root: str, path: str) -> str:
    """Return the real path of `path` for a process whose root is `root`.

    Links are resolved as the kernel does for such a process: absolute ones start at `root`, and
    ``..`` never leaves it. Missing parts are kept as written.

    Raises:
        ContainerError: the links form a loop.
    """
    todo = [part for part in path.split("/") if part and part != "."]
    done: "list[str]" = []
    links = 0
    while todo:
        part = todo.pop(0)
        if part == "..":
            del done[-1:]
            continue
        here = "/".join([root, *done, part])
        try:
            target = os.readlink(here)
        except OSError:
            done.append(part)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise ContainerError(40, f"the image's {path} is a loop of symbolic links")
        if target.startswith("/"):
            done = []
        todo = [one for one in target.split("/") if one and one != "."] + todo
    return "/".join([root, *done])


def _folder(root: str, path: str) -> str:
    at = inside(root, path)
    try:
        os.makedirs(at, mode=0o755, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ContainerError(
            error.errno, f"the image has a file where the folder {path} belongs"
        ) from error
    except OSError as error:
        raise ContainerError(error.errno, _why_no_folder(path, error)) from error
    return at


def _file(root: str, path: str, *, replaces: bool) -> str:
    above = _folder(root, os.path.dirname(path))
    at = os.path.join(above, os.path.basename(path)) if replaces else inside(root, path)
    try:
        if replaces and os.path.islink(at):
            os.unlink(at)
        if not os.path.lexists(at):
            os.makedirs(os.path.dirname(at), exist_ok=True)
            os.close(os.open(at, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    except OSError as error:
        raise ContainerError(error.errno, _why_no_folder(path, error)) from error
    if os.path.isdir(at):
        raise ContainerError(21, f"the image has a folder where the file {path} belongs")
    return at


def _why_no_folder(path: str, error: OSError) -> str:
    # EOVERFLOW: the owner has no id in the user namespace.
    if error.errno in (errno.EACCES, errno.EPERM, errno.EOVERFLOW):
        return (
            f"the user who runs the target cannot create {path} in the image; a root file system "
            f"that is used in place must belong to that user; give it as an archive or an OCI "
            f"folder instead"
        )
    return f"the image has no place for {path}: {error.strerror}"


def set_limits(plan: ContainerPlan) -> None:
    """Set the job's resource limits on the calling process.

    Raises:
        ContainerError: a limit is above the process's own hard limit.
    """
    import resource

    for one in plan.limits:
        number = getattr(resource, f"RLIMIT_{one.name.upper()}")
        pair = tuple(resource.RLIM_INFINITY if n < 0 else n for n in (one.soft, one.hard))
        try:
            resource.setrlimit(number, (pair[0], pair[1]))
        except (OSError, ValueError):
            _, hard = resource.getrlimit(number)
            raise ContainerError(
                1,
                f"--ulimit {one.name}={one.soft}:{one.hard} is above the node's own limit of "
                f"{'unlimited' if hard == resource.RLIM_INFINITY else hard}; lower it, or raise "
                f"the limit of the user who runs the target",
            ) from None


def run(container: ContainerPlan, arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Run one command in a container; return its exit code, or 128 plus the signal that ended it.

    Afterwards the calling process cannot start threads or other children.

    Raises:
        OSError: the machine does not allow it.
    """
    namespace = Namespace.make(env.get("RAYJOBS_MARKER", "container-run"))
    root = make(container, has_own_users=namespace.own_users)
    child = os.fork()
    if child == 0:
        try:
            kernel.die_with_parent(9)
            namespace.enter(root)
            os.execvpe(arguments[0], list(arguments), dict(env))
        except BaseException as error:
            os.write(2, f"{arguments[0]} cannot be run in the image: {error}\n".encode())
        os._exit(127)
    _, status = os.waitpid(child, 0)
    namespace.close()
    os.waitpid(namespace.init.pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


@dataclass(frozen=True)
class ContainerProbe(Message):
    """Tells whether an attempt can run in an image on this machine.

    Attributes:
        why: Why it cannot; empty if it can.
        why_no_overlay: Why each attempt needs a copy of its image; empty if it needs none.
    """

    works: bool
    overlay: bool
    why: str = ""
    why_no_overlay: str = ""


def probe(folder: str) -> ContainerProbe:
    """Try a container below `folder`; afterwards this process cannot start threads or children."""
    why_no_overlay = _tried(folder, is_private=False)
    why = _tried(folder, is_private=True) if why_no_overlay else ""
    return ContainerProbe(not why, not why_no_overlay, why, why_no_overlay)


def _tried(folder: str, *, is_private: bool) -> str:
    """Return why a container cannot be made; empty if it can."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        why = ""
        try:
            why = _try(folder, is_private=is_private)
        except BaseException as error:
            why = getattr(error, "strerror", None) or str(error) or "it failed"
        os.write(writer, why.encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    why = os.read(reader, 4096).decode(errors="replace")
    os.close(reader)
    return why


def _try(folder: str, *, is_private: bool) -> str:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".container-") as made:
        image, scratch = os.path.join(made, "image"), os.path.join(made, "scratch")
        os.mkdir(image)
        with open(os.path.join(image, "mine"), "w", encoding="ascii") as file:
            file.write("image")
        namespace = Namespace.make("container-probe")
        reader, writer = os.pipe()
        plan = ContainerPlan(image, scratch, is_private=is_private, shm_bytes=2**20)
        root = make(plan, has_own_users=namespace.own_users)
        child = os.fork()
        if child == 0:
            why = b"the processes do not see the image as their root"
            try:
                namespace.enter(root)
                if os.path.exists("/mine") and os.readlink("/proc/self") == str(os.getpid()):
                    why = b""
            except BaseException as error:
                why = (getattr(error, "strerror", None) or str(error)).encode(errors="replace")
            os.write(writer, why)
            os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        why = os.read(reader, 4096)
        namespace.close()
        os.waitpid(namespace.init.pid, 0)
        kernel.unmount(root)
        return why.decode(errors="replace")


def main(arguments: Sequence[str]) -> int:
    """Run the program."""
    if arguments[0] != "--run":
        print(json.dumps(probe(arguments[0]).to_json()))
        return 0
    with open(arguments[1], encoding="utf-8") as file:
        request = json.load(file)
    try:
        container = ContainerPlan.from_json(request["container"])
        return run(container, request["arguments"], request["env"])
    except OSError as error:
        print(error.strerror or str(error), file=sys.stderr)
        return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

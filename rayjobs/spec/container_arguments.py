"""The arguments of `docker run` that a container job may use, and their meaning in rayjobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from rayjobs.core.errors import UsageError
from rayjobs.core.units import parse_size
from rayjobs.injob.lazy_dataclass import dataclass

UNLIMITED = -1
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHORT = {"-e": "--env", "-v": "--volume", "-h": "--hostname", "-u": "--user", "-w": "--workdir",
          "-m": "--memory", "-p": "--publish", "-d": "--detach", "-c": "--cpu-shares"}  # fmt: skip
# Options that every container job has anyway.
_NOTHING_TO_DO = ("--rm", "--init", "-i", "-t", "-it", "-ti", "--interactive", "--tty")
_ULIMITS = ("memlock", "stack", "nofile", "nproc", "core", "rtprio", "nice", "msgqueue")
# Refused options, and what to do instead.
_INSTEAD: Mapping[str, str] = {
    "--memory": "set resources.memory",
    "--cpus": "set resources.cpus",
    "--cpu-shares": "set resources.cpus",
    "--env-file": "write the variables under environment_variables",
    "--workdir": "the script starts in its own folder, as without a container",
    "--entrypoint": "write the program as the job's command",
    "--user": "the job runs as the user of the target",
    "--device": "the devices of the job's GPUs are already available",
    "--privileged": "a job has the rights of the target's user, inside a container too",
    "--cap-add": "a job has the rights of the target's user, inside a container too",
    "--security-opt": "a job has the rights of the target's user, inside a container too",
    "--publish": "a job uses its node's network, so every port is already published",
    "--detach": "use `rayjobs submit --detach`",
    "--name": "name the job",
}


@dataclass(frozen=True)
class Volume:
    """A folder or file of the node that is visible in the container.

    Attributes:
        source: Its absolute path on the node.
        target: Its absolute path in the container.
        read_only: The container cannot change it.
    """

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class ContainerArguments:
    """The settings from a container's arguments.

    Attributes:
        variables: Variables of the script.
        shm_size: Size of /dev/shm as written, or None.
        host_ipc: Use the node's own /dev/shm and System V memory.
        volumes: Folders and files of the node.
        tmpfs: In-memory file systems, as (path, size in bytes or None).
        ulimits: Limits as (name, soft, hard); -1 is unlimited.
        always_pull: Check the registry for a newer image at every start.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    shm_size: str | None = None
    host_ipc: bool = False
    volumes: tuple[Volume, ...] = ()
    tmpfs: tuple[tuple[str, int | None], ...] = ()
    ulimits: tuple[tuple[str, int, int], ...] = ()
    always_pull: bool = False


def parse(words: Sequence[str]) -> ContainerArguments:
    """Return the settings from arguments of `docker run`.

    Raises:
        UsageError: an argument cannot be honored; the message says why in one sentence.
    """
    found = ContainerArguments()
    for option, value in _options(words):
        if option in _NOTHING_TO_DO:
            continue
        read = _READERS.get(option)
        if read is None:
            instead = _INSTEAD.get(option)
            raise UsageError(f"{option} cannot be honored" + (f": {instead}" if instead else ""))
        if value is None:
            raise UsageError(f"{option} needs a value")
        found = read(found, value)
    return found


def _options(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in _NOTHING_TO_DO:
            yield word, None
            continue
        if not word.startswith("-"):
            raise UsageError(
                f"{word!r} is not an option of `docker run`; the image and the command have "
                f"their own places in the job"
            )
        if not word.startswith("--") and len(word) > 2:
            option, value = _SHORT.get(word[:2], word[:2]), word[2:].removeprefix("=")
            yield option, value
            continue
        option, separator, value = word.partition("=")
        option = _SHORT.get(option, option)
        if separator:
            yield option, value
        elif option in _READERS and rest:
            yield option, rest.pop(0)
        else:
            yield option, None


def _env(found: ContainerArguments, value: str) -> ContainerArguments:
    name, separator, text = value.partition("=")
    if not separator or not _NAME.fullmatch(name):
        raise UsageError(f"--env {name!r} has no value; write --env NAME=VALUE")
    return replace(found, variables={**found.variables, name: text})


def _shm_size(found: ContainerArguments, value: str) -> ContainerArguments:
    parse_shm_size(value)
    return replace(found, shm_size=value)


def parse_shm_size(value: str | float) -> float:
    """Return a size of /dev/shm in MiB; a plain number means bytes, as in Docker.

    Raises:
        UsageError: it is not a size above zero.
    """
    text = str(value).strip()
    size = parse_size(f"{text}b" if re.fullmatch(r"\d+", text) else text, unit=2**20)
    if size <= 0:
        raise UsageError(f"the size of /dev/shm is {value!r}; it must be above zero, such as 2g")
    return size


def _ipc(found: ContainerArguments, value: str) -> ContainerArguments:
    if value not in ("host", "private", "shareable", ""):
        raise UsageError(f"--ipc {value} cannot be honored; use host or private")
    return replace(found, host_ipc=value == "host")


def _volume(found: ContainerArguments, value: str) -> ContainerArguments:
    source, separator, rest = value.partition(":")
    target, _, options = rest.partition(":")
    if not separator or not source.startswith("/") or not target.startswith("/"):
        raise UsageError(
            f"--volume {value!r} cannot be honored: write two absolute paths, /of/the/node:/inside"
        )
    unknown = set(filter(None, options.split(","))) - {"ro", "rw", "z", "Z"}
    if unknown:
        raise UsageError(f"--volume {value!r} has the unknown option {sorted(unknown)[0]!r}")
    return _with_volume(found, source, target, "ro" in options.split(","))


def _mount(found: ContainerArguments, value: str) -> ContainerArguments:
    parts = dict(part.partition("=")[::2] for part in value.split(","))
    kind = parts.get("type", "volume")
    target = next((parts[key] for key in ("target", "dst", "destination") if key in parts), "")
    source = parts.get("source", parts.get("src", ""))
    if kind == "tmpfs" and target.startswith("/"):
        _check_target(target)
        size = parts.get("tmpfs-size")
        return replace(found, tmpfs=(*found.tmpfs, (target, _bytes(size))))
    if kind != "bind" or not source.startswith("/") or not target.startswith("/"):
        raise UsageError(
            f"--mount {value!r} cannot be honored; use type=bind with absolute paths, or type=tmpfs"
        )
    is_read_only = any(parts.get(key, "false") != "false" for key in ("readonly", "ro"))
    return _with_volume(found, source, target, is_read_only)


def _with_volume(
    found: ContainerArguments, source: str, target: str, read_only: bool
) -> ContainerArguments:
    _check_path(source)
    _check_target(target)
    return replace(found, volumes=(*found.volumes, Volume(source, target, read_only)))


def _check_path(path: str) -> None:
    if ".." in path.split("/"):
        raise UsageError(f"the path {path!r} of a volume has `..` in it")


def _check_target(target: str) -> None:
    _check_path(target)
    if target.rstrip("/") in ("", "/proc", "/dev", "/sys"):
        raise UsageError(f"a volume cannot replace {target!r}")


def _tmpfs(found: ContainerArguments, value: str) -> ContainerArguments:
    target, _, options = value.partition(":")
    if not target.startswith("/"):
        raise UsageError(f"--tmpfs {value!r} needs an absolute path")
    _check_target(target)
    sizes = [one.partition("=")[2] for one in options.split(",") if one.startswith("size=")]
    return replace(found, tmpfs=(*found.tmpfs, (target, _bytes(sizes[-1] if sizes else None))))


def _bytes(text: str | None) -> int | None:
    return None if text is None else int(parse_shm_size(text) * 2**20)


def _ulimit(found: ContainerArguments, value: str) -> ContainerArguments:
    name, separator, limits = value.partition("=")
    soft, _, hard = limits.partition(":")
    if not separator or name not in _ULIMITS:
        raise UsageError(
            f"--ulimit {value!r} cannot be honored; write NAME=SOFT[:HARD] with NAME one of "
            f"{', '.join(_ULIMITS)}"
        )
    try:
        pair = int(soft), int(hard or soft)
    except ValueError:
        raise UsageError(f"--ulimit {value!r} is not NAME=SOFT[:HARD] in whole numbers") from None
    return replace(found, ulimits=(*found.ulimits, (name, *pair)))


def _pull(found: ContainerArguments, value: str) -> ContainerArguments:
    if value not in ("always", "missing"):
        raise UsageError(f"--pull {value} cannot be honored; use always or missing")
    return replace(found, always_pull=value == "always")


def _network(found: ContainerArguments, value: str) -> ContainerArguments:
    if value != "host":
        raise UsageError(
            f"--network {value} cannot be honored: a job uses the network of its node, as with "
            f"--network host"
        )
    return found


def _gpus(found: ContainerArguments, _value: str) -> ContainerArguments:
    return found  # the job's own GPUs are always available


_READERS: Mapping[str, Callable[[ContainerArguments, str], ContainerArguments]] = {
    "--env": _env,
    "--shm-size": _shm_size,
    "--ipc": _ipc,
    "--volume": _volume,
    "--mount": _mount,
    "--tmpfs": _tmpfs,
    "--ulimit": _ulimit,
    "--pull": _pull,
    "--network": _network,
    "--net": _network,
    "--gpus": _gpus,
}

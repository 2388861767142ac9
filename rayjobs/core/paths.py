"""Every file and folder name that rayjobs uses, in one place."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rayjobs.injob.lazy_dataclass import dataclass

# The folder of this package, under the name it was imported by: a checkout contains links.
PACKAGE = Path(__file__).parents[1]

WORKSPACE_DIR = ".rayjobs"
DRIVER_LOG = "azureml-logs/70_driver_log.txt"
BUILD_LOG = "azureml-logs/20_image_build_log.txt"
MPI_LOG = "azureml-logs/70_mpi_log.txt"
EARLIER_LOGS = "azureml-logs/attempt-"  # followed by the number of an earlier attempt
ENVIRONMENT_LOCK = "azureml-setup/environment.lock.txt"
VENDORED = "rayjobs-vendored.json"  # in a folder of packages, or an image, that travels with jobs
IMAGE_RECORD = "azureml-setup/image.json"
LOG_TIMES = "azureml-setup/log_times.txt"


def home() -> Path:
    """Return the machine-wide folder of this user: ``$RAYJOBS_HOME``, else the data folder."""
    chosen = os.environ.get("RAYJOBS_HOME")
    if chosen:
        # With links resolved: the name of the runtime folder, where the head is, depends on it.
        return Path(os.path.realpath(Path(chosen).expanduser()))
    import platformdirs  # imported only if no home is set

    return Path(os.path.realpath(platformdirs.user_data_dir("rayjobs")))


def runtime_folder(of: Path | None = None) -> Path:
    """Return the name of the folder that `runtime_dir` makes."""
    root = of or home()
    digest = hashlib.sha256(str(root).encode()).hexdigest()[:10]
    return Path(os.environ.get("RAYJOBS_RUNTIME_BASE", "/tmp")) / f"rayjobs-{os.getuid()}-{digest}"


def runtime_dir(of: Path | None = None, *, create: bool = True) -> Path:
    """Return a short folder (0700) for sockets, whose paths may have at most 107 bytes.

    Each user and home has its own, so that two homes never share one.

    Args:
        create: Make it if it is missing; clients that only look for a socket do not.
    """
    folder = runtime_folder(of)
    if create:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        info = folder.lstat()
    except FileNotFoundError:
        return folder
    if info.st_uid != os.getuid() or (info.st_mode & 0o077):
        raise PermissionError(
            f"{folder} belongs to another user or is open to others; remove it, or set "
            f"RAYJOBS_HOME to another folder"
        )
    return folder


def short_socket(kind: str, key: str, *, of: Path | None = None, create: bool = True) -> Path:
    """Return the socket path for `key`, short whatever the key's length."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return runtime_dir(of, create=create) / f"{kind}-{digest}.sock"


@dataclass(frozen=True)
class TargetPaths:
    """Files of one compute target below the home."""

    root: Path

    @classmethod
    def of(cls, name: str, *, under: Path | None = None) -> TargetPaths:
        """Return the paths of the target called `name`."""
        return cls((under or home()) / "targets" / name)

    @property
    def record(self) -> Path:
        """What the target is (JSON)."""
        return self.root / "target.json"

    @property
    def token(self) -> Path:
        """Ray's token, 0600."""
        return self.root / "token"

    @property
    def lock(self) -> Path:
        """Held while the target is being started or stopped."""
        return self.root / "lock"

    @property
    def stop(self) -> Path:
        """The last stop that a user requested (JSON); it outlives the target that was stopped."""
        return self.root / "last-stop.json"

    @property
    def head(self) -> Path:
        """The running head: ports, addresses, process identities (JSON)."""
        return self.root / "head.json"

    @property
    def activity(self) -> Path:
        """The target actor's last report of its work (JSON)."""
        return self.root / "activity.json"

    @property
    def capacity(self) -> Path:
        """The nodes that the target actor last saw (JSON)."""
        return self.root / "capacity.json"

    @property
    def local_settings(self) -> Path:
        """The ``RAYJOBS_LOCAL_*`` variables with which the local head runs, until it is stopped."""
        return self.root / "local-settings.json"

    @property
    def keeper(self) -> Path:
        """The keeper's identity (JSON)."""
        return self.root / "keeper.json"

    @property
    def keeper_lock(self) -> Path:
        """Held by the keeper for its lifetime."""
        return self.root / "keeper.lock"

    @property
    def pause(self) -> Path:
        """Why a keeper pauses, and until when (JSON)."""
        return self.root / "pause.json"

    @property
    def stop_request(self) -> Path:
        """The request of a `target stop` to the keeper (JSON)."""
        return self.root / "stop.json"

    @property
    def stop_answer(self) -> Path:
        """The result of that stop (JSON)."""
        return self.root / "stopped.json"

    @property
    def progress(self) -> Path:
        """Stage lines of a start in progress, read by waiting clients."""
        return self.root / "starting.log"

    @property
    def revival(self) -> Path:
        """The process that is restarting the target, or why the last restart failed (JSON)."""
        return self.root / "revival.json"

    @property
    def workspaces(self) -> Path:
        """One small JSON file for each workspace that the target serves."""
        return self.root / "workspaces"

    @property
    def log(self) -> Path:
        """Logs of the target actor, agents, keeper and warm interpreters."""
        return self.root / "log"


@dataclass(frozen=True)
class NodePaths:
    """Scratch of a node: snapshots, attempts, caches."""

    root: Path

    @property
    def snapshots(self) -> Path:
        """Unpacked snapshots by digest."""
        return self.root / "snapshots"

    @property
    def data_cache(self) -> Path:
        """Downloaded inputs."""
        return self.root / "data"

    @property
    def environments(self) -> Path:
        """Environments that were built here, and the locks of what they hold."""
        return self.root / "environments"

    @property
    def images(self) -> Path:
        """Container images that were unpacked here."""
        return self.root / "images"

    def attempt(self, job: str, attempt: int, node: int = 0) -> AttemptPaths:
        """Return the folder of one attempt's part on this node."""
        suffix = f"-n{node}" if node else ""
        return AttemptPaths(self.root / "attempts" / job / f"a{attempt}{suffix}")


@dataclass(frozen=True)
class AttemptPaths:
    """Files of one attempt on one node (see docs/architecture.md)."""

    root: Path

    @property
    def plan(self) -> Path:
        """The host's launch plan."""
        return self.root / "plan.json"

    @property
    def host(self) -> Path:
        """The host's identity."""
        return self.root / "host.json"

    @property
    def exit(self) -> Path:
        """The exit record."""
        return self.root / "exit.json"

    @property
    def stored(self) -> Path:
        """Exists once all results of the attempt are in the workspace."""
        return self.root / "stored"

    @property
    def lacks_outputs(self) -> Path:
        """Exists if only outputs could not be stored at the attempt's end."""
        return self.root / "lacks-outputs"

    @property
    def work(self) -> Path:
        """The script's working directory."""
        return self.root / "work"

    @property
    def tmp(self) -> Path:
        """The script's TMPDIR."""
        return self.root / "tmp"

    @property
    def inputs(self) -> Path:
        """The inputs, each under its name."""
        return self.root / "inputs"

    @property
    def written(self) -> Path:
        """The folders of named outputs."""
        return self.root / "written"

    @property
    def data(self) -> Path:
        """Paths of inputs and outputs, and what the cache keeps for them (JSON)."""
        return self.root / "data.json"

    @property
    def resume(self) -> Path:
        """What the attempt resumes from; absent when it starts from the beginning."""
        return self.root / "resume"

    @property
    def environment(self) -> Path:
        """The environment that the attempt uses (JSON); absent when it uses no built one."""
        return self.root / "environment.json"

    @property
    def horovod(self) -> Path:
        """The Horovod that was built for the attempt's image (JSON); absent when it uses none."""
        return self.root / "horovod.json"

    @property
    def image(self) -> Path:
        """The cached image that the attempt uses (JSON); absent when it uses none."""
        return self.root / "image.json"

    @property
    def meant_image(self) -> Path:
        """The image that the job's reference resolved to (JSON); written by its first node."""
        return self.root / "meant-image.json"

    @property
    def container(self) -> Path:
        """Files that its processes write in their container, outside bound folders."""
        return self.root / "container"

    @property
    def environment_lock(self) -> Path:
        """The packages of that environment with their hashes."""
        return self.root / "environment.lock"

    @property
    def build_log(self) -> Path:
        """Output of the environment's build; absent if none was necessary."""
        return self.root / "log" / "build.log"

    @property
    def mpi_log(self) -> Path:
        """Output of mpirun or orted on this node; absent without MPI."""
        return self.root / "log" / "mpi.log"

    @property
    def log_times(self) -> Path:
        """When the ranks' logs grew."""
        return self.root / "log" / "times.log"

    def driver_log(self, rank: int) -> Path:
        """Output of the rank."""
        return self.root / "log" / f"driver_{rank}.log"

    def metrics(self, rank: int) -> Path:
        """Records that the rank logged."""
        return self.root / "metrics" / f"rank-{rank}.jsonl"

    def model_requests(self, rank: int) -> Path:
        """Model registrations that the rank requested."""
        return self.root / "models" / f"rank-{rank}.jsonl"


def driver_log_name(rank: int, world_size: int) -> str:
    """Return the stored name of a rank's log.

    Source: Azure ML's classic layout (one process: no rank in the name).
    """
    return DRIVER_LOG if world_size == 1 else f"azureml-logs/70_driver_log_{rank}.txt"

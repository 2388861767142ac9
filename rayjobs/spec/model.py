"""The JobSpec: what to run, validated, immutable and versioned. Its history is in `Job`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from rayjobs.core.errors import UsageError
from rayjobs.core.failures import FailureClass
from rayjobs.core.numbers import is_whole
from rayjobs.injob import parallel_settings
from rayjobs.spec import arrays, container_arguments, requirements
from rayjobs.spec.notify import Receiver
from rayjobs.spec.problems import PARTS, spec_error

Backend = Literal["none", "gloo", "nccl", "mpi", "horovod-gloo"]
InputMode = Literal["mount", "download", "direct"]
OutputMode = Literal["upload", "mount"]

ENVIRONMENT_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
# May begin with a digit, because a reference without a name gets one of hexadecimal digits.
INPUT_NAME = r"^[A-Za-z0-9_]+$"
UMASK = r"^[0-7]{3}$"
DEFAULT_UMASK = "022"
DEFAULT_SHM_MIB = 2048.0
# Far above any real need, and far below what overflows a float, a time or the kernel.
MOST_GIB = 1e9
LONGEST_S = 1e9
MOST = 10**9
JOB_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"


class Model(BaseModel):
    """Base of all parts of a spec: frozen, without unknown fields; numbers are not text.

    Raises:
        SpecError: an argument is wrong.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    if not TYPE_CHECKING:  # type checkers derive the arguments of each part from its fields

        def __init__(self, /, **kwargs: Any) -> None:
            try:
                super().__init__(**kwargs)
            except ValidationError as error:
                raise spec_error(type(self), error) from None

        # As in pydantic's RootModel: validating a whole spec does not call this constructor for
        # each part, so `model_validate` reports the problems of all parts together.
        __init__.__pydantic_base_init__ = True


class Resources(Model):
    """The resources of one process.

    Attributes:
        cpus: Logical CPUs per process.
        gpus: GPUs per process; 0.5 means that two processes share a device.
        memory_gib: Memory limit per process in GiB; None sets no limit.
        node_types: Allowed node types of the target, by name or by the size of their machines;
            empty: any.
        spot: True: only spot nodes, which the provider may reclaim (they cost less, and the job is
            retried); False: only other nodes; None: either.
    """

    cpus: Annotated[float, Field(ge=0, le=4096)] = 1.0
    gpus: Annotated[float, Field(ge=0, le=4096)] = 0.0
    memory_gib: Annotated[float, Field(gt=0, le=MOST_GIB)] | None = None
    node_types: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    spot: bool | None = None


class Distribution(Model):
    """The number of nodes and processes, and how the processes communicate.

    Attributes:
        nodes: Number of nodes.
        processes_per_node: Processes (ranks) on each node.
        backend: How the ranks communicate; ``none`` is for a single process.
    """

    nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    processes_per_node: Annotated[int, Field(ge=1, le=1024)] = 1
    backend: Backend = "none"

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.nodes * self.processes_per_node


class Input(Model):
    """A named input: a path in a datastore, or a dataset's version.

    Attributes:
        source: ``datastore/path``, ``dataset:NAME[:VERSION]``, ``output:JOB/NAME`` (an output of
            another job, exactly as that job stored it), or ``saved:DIGEST`` (an unregistered
            dataset, stored with the job that used it).
        mode: mount, download, or direct (the job gets the dataset object instead of files).
        path_on_compute: Path of a link to the files; None: no link.
    """

    source: Annotated[str, Field(min_length=1)]
    mode: InputMode = "mount"
    path_on_compute: str | None = None


class Registration(Model):
    """How a stored output becomes a version of a dataset.

    Attributes:
        name: Name of the dataset.
        description: Its description.
        tags: Its tags.
    """

    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    tags: Mapping[str, str] = Field(default_factory=dict)


class Output(Model):
    """A named output that is stored in a datastore.

    Attributes:
        destination: ``datastore/path``; ``{run-id}`` and ``{output-name}`` are filled in.
        mode: upload stores the files when the script has succeeded; mount shows the existing files
            of the destination and stores changes while the script runs.
        overwrite: Replace stored files that have other content, instead of failing the job.
        path_on_compute: Path of a link to the folder that the script writes to; None: no link.
        source_globs: Store only files that match one of these; empty: all.
        register_as: The dataset of which the stored files become a version.
        is_folder: Whether there is a folder at the path when the script starts. If not, the script
            itself creates a file or a folder there.
    """

    destination: str = "workspaceblobstore/dataset/{run-id}/{output-name}"
    mode: OutputMode = "upload"
    overwrite: bool = False
    path_on_compute: str | None = None
    source_globs: tuple[str, ...] = ()
    register_as: Registration | None = None
    is_folder: bool = True


class SecretRef(Model):
    """A secret by reference: its value is read on the target at start, and never stored.

    Attributes:
        env: Name of the target's environment variable with the value. It must begin with
            ``RAYJOBS_SECRET_``, so that a spec cannot read arbitrary variables.
        file: The path of a file on the target's node instead, readable by its user.
    """

    env: Annotated[str, Field(pattern=ENVIRONMENT_NAME)] | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> SecretRef:
        if (self.env is None) == (self.file is None):
            raise ValueError("give exactly one of `env` and `file`")
        if self.env is not None and not self.env.startswith("RAYJOBS_SECRET_"):
            raise ValueError(f"the variable {self.env!r} must begin with RAYJOBS_SECRET_")
        return self


class Dependency(Model):
    """Another job that must have ended before this one starts.

    Attributes:
        job: Its id or name.
        when: ok: the other job must complete, otherwise this job is canceled; any: it must end.
    """

    job: Annotated[str, Field(min_length=1)]
    when: Literal["ok", "any"] = "ok"


class Array(Model):
    """Many jobs with one spec, each with an index; text such as ``0-15%4`` is accepted too.

    Attributes:
        indices: As written: ``0-15``, ``1,3,8``, ``0-30:5``.
        limit: How many members may run at a time; None: as many as fit.
        count: The value of RAYJOBS_ARRAY_COUNT; None: the number of indices. Set it when you rerun
            some members of a larger array, so that they divide the data as before.
    """

    indices: str
    limit: Annotated[int, Field(ge=1, le=MOST)] | None = None
    count: Annotated[int, Field(ge=1, le=MOST)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        if is_whole(data):
            data = str(data)
        if not isinstance(data, str):
            return data
        indices, limit = arrays.split_limit(data)
        return {"indices": indices, "limit": limit}

    @field_validator("indices")
    @classmethod
    def _readable(cls, text: str) -> str:
        arrays.expand(text)
        return text

    def expand(self) -> tuple[int, ...]:
        """Return the indices, in order and without repeats."""
        return arrays.expand(self.indices)


class Packages(Model):
    """An environment of packages, built once per node for all jobs that use it.

    Attributes:
        name: A name for display.
        pip: Lines of a requirements file.
        python: A version (``3.11``, ``>=3.9``) or the path of an interpreter on the target; None
            means the target's own.
        constraints: Requirements that limit the versions of packages without requesting them.
        conda: Conda packages, as match specifications (``numpy >=1.26``); they make it a conda
            environment, into which the `pip` packages are then installed.
        channels: Channels of these packages, by decreasing priority: a name such as
            ``conda-forge``, an address, or ``file://`` and the path of a folder on the node.
        conda_command: A program on the node that builds the environment (micromamba, mamba, conda)
            instead of rayjobs itself.
        link_scripts: Run the link scripts of conda packages, which are code from the channel, as
            the target's user.
        base: ``target``: add the packages to those of the target's own Python, as an estimator adds
            to its framework; None: the environment has only its own packages.
        sources: Files and folders among the requirements → digest of their packed content; written
            by the submit. Paths that are not listed are looked up on the node.
        if_used: Requirements, such as those of a framework, that are only installed if the job's
            code mentions their package. The submit decides; a stored spec has none.
    """

    name: str | None = None
    pip: tuple[str, ...] = ()
    python: str | None = None
    constraints: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    conda_command: str | None = None
    link_scripts: bool = False
    base: Literal["target"] | None = None
    sources: Mapping[str, str] = Field(default_factory=dict)
    if_used: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _constraints_apart(cls, data: Any) -> Any:
        """Move the constraints that requirements files include out of the requirements."""
        if not isinstance(data, Mapping) or not isinstance(data.get("pip"), list | tuple):
            return data
        lines, found = requirements.constraints_apart(data["pip"])
        given = data.get("constraints") or ()
        if not found or not isinstance(given, list | tuple):
            return data
        return {**data, "pip": lines, "constraints": [*given, *found]}


class Substitute(Model):
    """What a job uses instead of a request that cannot be met.

    Attributes:
        asked: The request, such as ``torch==1.6.0``.
        used: The substitute; empty: nothing.
        reason: The reason, as part of a sentence.
    """

    asked: str
    used: str = ""
    reason: str = ""

    def __str__(self) -> str:
        """Return the substitution as one readable line."""
        used = self.used or "left out"
        return f"{self.asked} → {used}" + (f" ({self.reason})" if self.reason else "")


class Registry(Model):
    """The registry of an image, and the login for it.

    Attributes:
        address: The registry's host name and port; None: those in the image's name.
        username: The user's name at the registry.
        password: The password or token, by reference.
    """

    address: Annotated[str, Field(min_length=1)] | None = None
    username: Annotated[str, Field(min_length=1)] | None = None
    password: SecretRef | None = None

    @field_validator("password", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        is_name = isinstance(value, str) and value.startswith("RAYJOBS_SECRET_")
        return {"env": value} if is_name else value

    @model_validator(mode="after")
    def _both(self) -> Registry:
        if (self.username is None) != (self.password is None):
            raise ValueError("give `username` and `password` together")
        return self


class Container(Model):
    """The container image in which each process runs; a plain text is its `image`.

    Attributes:
        image: A name (``python:3.13``, ``registry.example/team/train@sha256:…``), a path on the
            target's nodes (an unpacked root file system, an OCI folder, or a Docker, OCI or tar
            archive), or one of these after ``docker://``, ``oci:``, ``oci-archive:``,
            ``docker-archive:``, ``tar:``, ``dir:``.
        dockerfile: The text of a Dockerfile instead, built on the node with podman or buildah; the
            build context is the job's snapshot.
        shm_mib: Size of /dev/shm in MiB.
        registry: The login for the image's registry; None: the settings of the node's engine.
        arguments: Further arguments of `docker run`; those that cannot be honored are refused.
        sources: The image, if it is a folder of `rayjobs env vendor` → digest of its packed
            content; written by the submit. Such an image travels with the job.
    """

    image: Annotated[str, Field(min_length=1)] | None = None
    dockerfile: Annotated[str, Field(min_length=1)] | None = None
    shm_mib: Annotated[float, Field(gt=0, le=1024 * MOST_GIB)] | None = None
    registry: Registry | None = None
    arguments: tuple[str, ...] = ()
    sources: Mapping[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        return {"image": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _one_source(self) -> Container:
        if self.image is None and self.dockerfile is None:
            raise ValueError("names no image; give `image` or `dockerfile`")
        if self.image is not None and self.dockerfile is not None:
            raise ValueError("names an image and a Dockerfile; give one of the two")
        try:
            given = container_arguments.parse(self.arguments)
        except UsageError as error:
            raise ValueError(f"arguments: {error.message}") from None
        if given.shm_size is not None and self.shm_mib is not None:
            raise ValueError("give the size of /dev/shm once: as `shm_size`, or as --shm-size")
        if given.host_ipc and (given.shm_size is not None or self.shm_mib is not None):
            raise ValueError("--ipc host takes the node's /dev/shm, which has a size of its own")
        return self

    @property
    def parsed_arguments(self) -> container_arguments.ContainerArguments:
        """The parsed `arguments`."""
        return container_arguments.parse(self.arguments)

    @property
    def shm_bytes(self) -> int:
        """Size of /dev/shm in bytes; Azure ML's two GiB unless the job says otherwise."""
        size = self.parsed_arguments.shm_size
        mib = self.shm_mib if size is None else container_arguments.parse_shm_size(size)
        return int((DEFAULT_SHM_MIB if mib is None else mib) * 2**20)


def _kind_of_environment(value: Any) -> str:
    return "packages" if isinstance(value, Mapping | Packages) else "path"


EnvironmentForm = Annotated[
    Annotated[str, Tag("path")] | Annotated[Packages, Tag("packages")],
    Discriminator(_kind_of_environment),
]


class ParallelRun(Model):
    """Runs the script over all items of its inputs: `init()`, then `run(mini_batch)`.

    Attributes:
        inputs: Names of the inputs whose files are distributed; an input in direct mode provides
            the rows of its table.
        output: Name of the output that gets the rows.
        mini_batch_size: Files per mini-batch, or bytes of a table (``1024``, ``10MB``). None: 10
            files or 1 MB.
        error_threshold: Number of items that may fail; -1: any number.
        output_action: ``append_row``: the results of `run` become the rows of one file.
            ``summary_only``: they are only counted.
        append_row_file_name: The name of that file.
        run_invocation_timeout_s: Time limit of one call of `run`, in seconds.
        run_max_try: Number of tries for a mini-batch.
        allowed_failed_count: Number of mini-batches that may fail; None: any number.
        allowed_failed_percent: Percentage of mini-batches that may fail; None: all.
        logging_level: How much the ranks print about it.
    """

    inputs: Annotated[tuple[str, ...], Field(min_length=1)]
    output: str | None = None
    mini_batch_size: Annotated[int, Field(ge=1, le=MOST)] | str | None = None
    error_threshold: Annotated[int, Field(ge=-1, le=MOST)] = -1
    output_action: Literal["append_row", "summary_only"] = "append_row"
    append_row_file_name: Annotated[str, Field(pattern=r"^[^/]+$")] = "parallel_run_step.txt"
    run_invocation_timeout_s: Annotated[float, Field(gt=0, le=LONGEST_S)] = 60.0
    run_max_try: Annotated[int, Field(ge=1, le=MOST)] = 3
    allowed_failed_count: Annotated[int, Field(ge=0, le=MOST)] | None = None
    allowed_failed_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    logging_level: Literal["DEBUG", "INFO", "WARNING"] = "INFO"

    @field_validator("mini_batch_size")
    @classmethod
    def _a_size(cls, value: int | str | None) -> int | str | None:
        try:
            size = 1 if value is None else parallel_settings.table_bytes_of(value)
        except ValueError:
            size = 0
        if size < 1:
            raise ValueError(f"{value!r} is not a size; write 10 for files, 10MB for tables")
        return value

    @model_validator(mode="after")
    def _rows_go_somewhere(self) -> ParallelRun:
        if self.output_action == "append_row" and self.output is None:
            raise ValueError("append_row needs an `output` for its file")
        return self


class Retries(Model):
    """The number of retries of each failure class.

    Attributes:
        user: The script failed.
        time_limit: An attempt reached `max_duration`.
        out_of_memory: A process reached its memory limit.
        stalled: No sign of life for `stall_timeout`.
        environment: The packages could not be resolved, built or found.
        data: An input could not be read, or an output conflicts with stored files.
        storage: A disk was full. If files cannot be stored at a job's end, the job waits instead.
        node_lost: A node was lost, for example a spot node that was reclaimed.
        preempted: The job was preempted, or evicted by `rayjobs simulate-eviction`.
        system: A part of rayjobs or Ray failed.
    """

    user: Annotated[int, Field(ge=0, le=100)] = 0
    time_limit: Annotated[int, Field(ge=0, le=100)] = 0
    out_of_memory: Annotated[int, Field(ge=0, le=100)] = 0
    stalled: Annotated[int, Field(ge=0, le=100)] = 0
    environment: Annotated[int, Field(ge=0, le=100)] = 0
    data: Annotated[int, Field(ge=0, le=100)] = 1
    storage: Annotated[int, Field(ge=0, le=100)] = 1
    node_lost: Annotated[int, Field(ge=0, le=100)] = 3
    preempted: Annotated[int, Field(ge=0, le=1000)] = 100
    system: Annotated[int, Field(ge=0, le=100)] = 2

    def budget(self, failure_class: FailureClass) -> int:
        """Return the number of retries of the class."""
        return int(getattr(self, str(failure_class)))


class JobSpec(Model):
    """One job: what to run, with what, where and for how long.

    Attributes:
        version: Version of this format.
        name: Name of the job.
        display_name: A name for tables and plots; None means `name`.
        script: Entry script, relative to `source_directory`; excludes `command`.
        command: A shell command that runs once per node, instead of a script.
        arguments: The script's own arguments; ``$NAME`` is expanded per process, without a shell.
        source_directory: Folder that is packed into the snapshot; None: no folder.
        environment: Path of a Python interpreter or virtual environment on the target, or
            packages to build one from; None means the target's own.
        container: The container image in which each process runs; None: no container.
        environment_variables: Variables of the script.
        secrets: Secret variables, by reference.
        distribution: Nodes and processes.
        parallel_run: Runs the script over all items of inputs, in mini-batches; None: a plain
            script.
        resources: What each process needs.
        inputs: Data that the script reads, by name.
        outputs: Folders that are stored when the script has succeeded, by name.
        max_duration_s: Time limit of one attempt in seconds, from its start; None: no limit.
        resume_from: A run id, a local path, or ``datastore/path`` with a checkpoint.
        grace_s: Seconds between SIGTERM and SIGKILL.
        stall_timeout_s: End an attempt after this many seconds without a sign of life; None: never.
        retries: Retries per failure class; a number alone is for failures of the script.
        priority: A higher value starts earlier.
        tags: Labels for finding the job.
        depends_on: Jobs that must end first.
        notify: Receivers of a notification at its end: ``[STATE=]`` and a URL or a mailbox; see
            `notify.Receiver`.
        target: The target that runs the job.
        preemptible: May be stopped and requeued in favor of a job of higher priority.
        cold: Start each process in a new interpreter instead of a fork of the warm one.
        umask: The umask of its processes, in octal ("022"); None: the submitter's.
        array: Makes many jobs, one per index; ranks get the index in RAYJOBS_ARRAY_INDEX.
        log_cap_mib: Size in MiB above which a log keeps only its start and end; None: no limit.
        strict: Refuse the job if something it requests would have to be substituted.
        substitutes: What is used instead of its requests; written by the submit.
    """

    version: Literal[1] = 1
    name: Annotated[str, Field(pattern=JOB_NAME)] = "job"
    display_name: str | None = None
    script: str | None = None
    command: str | None = None
    arguments: tuple[str, ...] = ()
    source_directory: str | None = None
    environment: EnvironmentForm | None = None
    container: Container | None = None
    environment_variables: Mapping[Annotated[str, Field(pattern=ENVIRONMENT_NAME)], str] = Field(
        default_factory=dict
    )
    secrets: Mapping[Annotated[str, Field(pattern=ENVIRONMENT_NAME)], SecretRef] = Field(
        default_factory=dict
    )
    distribution: Distribution = Distribution()
    parallel_run: ParallelRun | None = None
    resources: Resources = Resources()
    inputs: Mapping[Annotated[str, Field(pattern=INPUT_NAME)], Input] = Field(default_factory=dict)
    outputs: Mapping[Annotated[str, Field(pattern=INPUT_NAME)], Output] = Field(
        default_factory=dict
    )
    resume_from: str | None = None
    max_duration_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None
    grace_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    stall_timeout_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None
    retries: Retries = Retries()
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    tags: Mapping[str, str] = Field(default_factory=dict)
    depends_on: tuple[Dependency, ...] = ()
    notify: Annotated[tuple[str, ...], Field(max_length=10)] = ()
    array: Array | None = None
    target: str = "local"
    preemptible: bool = False
    cold: bool = False
    umask: Annotated[str, Field(pattern=UMASK)] | None = None
    log_cap_mib: Annotated[float, Field(gt=0, le=1024 * MOST_GIB)] | None = 1024.0
    strict: bool = False
    substitutes: tuple[Substitute, ...] = ()

    @field_validator("notify")
    @classmethod
    def _receivers(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(Receiver.of(text)) for text in texts)

    @model_validator(mode="after")
    def _one_entry(self) -> JobSpec:
        if (self.script is None) == (self.command is None):
            raise ValueError("give exactly one of `script` and `command`")
        return self

    @property
    def entry(self) -> str:
        """The script or the command, for display."""
        return self.script or self.command or ""

    @property
    def container_text(self) -> str:
        """The image for display; empty without a container."""
        container = self.container
        return "" if container is None else container.image or "built from a Dockerfile"

    @property
    def environment_text(self) -> str:
        """The environment for display; empty for the target's own."""
        environment = self.environment
        if not isinstance(environment, Packages):
            return environment or ""
        version = f" for Python {environment.python}" if environment.python else ""
        base = " added to the target's" if environment.base else ""
        packages = [*environment.pip, *(f"{one} (conda)" for one in environment.conda)]
        return f"{environment.name or 'packages'}: {', '.join(packages) or 'none'}{version}{base}"

    def to_json(self) -> str:
        """Return the spec as one JSON object, with defaults, so that old records stay correct."""
        return self.model_dump_json()


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a spec, for editors (shipped as rayjobs/job.schema.json)."""
    schema = JobSpec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "rayjobs job"
    return schema


PARTS.update(
    {
        "": JobSpec,
        "resources": Resources,
        "distribution": Distribution,
        "parallel_run": ParallelRun,
        "retries": Retries,
        "array": Array,
        "inputs.*": Input,
        "outputs.*": Output,
        "secrets.*": SecretRef,
        "depends_on.*": Dependency,
        "environment": Packages,
        "container": Container,
        "container.*": Registry,
        "substitutes.*": Substitute,
    }
)

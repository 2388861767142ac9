"""What to run: the validated, immutable, versioned JobSpec. What happened to it is in `Job`."""

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
# May begin with a digit: the name of a reference without one is made of hexadecimal digits.
INPUT_NAME = r"^[A-Za-z0-9_]+$"
UMASK = r"^[0-7]{3}$"
DEFAULT_UMASK = "022"
DEFAULT_SHM_MIB = 2048.0
# Far above what anybody means, and far below what overflows a float, a time or the kernel.
MOST_GIB = 1e9
LONGEST_S = 1e9
MOST = 10**9
JOB_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"


class Model(BaseModel):
    """Base of all parts of a spec: frozen, closed, whole numbers are not text.

    Raises:
        SpecError: an argument is wrong.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    if not TYPE_CHECKING:  # which know the arguments of each part from its fields

        def __init__(self, /, **given: Any) -> None:
            try:
                super().__init__(**given)
            except ValidationError as error:
                raise spec_error(type(self), error) from None

        # As in pydantic's RootModel: validation of a whole spec does not call this constructor for
        # each part, so `model_validate` reports the problems of all parts at once.
        __init__.__pydantic_base_init__ = True


class Resources(Model):
    """What one process needs.

    Attributes:
        cpus: Logical CPUs per process.
        gpus: GPUs per process; 0.5 means that two processes share a device.
        memory_gib: Memory limit per process in GiB; None sets no limit.
        node_types: Node types of the target, by name or by the size of their machines, that the
            job's nodes may be of; empty: any.
        spot: True: only nodes that the provider may take away (they cost less, and the job is
            tried again); False: only others; None: either.
    """

    cpus: Annotated[float, Field(ge=0, le=4096)] = 1.0
    gpus: Annotated[float, Field(ge=0, le=4096)] = 0.0
    memory_gib: Annotated[float, Field(gt=0, le=MOST_GIB)] | None = None
    node_types: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    spot: bool | None = None


class Distribution(Model):
    """How many processes on how many nodes, and how they communicate.

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
            another job, exactly as that job stored it), or ``saved:DIGEST`` (a dataset that was not
            registered, kept with the job that used it).
        mode: mount, download, or direct (the job gets the object, no files).
        path_on_compute: Path of a link to the files; None makes none.
    """

    source: Annotated[str, Field(min_length=1)]
    mode: InputMode = "mount"
    path_on_compute: str | None = None


class Registration(Model):
    """How a stored output becomes (a version of) a dataset.

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
        mode: upload stores the files when the script has ended well; mount shows what the
            destination holds and stores changes while the script runs.
        overwrite: Replace stored files that have other bytes, instead of failing the job.
        path_on_compute: Path of a link to the folder that the script writes to; None makes none.
        source_globs: Only files that match one of these are stored; empty: all.
        register_as: The dataset that the stored files become a version of.
        is_folder: Whether a folder is at the path when the script starts. If not, the script itself
            makes a file or a folder there.
    """

    destination: str = "workspaceblobstore/dataset/{run-id}/{output-name}"
    mode: OutputMode = "upload"
    overwrite: bool = False
    path_on_compute: str | None = None
    source_globs: tuple[str, ...] = ()
    register_as: Registration | None = None
    is_folder: bool = True


class SecretRef(Model):
    """A secret by reference: its value is read on the target, at start, and stored nowhere.

    Attributes:
        env: Name of the environment variable of the target that holds it. Must begin with
            ``RAYJOBS_SECRET_`` on the target, so that a spec cannot read just any variable.
        file: Or the path of a file on the target's node, readable by its user.
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
        when: ok waits for its completion and cancels this job otherwise; any waits for its end.
    """

    job: Annotated[str, Field(min_length=1)]
    when: Literal["ok", "any"] = "ok"


class Array(Model):
    """Many jobs of one spec, each with an index; text such as ``0-15%4`` is accepted too.

    Attributes:
        indices: As written: ``0-15``, ``1,3,8``, ``0-30:5``.
        limit: How many members may run at a time; None: as many as fit.
        count: The value of RAYJOBS_ARRAY_COUNT; None: the number of indices. Set it to run a few
            members of a larger array again, so that they divide the data as before.
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
        """Return the indices, in order and each once."""
        return arrays.expand(self.indices)


class Packages(Model):
    """An environment made of packages: built on the node, once for all jobs that ask for it.

    Attributes:
        name: A name for display.
        pip: Lines of a requirements file.
        python: A version (``3.11``, ``>=3.9``) or the path of an interpreter on the target; None
            takes the target's own.
        constraints: Requirements that limit the versions of packages without asking for them.
        conda: Packages of conda, as match specifications (``numpy >=1.26``); with them the
            environment is one of conda, and `pip` is installed on top.
        channels: Where they come from, the one that wins first: a name such as ``conda-forge``,
            an address, or ``file://`` and the path of a folder on the node.
        conda_command: A program of the node that makes the environment (micromamba, mamba, conda)
            instead of rayjobs itself.
        link_scripts: Run the link scripts of conda packages: code of the channel, as the target's
            user.
        base: ``target``: the packages are added to those of the target's own Python, as an
            estimator adds to its framework; None: the environment has nothing else.
        sources: Files and folders among the requirements → digest of what was packed of them; the
            submit writes them. Those that are not here are looked for on the node.
        if_used: Requirements that are only installed if the job's code mentions their package.
            Packages of a framework are such; the submit decides, and stores none.
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
    """What a job runs with instead of what was asked for.

    Attributes:
        asked: What was asked for, such as ``torch==1.6.0``.
        used: What is used instead; empty: nothing.
        reason: Why, as the rest of a sentence.
    """

    asked: str
    used: str = ""
    reason: str = ""

    def __str__(self) -> str:
        """Return it as one line for people."""
        used = self.used or "left out"
        return f"{self.asked} → {used}" + (f" ({self.reason})" if self.reason else "")


class Registry(Model):
    """How the registry of an image is asked for it.

    Attributes:
        address: The registry's host name and port; None: the one in the image's name.
        username: The user's name there.
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
    """The image that each process runs in; text alone is its `image`.

    Attributes:
        image: A name (``python:3.13``, ``registry.example/team/train@sha256:…``), a path on the
            target's nodes (an unpacked root file system, an OCI folder, an archive of docker, OCI
            or tar), or one of these after ``docker://``, ``oci:``, ``oci-archive:``,
            ``docker-archive:``, ``tar:``, ``dir:``.
        dockerfile: Or the text of a Dockerfile that is built on the node by podman or buildah; its
            context is the job's snapshot.
        shm_mib: Size of /dev/shm in MiB.
        registry: How the image's registry is asked; None: as the node's engine is set up.
        arguments: Further arguments of `docker run`; those that cannot be honored are refused.
        sources: The image, if it is a folder of `rayjobs env vendor` → digest of what was packed
            of it; the submit writes it. Such an image travels with the job.
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
        """What `arguments` say."""
        return container_arguments.parse(self.arguments)

    @property
    def shm_bytes(self) -> int:
        """Size of /dev/shm in bytes; Azure ML's two GiB unless the job says otherwise."""
        said = self.parsed_arguments.shm_size
        mib = self.shm_mib if said is None else container_arguments.parse_shm_size(said)
        return int((DEFAULT_SHM_MIB if mib is None else mib) * 2**20)


def _kind_of_environment(value: Any) -> str:
    return "packages" if isinstance(value, Mapping | Packages) else "path"


EnvironmentForm = Annotated[
    Annotated[str, Tag("path")] | Annotated[Packages, Tag("packages")],
    Discriminator(_kind_of_environment),
]


class ParallelRun(Model):
    """Makes the script one that is run over all items of inputs: `init()`, then `run(mini_batch)`.

    Attributes:
        inputs: Names of the inputs whose files are handed out; of an input in direct mode, the
            rows of its table.
        output: Name of the output that gets the rows.
        mini_batch_size: Files of a mini-batch, or bytes of a table (``1024``, ``10MB``). None: 10
            files, 1 MB.
        error_threshold: Items that may fail; -1: any number.
        output_action: ``append_row``: what `run` returns becomes the rows of one file.
            ``summary_only``: it is counted alone.
        append_row_file_name: The name of that file.
        run_invocation_timeout_s: Seconds that one call of `run` may take.
        run_max_try: Tries that a mini-batch has.
        allowed_failed_count: Mini-batches that may fail; None: any number.
        allowed_failed_percent: Percentage of the mini-batches that may fail; None: all.
        logging_level: What the ranks print about it.
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
            size = 1 if value is None else parallel_settings.bytes_of(value)
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
    """How many retries each failure class has.

    Attributes:
        user: The script failed.
        time_limit: An attempt reached `max_duration`.
        out_of_memory: A process reached its memory limit.
        stalled: No sign of life for `stall_timeout`.
        environment: The packages could not be resolved, built or found.
        data: An input could not be read, or an output conflicts with stored files.
        storage: A disk was full. Files that cannot be stored at a job's end are waited for instead.
        node_lost: A node was lost.
        preempted: The job was preempted, or its spot machine taken away.
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
        """Return how many retries the class has."""
        return int(getattr(self, str(failure_class)))


class JobSpec(Model):
    """One job: what to run, with what, where, for how long.

    Attributes:
        version: Version of this format.
        name: Name of the job.
        display_name: A name for tables and plots; None takes `name`.
        script: Entry script, relative to `source_directory`; excludes `command`.
        command: Shell text that is run once per node instead of a script.
        arguments: The script's own arguments; ``$NAME`` is expanded per process, no shell.
        source_directory: Folder that is packed into the snapshot. None: no folder is named.
        environment: Path of a Python interpreter or virtual environment on the target, or
            packages to build one of; None uses the target's own.
        container: The image that each process runs in; None: the node's own files.
        environment_variables: Variables of the script.
        secrets: Secret variables, by reference.
        distribution: Nodes and processes.
        parallel_run: Runs the script over all items of inputs, in mini-batches; None: as it is.
        resources: What each process needs.
        inputs: Data that the script reads, by name.
        outputs: Folders that are stored when the script has ended well, by name.
        max_duration_s: Limit of one attempt in seconds, from its start; None: no limit.
        resume_from: A run id, a local path, or ``datastore/path`` with a checkpoint.
        grace_s: Seconds between SIGTERM and SIGKILL.
        stall_timeout_s: End an attempt after this many seconds without a sign of life; None: never.
        retries: Retries per failure class; a number alone is for failures of the script.
        priority: Higher starts earlier.
        tags: Labels to find the job by.
        depends_on: Jobs that must have ended first.
        notify: Who is told of its end: ``[STATE=]URL`` or a mailbox; see `notify.Receiver`.
        target: The target that runs the job.
        preemptible: May be stopped and queued again for a job of higher priority.
        cold: Start each process in a new interpreter instead of a fork of the warm one.
        umask: Permissions that new files lack, in octal ("022"); None: the submitter's.
        array: Makes it many jobs, one for each index; ranks find it in RAYJOBS_ARRAY_INDEX.
        log_cap_mib: Size in MiB above which a log keeps only its start and end; None: no limit.
        strict: Refuse the job where something else would be used than what it asks for.
        substitutes: What is used instead of what was asked for; the submit writes them.
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
        asked = self.container
        return "" if asked is None else asked.image or "built from a Dockerfile"

    @property
    def environment_text(self) -> str:
        """The environment for display; empty for the target's own."""
        asked = self.environment
        if not isinstance(asked, Packages):
            return asked or ""
        version = f" for Python {asked.python}" if asked.python else ""
        base = " added to the target's" if asked.base else ""
        packages = [*asked.pip, *(f"{one} (conda)" for one in asked.conda)]
        return f"{asked.name or 'packages'}: {', '.join(packages) or 'none'}{version}{base}"

    def to_json(self) -> str:
        """Return the spec as one JSON object; defaults are written, so old records stay true."""
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

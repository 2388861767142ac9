"""An attempt's host: its secrets, its connection, its exit record, and the record of a dead one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.datastore import credentials
from rayjobs.injob import exit_record, open_files, usage
from rayjobs.injob.exit_record import ExitRecord, Leftovers
from rayjobs.injob.identity import boot_id
from rayjobs.launch import hostclient
from rayjobs.launch.leftovers import Proof
from rayjobs.protocol.attempts import AttemptOnNode, SecretSource

log = logging.getLogger(__name__)


def read_secrets(references: Mapping[str, SecretSource]) -> dict[str, str]:
    """Return secrets by name, from the target's variables and the node's files.

    Raises:
        PrepareError: class ``environment``: one is missing.
    """
    values = {}
    for name, reference in references.items():
        variable, file = reference.env, reference.file
        if variable is not None:
            if not credentials.variable(variable):
                raise PrepareError(
                    f"the secret {name} comes from the variable {variable}, which the target does "
                    f"not have; set it with `rayjobs target secret set {variable}`",
                    failure_class=FailureClass.ENVIRONMENT,
                    is_permanent=True,
                )
            values[name] = credentials.variable(variable)
        elif file is not None:
            try:
                values[name] = Path(file).expanduser().read_text().rstrip("\n")
            except OSError as error:
                raise PrepareError(
                    f"the secret {name} cannot be read from {file}: {error.strerror}",
                    failure_class=FailureClass.ENVIRONMENT,
                    is_permanent=True,
                ) from error
    return values


def exit_record_of_lost_host(on: AttemptOnNode, proof: Proof) -> ExitRecord:
    """Return the record that stands in for the one that a killed host did not write."""
    return ExitRecord.of_lost_host(
        on,
        boot_id=boot_id(),
        leftovers=Leftovers(proof.killed, proof.proven_dead, proof.remaining),
        usage=usage.read(on.root),
    )


def record_of_dead_host(on: AttemptOnNode, proof: Proof) -> ExitRecord:
    """Return the exit record of an attempt whose host died before it wrote one.

    A known outcome is final: ranks that succeeded stay completed, whatever happened to the host
    while it ended their leftover processes. Such a record is also written, once all processes are
    proven dead.
    """
    lost = exit_record_of_lost_host(on, proof)
    record = exit_record.with_outcome(on.root, lost)
    if record is None:
        return lost
    if proof.proven_dead:
        try:
            exit_record.write(on.root, record)
        except OSError as error:
            log.warning("the exit record of %s cannot be written: %s", on.job, error)
    return record


def host_of(root: str) -> hostclient.HostConnection | None:
    """Return the connection to an attempt's host; None if none is known to have started.

    Raises:
        OSError: no more files can be opened.
    """
    try:
        return open_files.patiently(lambda: hostclient.HostConnection.of(root))
    except (OSError, ValueError) as error:
        if open_files.is_exhausted(error):
            raise
        log.warning("no host is known: %s", error)
        return None


def host_on(on: AttemptOnNode) -> hostclient.HostConnection | None:
    """Return the connection to the host of an attempt; None if none was started.

    A script may have removed the host's file. Then the process that listens on the attempt's
    socket, which is not below the attempt's folder, is its host.

    Raises:
        OSError: no more files can be opened.
    """
    found = host_of(on.root)
    if found is not None:
        return found
    return open_files.patiently(lambda: hostclient.HostConnection.listening_at(on.socket, on.root))


def record_of(root: str) -> ExitRecord | None:
    """Return an attempt's exit record; None if no readable one exists.

    Raises:
        OSError: no more files can be opened, so that nothing is known.
    """
    try:
        return open_files.patiently(lambda: hostclient.read_exit_record(root))
    except (OSError, ValueError) as error:
        if open_files.is_exhausted(error):
            raise
        log.warning("no exit record: %s", error)
        return None

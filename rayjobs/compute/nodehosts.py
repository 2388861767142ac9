"""What a node knows of an attempt's host: how to start it, where it is, how it ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayjobs.datastore import credentials
from rayjobs.errors import PrepareError
from rayjobs.injob import exitrecord, openfiles, usage
from rayjobs.injob.identity import boot_id
from rayjobs.launch import hostclient
from rayjobs.launch.leftovers import Proof

log = logging.getLogger(__name__)


def read_secrets(references: Mapping[str, Mapping[str, str | None]]) -> dict[str, str]:
    """Return secrets by name from the node's own variables and files.

    Raises:
        PrepareError: class ``environment``: one is not there.
    """
    values = {}
    for name, reference in references.items():
        variable, file = reference.get("env"), reference.get("file")
        if variable is not None:
            if not credentials.variable(variable):
                raise PrepareError(
                    f"the secret {name} comes from the variable {variable}, which the target does "
                    f"not have; give it: `rayjobs target secret set {variable}`",
                    failure_class="environment",
                    is_permanent=True,
                )
            values[name] = credentials.variable(variable)
        elif file is not None:
            try:
                values[name] = Path(file).expanduser().read_text().rstrip("\n")
            except OSError as error:
                raise PrepareError(
                    f"the secret {name} is to come from {file}: {error.strerror}",
                    failure_class="environment",
                    is_permanent=True,
                ) from error
    return values


def exit_record_of_lost_host(plan: Mapping[str, Any], proof: Proof) -> dict[str, Any]:
    """Return the record that a host would have written, had it not been killed."""
    return {
        "version": 1,
        "job": plan["job"],
        "attempt": plan["attempt"],
        "node": plan["node"],
        "marker": plan["marker"],
        "boot_id": boot_id(),
        "started_at": None,
        "ended_at": None,
        "duration_s": None,
        "outcome": "host_error",
        "reason": "the attempt host was killed and left no exit record",
        "ranks": [],
        "first_failed_rank": None,
        "leftovers": {
            "killed": proof.killed,
            "proven_dead": proof.proven_dead,
            "remaining": list(proof.remaining),
        },
        "tree": "lost",
        "memory": {"limit_bytes": None, "how": "none", "peak_bytes": None},
        "cold": None,
        "usage": usage.read(str(plan["root"])),
    }


def record_of_dead_host(plan: Mapping[str, Any], proof: Proof) -> dict[str, Any]:
    """Return, and keep, the exit record of an attempt whose host died before it wrote one.

    An outcome that was known by then is final: ranks that had ended well ran well, whatever
    became of the host while it ended what they had left behind.
    """
    lost = exit_record_of_lost_host(plan, proof)
    known = exitrecord.read_outcome(str(plan["root"]), str(plan["marker"]))
    if known is None:
        return lost
    record = {**lost, **known, "leftovers": lost["leftovers"]}
    if proof.proven_dead:
        try:
            exitrecord.write(str(plan["root"]), record)
        except OSError as error:
            log.warning("the exit record of %s is not kept: %s", plan["job"], error)
    return record


def host_of(root: str) -> hostclient.HostConnection | None:
    """Return the connection to an attempt's host; None where none was started, for all we know.

    Raises:
        OSError: no more files can be opened.
    """
    try:
        return openfiles.patiently(lambda: hostclient.HostConnection.of(root))
    except (OSError, ValueError) as error:
        if openfiles.is_exhausted(error):
            raise
        log.warning("no host is known: %s", error)
        return None


def host_of_plan(plan: Mapping[str, Any]) -> hostclient.HostConnection | None:
    """Return the connection to the host of a plan's attempt; None where none was started.

    A script may have removed what its host wrote: then the one that listens at the attempt's
    socket, which is not below the attempt's folder, is its host.

    Raises:
        OSError: no more files can be opened.
    """
    root, socket = str(plan["root"]), plan.get("socket")
    found = host_of(root)
    if found is not None or socket is None:
        return found
    return openfiles.patiently(lambda: hostclient.HostConnection.listening_at(str(socket), root))


def record_of(root: str) -> dict[str, Any] | None:
    """Return an attempt's exit record; None while there is none that can be read.

    Raises:
        OSError: no more files can be opened, so that nothing is known.
    """
    try:
        return openfiles.patiently(lambda: hostclient.read_exit_record(root))
    except (OSError, ValueError) as error:
        if openfiles.is_exhausted(error):
            raise
        log.warning("no exit record: %s", error)
        return None

"""A second machine, as far as disks go: commands that see neither the target's home nor its files.

Each command runs in a mount namespace in which empty folders cover what belongs to the target.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

LIMIT_S = 120.0


@dataclass
class OtherMachine:
    """Runs `rayjobs` with a separate home.

    Attributes:
        hidden: Folders of the first machine.
        variables: Variables of the shell, in addition to its home.
    """

    home: Path
    hidden: Sequence[Path]
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs rayjobs on that machine."""
        covers = "; ".join(
            f"mount -t tmpfs -o size=1m none {shlex.quote(str(one))}" for one in self.hidden
        )
        program = shlex.join([sys.executable, "-m", "rayjobs", *arguments])
        return ["unshare", "--mount", "sh", "-e", "-c", f"{covers}; exec {program}"]

    @property
    def environment(self) -> dict[str, str]:
        """The variables of that machine's shell."""
        return {**os.environ, "RAYJOBS_HOME": str(self.home), **self.variables}

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            cwd=cwd or self.home,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def begin(self, *arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        """Start a command; the caller reads its output and ends it."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment,
            cwd=cwd or self.home,
            stdout=subprocess.PIPE,
            text=True,
        )


def needs_mounts() -> None:
    """Skip the test where no mount namespace can be made."""
    tried = subprocess.run(
        ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"],
        capture_output=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip("folders cannot be hidden here: unshare and mount need CAP_SYS_ADMIN")

"""Unpacks one image into a folder, as a separate program that can be ended at any moment.

``python unpacking.py SOURCE FOLDER MOST_BYTES [NAME]`` writes ``FOLDER/rootfs`` and
``FOLDER/image.json`` (digest, configuration, skipped files), and prints its progress. If it refuses
the image, ``FOLDER/refused.json`` says why. An unfinished image is never used: the folder is only
moved into place when the program has succeeded.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from rayjobs.containers import sources
from rayjobs.containers.layers import BadImageError, Root
from rayjobs.core.text import counted, duration_text
from rayjobs.injob import record_files

ROOTFS = "rootfs"
RECORD = "image.json"
REFUSED = 3  # its exit code for an image that must not be unpacked
_REFUSAL = "refused.json"
_FULL = (errno.ENOSPC, errno.EDQUOT)


def unpack(image: sources.Image, folder: Path) -> dict[str, object]:
    """Unpack an image below `folder`; return its record.

    Raises:
        BadImageError: it is unsafe to unpack, damaged, or too large.
        OSError: a file cannot be written.
    """
    path = folder / ROOTFS
    path.mkdir(mode=0o755)
    root = Root(path, image.most_bytes)
    for number, layer in enumerate(image.layers, 1):
        began_s = time.monotonic()
        name = f"layer {number} of {len(image.layers)}"
        before = root.counts.entries
        with image.open(layer) as stream:
            root.apply(stream, name)
        files = counted(root.counts.entries - before, "file")
        print(f"{name}: {files} in {duration_text(time.monotonic() - began_s)}", flush=True)
    root.finish()
    if notices := root.counts.sentence():
        print(notices, flush=True)
    record: dict[str, object] = {
        "digest": image.digest,
        "config": dict(image.config),
        "set_user_id": root.counts.set_user_id,
        "devices": root.counts.devices,
        "entries": root.counts.entries,
    }
    (folder / RECORD).write_text(json.dumps(record))
    return record


def refusal(folder: Path) -> str | None:
    """Return why the program refused the image of a folder; None: it did not say."""
    try:
        return str(record_files.read_json(str(folder), _REFUSAL)["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def main(arguments: list[str]) -> int:
    """Run the program; it prints the cause of a failure, see also `refusal`."""
    source, folder, most_bytes, *name = arguments
    try:
        with sources.opened(
            Path(source), name[0] if name else None, most_bytes=int(most_bytes)
        ) as image:
            unpack(image, Path(folder))
    except BadImageError as error:
        print(f"error: {error}")
        with suppress(OSError):
            (Path(folder) / _REFUSAL).write_text(json.dumps({"reason": str(error)}))
        return REFUSED
    except OSError as error:
        print(f"error: {os.strerror(error.errno or 0)}: {error.filename or folder}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

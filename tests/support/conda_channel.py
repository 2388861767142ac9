"""Makes a conda channel in a folder: this machine's Python, and small packages."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_INDEX = """
import asyncio, os, sys
from pathlib import Path
from rattler.index import index_fs
asyncio.run(index_fs(Path(sys.argv[1]), write_zst=False, write_shards=False))
os._exit(0)
"""
VERSION = "{}.{}.{}".format(*sys.version_info[:3])


class Channel:
    """A channel with packages, each a ``.tar.bz2``; `url` is what an environment names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder}"
        (folder / "noarch").mkdir(parents=True)
        (folder / "linux-64").mkdir()
        self.add_python()

    def add_python(self) -> None:
        """Add a package whose interpreter is this machine's, as in a virtual environment."""
        minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
        base = Path(sys.base_prefix) / "bin" / f"python{minor}"
        self.add(
            "python",
            VERSION,
            subdir="linux-64",
            files={
                "pyvenv.cfg": f"home = {base.parent}\nversion = {VERSION}\n",
                f"lib/python{minor}/site-packages/README": "packages\n",
            },
            links={f"bin/{name}": str(base) for name in ("python", "python3", f"python{minor}")},
        )

    def add_library(self, name: str, version: str = "1.0", *, value: str = "conda") -> Path:
        """Add a pure Python package: a module with ``VALUE``, known to pip, and a program."""
        module = name.replace("-", "_")
        info = f"{module}-{version}.dist-info"
        return self.add(
            name,
            version,
            depends=["python"],
            files={
                f"site-packages/{module}.py": f"VALUE = {value!r}\ndef main():\n    print(VALUE)\n",
                f"site-packages/{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\n"
                f"Version: {version}\n",
                f"site-packages/{info}/INSTALLER": "conda\n",
                f"site-packages/{info}/RECORD": "",
            },
            entry_points=[f"{name}-say = {module}:main"],
        )

    def add(
        self,
        name: str,
        version: str,
        *,
        files: Mapping[str, str],
        depends: Sequence[str] = (),
        links: Mapping[str, str] | None = None,
        subdir: str = "noarch",
        entry_points: Sequence[str] | None = None,
    ) -> Path:
        """Add a package with these files and symbolic links."""
        noarch = {"noarch": "python"} if subdir == "noarch" else {}
        index = {
            "name": name,
            "version": version,
            "build": "0",
            "build_number": 0,
            "depends": list(depends),
            "subdir": subdir,
            "timestamp": 1700000000000,
            **noarch,
        }
        paths = [
            {
                "_path": path,
                "path_type": "hardlink",
                "sha256": hashlib.sha256(text.encode()).hexdigest(),
                "size_in_bytes": len(text.encode()),
                **(
                    {"prefix_placeholder": "/placeholder", "file_mode": "text"}
                    if "/placeholder" in text
                    else {}
                ),
            }
            for path, text in files.items()
        ]
        paths += [{"_path": path, "path_type": "softlink"} for path in links or {}]
        content = {
            **files,
            "info/index.json": json.dumps(index),
            "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}),
        }
        if noarch:
            link = {"noarch": {"type": "python", "entry_points": list(entry_points or ())}}
            content["info/link.json"] = json.dumps({**link, "package_metadata_version": 1})
        archive = self.folder / subdir / f"{name}-{version}-0.tar.bz2"
        with tarfile.open(archive, "w:bz2") as file:
            for path, text in content.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(text.encode())
                entry.mode = 0o755 if path.startswith("bin/") else 0o644
                file.addfile(entry, io.BytesIO(text.encode()))
            for path, target in (links or {}).items():
                entry = tarfile.TarInfo(path)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                file.addfile(entry)
        return archive

    def index(self) -> Channel:
        """Write the index of the channel's packages; packages added later need it again."""
        command = [sys.executable, "-c", _INDEX, str(self.folder)]
        subprocess.run(command, check=True, timeout=120, capture_output=True)
        return self

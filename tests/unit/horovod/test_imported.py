"""A script that imports Horovod through a module of its folder counts as using it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.environments.horovod.imported import imports_horovod


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"train.py": "import horovod.torch as hvd"}, True),
        ({"train.py": "import torch"}, False),
        ({"train.py": "import ranks", "ranks.py": "import horovod.torch"}, True),
        ({"train.py": "from lib import ranks", "lib/ranks.py": "from horovod import torch"}, True),
        ({"train.py": "import lib.a", "lib/__init__.py": "from . import b", "lib/b.py":
            "import torch, horovod.torch"}, True),
        ({"train.py": "from lib.a.b import *", "lib/a/b.py": "from ..c import d", "lib/c.py":
            "import horovod"}, True),
        ({"train.py": "def f():\n    import train, ranks", "ranks.py": "import train"}, False),
        # What the job does not import does not count, and a file that is not Python is ignored.
        ({"train.py": "import torch", "other.py": "import horovod.torch"}, False),
        ({"train.py": "import broken", "broken.py": "print 'x'\nimport horovod"}, True),
        ({"train.py": "from .......... import x"}, False),
        ({"sub/train.py": "import near, far", "sub/near.py": "", "far.py": "import horovod"}, True),
    ],
)  # fmt: skip
def test_horovod_import_is_found_through_local_modules(
    tmp_path: Path, files: dict[str, str], expected: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert imports_horovod(tmp_path / next(iter(files)), tmp_path) is expected


def test_missing_script_uses_nothing(tmp_path: Path) -> None:
    assert not imports_horovod(tmp_path / "gone.py", tmp_path)

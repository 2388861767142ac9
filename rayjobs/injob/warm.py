"""The warm interpreter: has imported the heavy packages, and forks attempt hosts.

It only imports. A single parallel operation would make every forked rank hang, and touching a
GPU would make it unusable in them. Run it by its path: a rank then sees one frame of ours at most.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    import os.path as _path

    # The module path as the interpreter made it, without the folder of this file.
    _BASE_PATH = tuple(sys.path[0 if getattr(sys.flags, "safe_path", False) else 1 :])
    sys.path[:] = _BASE_PATH
    _package_home = _path.dirname(_path.dirname(_path.dirname(_path.abspath(__file__))))
    if _package_home not in sys.path:
        sys.path.append(_package_home)

if __name__ == "__main__":
    from rayjobs.injob.warmloop import main

    _program = main(sys.argv[1:], _BASE_PATH)
    if _program is None:
        import os

        # The warm interpreter or a host, done: taking all those packages down takes a second.
        os._exit(0)
    # A forked rank: everything of the loop is off the stack, and the interpreter's own
    # finalisation follows when this returns.
    _program.run()

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
    _package_home = _path.dirname(_path.dirname(_path.dirname(_path.abspath(__file__))))
    # First while our own modules are imported: the environment may hold another rayjobs. Last
    # afterwards: its other packages must be the environment's.
    sys.path[:] = [_package_home, *_BASE_PATH]

if __name__ == "__main__":
    from rayjobs.injob.warmloop import main

    sys.path[:] = [*_BASE_PATH, *([] if _package_home in _BASE_PATH else [_package_home])]
    _program = main(sys.argv[1:], _BASE_PATH)
    if _program is None:
        import os

        # The warm interpreter or a host, done: taking all those packages down takes a second.
        os._exit(0)
    # A forked rank: everything of the loop is off the stack; this runs the script and does not
    # return.
    _program.run()

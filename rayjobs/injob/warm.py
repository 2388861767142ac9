"""The warm interpreter: it imports the heavy packages once, and forks attempt hosts.

It only imports. A single parallel operation would make every forked rank hang, and touching a GPU
would make it unusable in them. Run it by path: a rank then sees at most one of our frames.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    import os.path as _path

    # The interpreter's module path, without this file's folder.
    _BASE_PATH = tuple(sys.path[0 if getattr(sys.flags, "safe_path", False) else 1 :])
    _package_home = _path.dirname(_path.dirname(_path.dirname(_path.abspath(__file__))))
    # First while our own modules are imported: the environment may contain another rayjobs. Last
    # afterwards: other packages must come from the environment.
    sys.path[:] = [_package_home, *_BASE_PATH]

if __name__ == "__main__":
    from rayjobs.injob.warm_loop import main

    sys.path[:] = [*_BASE_PATH, *([] if _package_home in _BASE_PATH else [_package_home])]
    _program = main(sys.argv[1:], _BASE_PATH)
    if _program is None:
        import os

        # The end of the warm interpreter or a host: tearing down all packages would take a second.
        os._exit(0)
    # A forked rank: the loop is off the stack; this runs the script and does not return.
    _program.run()

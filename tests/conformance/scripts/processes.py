"""Uses every start method of multiprocessing with a function of this very script."""

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor


def square(number):
    return number * number


if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            print(method, list(pool.map(square, [1, 2, 3])))
    print(multiprocessing.current_process().name, multiprocessing.parent_process())
    print(sorted(name for name in vars(sys.modules["__main__"]) if not name.startswith("__")))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    print(__name__, __file__.rpartition("/")[2], file=open(os.devnull, "w"))

"""Prints in an order that only a whole finalisation of the interpreter gives."""

import atexit
import os
import sys
import threading
import time


class Last:
    def __del__(self):
        print("del", flush=True)  # unflushed, it is lost once sympy is imported: it keeps stdout


def late():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    print("thread")


last = Last()
atexit.register(lambda: print("child" if os.fork() == 0 else "", end="\n", flush=True) or wait())


def wait():
    try:
        os.wait()
    except ChildProcessError:
        os._exit(0)


atexit.register(print, "atexit")
threading.Thread(target=late).start()
print("main")
sys.stdout.write("")

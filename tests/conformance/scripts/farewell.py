"""Prints in an order that only a whole finalisation of the interpreter gives."""

import atexit
import threading
import time


class Last:
    def __del__(self):
        # Unflushed, this would be lost as soon as sympy is imported, which keeps sys.stdout.
        print("del", flush=True)


def late():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    print("thread")


def forever():
    while True:
        time.sleep(0.01)


last = Last()
atexit.register(print, "atexit")
threading.Thread(target=late).start()
threading.Thread(target=forever, daemon=True).start()
print("main")

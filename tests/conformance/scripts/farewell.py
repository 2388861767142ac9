"""Prints in an order that only a complete finalization of the interpreter produces."""

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


last = Last()
atexit.register(print, "atexit")
threading.Thread(target=late).start()
print("main")

# A file that is never closed, held by a global, must reach the disk all the same.
kept = open("kept.txt", "w")
kept.write("written at the end")

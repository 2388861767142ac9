"""Handles the signals that a training script handles."""

import os
import signal
import subprocess
import sys


def handle(number, frame):
    print("handled", signal.Signals(number).name, frame.f_code.co_name)


for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, handle)
    os.kill(os.getpid(), number)
try:
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass
except KeyboardInterrupt:
    print("interrupted")
try:
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"x")
except BrokenPipeError:
    print("pipe")
sys.stdout.flush()
print(subprocess.run(["/bin/sh", "-c", "kill -PIPE $$; echo lived"]).returncode)

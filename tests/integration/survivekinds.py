"""Puts and gets arrays in memory of a GPU until a line comes: what was put before the service died, and after."""

import sys
import threading

import numpy as np

import poolbridge

path, stop, done = sys.argv[1], threading.Event(), 0


def work() -> None:
    global done
    with poolbridge.connect(path) as client:
        client.open_pool("p")
        while not stop.is_set():
            n = 1 + done % 7
            with client.put(np.full(n * 1000, done), "changing", replace=True, timeout=None):
                assert (client.get_array("changing") == done).all()
            with poolbridge.connect(path) as late:  # knows nothing of the services before
                assert (late.get_array("python") == 7).all()
            done += 1


with poolbridge.connect(path) as first:
    first.open_pool("p")
    with first.put(np.full(1000, 7), "python"):
        thread = threading.Thread(target=work)
        thread.start()
        while not done and thread.is_alive():
            stop.wait(0.01)
        print("ready", flush=True)
        sys.stdin.readline()
        stop.set()
        thread.join()
        print(done if (first.get_array("python") == 7).all() else "other content", flush=True)

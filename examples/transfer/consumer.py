"""Use the array of main.go in place.

Start `consumer.py cupy` or `consumer.py torch`. If main.go runs with ``-kind host``,
start `consumer.py numpy`.
"""

import importlib
import sys

import poolbridge

library = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "numpy")

with poolbridge.connect() as client:
    lease = client.get("weights", timeout=10)  # waits until it is published
    array = library.from_dlpack(lease)  # CuPy, PyTorch or NumPy: the same memory
    print(lease)
    print(array, float(array.sum()))
    del array, lease  # the last array gone, the buffer is free for others

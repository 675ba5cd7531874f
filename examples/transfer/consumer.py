"""Use the array of main.go in place.

Start `consumer.py cupy`, `consumer.py torch` or `consumer.py jax`. If main.go runs with
``-kind host``, start `consumer.py numpy`.
"""

import sys
from typing import Any

import poolbridge

library: Any = sys.argv[1] if len(sys.argv) > 1 else "numpy"

with poolbridge.connect() as client:
    # waits until the name is published; the array is in the same memory
    array = client.get_array("weights", library=library, timeout=10)
    print(array, array.dtype, float(array.sum()))
    del array  # the last array gone, the buffer is free for others

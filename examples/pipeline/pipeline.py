"""Run one of a pipeline's three stages. The stages pass arrays on without a copy and do not wait for a GPU.

Start ``pipeline.py sink``, ``pipeline.py scale`` and ``pipeline.py source`` in three processes, in any order. The
second argument is the name of an array library: ``cupy`` or ``torch`` for GPU memory, ``numpy`` for CPU memory.
"""

import importlib
import sys
from types import ModuleType

import poolbridge

FRAMES = 50


def source(client: poolbridge.Client, library: ModuleType) -> None:
    """Make arrays, and publish them in the channel "raw"."""
    kind = "host" if library.__name__ == "numpy" else "device"
    client.create_pool("pipeline", kind=kind, max_bytes="64MiB", exist_ok=True)  # an earlier run may have made the pool
    raw = client.create_channel("raw", mode="queue", capacity=4)
    for number in range(FRAMES):
        array = library.from_dlpack(client.allocate((256, 256), "float32", timeout=60))
        array[...] = number
        raw.publish(array)  # the memory of the array is a lease's, so nothing is copied
    raw.close()


def scale(client: poolbridge.Client, library: ModuleType) -> None:
    """Double every array of the channel "raw", and publish the results in the channel "scaled"."""
    raw = client.subscribe("raw", timeout=60)
    client.open_pool("pipeline")
    scaled = client.create_channel("scaled", mode="queue", capacity=4)
    for frame in raw:
        result = library.from_dlpack(client.allocate(frame.shape, frame.dtype_name, timeout=60))
        result[...] = library.from_dlpack(frame) * 2
        scaled.publish(result)
    scaled.close()


def sink(client: poolbridge.Client, library: ModuleType) -> None:
    """Sum the elements of all arrays of the channel "scaled", and print the sum divided by the size of an array."""
    total = 0.0
    for frame in client.subscribe("scaled", timeout=60):
        total += float(library.from_dlpack(frame).sum())
    print(total / (256 * 256))


if __name__ == "__main__":
    stages = {"source": source, "scale": scale, "sink": sink}
    if len(sys.argv) < 2 or sys.argv[1] not in stages:
        sys.exit(__doc__)
    stage = stages[sys.argv[1]]
    with poolbridge.connect(wait=60) as client:
        stage(client, importlib.import_module(sys.argv[2] if len(sys.argv) > 2 else "numpy"))

"""Hold a model for other processes: `holder.py cupy`, or torch, or numpy for memory of the CPU; reader.py uses it."""

import importlib
import sys

import poolbridge

LAYERS = {"embed": (512, 64), "hidden": (64, 64), "out": (64, 10)}

library = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "numpy")

with poolbridge.connect(wait=60) as client:
    kind = "host" if library.__name__ == "numpy" else "device"
    client.create_pool("model", kind=kind, max_bytes="64MiB", exist_ok=True)  # of an earlier run: a pool stays
    held = []
    for number, (name, shape) in enumerate(LAYERS.items()):
        lease = client.allocate(shape, "float32")
        library.from_dlpack(lease)[...] = number + 1  # a real one would load its weights here
        lease.publish(f"model/{name}")  # readers wait, on their streams, until it is written
        held.append(lease)
    print("holding", flush=True)
    sys.stdin.read()  # the names go with this process; the memory goes when nobody reads it any more

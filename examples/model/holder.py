"""Keep a model for reader.py. Start `holder.py cupy` or `holder.py torch`, or `holder.py numpy` for CPU memory."""

import importlib
import sys

import poolbridge

LAYERS = {"embed": (512, 64), "hidden": (64, 64), "out": (64, 10)}

library = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "numpy")

with poolbridge.connect(wait=60) as client:
    kind = "host" if library.__name__ == "numpy" else "device"
    client.create_pool("model", kind=kind, max_bytes="64MiB", exist_ok=True)  # the pool of an earlier run may exist
    held = []
    for number, (name, shape) in enumerate(LAYERS.items()):
        lease = client.allocate(shape, "float32")
        library.from_dlpack(lease)[...] = number + 1  # a real program would load the weights here
        lease.publish(f"model/{name}")  # the streams of readers wait until the content is written
        held.append(lease)
    print("holding", flush=True)
    sys.stdin.read()  # the names end with this process; the service frees the memory when nobody reads it any more

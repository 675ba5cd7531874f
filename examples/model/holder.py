"""Keep a model for reader.py.

Start `holder.py cupy` or `holder.py torch`, or `holder.py numpy` for CPU memory.
"""

import importlib
import sys

import poolbridge

LAYERS = {"embed": (512, 64), "hidden": (64, 64), "out": (64, 10)}

library = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "numpy")

with poolbridge.connect(wait=60) as client:
    kind = "host" if library.__name__ == "numpy" else "device"
    # the pool of an earlier run may exist
    client.create_pool("model", kind=kind, max_bytes="64MiB", exist_ok=True)
    shapes = {name: (shape, "float32") for name, shape in LAYERS.items()}
    model = client.allocate(shapes)
    for number, name in enumerate(LAYERS):
        # a real program would load the weights here
        library.from_dlpack(model[name])[...] = number + 1
    model.publish("model")  # streams of readers wait until it is written
    print("holding", flush=True)
    # the name ends with this process; the memory is free when nobody reads it any more
    sys.stdin.read()

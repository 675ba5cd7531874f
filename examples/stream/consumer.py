"""Read the frames of main.go in place.

Start `consumer.py cupy` or `consumer.py torch`. If main.go runs with ``-kind host``,
start `consumer.py numpy`.
"""

import importlib
import sys

import poolbridge

library = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "numpy")

print("waiting for the service and main.go", file=sys.stderr)
with poolbridge.connect(wait=60) as client:
    frames = client.subscribe("camera", timeout=60)  # waits until the channel exists
    print("subscribed", flush=True)
    for frame in frames:  # the loop ends when the channel is closed
        # on a GPU, the stream of the library waits until the image is complete
        image = library.from_dlpack(frame)
        brightness = float(image.sum()) / frame.size
        exposure = frame.meta["exposure"]
        print(frame.seq, exposure, f"{brightness:.1f}", frame.dropped, flush=True)

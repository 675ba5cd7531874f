"""See the frames that main.go sends, in place: `consumer.py cupy`, or torch, or numpy for kind host."""

import importlib
import sys

import poolbridge

library = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "numpy")

with poolbridge.connect(wait=60) as client:
    frames = client.subscribe("camera", timeout=60)  # waits until there is such a channel
    print("subscribed", flush=True)
    for frame in frames:  # ends when the channel is closed
        image = library.from_dlpack(frame)  # on the GPU it waits, by itself, until the image is complete
        brightness = float(image.sum()) / frame.size
        print(frame.seq, frame.meta["exposure"], f"{brightness:.1f}", frame.dropped, flush=True)

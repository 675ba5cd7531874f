"""Find the brightest place of each frame of main.go (``-kind host``), and mark it.

The marked frames go into the channel "detections", which page.py shows.
"""

import sys

import numpy as np

import poolbridge

print("waiting for the service and main.go", file=sys.stderr)
with poolbridge.connect(wait=60) as client:
    frames = client.subscribe("camera", timeout=60)
    video = client.open_pool("video")
    # a page that is slow misses frames, and does not hold up the detector
    found = client.create_channel("detections", pool=video, full="drop-oldest")
    print("subscribed", flush=True)
    with found.publisher((240, 320, 3), "uint8") as publisher:
        for frame in frames:
            image = publisher.loan(timeout=60)
            image[...] = np.asarray(frame)
            light = image.sum(axis=2)
            y, x = np.unravel_index(light.argmax(), light.shape)
            image[y : y + 16, x : x + 16] = (255, 0, 0)
            publisher.publish({"x": str(x), "y": str(y)}, timeout=60)
    found.close()

"""Answer with the newest weights of trainer.py.

For each line of the input, print for how many of 1,000 images the answer is right.
"""

import sys

import numpy as np

import poolbridge

random = np.random.default_rng()
with poolbridge.connect(wait=60) as client:
    print("Enter asks, Ctrl-D ends", file=sys.stderr)
    for _ in sys.stdin:
        model = client.get_dict("weights", timeout=60)
        label = random.integers(0, 2, 1000)
        images = random.normal(size=(1000, 16, 16))
        images[:, :8] += label[:, None, None]
        right = (images.reshape(1000, -1) @ model["w"] + model["b"] > 0) == label
        print(f"{right.sum()} right after {int(model['steps'][0])} steps", flush=True)

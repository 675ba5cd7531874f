"""Make batches of images with labels, for trainer.py.

Start as many of this program as you like.
"""

import sys

import numpy as np

import poolbridge

BATCH = {"image": ((64, 16, 16), "float32"), "label": ((64,), "int64")}

batches = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
random = np.random.default_rng()
print("waiting for the service, then making batches for trainer.py", file=sys.stderr)
with poolbridge.connect(wait=60) as client:
    client.create_pool("training", kind="host", max_bytes="64MiB", exist_ok=True)
    channel = client.create_channel("batches", mode="queue", capacity=8)
    with channel.publisher(BATCH) as publisher:
        for _ in range(batches):
            batch = publisher.loan(timeout=60)  # memory that the trainer reads in place
            label = batch["label"]
            label[:] = random.integers(0, 2, len(label))
            batch["image"][:] = random.normal(size=(64, 16, 16))
            # images of class 1 are brighter above
            batch["image"][:, :8] += label[:, None, None]
            publisher.publish(timeout=60)

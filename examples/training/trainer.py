"""Train a model with the batches of images.py, and publish its weights for answer.py.

The newest weights stay when this program ends, or is killed.
The next one goes on with them.
"""

import sys

import numpy as np

import poolbridge

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
print("waiting for the service and images.py", file=sys.stderr)
with poolbridge.connect(wait=60) as client:
    batches = client.subscribe("batches", timeout=60)
    sizes = {"w": 256, "b": 1, "steps": 1}
    model = {name: np.zeros(size, "float32") for name, size in sizes.items()}
    try:
        for name, array in client.get_dict("weights").items():
            model[name][:] = array
    except poolbridge.NotFoundError:
        pass  # this is the first trainer
    print("training", flush=True)
    for batch in batches.arrays():
        images = batch["image"].reshape(len(batch["label"]), -1)
        error = 1 / (1 + np.exp(-images @ model["w"] - model["b"])) - batch["label"]
        model["w"] -= 0.1 * images.T @ error / len(error)
        model["b"] -= 0.1 * error.mean()
        model["steps"] += 1
        # one request: a reader gets all old weights, or all new ones
        client.put(model, "weights", keep=True, replace=True).release()
        if model["steps"] >= steps:
            break

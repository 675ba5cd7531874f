"""Use the model of holder.py in place.

Many readers need no more memory for the model than one reader.
"""

import importlib
import sys

import poolbridge

library = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "numpy")

with poolbridge.connect(wait=60) as client:
    layers = ("embed", "hidden", "out")
    model = {name: client.get(f"model/{name}", timeout=60) for name in layers}
    weights = {name: library.from_dlpack(lease) for name, lease in model.items()}
    print({name: float(w.sum()) / model[name].size for name, w in weights.items()})
    print("reading", flush=True)
    sys.stdin.read()
    print(float((weights["embed"] @ weights["hidden"] @ weights["out"])[0, 0]))

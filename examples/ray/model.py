"""Serve a model with Ray: one actor has the model, and replicas read it in place. Requests are arrays in the pool."""

# Ray has the argument enable_tensor_transport, but its type hints do not have it.
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false

import numpy as np
import ray

import poolbridge.ray

ray.init()
transport = poolbridge.ray.register()


@ray.remote
class Holder:
    def __init__(self) -> None:
        self.weights = poolbridge.ray.empty((512, 10))  # in the pool of this node
        self.weights[:] = np.arange(10)  # a real program would load the weights here

    @ray.method(tensor_transport=transport)
    def model(self) -> np.ndarray:
        return self.weights  # the weights are read-only from now on


@ray.remote(enable_tensor_transport=True)  # for an actor that only receives arrays
class Replica:
    def __init__(self, name: str) -> None:
        self.name = name
        self.weights = np.empty(0)

    def load(self, weights: np.ndarray) -> None:
        self.weights = weights  # the holder's memory: ten replicas use no more memory for it than one

    def predict(self, batch: np.ndarray) -> tuple[str, list[int]]:
        return self.name, (batch @ self.weights).argmax(axis=1).tolist()

    def copies(self) -> int:
        stats = poolbridge.ray.stats()
        return stats.received_moved.arrays + stats.received_by_ray.arrays


@ray.remote
class Frontend:
    @ray.method(tensor_transport=transport)
    def batch(self, size: int) -> np.ndarray:
        batch = poolbridge.ray.empty((size, 512))
        batch[:] = 1  # a real program would decode requests into the array
        return batch


with poolbridge.ray.start():
    holder, frontend = Holder.remote(), Frontend.remote()
    replicas = [Replica.remote(name) for name in ("left", "right")]
    model = holder.model.remote()
    ray.get([replica.load.remote(model) for replica in replicas])
    for replica in replicas:
        print(ray.get(replica.predict.remote(frontend.batch.remote(3))))
    print("copies on one node:", sum(ray.get([replica.copies.remote() for replica in replicas])))

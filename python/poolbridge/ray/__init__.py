"""Passes arrays between the actors of Ray in memory of poolbridge. Actors on one node share this memory.

`register` makes a transport known to Ray, and `start` makes sure that every node has a service::

    import numpy as np
    import ray
    import poolbridge.ray

    ray.init()
    transport = poolbridge.ray.register()


    @ray.remote
    class Camera:
        @ray.method(tensor_transport=transport)
        def frame(self):
            frame = poolbridge.ray.empty((480, 640), "uint8")
            frame[:] = 7
            return frame


    @ray.remote(enable_tensor_transport=True)
    class Model:
        def mean(self, frame):
            return frame.mean()


    with poolbridge.ray.start():
        print(ray.get(Model.remote().mean.remote(Camera.remote().frame.remote())))

Ray's interface for transports is alpha. ``docs/engines.md`` lists the tested versions, and says which arrays go
without a copy.
"""

from poolbridge._sys.counts import Count
from poolbridge.ray._connection import DEFAULT_POOL, client, close, empty
from poolbridge.ray._counts import Stats, stats
from poolbridge.ray._register import register
from poolbridge.ray._services import Services, start

__all__ = ["DEFAULT_POOL", "Count", "Services", "Stats", "client", "close", "empty", "register", "start", "stats"]

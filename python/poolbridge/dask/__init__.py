"""Lets Dask workers pass arrays to each other in place, without copies, if the workers use the same service.

`PoolbridgePlugin` connects every worker of a Dask cluster to the poolbridge service of its machine. A task makes its
result in the worker's pool by `empty` or `asarray`. When another worker needs the result and has the same service, Dask
carries a description of the buffer, and the other worker gets a read-only NumPy array of the same memory. A task can
also return a lease, even of memory of a GPU, and arrays of PyTorch, CuPy and JAX that live in leases. Between workers
of different services Dask moves the bytes, as without poolbridge. `stats` returns how many arrays went in place, how
many did not, and why::

    import dask.array
    import distributed

    import poolbridge.dask

    with distributed.Client(n_workers=2) as cluster:
        cluster.register_plugin(poolbridge.dask.PoolbridgePlugin("dask", max_bytes="1GiB", start=True))
        x = dask.array.random.random((4096, 4096), chunks=1024)
        x = x.map_blocks(poolbridge.dask.asarray, dtype=x.dtype)
        print((x + x.T).sum().compute())
        print(poolbridge.dask.stats(cluster))

This module needs the package ``distributed``: ``pip install 'poolbridge[dask]'``.
"""

from poolbridge._sys.counts import Count
from poolbridge.dask import _requirements as _requirements  # imported first: `check` says which package is missing
from poolbridge.dask._counts import Stats
from poolbridge.dask._plugin import PoolbridgePlugin, asarray, empty, pool_client, stats

__all__ = ["Count", "PoolbridgePlugin", "Stats", "asarray", "empty", "pool_client", "stats"]

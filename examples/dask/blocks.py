"""Compute with a large dask.array. If a task needs a block of another worker, it reads the block in place."""

import dask.array
import distributed
import numpy as np
from dask.base import annotate

import poolbridge.dask


def block(block_info: dict) -> np.ndarray:
    """Make one block of the array in the pool of this task's worker.

    A real program would read the block from a file.
    """
    rows, columns = block_info[None]["array-location"]
    made = poolbridge.dask.empty((rows[1] - rows[0], columns[1] - columns[0]))
    made[:] = np.arange(*rows)[:, None] + np.arange(*columns)
    return made


def main() -> None:
    with distributed.Client(n_workers=2, threads_per_worker=1, memory_limit=0) as client:
        client.register_plugin(poolbridge.dask.PoolbridgePlugin("blocks", max_bytes="256MiB", start=True))
        chunks = ((500,) * 4, (500,) * 4)
        workers = list(client.scheduler_info()["workers"])
        with annotate(workers=lambda key: workers[key[1] % 2]):  # the workers make alternate rows of blocks
            x = dask.array.map_blocks(block, chunks=chunks, dtype="float64", meta=np.empty((0, 0)))
            x = x.persist()  # otherwise Dask may fuse tasks, and send results that are in no pool
        print((x - x.T).sum().compute(), x[::2].mean().compute())
        stats = poolbridge.dask.stats(client).values()
        print(sum(of.received_in_place.arrays for of in stats), "blocks in place")  # Dask itself sends sums of blocks


if __name__ == "__main__":  # workers import this file
    main()

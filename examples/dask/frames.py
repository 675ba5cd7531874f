"""Run a pipeline of dask.delayed: one worker decodes frames, and another worker reads the frames in place."""

# Dask does not mark which names are public, so pyright would report them as private.
# pyright: reportPrivateImportUsage=false

import dask
import distributed
import numpy as np

import poolbridge.dask


@dask.delayed
def decode(number: int) -> np.ndarray:
    frame = poolbridge.dask.empty((480, 640), "uint8")  # in this worker's pool, so Dask does not copy the frame
    frame[:] = number  # a real program would decode a file
    return frame  # the frame is read-only from now on


@dask.delayed
def brightness(frame: np.ndarray) -> float:
    return float(frame.mean())


@dask.delayed
def contrast(frame: np.ndarray) -> int:
    return int(frame.max()) - int(frame.min())


def main() -> None:
    with distributed.Client(n_workers=2, threads_per_worker=1, memory_limit=0) as client:
        client.register_plugin(poolbridge.dask.PoolbridgePlugin("frames", max_bytes="64MiB", start=True))
        decoder, reader = client.scheduler_info()["workers"]
        with dask.annotate(workers=[decoder]):
            frames = [decode(number) for number in range(8)]
        with dask.annotate(workers=[reader]):
            results = [brightness(frame) for frame in frames] + [contrast(frame) for frame in frames]
        print(dask.compute(*results, optimize_graph=False))  # otherwise Dask fuses tasks and ignores their workers
        received = poolbridge.dask.stats(client)[reader]
        print(f"{received.received_in_place.arrays} frames in place, {received.received_by_dask.arrays} copied")


if __name__ == "__main__":  # workers import this file
    main()

"""Measures how long a program needs for one frame: by a publisher, from an arena, and by a copy of an array.

``python benchmarks/arena_frames.py``. The frames go to one consumer, in another process, in memory of kind ``host``.
Each figure is the mean of 1,500 frames, the median of five rounds, which take turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import poolbridge

_FRAMES, _ROUNDS = 1500, 5


def mean(step: Callable[[], object]) -> float:
    """Return the mean time of a frame in microseconds."""
    for _ in range(100):
        step()
    began = time.perf_counter()
    for _ in range(_FRAMES):
        step()
    return (time.perf_counter() - began) / _FRAMES * 1e6


def read(path: str) -> None:
    """Take the frames until the channel ends."""
    with poolbridge.connect(path) as client:
        for frame in client.subscribe("frames"):
            frame.release()


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kib", type=int, default=100, help="size of a frame")
    nbytes = parser.parse_args().kib << 10
    with (
        poolbridge.serve(pools=["name=frames,kind=host,max=512MiB"]) as service,
        poolbridge.connect(service.path) as client,
    ):
        channel = client.create_channel("frames", capacity=8, pool="frames")
        reader = multiprocessing.get_context("spawn").Process(target=read, args=(service.path,))
        reader.start()
        channel.wait_for_consumers(1, timeout=30)
        arena, publisher, source = (
            client.arena("64MiB", pool="frames"),
            channel.publisher(nbytes, "u1"),
            np.zeros(nbytes, "u1"),
        )
        ways: dict[str, Callable[[], object]] = {
            "publisher": lambda: (publisher.loan(), publisher.publish()),
            "arena": lambda: channel.publish(arena.empty(nbytes, "u1")),
            "copy": lambda: channel.publish(source),
        }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(_ROUNDS):
            for way, step in ways.items():
                found[way].append(mean(step))
        for way, times in found.items():
            sys.stdout.write(f"{way:10} {statistics.median(times):8.1f} us ({min(times):.1f} to {max(times):.1f})\n")
        channel.close()
        reader.join()


if __name__ == "__main__":
    main()

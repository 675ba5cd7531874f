"""Measures a loop of `channel.publish(array)`: one program copies arrays into a channel, another reads them.

Usage: python benchmarks/copies.py [--bytes N] [--frames N] [--capacity N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from typing import Any

import numpy as np

import poolbridge


def consume(client: poolbridge.Client, ready: Any) -> None:
    """Read one element of each frame, until the channel ends."""
    frames = client.subscribe("copies", timeout=60)
    ready.set()
    for frame in frames:
        np.asarray(frame)[0]


def main() -> None:
    """Measure, and print the rate."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bytes", type=int, default=64 << 10)
    options.add_argument("--frames", type=int, default=4000)
    options.add_argument("--capacity", type=int, default=32)
    given = options.parse_args()
    context = multiprocessing.get_context("spawn")
    pool = f"name=copies,kind=host,max={4 * given.capacity * given.bytes}"
    with poolbridge.serve(pools=[pool]) as service, service.connect() as client:
        channel = client.create_channel("copies", pool=client.open_pool("copies"), capacity=given.capacity)
        ready = context.Event()
        consumer = context.Process(target=consume, args=(client, ready))
        consumer.start()
        ready.wait(60)
        array = np.zeros(given.bytes, "uint8")
        for _ in range(100):  # the channel gets its publisher
            channel.publish(array, timeout=60)
        began = time.perf_counter()
        for _ in range(given.frames):
            channel.publish(array, timeout=60)
        took = time.perf_counter() - began
        channel.close()
        consumer.join()
    sys.stdout.write(f"{given.frames / took:,.0f} frames of {given.bytes:,} bytes a second\n")


if __name__ == "__main__":
    main()

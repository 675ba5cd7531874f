"""Measures what it costs that a service can be taken over: transfers and frames, with a guard and without one.

``python benchmarks/guard.py --kind host``. Both services run at once, and the rounds take turns. A line has the medians
of the rounds in microseconds, their ranges, and the ratio.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

import poolbridge
from poolbridge._client.service_process import find_program

_STEPS, _ROUNDS = 2000, 9
_GUARDED = {"without": "--guard=false", "with": "--guard"}


def mean(step: Callable[[], object]) -> float:
    """Return the mean time of a step in microseconds."""
    for _ in range(100):
        step()
    began = time.perf_counter()
    for _ in range(_STEPS):
        step()
    return (time.perf_counter() - began) / _STEPS * 1e6


def answer(path: str) -> None:
    """Get each buffer that is published, and take the frames of a channel, until the channel ends."""
    with poolbridge.connect(path) as client:
        for frame in client.subscribe("frames"):
            frame.release()


def transfer(client: poolbridge.Client, other: poolbridge.Client) -> None:
    """Hand a buffer on by its name."""
    with client.allocate(1 << 20, "uint8", pool="bench") as lease:
        lease.publish("x", replace=True)
        other.get("x").release()


def main() -> None:
    """Print a line for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="host", help="kind of memory")
    kind = parser.parse_args().kind
    source = np.zeros(64 << 10, "uint8")
    work: dict[str, dict[str, Callable[[], object]]] = {"by name, 1 MiB": {}, "frame, 64 KiB": {}}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, option in _GUARDED.items():
            path = str(folder / name)
            command = [
                find_program(),
                "serve",
                option,
                "--socket",
                path,
                "--pool",
                f"name=bench,kind={kind},max=512MiB",
            ]
            service = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            stack.callback(service.terminate)
            client, other = (stack.enter_context(poolbridge.connect(path, wait=60)) for _ in range(2))
            if (client.stats().guard != "") != (name == "with"):
                raise RuntimeError(f"the service {name} a guard says guard={client.stats().guard!r}")
            channel = client.create_channel("frames", capacity=8, pool="bench")
            reader = multiprocessing.get_context("spawn").Process(target=answer, args=(path,))
            reader.start()
            stack.callback(reader.join)
            stack.callback(channel.close)
            channel.wait_for_consumers(1, timeout=60)
            work["by name, 1 MiB"][name] = partial(transfer, client, other)
            work["frame, 64 KiB"][name] = partial(channel.publish, source)
        for what, ways in work.items():
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(_ROUNDS):
                for name, step in ways.items():
                    times[name].append(mean(step))
            texts = [f"{statistics.median(one):7.1f} ({min(one):.1f} to {max(one):.1f})" for one in times.values()]
            ratio = statistics.median(times["with"]) / statistics.median(times["without"])
            sys.stdout.write(f"{kind:7} {what:15} {' | '.join(texts)} | {ratio:.3f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
    os._exit(0)

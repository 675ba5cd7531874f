"""Measures what it costs that a service can be taken over: transfers and frames, with a guard and without one.

``python benchmarks/guard.py --kind host``. Two services with a guard and two without run at once. A program that uses
several is a few percent slower with the one that it connects to later, so the two without come first and last. Short
rounds take turns. A line has the medians of the turns in microseconds with their quartiles, and the median of their
ratios with the limits between which it is (95 %, by the sign test).
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

_STEPS, _TURNS = 100, 200
_GUARDED = {"without": "--guard=false", "with": "--guard"}
_ORDER = ("without", "with", "with", "without")


def mean(step: Callable[[], object]) -> float:
    """Return the mean time of a step in microseconds."""
    for _ in range(20):
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
    work: dict[str, dict[str, list[Callable[[], object]]]] = {
        what: {name: [] for name in _GUARDED} for what in ("by name, 1 MiB", "frame, 64 KiB")
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, name in enumerate(_ORDER):
            path = str(folder / str(number))
            command = [
                find_program(),
                "serve",
                _GUARDED[name],
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
            work["by name, 1 MiB"][name].append(partial(transfer, client, other))
            work["frame, 64 KiB"][name].append(partial(channel.publish, source))
        for what, ways in work.items():
            times: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(_TURNS):
                for name in sorted(ways, reverse=turn % 2 == 0):
                    times[name].append(statistics.mean(mean(step) for step in ways[name]))
            texts = []
            for one in times.values():
                low, middle, high = statistics.quantiles(one, n=4)
                texts.append(f"{middle:7.1f} ({low:.1f} to {high:.1f})")
            ratios = sorted(b / a for a, b in zip(times["without"], times["with"], strict=True))
            aside = round(_TURNS / 2 - 0.98 * _TURNS**0.5)
            ratio = f"{statistics.median(ratios):.3f} ({ratios[aside]:.3f} to {ratios[-aside - 1]:.3f})"
            sys.stdout.write(f"{kind:7} {what:15} {' | '.join(texts)} | {ratio}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
    os._exit(0)

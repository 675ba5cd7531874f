"""Measures on one machine the figures that docs/performance.md reports: `measure.py --poolsvc FILE`.

The program runs `poolsvc bench` and Python streams. Some parts of the package are used only by some programs: for each
such part, the program measures the same work in turn with and without the part. It prints each result as a line as soon
as it knows the result. It leaves out a step that has not begun before the time limit.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import poolbridge
from poolbridge._bench.gpu import preferred_consumer, stream_of
from poolbridge._cuda import cuda as _cuda
from poolbridge._libraries.consumers import load

_MIB = 1 << 20
_PATIENCE = 60.0


def show(row: dict[str, Any]) -> None:
    """Print a result of `poolsvc bench` as a line."""
    ranges = ""
    if row.get("per_second_range"):
        ranges = "  [{:.0f} to {:.0f}".format(*row["per_second_range"])
        if row.get("p50_us_range"):
            ranges += "; {:.1f} to {:.1f}".format(*row["p50_us_range"])
        ranges += "]"
    cpu = f"  cpu {row['cpu_us']:.1f}" if row.get("cpu_us") else ""
    p50, p99 = (f"{row[name]:9.1f}" if row.get(name) is not None else " " * 9 for name in ("p50_us", "p99_us"))
    name = f"{row['workload']} {row['bytes'] >> 10}K"
    print(f"{row['kind']:6} {name:42} {row['per_second']:10.0f} {p50} {p99}{cpu}  {row['system']}{ranges}", flush=True)


class Measurement:
    """What all steps share: the path of poolsvc, how long and how often to measure, and the results."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.poolsvc: str = given.poolsvc
        self.seconds: float = given.seconds
        self.rounds: int = given.rounds
        self.consumers: list[int] = given.consumers
        self.folder = folder
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Keep and print a result."""
        self.rows.append(row)
        show(row)

    def bench(self, kind: str, *arguments: str) -> None:
        """Run `poolsvc bench` and add its results."""
        times = ["--time", f"{round(self.seconds * 1e3)}ms"]
        command = [self.poolsvc, "bench", "--json", "--python", sys.executable, "--kind", kind, *times, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"poolsvc bench has exit status {done.returncode}: {done.stderr[-2000:]}")
        report = json.loads(done.stdout)
        for row in report["results"]:
            self.add(row)
        for skipped in report["skipped"]:
            print(f"skipped {skipped['kind']} {skipped['system']}: {skipped['reason']}", flush=True)

    @contextmanager
    def service(self) -> Iterator[str]:
        """Run a service and return the path of its socket."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/s.sock"
            with subprocess.Popen([self.poolsvc, "serve", "--socket", path], stderr=subprocess.DEVNULL) as process:
                try:
                    yield path
                finally:
                    process.terminate()

    def python_streams(self, kind: str, *arguments: str) -> None:
        """Measure streams between Python processes and add the results."""
        with self.service() as path:
            command = [
                sys.executable,
                "-m",
                "poolbridge.bench",
                "--json",
                "--only",
                "python-stream",
                "--kind",
                kind,
                "--sleeping",
            ]
            command += ["--seconds", str(self.seconds), "--socket", path, *arguments]
            for count in self.consumers:
                command += ["--consumers", str(count)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    row = json.loads(line)
                    if "skipped" in row:
                        print(f"skipped {row['skipped']}", flush=True)
                    else:
                        self.add(row)
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, command)

    def in_turn(self, workload: str, ways: dict[str, Callable[[], float]], kind: str = "device") -> None:
        """Measure several ways to do the same work, in rounds. In each round, each way has its turn.

        A way does the work once and returns how long it took. In its turn, a way repeats the work for half of the time
        `seconds`.
        """
        took: dict[str, list[list[float]]] = {name: [] for name in ways}
        for way in ways.values():
            way()  # the first call loads modules and kernels, and is not measured
        for _ in range(self.rounds):
            for name, way in ways.items():
                until, samples = time.perf_counter() + self.seconds / 2, []
                while len(samples) < 5 or time.perf_counter() < until:
                    samples.append(way() * 1e6)
                took[name].append(sorted(samples))
        for name, rounds in took.items():
            p50s = [median(samples) for samples in rounds]
            p50 = median(p50s)
            row = {
                "workload": workload,
                "kind": kind,
                "bytes": _MIB,
                "system": name,
                "p50_us": p50,
                "rounds": self.rounds,
            }
            row["p99_us"] = median(samples[int(0.99 * (len(samples) - 1))] for samples in rounds)
            row |= {"per_second": 1e6 / p50, "per_second_range": (1e6 / max(p50s), 1e6 / min(p50s))}
            self.add(row | {"p50_us_range": (min(p50s), max(p50s))})


# The code below compares how a process announces the end of work on a buffer: by a fence, by an interprocess event, or
# by both.


def get_names(path: str, pipe: Any) -> None:
    """Run as a reader: for each name from the pipe, make a stream wait for the buffer's content, and answer."""
    stream = stream_of(load(preferred_consumer()))
    with poolbridge.connect(path, wait=_PATIENCE) as client:
        while name := pipe.recv():
            lease = client.get(name, timeout=_PATIENCE)
            lease.used_on(stream)
            pipe.send(True)
            lease.release()


def completion(m: Measurement) -> None:
    """Measure transfers by name with a fence, with an event and a fence, and with only an event."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with m.service() as path:
        reader = context.Process(target=get_names, args=(path, theirs), daemon=True)
        reader.start()
        stream = stream_of(load(preferred_consumer()))
        with poolbridge.connect(path, wait=_PATIENCE) as client:
            pool = client.create_pool("completion", kind="device", max_bytes=64 * _MIB)
            event = client.event()

            def transfer(**how: Any) -> float:
                lease = client.allocate((_MIB,), "uint8", pool=pool, timeout=_PATIENCE)
                lease.used_on(stream)
                start = time.perf_counter()
                if how:
                    event.record(stream)
                lease.publish("x", **how)
                ours.send("x")
                if not ours.poll(_PATIENCE) or not ours.recv():
                    raise TimeoutError("the reader does not answer")
                took = time.perf_counter() - start
                client.unpublish("x")
                lease.release()
                return took

            m.in_turn(
                "transfer/by name, used on a stream",
                {
                    "fence": transfer,
                    "fence and event": lambda: transfer(event=event),
                    "event alone": lambda: transfer(event=event, fence=False),
                },
            )
            ours.send("")
            reader.join(_PATIENCE)


# The code below compares where a process opens a legacy handle: in the primary context of the device, or in a second
# context.


def publish_one(path: str, pipe: Any) -> None:
    """Run as the owner of a buffer of kind legacy, until an object comes through the pipe."""
    with poolbridge.connect(path, wait=_PATIENCE) as client:
        pool = client.create_pool("contexts", kind="legacy", max_bytes=64 * _MIB)
        client.allocate((_MIB,), "uint8", pool=pool, timeout=_PATIENCE).publish("x")
        pipe.send(True)
        pipe.recv()


def contexts(m: Measurement) -> None:
    """Measure how long it takes to open and close a legacy handle, in the primary context and in a second context."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with m.service() as path:
        owner = context.Process(target=publish_one, args=(path, theirs), daemon=True)
        owner.start()
        if not ours.poll(_PATIENCE):
            raise TimeoutError("the owner of the buffer does not answer")
        file = m.folder / "handle"
        subprocess.run([m.poolsvc, "export", "x", str(file), "--socket", path], check=True)
        handle = poolbridge.LegacyHandle.load(file)

        def opened(**how: Any) -> float:
            start = time.perf_counter()
            handle.open(**how).close()
            return time.perf_counter() - start

        opened()
        made = _cuda.call("cuCtxCreate", None, 0, 0)
        try:
            ways = {"primary context": opened, "own context": lambda: opened(own_context=True)}
            m.in_turn("open and close a legacy handle", ways)
        finally:
            _cuda.call("cuCtxDestroy", made)
        ours.send(True)
        owner.join(_PATIENCE)


# The steps. The most important step is the first.
STEPS: dict[str, Callable[[Measurement], None]] = {
    "spinning-device": lambda m: m.bench("device", "--only", "spinning"),
    "spinning-host": lambda m: m.bench("host", "--only", "spinning"),
    "completion": completion,
    "contexts": contexts,
    "transfer": lambda m: m.bench("device", "--only", "transfer", "--size", "1MiB"),
    "python-device": lambda m: m.python_streams("device"),
    "stream-device": lambda m: m.bench("device", "--only", "stream", "--alternatives=false", *_most(m)),
    "python-host": lambda m: m.python_streams("host"),
    "stream-host": lambda m: m.bench("host", "--only", "stream", "--alternatives=false", "--max-consumers", "1"),
}


def _most(m: Measurement) -> tuple[str, str]:
    return "--max-consumers", str(max(m.consumers))


def main() -> int:
    """Run the steps. The exit status is 1 if a step has failed or was left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--poolsvc", required=True, help="the program to measure")
    parser.add_argument("--out", type=Path, help="file for the results, as JSON")
    parser.add_argument("--seconds", type=float, default=0.2, help="time of one measurement, about (default: 0.2)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of what is measured in turn (default: 10)")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which no step begins (default: 300)")
    parser.add_argument("--consumers", type=int, action="append", help="consumers of a stream (default: 1, 4 and 8)")
    parser.add_argument("--only", action="append", choices=STEPS, help="step (default: all)")
    given = parser.parse_args()
    given.consumers = given.consumers or [1, 4, 8]
    begun, troubles = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        m = Measurement(given, Path(folder))
        for name in given.only or STEPS:
            start = time.monotonic()
            if start - begun > given.limit:
                troubles.append(f"{name} was left out: {given.limit:g} s had passed")
                continue
            print(f"--- {name}:  a second, p50 µs, p99 µs, µs of the CPU for each frame", flush=True)
            try:
                STEPS[name](m)
            except (poolbridge.PoolbridgeError, OSError, subprocess.SubprocessError, AssertionError) as error:
                troubles.append(f"{name} failed: {error}")
            print(f"--- {name} took {time.monotonic() - start:.0f} s", flush=True)
    if given.out:
        given.out.write_text(json.dumps(m.rows, indent=1), encoding="utf-8")
    for trouble in troubles:
        print(trouble, flush=True)
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())

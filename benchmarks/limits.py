"""Measures poolbridge beside its limits: ``python benchmarks/limits.py``.

A limit is the same work in a program without poolbridge: only the calls of the system, of the driver or of the
interpreter that the work cannot do without. Each round measures every limit, poolbridge and iceoryx2, one after the
other; the table has the medians and the ranges of the rounds. With ``--busy``, one program for each CPU works beside.
For a machine without Go, ``LIMITS=1 make gpu-bundle`` collects what this program needs there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import multiprocessing
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from fan import Waiting
from fan_iceoryx2 import IceoryxFan
from run import key, say
from sample import percentile
from streams import measure_streams

import poolbridge

ROOT = Path(__file__).parents[1]
Row = dict[str, Any]
# How many consumers the streams between Python processes have, and how they wait.
_WAITINGS: dict[int, tuple[Waiting, ...]] = {1: ("python", "spinning"), 8: ("python",)}
_STREAMS = ("go-go", "go-python", "python-python", "python-spinning", "python-leases")
# The workloads of the table, what of them counts, and what their limits are.
RATES, TIMES = "per_second", "p50_us"
_RING = "the ring alone, from Go to Go, with consumers that sleep or spin"
_ANSWER = "a packet and its answer between processes that sleep or spin,"
_WORK = f"{_RING}; GPU: the slower of the ring and a driver call for each frame"
TABLE = (
    ("stream/go-go/1 consumer", RATES, _RING),
    ("stream/go-python/1 consumer", RATES, _RING),
    ("stream/go-python/8 consumers", RATES, _RING),
    ("stream/python-python/1 consumer", RATES, _WORK),
    ("stream/python-python/8 consumers", RATES, _WORK),
    ("stream/python-spinning/1 consumer", RATES, _WORK),
    ("stream/python-python/1 consumer", TIMES, "a byte through a socket to a process that sleeps"),
    ("stream/python-spinning/1 consumer", TIMES, "a word in shared memory that a Python loop polls"),
    ("stream/go-spinning python/1 consumer", TIMES, "a word in shared memory that a Python loop polls"),
    ("stream/python-leases/1 consumer", RATES, _RING),
    ("transfer/by name", TIMES, "three packets with answers: two in Go, one in Python"),
    ("allocate/go", TIMES, f"{_ANSWER} in Go"),
    ("allocate/python", TIMES, f"{_ANSWER} in Python"),
    ("start-up/first", TIMES, "GPU: the same start with cuda.core and CuPy alone"),
)


def _poll(end: socket.socket, spin: bool) -> Callable[[], object]:
    """Return a function that waits until a packet has come, asleep or spinning."""
    poll = select.poll()
    poll.register(end, select.POLLIN)

    def spinning() -> None:
        while not poll.poll(0):
            pass

    return spinning if spin else poll.poll


def echo(end: socket.socket, spin: bool) -> None:
    """Send back every packet."""
    wait = _poll(end, spin)
    wait()
    while packet := end.recv(4096):
        end.send(packet)
        wait()


def packet_and_answer(seconds: float, spin: bool) -> list[int]:
    """Return the times of a packet of 128 bytes to another process and back, in the calls that a client makes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = multiprocessing.get_context("fork").Process(target=_only, args=(echo, theirs, ours, spin), daemon=True)
    child.start()
    theirs.close()
    ours.setblocking(False)
    wait, buffer, packet = _poll(ours, spin), memoryview(bytearray(4096)), bytes(128)
    took: list[int] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic_ns()
        ours.send(packet)
        wait()
        ours.recvmsg_into([buffer], 256)
        took.append(time.monotonic_ns() - begun)
    ours.close()
    child.join()
    return took


def stamp(end: socket.socket, stamps: socket.socket) -> None:
    """Say when each byte came."""
    while end.recv(1):
        stamps.send(str(time.monotonic_ns()).encode())


def a_byte(count: int = 500) -> list[int]:
    """Return how long a byte takes to a process that sleeps, one byte every millisecond."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = multiprocessing.get_context("fork").Process(target=_only, args=(stamp, theirs, ours, theirs), daemon=True)
    child.start()
    theirs.close()
    took: list[int] = []
    for _ in range(count):
        time.sleep(0.001)
        begun = time.monotonic_ns()
        ours.send(b"x")
        took.append(int(ours.recv(64)) - begun)
    ours.close()
    child.join()
    return took


def watch(end: socket.socket, word: memoryview, count: int) -> None:
    """Poll a word that counts up, and say when each number came."""
    stamps, clock = [], time.monotonic_ns
    for number in range(1, count + 1):
        while word[0] < number:  # on a busy machine the word may be further
            pass
        stamps.append(clock())
    end.sendall(json.dumps(stamps).encode())


def a_word(count: int = 500) -> list[int]:
    """Return how long a word in shared memory takes to a process that polls it, one every millisecond."""
    ours, theirs = socket.socketpair()
    word = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
    child = multiprocessing.get_context("fork").Process(
        target=_only, args=(watch, theirs, ours, word, count), daemon=True
    )
    child.start()
    theirs.close()
    sent: list[int] = []
    for number in range(1, count + 1):
        time.sleep(0.001)
        sent.append(time.monotonic_ns())
        word[0] = number
    with ours, ours.makefile() as answer:
        came: list[int] = json.load(answer)
    child.join()
    return [at - begun for begun, at in zip(sent, came, strict=True)]


def _only(work: Any, end: socket.socket, other: socket.socket, *more: Any) -> None:
    other.close()
    work(end, *more)


# A process with a buffer in a pool of CUDA starts another that makes an array of it, with cuda.core and CuPy alone.
_OWNER = """
import pickle, subprocess, sys
from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions
device = Device()
device.set_current()
pool = DeviceMemoryResource(device, options=DeviceMemoryResourceOptions(ipc_enabled=True, max_size=1 << 25))
buffer = pool.allocate(1 << 20, stream=device.default_stream)
device.default_stream.sync()
fd = int(pool.allocation_handle)
what = pickle.dumps(buffer.ipc_descriptor).hex()
subprocess.run([sys.executable, "-c", sys.argv[1], str(fd), what], check=True, pass_fds=[fd])
"""
_READER = """
import importlib.util, pickle, sys, time, numpy
library = importlib.util.find_spec("cupy") and importlib.import_module("cupy")
begun = time.monotonic_ns()
from cuda.core import Buffer, Device, DeviceMemoryResource
imported = time.monotonic_ns()
device = Device()
device.set_current()
current = time.monotonic_ns()
pool = DeviceMemoryResource.from_allocation_handle(device, int(sys.argv[1]))
buffer = Buffer.from_ipc_descriptor(pool, pickle.loads(bytes.fromhex(sys.argv[2])), stream=device.default_stream)
array = library.from_dlpack(buffer) if library else buffer
print(time.monotonic_ns() - begun, imported - begun, current - imported)
"""


def cuda_start() -> list[float] | None:
    """Return how many microseconds pass until a new process has an array of another's buffer; None without a GPU.

    Then how many of them the import of cuda.core takes, and how many CUDA's context.
    """
    command = [sys.executable, "-c", _OWNER, _READER]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return [int(each) / 1e3 for each in done.stdout.split()] if done.returncode == 0 else None


def in_go(package: str, pattern: str, metric: str) -> float | None:
    """Return a figure of a benchmark in Go, of its fastest variant; None if there is none.

    The benchmark runs from a bundle's program or, in a checkout, by ``go test``.
    """
    built = ROOT / "bin" / f"{package.replace('/', '-')}.test"
    arguments = ["-run=^$", f"-bench={pattern}", "-benchtime=0.3s"]
    program = [str(built), *(one.replace("-", "-test.", 1) for one in arguments)]
    if not built.exists():
        program = ["go", "test", *arguments, f"./{package}"]
    with contextlib.suppress(OSError):
        done = subprocess.run(program, check=False, capture_output=True, text=True, cwd=ROOT)
        if found := re.findall(rf"([\d.]+) {re.escape(metric)}", done.stdout):
            best = min if metric == "ns/op" else max
            return best(map(float, found))
    return None


def limits(kinds: list[str], seconds: float) -> list[tuple[str, str, str, float]]:
    """Return the limits: the workload, the kind of memory, what counts, and the limit."""
    return list(_limits(kinds, seconds))


def _limits(kinds: list[str], seconds: float) -> Iterator[tuple[str, str, str, float]]:
    times = {
        "allocate/python": min((packet_and_answer(seconds / 2, spin) for spin in (False, True)), key=median),
        "stream/python-python/1 consumer": a_byte(),
        "stream/python-spinning/1 consumer": a_word(),
    }
    times["stream/go-spinning python/1 consumer"] = times["stream/python-spinning/1 consumer"]
    python = percentile(sorted(times["allocate/python"]), 0.5) / 1e3
    go = in_go("bridge/seqpacket", "APacketAndItsAnswer", "ns/op")
    rings = {n: in_go("internal/shmchannel", f"Processes/broadcast/{n}_consumers", "frames/s") for n in (1, 8)}
    fence = in_go("cuda", "WriteValue64", "ns/op")
    start = cuda_start()
    for kind in kinds:
        for workload, (what, part) in product(times, ((TIMES, 0.5), ("p99_us", 0.99))):
            yield workload, kind, what, percentile(sorted(times[workload]), part) / 1e3
        if go is not None:
            yield "allocate/go", kind, TIMES, go / 1e3
            yield "transfer/by name", kind, TIMES, 2 * go / 1e3 + python
        for (count, ring), way in product(rings.items(), _STREAMS):
            rate = ring
            # A producer in Go does no work on the GPU here, and consumers make one fence for several frames.
            if kind == "device" and way in ("python-python", "python-spinning"):
                rate = min(ring, 1e9 / fence) if ring and fence else None
            if rate is not None:
                yield f"stream/{way}/{count} consumer{'s' * (count > 1)}", kind, RATES, rate
        if kind == "device" and start is not None:
            for what, took in zip((TIMES, "import_us", "context_us"), start, strict=True):
                yield "start-up/first", kind, what, took


def ours(given: argparse.Namespace) -> list[Row]:
    """Run ``poolsvc bench`` once, and return its results."""
    command = [
        given.poolsvc,
        "bench",
        "--json",
        "--python",
        sys.executable,
        "--time",
        f"{given.seconds}s",
        "--rounds=1",
    ]
    command += ["--kind", ",".join(given.kind), "--only", "transfer,stream,allocate,start-up", "--size", "1MiB"]
    command += ["--consumers", "1,8"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    report = json.loads(done.stdout)
    given.report.setdefault("machine", report["machine"])
    found: list[Row] = report["results"]
    return found


def peers(given: argparse.Namespace) -> Iterator[Row]:
    """Measure streams between Python processes: poolbridge's and, on memory of the CPU, iceoryx2's, in turn."""

    def skip(kind: str, system: str, reason: str) -> None:
        given.report["skipped"][f"{system}, {kind}"] = reason

    with poolbridge.serve() as service:
        for kind, (count, waitings) in product(given.kind, _WAITINGS.items()):
            for one in measure_streams(
                service.path,
                skip,
                seconds=given.seconds,
                consumers=(count,),
                waitings=waitings,
                queues=False,
                kind=kind,
                others=(IceoryxFan,),
                rounds=1,
            ):
                yield one.to_json()


def write(given: argparse.Namespace, found: dict[tuple[str, str, str, str], list[float]]) -> None:
    """Write the figures of all rounds so far into the file ``--out``."""
    figures = [
        {"workload": w, "kind": k, "what": what, "system": s, "rounds": v} for (w, k, what, s), v in found.items()
    ]
    Path(given.out).write_text(json.dumps({**given.report, "figures": figures}, indent=1), encoding="utf-8")


def spread(values: list[float]) -> str:
    """Return the median and, in brackets, the least and the greatest value."""
    digits = 1 if median(values) < 100 else 0
    middle, least, most = (f"{value:,.{digits}f}" for value in (median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})"


def table(kind: str, found: dict[tuple[str, str, str, str], list[float]]) -> Iterator[str]:
    """Yield the lines of the table of a kind of memory: what the work takes, its limit, and iceoryx2."""
    yield f"| {kind} | | poolbridge | limit | of the limit | iceoryx2 | the limit is |"
    yield "|---|---|---|---|---|---|---|"
    for workload, what, limit in TABLE:
        mine, bound, theirs = (found.get((workload, kind, what, one)) for one in ("poolbridge", "limit", "iceoryx2"))
        if not mine:
            continue
        share = ""
        if bound:
            share = f"{median(mine) / median(bound):.2f}"
        cells = [spread(one) if one else "" for one in (mine, bound, theirs)]
        yield f"| {workload} | {what} | {cells[0]} | {cells[1]} | {share} | {cells[2]} | {limit if bound else ''} |"
        late = [found.get((workload, kind, "p99_us", one)) for one in ("poolbridge", "limit", "iceoryx2")]
        if what == TIMES and late[0]:
            cells = [spread(one) if one else "" for one in late]
            yield f"| | p99_us | {cells[0]} | {cells[1]} | | {cells[2]} | |"


def main() -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(prog="python benchmarks/limits.py", description=__doc__)
    parser.add_argument("--poolsvc", default=str(ROOT / "bin" / "poolsvc"), help="the program (default: bin/poolsvc)")
    parser.add_argument("--kind", nargs="+", default=["host"], choices=("host", "device"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="about the time of each measurement in a round (0.3)"
    )
    parser.add_argument("--busy", action="store_true", help="let one program for each CPU work beside")
    parser.add_argument("--out", help="file for all figures of all rounds, as JSON, written after each round")
    given = parser.parse_args()
    given.poolsvc = str(Path(given.poolsvc).resolve())
    given.report = {"skipped": {}}
    os.environ["POOLBRIDGE_POOLSVC"] = given.poolsvc
    found: dict[tuple[str, str, str, str], list[float]] = {}
    beside = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0) if given.busy
    ]
    # Children of limits() are forked from a process that has imported no library with threads.
    clean = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    try:
        for number in range(given.rounds):
            begun = time.monotonic()
            for workload, kind, what, value in clean.submit(limits, given.kind, given.seconds).result():
                found.setdefault((workload, kind, what, "limit"), []).append(value)
            for one in (*ours(given), *peers(given)):
                workload, kind, _, system = key(one)
                for what in (RATES, TIMES, "p99_us", "p999_us"):
                    if one.get(what) is not None:
                        found.setdefault((workload, kind, what, system), []).append(one[what])
            say(f"round {number + 1} of {given.rounds}: {time.monotonic() - begun:.0f} s")
            if given.out:
                write(given, found)
    finally:
        clean.shutdown()
        for process in beside:
            process.kill()
    for kind in given.kind:
        sys.stdout.write("\n".join(table(kind, found)) + "\n\n")
    for what, why in given.report["skipped"].items():
        say(f"skipped {what}: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

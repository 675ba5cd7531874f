"""Measures frames of several arrays, models of many tensors, and files: ``python benchmarks/models.py``.

Each figure is the median of several rounds, beside what it is compared with in the same round. Run it alone on a
machine; `--pool` names the kind of memory. With memory of a GPU, it measures files beside copies from page-locked
memory, and beside InstantTensor where it is installed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import poolbridge
from poolbridge._client.makers import arrays_of
from poolbridge._client.service_process import find_program

_ROUNDS = 7


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    kept = work()
    took = time.perf_counter() - began
    del kept
    return took


def row(what: str, seconds: list[float], beside: list[float] | None = None) -> None:
    """Print a median, and its ratio to that of what it is compared with."""
    ratio = "" if beside is None else f"{statistics.median(seconds) / statistics.median(beside):8.2f}"
    sys.stdout.write(f"{what:58} {statistics.median(seconds) * 1e6:12,.1f} µs {ratio}\n")


def frames(client: poolbridge.Client, nbytes: int) -> None:
    """Measure a publisher's frames of one array, and of several that have the same bytes, in turn."""
    works: dict[int, Callable[[], None]] = {}
    with ExitStack() as open_ones:
        for count in (1, 8, 100):
            shape: Any = {f"a{n}": (nbytes // count, "uint8") for n in range(count)} if count > 1 else nbytes
            channel = client.create_channel(f"frames of {count}", mode="queue", capacity=8)
            arrays = open_ones.enter_context(client.subscribe(channel)).arrays()
            publisher = open_ones.enter_context(channel.publisher(shape, "uint8"))

            def work(publisher: Any = publisher, arrays: Any = arrays) -> None:
                for _ in range(2000):
                    publisher.loan()
                    publisher.publish()
                    next(arrays)

            works[count] = work
        rounds = [{count: timed(work) / 2000 for count, work in works.items()} for _ in range(10 * _ROUNDS)]
        for count in works:
            took, beside = ([one[which] for one in rounds[1:]] for which in (count, 1))
            row(f"a frame of {count} arrays, {nbytes >> 10} KiB, publisher", took, beside)


def models(client: poolbridge.Client, other: poolbridge.Client, tensors: int, library: Any) -> None:
    """Measure how long a client takes to get all tensors of a model."""
    name = f"model of {tensors}"
    client.put({f"layers.{n}.weight": np.full((8, 8), n, "float32") for n in range(tensors)}, name).release()
    first = [timed(lambda: other.get(name))]
    row(f"get of {tensors:,} tensors, the first time", first)
    row(f"get of {tensors:,} tensors, again", [timed(lambda: other.get(name)) for _ in range(_ROUNDS)])
    row(f"get_dict of {tensors:,} tensors", [timed(lambda: other.get_dict(name, library)) for _ in range(_ROUNDS)])


class Readers:
    """Programs that follow a name, each with a client of its own, and say how long each step took."""

    def __init__(self, path: str, count: int, library: str) -> None:
        command = [sys.executable, "-W", "ignore", __file__, "--follow", path, "--library", library]
        self.programs = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        self.await_lines()  # they are connected, and have used the GPU

    def tell(self, word: str) -> None:
        """Send a word to all programs."""
        for one in self.programs:
            print(word, file=one.stdin, flush=True)

    def await_lines(self) -> None:
        """Wait until each program has printed a line."""
        for one in self.programs:
            self._said(one)

    def hear(self) -> list[tuple[float, ...]]:
        """Return the numbers that each program prints next."""
        return [tuple(map(float, self._said(one).split())) for one in self.programs]

    def end(self) -> None:
        """Wait until the programs have ended."""
        self.tell("")
        for one in self.programs:
            one.wait()

    @staticmethod
    def _said(program: subprocess.Popen[str]) -> str:
        return program.stdout.readline() if program.stdout else ""


def say(*words: object) -> None:
    """Write a line at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def follow(path: str, library: str) -> None:
    """Be a reader: for each line of the input, get the newest model of this name, and print the times."""
    of = __import__(library)
    if library != "numpy":
        of.zeros(1, **({"device": "cuda"} if library == "torch" else {}))
    with poolbridge.connect(path) as client:
        last: Any = None
        say("ready")
        while name := sys.stdin.readline().strip():
            began = time.monotonic()
            if name == "refresh":
                say(*refresh(client, of if library == "torch" else None))
                continue
            if name.startswith("/"):
                last = client.load(name, pool="bench")
            else:
                last = client.get(name, other_than=last if last is not None and last.name == name else None, timeout=60)
            came = time.monotonic()
            arrays = arrays_of(last, library)
            say(came - began, time.monotonic() - came, came)
            del arrays


def refresh(client: poolbridge.Client, torch: Any) -> tuple[float, float]:
    """Copy a model, and then its next version. Return when this was complete, and how long such a copy takes alone."""
    stream = torch.cuda.current_stream() if torch else None
    copy = client.get_copy("shared", stream=stream, timeout=60)
    wait = stream.synchronize if stream else (lambda: None)
    wait()
    say("copied")
    copy.refresh(stream=stream, timeout=60)
    wait()
    came = time.monotonic()
    if torch:
        source, target = (torch.empty(copy.nbytes, dtype=torch.uint8, device="cuda") for _ in range(2))
    else:
        source, target = (np.zeros(copy.nbytes, "uint8") for _ in range(2))

    def again() -> None:
        target.copy_(source) if torch else np.copyto(target, source)
        wait()

    again()
    return came, statistics.median(timed(again) for _ in range(3))


def until_waiting(client: poolbridge.Client, count: int) -> None:
    """Return when so many requests of other programs wait. The service has no event for that."""
    while sum(one.waits for one in client.sessions()) < count:
        time.sleep(0.001)


def refreshed(client: poolbridge.Client, path: str, tensors: int, nbytes: int, library: str) -> None:
    """Measure how soon the copies that four processes have of a model are those of a newer version."""
    of = {f"layers.{n}.weight": (nbytes // tensors // 2, "float16") for n in range(tensors)}
    client.allocate(of).publish("shared", keep=True)
    after, alone = [], []
    for _ in range(3):
        readers = Readers(path, 4, library)
        readers.tell("refresh")
        readers.await_lines()  # they have copied
        lease = client.allocate(of)
        until_waiting(client, len(readers.programs))
        began = time.monotonic()
        lease.publish("shared", keep=True, replace=True)
        came = readers.hear()
        after.append(max(one[0] for one in came) - began)
        alone.append(max(one[1] for one in came))
        lease.release()
        readers.end()
    row(f"refresh of {tensors:,} tensors of {nbytes >> 20:,} MiB, to the last of 4", after)
    row("... a copy of as many bytes alone", alone)
    client.unpublish("shared")


def shared(client: poolbridge.Client, path: str, tensors: int, nbytes: int, library: str) -> None:
    """Measure how soon other processes have a model: alone, four at once, and after a newer version is published."""
    of = {f"layers.{n}.weight": (nbytes // tensors // 2, "float16") for n in range(tensors)}
    client.allocate(of).publish("shared", keep=True)
    what = f"{tensors:,} tensors of {nbytes >> 20:,} MiB"
    for count in (1, 4):
        first, after, arrays = [], [], []
        for _ in range(3):
            readers = Readers(path, count, library)
            readers.tell("shared")
            came = readers.hear()
            first.append(max(one[0] for one in came))
            arrays.append(max(one[1] for one in came))
            readers.tell("shared")  # which waits for the next version
            lease = client.allocate(of)
            until_waiting(client, count)
            began = time.monotonic()
            lease.publish("shared", keep=True, replace=True)
            after.append(max(one[2] for one in readers.hear()) - began)
            lease.release()
            readers.end()
        row(f"get of {what}, {count} at once, new processes", first)
        row(f"... as arrays of {library}", arrays)
        row(f"... a newer version, from publish to the last of {count}", after)
    client.unpublish("shared")


def save(path: Path, tensors: int, nbytes: int) -> None:
    """Write a safetensors file."""
    size = nbytes // tensors // 4 * 4
    header = {
        f"layers.{n}.weight": {"dtype": "F32", "shape": [size // 4], "data_offsets": [n * size, (n + 1) * size]}
        for n in range(tensors)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for n in range(tensors):
            file.write(np.full(size // 4, n, "float32").tobytes())


def read(path: Path) -> None:
    """Read a file by as many threads as the loader has, into memory that was touched before."""
    piece, size = 16 << 20, path.stat().st_size
    memory = read.__dict__.setdefault("memory", np.ones(size, np.uint8))
    with path.open("rb") as file, ThreadPoolExecutor(max(2, min(os.cpu_count() or 2, 16))) as pool:
        list(pool.map(lambda at: os.preadv(file.fileno(), [memory[at : at + piece]], at), range(0, size, piece)))


def copies(nbytes: int) -> Callable[[], None]:
    """Return a function that copies as many bytes to the first GPU, from page-locked memory of at most 1 GiB."""
    from cuda.bindings import driver

    def call(result: Any) -> Any:
        if result[0]:
            raise RuntimeError(result[0].name)
        return result[1] if len(result) > 1 else None

    piece, size = 16 << 20, min(nbytes, 1 << 30)
    call(driver.cuInit(0))
    call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(call(driver.cuDeviceGet(0))))))
    stream = call(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    source, to = call(driver.cuMemHostAlloc(size, 0)), call(driver.cuMemAlloc(size))

    def copy() -> None:
        for at in range(0, nbytes, piece):
            off = at % size
            n = min(piece, nbytes - at, size - off)
            call(driver.cuMemcpyHtoDAsync(int(to) + off, int(source) + off, n, stream))
        call(driver.cuStreamSynchronize(stream))

    return copy


def instanttensor(path: Path) -> None:
    """Print the seconds in which InstantTensor loads a file, three times, used as its quick start shows."""
    import torch
    from instanttensor import safe_open

    def load() -> dict[str, Any]:
        with safe_open(str(path), framework="pt", device=0) as file:
            tensors = dict(file.tensors())
        torch.cuda.synchronize()
        return tensors

    torch.zeros(1, device="cuda")
    say(*(timed(load) for _ in range(3)))


def evict(path: Path) -> None:
    """Take a file out of the page cache, and check that nothing of it is left there."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
            of = np.frombuffer(mapped, "uint8")
            if ctypes.CDLL(None).mincore(ctypes.c_void_p(of.ctypes.data), ctypes.c_size_t(len(mapped)), pages):
                raise OSError("mincore failed")
            del of
    if left := sum(page & 1 for page in pages):
        raise RuntimeError(f"{left} pages of {path} stay in the page cache: does it lie on tmpfs?")


def files(client: poolbridge.Client, path: Path, given: argparse.Namespace, peer: Callable[[], None] | None) -> None:
    """Measure `poolsvc load`, with its allocation, beside `peer`, or threads that read the same file.

    The file is in the page cache, or with `--cold` on the disk. Then another process loads the model, too.
    """
    tensors, nbytes = int(path.stem), given.mib << 20
    save(path, tensors, nbytes)
    read.__dict__.clear()
    loads, reads = [], []
    peer = peer if peer and not given.cold else (lambda: read(path))
    command = [find_program(), "load", str(path), "--name", "file", "--pool", "bench", "--replace"]

    def load() -> None:
        done = subprocess.run([*command, "--socket", client.path], check=True, capture_output=True, text=True)
        took = done.stdout.split(" in ")[-1].split(" ")[0]
        loads.append(float(took.removesuffix("ms")) / 1e3 if took.endswith("ms") else float(took.removesuffix("s")))

    turn = [lambda: reads.append(timed(peer)), load]
    for _ in range(4 if given.cold else 3):
        for step in turn:
            if given.cold:
                evict(path)
            step()
        turn.reverse()  # who goes second may find the file in a cache below the page cache
    row(f"load of {tensors:,} tensors, {given.mib} MiB, page cache {'cold' if given.cold else 'warm'}", loads, reads)
    rate, beside = (nbytes / statistics.median(seconds) / 1e9 for seconds in (loads, reads))
    say(f"{'':58} {rate:6.1f} GB/s, beside {beside:6.1f} GB/s: {rate / beside:.2f} of it")
    if given.pool in {"device", "vmm"} and not given.cold and find_spec("instanttensor"):
        command = [sys.executable, "-W", "ignore", __file__, "--instanttensor", str(path)]
        row("... by InstantTensor", [float(one) for one in subprocess.check_output(command, text=True).split()[-3:]])
    client.unpublish("file")
    held, again = client.load(path, pool="bench"), []
    for _ in range(3):
        readers = Readers(client.path, 1, given.library)
        readers.tell(str(path))
        again.append(sum(readers.hear()[0][:2]))
        readers.end()
    row("load_dict of it in another process, which is connected", again)
    held.release()
    path.unlink()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pool", default="host", help="kind of memory")
    options.add_argument("--library", default="numpy", help="library of the arrays of get_dict")
    options.add_argument("--mib", type=int, default=1024, help="size of a file, in MiB")
    options.add_argument("--shared-mib", type=int, default=256, help="size of a model that others get, in MiB")
    options.add_argument("--refresh-mib", type=int, default=256, help="size of a model that others copy, in MiB")
    options.add_argument("--follow", help=argparse.SUPPRESS)
    options.add_argument("--instanttensor", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--folder", default=None, help="folder for files, such as /dev/shm")
    options.add_argument("--cold", action="store_true", help="measure only files, which are not in the page cache")
    given = options.parse_args()
    if given.follow:
        follow(given.follow, given.library)
        sys.exit(0)
    if given.instanttensor:
        instanttensor(given.instanttensor)
        sys.exit(0)
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        with poolbridge.serve() as service, service.connect() as client, service.connect() as other:
            client.create_pool(
                "bench",
                kind=given.pool,
                max_bytes=(max(3 * max(given.mib, given.shared_mib), 7 * given.refresh_mib) + 512) << 20,
            )
            peer = copies(given.mib << 20) if given.pool in {"device", "vmm"} else None
            for nbytes in () if peer or given.cold else (64 << 10, 1 << 20):
                frames(client, nbytes)
            for tensors in () if peer or given.cold else (300, 20_000):
                models(client, other, tensors, given.library)
            for tensors in () if given.cold else (300, 20_000):
                shared(client, service.path, tensors, given.shared_mib << 20, given.library)
                refreshed(client, service.path, tensors, given.refresh_mib << 20, given.library)
            for tensors in (320, 20_000):
                files(client, folder / f"{tensors}.safetensors", given, peer)
    finally:
        shutil.rmtree(folder)
    sys.exit(0)

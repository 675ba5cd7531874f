"""Passes arrays between two processes by the transport of `poolbridge.ray`, on machines that have no Ray.

``python python/tests/raytransport.py --library torch --kind device`` uses memory of a GPU. A sender shares arrays. A
receiver gets them without a copy and checks them. The program prints how long each call takes. The receiver's stream
waits for the fence that comes with the buffer, so the sender does not wait for its kernels.
"""

from __future__ import annotations

import argparse
import base64
import os
import pickle
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import poolbridge
import poolbridge.ray
from poolbridge.ray._transport import Options, Transport

MOVES = 50


def made(**options: Any) -> Transport:
    """Make a transport as `poolbridge.ray.register` does, without Ray."""
    transport: Transport = type("Made", (Transport,), {"options": Options(**options)})()
    return transport


def say(stream: IO[bytes], what: object) -> None:
    stream.write(base64.b64encode(pickle.dumps(what)) + b"\n")
    stream.flush()


def hear(stream: IO[bytes]) -> Any:
    line = stream.readline()
    if not line:
        raise EOFError("the other process has ended")
    return pickle.loads(base64.b64decode(line))


def library_of(name: str) -> Any:
    return __import__("numpy" if name == "numpy" else name)


def fill(library: str, lease: poolbridge.Lease, value: int) -> Any:
    """Fill a lease by the library, on the device of the memory; return the array, which a kernel may still write."""
    if library == "jax":
        raise SystemExit("JAX writes no memory that it was lent: --library numpy, cupy or torch")
    xp = library_of(library)
    if library == "cupy":
        with xp.cuda.Device(lease.__dlpack_device__()[1]):
            array = xp.from_dlpack(lease)
            array.fill(value)
            return array
    array = xp.asarray(lease) if library == "numpy" else xp.from_dlpack(lease)
    array[:] = value
    return array


def outside(library: str, kind: str, count: int, value: int) -> Any:
    """Make an array whose memory is in no pool."""
    xp = library_of(library)
    if library == "torch":
        return xp.full((count,), value, dtype=xp.float32, device="cpu" if kind == "host" else "cuda")
    return xp.full(count, value, dtype="float32")


def send(library: str, kind: str) -> None:
    """Share an array for each request ``(obj_id, count, value, pooled)``; free the object for a request ``obj_id``."""
    transport = made(library=library)
    while True:
        try:
            what = hear(sys.stdin.buffer)
        except EOFError:
            return
        if isinstance(what, str):
            transport.garbage_collect(what, None, [])
            say(sys.stdout.buffer, poolbridge.ray.stats())
            continue
        name, count, value, pooled = what
        begin = time.perf_counter()
        if pooled:
            array = fill(library, poolbridge.ray.client().allocate(count, "float32", pool="ray", timeout=60), value)
        else:
            array = outside(library, kind, count, value)
        shared = time.perf_counter()
        metadata = transport.extract_tensor_transport_metadata(name, [array])
        del array
        say(sys.stdout.buffer, (metadata, shared - begin, time.perf_counter() - shared))


def sender(socket: str, library: str, kind: str) -> subprocess.Popen[bytes]:
    """Start a process that runs `send`."""
    return subprocess.Popen(
        [sys.executable, __file__, "send", "--library", library, "--kind", kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"POOLBRIDGE_SOCKET": socket, "PYTHONPATH": str(Path(poolbridge.__file__).parents[1])},
    )


def receive(library: str, kind: str, sizes: list[int], moves: int) -> None:
    """Run a service and a sender, receive and check arrays of each size, and print how long the calls take."""
    biggest = max(sizes)
    with poolbridge.serve() as service, service.connect() as client:
        os.environ["POOLBRIDGE_SOCKET"] = service.path
        client.create_pool("ray", kind=kind, max_bytes=max(8 * biggest, 1 << 20))  # type: ignore[arg-type]
        process = sender(service.path, library, kind)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            transport = made(library=library)
            for nbytes in sizes:
                for pooled in (True, False):
                    shares, takes = [], []
                    for value in range(1, moves + 1):
                        say(process.stdin, (name := f"{nbytes}-{pooled}-{value}", nbytes // 4, value, pooled))
                        metadata, _, share = hear(process.stdout)
                        begin = time.perf_counter()
                        (array,) = transport.recv_multiple_tensors(name, metadata, None)
                        takes.append(time.perf_counter() - begin)
                        shares.append(share)
                        # On the GPU, the kernels that read this array wait for the kernels that write it.
                        assert float(array.min()) == value == float(array.max()), (name, float(array.min()))
                        device = getattr(array, "device", "cpu")
                        del array
                        say(process.stdin, name)
                        stats = hear(process.stdout)
                    how = "in the pool" if pooled else "copied into it once"
                    print(
                        f"{library}, {kind}, on {device}, {nbytes / 2**20:g} MiB, {how}: "
                        f"share {statistics.median(shares) * 1e6:.0f} µs, "
                        f"receive {statistics.median(takes) * 1e6:.0f} µs (medians of {moves})"
                    )
            print("sender:", stats)
            print("receiver:", poolbridge.ray.stats())
            assert stats.sent_in_place.arrays == stats.sent_copied.arrays == len(sizes) * moves
            assert poolbridge.ray.stats().received_in_place.arrays == 2 * len(sizes) * moves
        finally:
            process.stdin.close()
            process.wait(60)
            process.stdout.close()
            poolbridge.ray.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="?", default="receive", choices=["receive", "send"])
    parser.add_argument("--library", default="numpy", choices=["numpy", "cupy", "torch"])
    parser.add_argument("--kind", default="host")
    parser.add_argument("--mib", default=[1, 64], type=int, nargs="+", help="sizes of the arrays")
    parser.add_argument("--moves", default=MOVES, type=int)
    given = parser.parse_args()
    if given.role == "send":
        send(given.library, given.kind)
    else:
        receive(given.library, given.kind, [mib << 20 for mib in given.mib], given.moves)


if __name__ == "__main__":
    main()

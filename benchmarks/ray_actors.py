"""Measures what a transfer between two actors of Ray costs: ``python benchmarks/ray_actors.py``.

The program passes arrays by poolbridge and by Ray's object store, in the way that Ray's documentation recommends: an
actor returns an array, another actor gets the array and reads one element, and the program waits for this element. So
each measured time includes two calls of actors and the time to fill a new array. The rows for arrays of 8 bytes show
how long the calls alone take. Below poolbridge's rows stands how long the methods took that Ray called in both actors.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import poolbridge
import poolbridge.ray
from poolbridge.ray import _cluster
from poolbridge.ray._transport import Transport

_WARM = 5
_POOL = "2GiB"


class _Watched:
    """An actor that knows how many seconds each call of the methods took by which transports send and receive."""

    def __init__(self, *transports: type) -> None:
        self.took: list[float] = []
        for transport, name in product(transports, ("extract_tensor_transport_metadata", "recv_multiple_tensors")):
            setattr(transport, name, self._timed(getattr(transport, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*given, **named)
            finally:
                self.took.append(time.perf_counter() - begin)

        return call

    def spent(self) -> float:
        """Return the median of the calls since the last call of this method."""
        spent = statistics.median(self.took or [0.0])
        self.took.clear()
        return spent


def _actors(ray: Any, transport: str) -> Any:
    """Define the class of the actors that send and receive arrays of NumPy."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers cannot import this module

    class Actor(_Watched):
        def __init__(self) -> None:
            super().__init__(Transport)
            self.array: Any = None

        def prepare(self, nbytes: int, *, pooled: bool) -> None:
            self.array = poolbridge.ray.empty(nbytes, "uint8") if pooled else np.empty(nbytes, "uint8")
            self.array[:] = 1

        def by_store(self, nbytes: int) -> Any:
            return np.ones(nbytes, "uint8")

        def same_by_store(self) -> Any:
            return self.array

        @ray.method(tensor_transport=transport)  # type: ignore[untyped-decorator]
        def in_pool(self, nbytes: int) -> Any:
            array = poolbridge.ray.empty(nbytes, "uint8")
            array[:] = 1
            return array

        @ray.method(tensor_transport=transport)  # type: ignore[untyped-decorator]
        def copied(self, nbytes: int) -> Any:
            return np.ones(nbytes, "uint8")

        @ray.method(tensor_transport=transport)  # type: ignore[untyped-decorator]
        def same_in_pool(self) -> Any:
            return self.array

        def read(self, array: Any) -> int:
            return int(array[-1])

        def hold(self, array: Any) -> int:
            self.array = array
            return int(array[::4096].sum())

        def memory(self) -> int:
            return _share(os.getpid())

    return ray.remote(num_cpus=0, enable_tensor_transport=True)(Actor)


def _gpu_actors(ray: Any, transport: str) -> Any:
    """Define the class of actors that send and receive tensors of PyTorch in memory of a GPU."""

    class Actor(_Watched):
        def __init__(self) -> None:
            from ray.experimental.rdt.cuda_ipc_transport import CudaIpcTransport

            super().__init__(Transport, CudaIpcTransport)

        def new(self, nbytes: int) -> Any:
            import torch

            return torch.ones(nbytes, dtype=torch.uint8, device="cuda")

        def by_store(self, nbytes: int) -> Any:
            return self.new(nbytes)

        @ray.method(tensor_transport="CUDA_IPC")  # type: ignore[untyped-decorator]
        def by_cuda_ipc(self, nbytes: int) -> Any:
            return self.new(nbytes)

        @ray.method(tensor_transport=transport)  # type: ignore[untyped-decorator]
        def copied(self, nbytes: int) -> Any:
            return self.new(nbytes)

        @ray.method(tensor_transport=transport)  # type: ignore[untyped-decorator]
        def in_pool(self, nbytes: int) -> Any:
            import torch

            client = poolbridge.ray.client()
            return torch.from_dlpack(client.allocate(nbytes, "uint8", pool="ray", timeout=10)).fill_(1)

        def read(self, array: Any) -> int:
            return int(array[-1])

    return ray.remote(num_cpus=0, num_gpus=0.25, enable_tensor_transport=True)(Actor)


def measure_gpu(ray: Any, transport: str, *, mib: list[int], moves: int) -> None:
    """Measure transfers of new tensors, in memory of a GPU, from actor to actor.

    A round sends one tensor by each way: Ray's object store, Ray's CUDA_IPC, and poolbridge with and without a copy.

    Parameters
    ----------
    ray, transport
        Ray, and the name of the registered transport for PyTorch.
    mib, moves
        The sizes of the tensors in MiB, and the number of measurements of each size.
    """
    kind = _gpu_actors(ray, transport)
    sender, receiver = kind.remote(), kind.remote()
    ways = {
        "Ray's object store": sender.by_store,
        "Ray's CUDA_IPC": sender.by_cuda_ipc,
        "poolbridge, a new tensor in the pool": sender.in_pool,
        "poolbridge, a new tensor elsewhere, copied": sender.copied,
    }
    for size in mib:
        times: dict[str, list[float]] = {what: [] for what in ways}
        spent: dict[str, list[list[float]]] = {what: [] for what in ways}
        for number in range(_WARM + moves):
            for what, way in ways.items():
                begin = time.perf_counter()
                if ray.get(receiver.read.remote(way.remote(size << 20))) != 1:
                    raise RuntimeError(f"{what}: the receiver read another byte than was sent")
                took = time.perf_counter() - begin
                inside = ray.get([sender.spent.remote(), receiver.spent.remote()])
                if number >= _WARM:
                    times[what].append(took)
                    spent[what].append(inside)
        _say(f"one node, memory of a GPU, {size << 20:,} bytes")
        store = statistics.median(times["Ray's object store"])
        for what, each in times.items():
            _row(what, statistics.median(each), store)
            _inside(*map(statistics.median, zip(*spent[what], strict=True)))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _share(pid: int) -> int:
    """Return how many bytes of memory a process uses. A page that n processes share counts as one n-th of a page."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def _median(run: Callable[[], Any], moves: int) -> float:
    for _ in range(min(_WARM, moves)):
        run()
    times = []
    for _ in range(moves):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _row(what: str, seconds: float, against: float | None = None) -> float:
    ratio = f"{against / seconds:8.1f}x" if against is not None else ""
    _say(f"  {what:<56}{seconds * 1e3:9.2f} ms{ratio}")
    return seconds


def _inside(sending: float, receiving: float) -> None:
    if sending or receiving:
        _say(f"    of it in the transport: {sending * 1e3:.2f} ms in the sender, {receiving * 1e3:.2f} in the receiver")


def _one_node(ray: Any, actors: tuple[Any, Any, Any], nbytes: int, moves: int) -> None:
    """Measure transfers on one node. One actor sends by Ray's object store, another actor sends by the transport."""
    stored, sender, receiver = actors
    ray.get([stored.prepare.remote(nbytes, pooled=False), sender.prepare.remote(nbytes, pooled=True)])

    def time_of(send: Callable[[], Any]) -> float:
        return _median(lambda: ray.get(receiver.read.remote(send())), moves)

    _say(f"one node, {nbytes:,} bytes")
    store = _row("Ray's object store, a new array each time", time_of(lambda: stored.by_store.remote(nbytes)))
    for what, way in (("in the pool", sender.in_pool), ("elsewhere, copied", sender.copied)):
        _row(f"poolbridge, a new array {what}", time_of(partial(way.remote, nbytes)), store)
        _inside(*ray.get([sender.spent.remote(), receiver.spent.remote()]))
    store = _row("Ray's object store, the same array each time", time_of(stored.same_by_store.remote))
    _row("poolbridge, the same array each time", time_of(sender.same_in_pool.remote), store)


def _two_nodes(ray: Any, actors: tuple[Any, Any, Any], nbytes: int, moves: int) -> None:
    """Measure transfers of arrays of `nbytes` bytes between two nodes."""
    stored, sender, receiver = actors
    _say(f"two nodes, {nbytes:,} bytes")
    store = _median(lambda: ray.get(receiver.read.remote(stored.by_store.remote(nbytes))), moves)
    _row("Ray's object store", store)
    mover = _median(lambda: ray.get(receiver.read.remote(sender.in_pool.remote(nbytes))), moves)
    _row("poolbridge, by a mover", mover, store)


def _memory(ray: Any, actors: list[Any], nbytes: int) -> None:
    """Measure how much memory two senders and the readers need for one array. Each reader reads every page of it."""
    stored, sender, *readers = actors

    def total() -> int:
        return sum(ray.get([actor.memory.remote() for actor in actors]))

    _say(f"{len(readers)} readers of one array of {nbytes / 2**20:,.0f} MiB: what all processes have more than before")
    for what, send in (("Ray's object store", stored.by_store), ("poolbridge", sender.in_pool)):
        before = total()
        reference = send.remote(nbytes)
        ray.get([reader.hold.remote(reference) for reader in readers])
        _say(f"  {what:<56}{(total() - before) / 2**20:9,.0f} MiB")
        ray.get([reader.hold.remote(np.zeros(1, "uint8")) for reader in readers])
        del reference


def compare(ray: Any, transport: str, nbytes: int, moves: int) -> tuple[list[float], list[float]]:
    """Send new arrays between actors on one node, alternately by Ray's object store and by poolbridge.

    Parameters
    ----------
    ray, transport
        Ray, and the name of the registered transport.
    nbytes, moves
        Bytes of an array, and the number of arrays for each of the two ways.

    Returns
    -------
    tuple of list of float
        The seconds for each array by Ray's object store, and the seconds for each array by poolbridge.
    """
    kind = _actors(ray, transport)
    stored, sender, receiver = actors = [kind.options(resources={"near": 1}).remote() for _ in range(3)]
    ways = (lambda: stored.by_store.remote(nbytes)), (lambda: sender.in_pool.remote(nbytes))
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * (_WARM + moves)):
        begin = time.perf_counter()
        ray.get(receiver.read.remote(ways[number % 2]()))
        if number >= 2 * _WARM:
            seconds[number % 2].append(time.perf_counter() - begin)
    for actor in actors:
        ray.kill(actor)
    return seconds


def measure(ray: Any, transport: str, *, mib: list[int], moves: int, readers: int, big: int) -> None:
    """Measure transfers on a cluster of two nodes. One node has the resource ``near``, the other has ``far``.

    Parameters
    ----------
    ray, transport
        Ray, and the name of the registered transport.
    mib, moves
        The sizes of the arrays in MiB, and the number of measurements of each size.
    readers, big
        The number of readers of an array of `big` MiB, for the measurement of memory; 0 for `big`: leave this
        measurement out.
    """
    kind = _actors(ray, transport)
    stored, sender, receiver = (kind.options(resources={"near": 1}).remote() for _ in range(3))
    far = kind.options(resources={"far": 1}).remote()
    _say(f"ray {ray.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs; medians of {moves}")
    for nbytes in (8, *(size << 20 for size in mib)):
        _one_node(ray, (stored, sender, receiver), nbytes, moves)
    for size in mib:
        _two_nodes(ray, (stored, sender, far), size << 20, moves)
    more = [kind.options(resources={"near": 1}).remote() for _ in range(readers - 1 if big else 0)]
    if big:
        _memory(ray, [stored, sender, receiver, *more], big << 20)
    for actor in (stored, sender, receiver, far, *more):
        ray.kill(actor)


@contextmanager
def cluster(*nodes: str, gpu: bool = False) -> Iterator[tuple[Any, str]]:
    """Start a cluster on this machine, with a service on each node. Yield Ray and the name of the transport.

    Parameters
    ----------
    nodes
        Names of the nodes. Each node has a resource of the same name.
    gpu
        Whether each node gets a GPU. If so, the pools are in memory of the GPU, and the transport is for PyTorch.

    Raises
    ------
    UnavailableError
        Ray is not installed, or too old.
    """
    ray = _cluster.import_ray()
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="pbray") as folder:
        os.environ["POOLBRIDGE_SOCKET"] = f"{folder}/{nodes[0]}/s"
        os.environ["RAY_TMPDIR"] = folder  # Ray writes the cluster's address here, and not where other clusters write
        started = Cluster()
        try:
            for name in nodes:
                started.add_node(
                    num_cpus=1,
                    num_gpus=int(gpu),
                    temp_dir=f"{folder}/ray",
                    object_store_memory=3 << 29,
                    include_dashboard=False,
                    resources={name: 1000},
                    env_vars={"POOLBRIDGE_SOCKET": f"{folder}/{name}/s"},
                )
            ray.init(address=started.address, log_to_driver=False, logging_level="error")
            # python/tests/raynodes.py measures NIXL.
            transport = poolbridge.ray.register("torch" if gpu else "numpy", nixl=False)
            with poolbridge.ray.start(pools={"ray": {"kind": "device" if gpu else "host", "max_bytes": _POOL}}):
                yield ray, transport
        finally:
            poolbridge.ray.close()
            ray.shutdown()
            started.shutdown()
            del os.environ["RAY_TMPDIR"]


def main() -> None:
    """Start a cluster on this machine, of two nodes, or of one node with ``--gpu``; and measure transfers."""
    parser = argparse.ArgumentParser(prog="python benchmarks/ray_actors.py", description=__doc__)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 64], help="sizes of the arrays in MiB")
    parser.add_argument("--moves", type=int, default=30, help="how often each is measured, after 5 that are not")
    parser.add_argument("--readers", type=int, default=8, help="readers of the big array")
    parser.add_argument("--big", type=int, default=1024, help="MiB of the big array; 0: leave it out")
    parser.add_argument("--gpu", action="store_true", help="measure memory of a GPU, with PyTorch, on one node only")
    given = parser.parse_args()
    if given.gpu:
        with cluster("near", gpu=True) as (ray, transport):
            measure_gpu(ray, transport, mib=given.mib, moves=given.moves)
        return
    with cluster("near", "far") as (ray, transport):
        measure(ray, transport, mib=given.mib, moves=given.moves, readers=given.readers, big=given.big)


if __name__ == "__main__":
    main()

"""Test how the transport of `poolbridge.ray` moves arrays of GPU memory between processes, without Ray.

`test_device` runs these tests on the simulated driver, with arrays of the class `Bytes`, which need no library and no
kernels. With a GPU, the tests also run with arrays of PyTorch, CuPy and JAX. The tests start this module as a program:
each such program is one of the processes that share or receive arrays.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from gates import Gate, fill, finish, idle, new_stream, read
from raytransport import hear, made, say
from realservice import until
from rig import ENVIRONMENT, N, has_poolsvc, service_command, use

import poolbridge
import poolbridge.ray
from poolbridge._array import sources as _sources
from poolbridge._client import makers as _makers
from poolbridge._cuda import cuda as _cuda
from poolbridge._libraries import consumers as _consumers

WAYS = ("sent_in_place", "sent_copied", "received_in_place")
BYTES = "bytes"
BURIED = pytest.mark.skipif(not has_poolsvc(), reason="poolsvc is not built, and the small service buries nobody")


# The code below runs in a process that shares and receives arrays, through the calls that Ray makes.


class Bytes:
    """An array of bytes on the GPU that needs no library and no kernels."""

    dtype = np.dtype("uint8")

    def __init__(self, memory: object, address: int, shape: tuple[int, ...], step: int = 1) -> None:
        self._memory = memory  # keeps the memory alive
        self.address, self.shape = address, shape
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": shape, "strides": (step,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __getitem__(self, part: slice) -> Bytes:
        picked = range(self.shape[0])[part]
        return Bytes(self._memory, self.address + picked.start, (len(picked),), picked.step)

    def check(self) -> None:
        assert isinstance(self._memory, poolbridge.Lease)
        self._memory.check()


class Worker:
    """The calls that a test makes in a process. All GPU work is on one stream, which waits from `hold` until `open`."""

    def __init__(self, library: str) -> None:
        self.library = library
        self.transport = made(library=library, pool="gpu")
        self.arrays: dict[str, Any] = {}
        self.seen: dict[str, np.ndarray[Any, Any]] = {}
        self.before: Counter[str] = Counter()
        self.gate, self.stream = Gate(), new_stream()
        self.consumer = None if library == BYTES else _consumers.load(library)
        if self.consumer is None:
            _makers._MAKERS[library] = self.take
        # The first use of a pool or a library may wait for all streams of the GPU, so use both before a stream waits.
        self.take(poolbridge.ray.client().allocate(N, "uint8", pool="gpu"))

    def on_stream(self) -> Any:
        if self.library == "torch":
            import torch

            return torch.cuda.stream(torch.cuda.ExternalStream(self.stream))
        if self.library == "cupy":
            import cupy

            return cupy.cuda.ExternalStream(self.stream)
        return nullcontext()

    def take(self, lease: poolbridge.BaseLease) -> Any:
        if self.consumer is None:
            return Bytes(lease, use(lease, self.stream), lease.shape)
        return self.consumer.take(lease)

    def address(self, name: str) -> int:
        array = self.arrays[name]
        return int(array.address if self.consumer is None else self.consumer.pointer(array))

    def hold(self) -> None:
        """Make the stream wait until `open` is called."""
        self.gate.close()
        self.gate = Gate()
        self.gate.hold(self.stream)

    def open(self) -> None:
        self.gate.open()

    def idle(self) -> bool:
        return idle(self.stream)

    def share(self, name: str, value: int) -> bytes:
        """Fill a new lease and share its array. Return pickled metadata: the test's process imports no library."""
        lease = poolbridge.ray.client().allocate(N, "uint8", pool="gpu")
        fill(use(lease, self.stream), N, value, self.stream)
        with self.on_stream():
            self.arrays[name] = self.take(lease)
            return self.share_again(name, name)

    def share_again(self, name: str, of: str) -> bytes:
        return pickle.dumps(self.transport.extract_tensor_transport_metadata(name, [self.arrays[of]]))

    def share_outside(self, name: str, value: int) -> bytes:
        if self.consumer is None:
            memory = _cuda.Allocation(0, N)
            self.arrays[name] = Bytes(memory, memory.address, (N,))
            self.write(name, value)
        elif self.library == "torch":
            import torch

            self.arrays[name] = torch.full((N,), value, dtype=torch.uint8, device="cuda")
        elif self.library == "cupy":
            import cupy

            self.arrays[name] = cupy.full(N, value, "uint8")
        else:
            import jax

            self.arrays[name] = jax.numpy.full(N, value, "uint8")
        return self.share_again(name, name)

    def share_part(self, name: str, of: str) -> tuple[bytes, int]:
        """Share every second element of an array's second half; return the metadata and the part's offset in bytes."""
        first = self.address(of)
        self.arrays[name] = self.arrays[of][N // 2 :: 2]
        return self.share_again(name, name), self.address(name) - first

    def write(self, name: str, value: int) -> None:
        """Fill the array, even if a reader still uses it, and wait until the stream has filled it."""
        fill(self.address(name), N, value, self.stream)
        finish(self.stream)

    def receive(self, name: str, metadata: bytes) -> None:
        found = pickle.loads(metadata)
        talk = self.transport.get_communicator_metadata(None, None)
        with self.on_stream():
            (self.arrays[name],) = self.transport.recv_multiple_tensors(name, found, talk)

    def begin_reading(self, name: str) -> None:
        """Queue a read of the array in the stream; `finished` waits for the stream."""
        self.seen[name] = read(self.address(name), N, self.stream)

    def finished(self, name: str) -> list[int]:
        """Wait for the stream, and return the least and the greatest byte that the stream has read."""
        finish(self.stream)
        return [int(self.seen[name].min()), int(self.seen[name].max())]

    def content(self, name: str) -> list[int]:
        """Read the array with its library; return the least and the greatest byte, and the number of bytes."""
        array = self.arrays[name]
        with self.on_stream():
            if self.consumer is None:
                finish(self.stream)
                host = _sources.source_of(array).to_host()
            elif self.library == "torch":
                host = array.cpu().numpy()
            elif self.library == "cupy":
                host = array.get()
            else:
                host = np.asarray(array)
        return [int(host.min()), int(host.max()), host.size]

    def check(self, name: str) -> None:
        self.arrays[name].check()

    def drop(self, name: str) -> None:
        del self.arrays[name]
        gc.collect()

    def collect(self, name: str) -> None:
        self.transport.garbage_collect(name, None, [])

    def abort(self, name: str) -> None:
        self.transport.abort_transport(name, None)

    def counts(self) -> dict[str, int]:
        """Return how much the counts of `WAYS`, and of reasons for copies, have grown since `clear`. Omit zeros."""
        stats = poolbridge.ray.stats()
        found = {way: getattr(stats, way).arrays for way in WAYS} | stats.reasons
        return {way: more for way, count in found.items() if (more := count - self.before[way])}

    def clear(self) -> None:
        """Release the arrays and objects that a test has left."""
        stats = poolbridge.ray.stats()
        self.before = Counter({way: getattr(stats, way).arrays for way in WAYS} | stats.reasons)
        for name in {**self.arrays, **self.transport._sent}:
            self.collect(name)
        self.arrays.clear()
        gc.collect()


def work(library: str) -> None:
    """Answer the calls of the test process until the test process closes the pipe."""
    worker = Worker(library)
    say(sys.stdout.buffer, None)
    while True:
        try:
            name, given = hear(sys.stdin.buffer)
        except EOFError:
            os._exit(0)  # ends the process even while a stream waits
        try:
            answer = getattr(worker, name)(*given)
        except poolbridge.PoolbridgeError as error:
            answer = error
        say(sys.stdout.buffer, answer)


# The test's process uses the code below, to start such processes and to call the `Worker` in each process.


class Process:
    """A `Worker` in another process."""

    def __init__(self, socket: str, library: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENVIRONMENT | {"POOLBRIDGE_SOCKET": socket, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        )

    def ready(self) -> Process:
        """Wait until the process has imported its library."""
        self._hear()
        return self

    def __call__(self, name: str, *given: Any) -> Any:
        say(self.process.stdin, (name, given))  # type: ignore[arg-type]
        answer = self._hear()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _hear(self) -> Any:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], 120)[0], "the process does not answer"
        return hear(self.process.stdout)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()  # type: ignore[union-attr]


Starter = Callable[[], Process]


def libraries(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("library", names, scope="module")


ONLY_BYTES = libraries(BYTES)
NAME_STREAMS = libraries(BYTES, "torch", "cupy")
ALL = libraries(BYTES, "torch", "cupy", "jax")


def lacks(library: str) -> str:
    """Return why this machine cannot test a library, or an empty text if the machine can."""
    if library == BYTES:
        return ""
    if library not in _consumers.installed():
        return f"{library} is not installed"
    if "SIMCUDA_COUNTS" in os.environ:
        return f"{library} needs kernels, which the simulated driver lacks"
    code = f"from poolbridge._libraries import consumers; raise SystemExit(consumers.load({library!r}).lacks_gpu())"
    found = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT)  # the test process starts no GPU library
    return f"{library} sees no GPU" if found.returncode else ""


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("run")
    folder.chmod(0o700)
    path = str(folder / "d.sock")
    with subprocess.Popen(service_command(path), stdin=subprocess.PIPE, env=ENVIRONMENT) as process:
        yield path
        process.terminate()


@pytest.fixture(scope="module")
def client(socket: str) -> Iterator[poolbridge.Client]:
    with poolbridge.connect(socket, timeout=60, wait=60) as connected:
        connected.create_pool("gpu", kind="device", max_bytes=64 << 20)
        yield connected


@pytest.fixture(scope="module")
def workers(client: poolbridge.Client, library: str) -> Iterator[list[Process]]:
    """Give three processes that have imported a library. All tests share them, because an import takes seconds."""
    if reason := lacks(library):
        pytest.skip(reason)
    found: list[Process] = []
    try:
        found.extend(Process(client.path, library) for _ in range(3))
        yield [process.ready() for process in found]
    finally:
        for process in found:
            process.kill()


@pytest.fixture
def three(client: poolbridge.Client, workers: list[Process]) -> Iterator[list[Process]]:
    """Give the three processes. After the test, release their arrays and check that the service has no leases."""
    for worker in workers:
        worker("clear")
    yield workers
    for worker in workers:
        worker("open")
        worker("clear")
    until(lambda: left(client) == (0, 0, 0))


@pytest.fixture
def start(client: poolbridge.Client) -> Iterator[Starter]:
    """Give a function that starts a process, which the test may kill."""
    found: list[Process] = []

    def begin() -> Process:
        found.append(Process(client.path, BYTES))
        return found[-1].ready()

    yield begin
    for process in found:
        process.kill()
    until(lambda: left(client) == (0, 0, 0))


def left(client: poolbridge.Client) -> tuple[int, int, int]:
    stats = client.stats()
    return stats.leases, stats.buffers, stats.names


# In place, and in the order of the GPU


@NAME_STREAMS
def test_an_array_arrives_before_its_content_and_nobody_waits_but_the_streams(three):
    sender, receiver, _ = three
    sender("hold")
    receiver("receive", "one", sender("share", "one", 7))
    receiver("begin_reading", "one")
    assert not sender("idle")
    assert not receiver("idle")
    sender("open")
    assert receiver("finished", "one") == [7, 7]
    assert sender("counts") == {"sent_in_place": 1}
    assert receiver("counts") == {"received_in_place": 1}


@ALL
def test_an_array_in_a_lease_is_the_same_memory_in_both_processes(three, client):
    sender, receiver, _ = three
    receiver("receive", "one", sender("share", "one", 7))
    assert receiver("content", "one") == [7, 7, N]
    sender("write", "one", 8)
    receiver("begin_reading", "one")
    assert receiver("finished", "one") == [8, 8]
    assert sender("counts") == {"sent_in_place": 1}
    assert receiver("counts") == {"received_in_place": 1}
    assert left(client)[1] == 1


@NAME_STREAMS
def test_a_part_of_an_array_is_at_its_place_in_the_same_memory(three):
    sender, receiver, _ = three
    receiver("receive", "whole", sender("share", "whole", 7))
    metadata, offset = sender("share_part", "part", "whole")
    receiver("receive", "part", metadata)
    assert receiver("address", "part") - receiver("address", "whole") == offset == N // 2
    assert receiver("content", "part") == [7, 7, N // 4]
    assert sender("counts") == {"sent_in_place": 2}
    assert receiver("counts") == {"received_in_place": 2}


@ALL
def test_an_array_outside_of_a_lease_is_copied_once_and_counted(three, client):
    sender, *receivers = three
    metadata = sender("share_outside", "one", 7)
    sender("write", "one", 8)
    for receiver in receivers:
        receiver("receive", "one", metadata)
        assert receiver("content", "one") == [7, 7, N]
        assert receiver("counts") == {"received_in_place": 1}
    assert sender("counts") == {"sent_copied": 1, "the array did not live in a pool": 1}
    assert left(client)[1] == 1


@ALL
def test_an_array_that_came_is_passed_on_in_place(three, client):
    first, second, last = three
    second("receive", "one", first("share", "one", 7))
    last("receive", "two", second("share_again", "two", "one"))
    assert last("content", "two") == [7, 7, N]
    assert second("counts") == {"received_in_place": 1, "sent_in_place": 1}
    assert left(client)[1] == 1


@NAME_STREAMS
def test_an_abort_on_both_sides_takes_neither_the_array_nor_its_order(three):
    sender, receiver, _ = three
    sender("hold")
    metadata = sender("share", "one", 7)
    sender("abort", "one")
    receiver("abort", "one")
    receiver("receive", "one", metadata)
    receiver("abort", "one")
    receiver("begin_reading", "one")
    assert not receiver("idle")
    sender("open")
    assert receiver("finished", "one") == [7, 7]


# How long the memory stays


@ALL
def test_garbage_collect_gives_the_memory_back_once_no_receiver_uses_it(three, client):
    sender, receiver, _ = three
    receiver("receive", "one", sender("share", "one", 7))
    sender("drop", "one")
    assert left(client) == (2, 1, 1)
    sender("collect", "one")
    until(lambda: left(client) == (1, 1, 0))
    assert receiver("content", "one") == [7, 7, N]
    receiver("drop", "one")
    until(lambda: left(client) == (0, 0, 0))


@ONLY_BYTES
def test_what_was_collected_before_a_receiver_came_is_a_typed_error(three, client):
    sender, receiver, _ = three
    metadata = sender("share", "one", 7)
    sender("drop", "one")
    sender("collect", "one")
    until(lambda: left(client) == (0, 0, 0))
    with pytest.raises((poolbridge.StaleError, poolbridge.NotFoundError), match="buffer"):
        receiver("receive", "one", metadata)
    receiver("receive", "two", sender("share", "two", 8))
    assert receiver("content", "two") == [8, 8, N]


@ONLY_BYTES
@pytest.mark.skipif(len(_cuda.devices()) < 2, reason="needs a second GPU, which the receiver sees instead")
def test_a_receiver_that_does_not_see_the_gpu_gets_an_error_that_names_it(three, client):
    sender = three[0]
    metadata = sender("share", "one", 7)
    code = f"""
import pickle
import poolbridge
from raytransport import made
transport = made(library="cupy", pool="gpu")
try:
    transport.recv_multiple_tensors("one", pickle.loads({metadata!r}), transport.get_communicator_metadata(None, None))
except poolbridge.DeviceNotVisibleError as error:
    print(error)
"""
    settings = ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": "1", "POOLBRIDGE_SOCKET": client.path}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert _cuda.devices()[0]["uuid"] in done.stdout
    assert "CUDA_VISIBLE_DEVICES" in done.stdout
    sender("drop", "one")
    sender("collect", "one")
    until(lambda: left(client) == (0, 0, 0))


@BURIED
def test_a_killed_receiver_loses_only_its_own_lease(start, client):
    sender, receiver, other = start(), start(), start()
    sender("hold")
    metadata = sender("share", "one", 7)
    receiver("receive", "one", metadata)
    receiver("begin_reading", "one")
    assert left(client) == (2, 1, 1)
    receiver.kill()
    until(lambda: left(client) == (1, 1, 1))
    other("receive", "one", metadata)
    other("begin_reading", "one")
    sender("open")
    assert other("finished", "one") == [7, 7]


@BURIED
def test_a_killed_sender_takes_nothing_from_a_receiver_that_has_it(start, client):
    sender, receiver, other = start(), start(), start()
    metadata = sender("share", "one", 7)
    receiver("receive", "one", metadata)
    receiver("begin_reading", "one")
    assert receiver("finished", "one") == [7, 7]
    sender.kill()
    until(lambda: left(client) == (1, 1, 0))
    receiver("check", "one")
    other("receive", "two", receiver("share_again", "two", "one"))
    assert other("content", "two") == [7, 7, N]


@BURIED
def test_the_stream_of_a_receiver_goes_on_when_the_sender_is_killed_before_its_kernels_end(start, client):
    sender, receiver = start(), start()
    sender("hold")
    receiver("receive", "one", sender("share", "one", 7))
    receiver("begin_reading", "one")
    assert not receiver("idle")
    receiver("check", "one")
    sender.kill()
    receiver("finished", "one")
    with pytest.raises(poolbridge.ProducerDiedError):
        receiver("check", "one")


@BURIED
def test_a_sender_killed_before_the_hand_off_is_a_typed_error(start, client):
    sender, receiver = start(), start()
    metadata = sender("share", "one", 7)
    sender.kill()
    until(lambda: left(client) == (0, 0, 0))
    with pytest.raises((poolbridge.StaleError, poolbridge.NotFoundError), match="buffer"):
        receiver("receive", "one", metadata)


if __name__ == "__main__":
    work(sys.argv[1])

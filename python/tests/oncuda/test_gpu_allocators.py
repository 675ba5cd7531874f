"""Test arenas in memory of a GPU, and the allocators of cuda.core, CuPy and PyTorch on them.

`test_device` runs the tests that need no library on the simulated driver. On a machine with a GPU, pytest runs them
directly.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gates import fill, finish, new_stream, read, waits_until
from realservice import until
from rig import CHANNELS, ENVIRONMENT, client, device_service, gate, other

import poolbridge
from poolbridge import ClosedError, InvalidArgumentError, PoolLimitError

pytestmark = CHANNELS

__all__ = ["client", "device_service", "gate", "other"]  # fixtures

MIB = 1 << 20


class Stream:
    """A stream that cuda.core takes."""

    def __init__(self) -> None:
        self.handle = new_stream()

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class Wrapped:
    """An array of a library in memory of a GPU, whose stream is named if `stream` is not None."""

    def __init__(self, buffer: Any, nbytes: int, stream: int | None = None) -> None:
        self.buffer = buffer
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (int(buffer.handle), False),
            "stream": stream,
        }


@pytest.fixture
def core() -> Any:
    found = pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'poolbridge[cuda]'")
    found.Device(0).set_current()
    return found


@pytest.fixture
def arena(client: poolbridge.Client) -> poolbridge.Arena:
    return client.arena(4 * MIB)


def stream_of(core: Any) -> Any:
    return core.Device(0).create_stream(Stream())


def handle(stream: Any) -> int:
    return int(stream.handle)


def content(address: int, nbytes: int, stream: Any) -> set[int]:
    found = read(address, nbytes, handle(stream))
    finish(handle(stream))
    return {int(byte) for byte in np.unique(found)}


def test_an_arena_of_a_gpu_has_no_numpy_arrays(arena):
    with pytest.raises(InvalidArgumentError, match="memory of a GPU"):
        arena.zeros(3)
    assert arena.used_nbytes == 0


def test_allocators_need_memory_of_a_gpu(client, core):
    client.create_pool("host", max_bytes="1MiB")
    with pytest.raises(InvalidArgumentError, match="memory of the CPU"):
        client.arena(4096, pool="host").memory_resource  # noqa: B018


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy"])
def test_cuda_core_allocates_in_an_arena(client, core, kind):
    client.create_pool(kind, kind=kind, max_bytes=64 * MIB)
    arena = client.arena(4 * MIB, pool=kind)
    resource, stream = arena.memory_resource, stream_of(core)
    assert (resource.is_device_accessible, resource.is_host_accessible, resource.is_managed) == (True, False, False)
    assert resource.device_id == 0
    buffers = [resource.allocate(1000, stream=stream) for _ in range(3)]
    assert len({int(one.handle) for one in buffers}) == 3
    assert all((one.size, one.device_id, one.memory_resource) == (1000, 0, resource) for one in buffers)
    for byte, one in enumerate(buffers):
        fill(int(one.handle), 1000, byte, handle(stream))
    assert [content(int(one.handle), 1000, stream) for one in buffers] == [{0}, {1}, {2}]
    assert arena.used_nbytes == 3 * 1024
    first = int(buffers[0].handle)
    buffers[0].close(stream)
    assert int(resource.allocate(1000, stream=stream).handle) == first, "the same stream has it at once"
    del buffers, one
    gc.collect()
    assert arena.used_nbytes == 3 * 1024, "kept for the next allocation"
    whole = resource.allocate(4 * MIB, stream=stream)
    assert arena.nbytes == 4 * MIB, "what was kept has come back"
    whole.close(stream)
    arena.close()
    assert arena.used_nbytes == 0


def test_the_stream_that_an_array_names_is_not_the_only_one_that_may_read_it_later(client, core, gate):
    resource, stream, reader = client.arena(4 * MIB).memory_resource, stream_of(core), new_stream()
    buffer = resource.allocate(MIB, stream=stream)
    at = int(buffer.handle)
    fill(at, MIB, 5, handle(stream))
    interface = {"version": 3, "shape": (MIB,), "typestr": "|u1", "strides": None, "data": (at, False)}
    array = SimpleNamespace(__cuda_array_interface__={**interface, "stream": handle(stream)}, kept=buffer)
    lease = client.put(array, "x")
    assert lease.view(device="cuda").__cuda_array_interface__["data"][0] == at
    gate.hold(reader)
    seen = read(at, MIB, reader)
    waits_until(gate.open, lambda: lease.release(force=True))
    finish(reader)
    assert (seen == 5).all()


def test_another_stream_gets_freed_memory_only_after_the_work_of_the_first(client, core):
    arena = client.arena(MIB)
    resource, first, second = arena.memory_resource, stream_of(core), stream_of(core)
    buffer = resource.allocate(MIB // 2, stream=first)
    address = int(buffer.handle)
    buffer.close(first)
    other_half = resource.allocate(MIB // 2, stream=second)
    assert int(other_half.handle) != address
    fill(address, MIB // 2, 1, handle(first))
    whole = resource.allocate(MIB // 2, stream=second)
    assert int(whole.handle) == address, "the arena is full, so it has waited"
    assert arena.nbytes == MIB


@pytest.mark.parametrize("named", [True, False])
def test_a_buffer_of_cuda_core_is_shared_without_a_copy(client, other, arena, core, named):
    resource, stream = arena.memory_resource, stream_of(core)
    buffer = resource.allocate(MIB, stream=stream)
    address = int(buffer.handle)
    fill(address, MIB, 7, handle(stream))
    before = client.stats().pools[0].reserved
    array = Wrapped(buffer, MIB, handle(stream) if named else None)
    client.put(array, "x").release()
    channel = client.create_channel("c", capacity=2, mode="queue")
    channel.publish(array)
    assert client.stats().pools[0].reserved == before
    lease, frames = other.get("x"), other.subscribe("c")
    with frames.receive(60) as frame:
        assert (frame.to_numpy() == 7).all()
    assert (lease.to_numpy() == 7).all()
    fill(address, MIB, 9, handle(stream))
    finish(handle(stream))
    assert (lease.to_numpy() == 9).all(), "it is the same memory"
    del array, buffer
    gc.collect()
    assert arena.used_nbytes == MIB, "readers have it"
    lease.release()
    client.unpublish("x")

    def comes_back() -> bool:
        full = resource.allocate(4 * MIB, stream=stream)
        full.close(stream)
        return int(full.handle or address) == address or arena.nbytes == 4 * MIB

    until(comes_back)


def test_a_full_pool_and_a_closed_client_are_errors_of_the_allocator(client, core):
    arena = client.arena(60 * MIB)
    resource, stream = arena.memory_resource, stream_of(core)
    kept = resource.allocate(50 * MIB, stream=stream)
    with pytest.raises(PoolLimitError):
        resource.allocate(50 * MIB, stream=stream)
    arena.close()
    with pytest.raises(ClosedError):
        resource.allocate(1, stream=stream)
    client.close()
    with pytest.raises(ClosedError):
        resource.allocate(1, stream=stream)
    kept.close(stream)


@pytest.fixture
def cupy(arena: poolbridge.Arena) -> Any:
    found = pytest.importorskip("cupy", reason="cupy is not installed")
    found.cuda.set_allocator(arena.cupy_allocator)
    yield found
    found.cuda.set_allocator(found.get_default_memory_pool().malloc)


def test_cupy_allocates_in_an_arena_and_shares_without_a_copy(client, other, arena, cupy):
    array = cupy.arange(MIB, dtype="uint8")
    assert arena.used_nbytes >= MIB
    before = client.stats().pools[0].reserved
    client.put(array, "x")
    client.put(array[1000:2000], "part")
    assert client.stats().pools[0].reserved == before
    assert (other.get("x").to_numpy() == np.arange(MIB).astype("uint8")).all()
    assert (other.get("part").to_numpy() == np.arange(1000, 2000).astype("uint8")).all()
    array += 1
    cupy.cuda.Device().synchronize()
    assert other.get("x").to_numpy()[0] == 1, "it is the same memory"
    client.unpublish("x")
    client.unpublish("part")
    del array
    gc.collect()
    total = cupy.zeros(3 * MIB, dtype="uint8").sum()
    assert int(total) == 0


def test_cupy_gets_its_own_error_when_the_pool_is_full(client, arena, cupy):
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.zeros(100 * MIB, dtype="uint8")
    assert cupy.zeros(0).size == 0
    with cupy.cuda.Stream():
        sums = [int(cupy.full(100_000, n, dtype="uint8").sum()) for n in range(20)]
    assert sums == [100_000 * n for n in range(20)]
    client.close()
    with pytest.raises(ClosedError):
        cupy.zeros(10)


def is_closed(arena: poolbridge.Arena) -> bool:
    try:
        arena.close()
    except poolbridge.LeaseInUseError:
        return False
    return True


@pytest.fixture(scope="session")
def torch() -> Any:
    found = pytest.importorskip("torch", reason="torch is not installed")
    if not found.cuda.is_available():
        pytest.skip("this PyTorch sees no GPU")
    found.zeros(1, device="cuda")  # opens files, which must not look like a leak of the first test
    return found


def test_pytorch_allocates_in_an_arena_and_shares_without_a_copy(client, other, torch):
    arena = client.arena(48 * MIB)
    pool = arena.torch_pool(48 * MIB)
    assert arena.torch_pool(1) is pool
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.full((MIB,), 7, dtype=torch.uint8, device="cuda")
    block = arena._division.blocks[0].state
    first = block.memory.address(write=True)
    assert first <= tensor.data_ptr() < first + 48 * MIB
    before = client.stats().pools[0].reserved
    client.put(tensor, "x").release()
    channel = client.create_channel("c", capacity=2, mode="queue")
    channel.publish(tensor[1000 : MIB // 2])
    assert client.stats().pools[0].reserved == before
    lease, frames = other.get("x"), other.subscribe("c")
    with frames.receive(60) as frame:
        assert (frame.to_numpy() == 7).all()
    address = tensor.data_ptr()
    del tensor
    with torch.cuda.use_mem_pool(pool):
        again = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    assert again.data_ptr() != address, "a reader has that memory"
    assert (lease.to_numpy() == 7).all()
    lease.release()
    client.unpublish("x")
    with pytest.raises(poolbridge.LeaseInUseError, match="146431"):
        arena.close()
    other.close()

    del again, pool
    gc.collect()
    until(lambda: is_closed(arena))


def test_pytorch_uses_memory_again_that_all_readers_have_left(client, torch):
    arena = client.arena(64 * MIB)
    pool = arena.torch_pool("64MiB")
    with torch.cuda.use_mem_pool(pool):
        for n in range(100):
            tensor = torch.full((4 * MIB,), n, dtype=torch.uint8, device="cuda")
            client.put(tensor, "x", replace=True).release()
    assert (client.get("x").to_numpy() == 99).all()
    client.unpublish("x")
    del tensor, pool
    gc.collect()
    until(lambda: is_closed(arena))


def test_pytorch_gets_its_own_error_when_the_memory_is_used_up(client, torch):
    arena = client.arena(32 * MIB)
    pool = arena.torch_pool(32 * MIB)
    with torch.cuda.use_mem_pool(pool), pytest.raises(torch.OutOfMemoryError):
        torch.zeros(60 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(InvalidArgumentError, match="has memory of an arena"):
        client.arena(2 * MIB).torch_pool(MIB)
    del pool
    gc.collect()
    arena.close()
    with pytest.raises(ClosedError):
        arena.torch_pool(1)


def test_expandable_segments_are_refused(client, torch, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(poolbridge.UnsupportedError, match="147851"):
        client.arena(MIB).torch_pool(MIB)


# A producer that puts an array of a library under a name, and waits to be killed.
PRODUCER = """
import sys
import poolbridge

client = poolbridge.connect(sys.argv[1], timeout=60)
arena = client.arena(32 << 20)
if sys.argv[2] == "cupy":
    import cupy

    cupy.cuda.set_allocator(arena.cupy_allocator)
    array = cupy.full(4 << 20, 7, dtype="uint8")
else:
    import torch

    with torch.cuda.use_mem_pool(arena.torch_pool("32MiB")):
        array = torch.full((4 << 20,), 7, dtype=torch.uint8, device="cuda")
client.put(array[1000:], "x")
client.get("what nobody makes", timeout=120)
"""


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_a_reader_of_an_allocators_memory_goes_on_when_the_producer_is_killed(device_service, client, library):
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    if library == "torch" and not module.cuda.is_available():
        pytest.skip("this PyTorch sees no GPU")
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", PRODUCER, device_service, library], env=ENVIRONMENT) as producer:
            try:
                lease = client.get("x", timeout=60)
            finally:
                producer.kill()
        until(lambda: "x" not in {one.name for one in client.names()})
        assert (lease.to_numpy() == 7).all()
        assert lease.nbytes == (4 << 20) - 1000
        assert client.stats().pools[0].reserved > 0
        lease.release()
        until(lambda: client.stats().pools[0].leased == 0)
        with pytest.raises(poolbridge.NotFoundError):
            client.get("x", timeout=0)


READER = """
import signal
import sys
import poolbridge

client = poolbridge.connect(sys.argv[1], timeout=60)
lease = client.get("x", timeout=60)
print("reads", flush=True)
signal.pause()
"""


def test_a_killed_reader_gives_cupys_memory_back(device_service, client, arena, cupy):
    array = cupy.full(3 * MIB, 7, dtype="uint8")
    first = array.data.ptr
    client.put(array, "x")
    command = [sys.executable, "-c", READER, device_service]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reads\n"
        client.unpublish("x")
        del array
        second = cupy.full(3 * MIB, 8, dtype="uint8")
        assert second.data.ptr != first, "the reader has that memory"
        reader.kill()
    until(lambda: len(client.sessions()) == 1)
    assert cupy.full(3 * MIB, 8, dtype="uint8").data.ptr == first

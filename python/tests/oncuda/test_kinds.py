"""Test the kinds of GPU memory: a client refuses an invalid export, and can still use CUDA after that.

`test_device` runs these tests on the simulated driver. On a machine with a GPU, pytest also runs them directly.
"""

from __future__ import annotations

import base64
import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pytest
from cuda.bindings import driver
from gates import ask

import poolbridge
from poolbridge._cuda import cuda as _cuda
from poolbridge._memory import kinds as _kinds
from poolbridge._memory.kind_legacy import LegacyPool
from poolbridge._memory.kind_vmm import VMMPool
from poolbridge._memory.kinds import PoolMemory
from poolbridge._wire.messages import PoolInfo
from poolbridge._wire.transport import Descriptors

MIB = 1 << 20
PACKAGE = Path(poolbridge.__file__).parents[1]
UUID = _cuda.devices()[0]["uuid"]
SIMULATED = "simulated" in _cuda.devices()[0]["name"]
T = TypeVar("T")

# This program allocates memory, and sends the memory's handle or the descriptor of the memory's pool. The program ends
# when its input ends.
OWNER = """
import ctypes, socket, sys
import numpy as np
from cuda.bindings import driver
from poolbridge._cuda import cuda as _cuda

handles = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

if sys.argv[1] == "legacy":
    memory = _cuda.Allocation(0, 2 << 20)
    _cuda.copy_from_host(0, memory.address, (np.arange(1 << 19) + 100).astype(np.float32))
    with _cuda.current(0):
        handle = driver.cuIpcGetMemHandle(memory.address)[1]
    print(ctypes.string_at(int(handle.getPtr()), 64).hex(), flush=True)
else:
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = handles
    places = driver.CUmemLocationType
    host = sys.argv[1] == "pinned"
    properties.location.type = places.CU_MEM_LOCATION_TYPE_HOST_NUMA if host else places.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    properties.maxSize = 64 << 20
    with _cuda.current(0):
        made = driver.cuMemPoolCreate(properties)[1]
        fd = int(driver.cuMemPoolExportToShareableHandle(made, handles, 0)[1])
    with socket.socket(fileno=int(sys.argv[2])) as sock:
        socket.send_fds(sock, [b"x"], [fd])
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def cuda_goes_on() -> Iterator[None]:
    yield
    memory = _cuda.Allocation(0, 64)
    _cuda.copy_from_host(0, memory.address, np.full(64, 3, np.uint8))
    out = np.empty(64, np.uint8)
    _cuda.copy_to_host(0, out, memory.address)
    assert (out == 3).all()


@contextmanager
def start(*arguments: str, fds: Sequence[int] = ()) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=fds,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
    ) as process:
        yield process
        if process.poll() is None:
            process.communicate(timeout=60)


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    with start("legacy") as process:
        yield process


@pytest.fixture(scope="module", params=["device", "pinned"])
def imported(request: pytest.FixtureRequest) -> Iterator[PoolMemory]:
    """Import the pool of another process."""
    kind = request.param
    ours, theirs = socket.socketpair()
    with ours, start(kind, str(theirs.fileno()), fds=[theirs.fileno()]):
        theirs.close()
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        memory = _kinds.load(kind).map_pool(pool(kind), b"", Descriptors(descriptors))
        yield memory
        memory.close()


def handle_of(process: subprocess.Popen[str]) -> poolbridge.LegacyHandle:
    assert process.stdout is not None
    return poolbridge.LegacyHandle.from_bytes(bytes.fromhex(process.stdout.readline()))


def vmm_descriptor(size: int) -> int:
    """Make and export physical memory, and return the descriptor. The process keeps no other handle of the memory."""
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    handles = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    properties.requestedHandleTypes = handles
    with _cuda.current(0):
        memory = ask("cuMemCreate", size, properties, 0)
        fd = int(ask("cuMemExportToShareableHandle", memory, handles, 0))
        ask("cuMemRelease", memory)
    return fd


def pool(kind: str, uuid: str = UUID) -> PoolInfo:
    return PoolInfo(id=1, name="p", kind=kind, device_uuid=uuid, max_bytes=64 * MIB)


def descriptor_of(path: str) -> Descriptors:
    return Descriptors([os.open(path, os.O_RDWR | os.O_CLOEXEC)])


# vmm


def test_a_vmm_block_has_two_mappings_and_one_cannot_be_written():
    with_two = VMMPool("vmm", 0).map_block(2 * MIB, b"", Descriptors([vmm_descriptor(2 * MIB)]))
    write, read = with_two.address(write=True), with_two.address(write=False)
    assert write != read
    assert with_two.address(write=True) == write
    _cuda.copy_from_host(0, write, np.full(16, 5, np.uint8))
    out = np.zeros(16, np.uint8)
    _cuda.copy_to_host(0, out, read)
    assert (out == 5).all()
    with pytest.raises(poolbridge.DriverError, match="INVALID_VALUE"):
        _cuda.copy_from_host(0, read, out)
    with_two.close()


def test_more_bytes_than_a_vmm_block_has_are_refused():
    block = VMMPool("vmm", 0).map_block(64 * MIB, b"", Descriptors([vmm_descriptor(2 * MIB)]))
    for write in (True, False):
        with pytest.raises(poolbridge.InvalidArgumentError, match="67108864 bytes"):
            block.address(write=write)
    block.close()


def test_a_descriptor_of_something_else_is_no_vmm_block():
    for descriptors in (descriptor_of("/dev/null"), Descriptors([os.memfd_create("x")])):
        with pytest.raises(poolbridge.InvalidArgumentError, match="no memory of a GPU"):
            VMMPool("vmm", 0).map_block(2 * MIB, b"", descriptors)
        assert len(descriptors) == 1, "another try may use it"
        descriptors.close()
    with pytest.raises(poolbridge.ProtocolError):
        VMMPool("vmm", 0).map_block(2 * MIB, b"", Descriptors())
    with pytest.raises(poolbridge.ProtocolError, match="no bytes"):
        VMMPool("vmm", 0).map_block(2 * MIB, bytes(64), Descriptors())


# device and pinned


@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_a_descriptor_of_something_else_is_no_pool(tmp_path, kind):
    file = tmp_path / "file"
    file.write_bytes(bytes(4096))
    for path in ("/dev/null", str(file)):
        descriptors = descriptor_of(path)
        with pytest.raises((poolbridge.InvalidArgumentError, poolbridge.DriverError)):
            _kinds.load(kind).map_pool(pool(kind), b"", descriptors)
        descriptors.close()


@pytest.mark.parametrize("length", [0, 63, 65])
def test_exports_of_another_length_are_no_block(imported, length):
    # A block of kind `device` that is in no CUDA memory pool comes with a descriptor and no bytes.
    lacks = "0 file descriptors" if imported.kind == "device" and not length else f"got {length}"
    with pytest.raises(poolbridge.ProtocolError, match=lacks):
        imported.map_block(2 * MIB, bytes(length), Descriptors())


def test_a_descriptor_of_something_else_is_no_block(imported, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(4096))
    descriptors = descriptor_of(str(file))
    with pytest.raises((poolbridge.InvalidArgumentError, poolbridge.ProtocolError)):
        imported.map_block(2 * MIB, b"", descriptors)
    descriptors.close()


def test_bytes_at_random_are_no_block(imported):
    for blob in (bytes(64), os.urandom(64)):
        with pytest.raises(poolbridge.InvalidArgumentError, match="no block"):
            imported.map_block(2 * MIB, blob, Descriptors())


# legacy


def test_a_legacy_handle_is_opened_changed_and_closed(owner):
    handle = handle_of(owner)
    with handle.open(shape=(1 << 19,), dtype="float32") as memory:
        assert (memory.to_numpy() == np.arange(1 << 19) + 100).all()
        with pytest.raises(BufferError, match=r"copy it by to_numpy\(\)"):
            np.from_dlpack(cast("Any", memory))  # the type stubs of NumPy do not accept this memory
        memory.copy_from(memory.to_numpy() * 2)
    assert memory.closed
    again = poolbridge.LegacyHandle.from_bytes(bytes(handle)).open(UUID)
    assert (again.nbytes, again.size, again.dtype.name) == (2 * MIB, 2 * MIB, "uint8")
    assert again.to_numpy().view(np.float32)[3] == 206
    with pytest.raises(BufferError):
        again.__dlpack__(copy=True)
    assert again.__dlpack_device__() == (2, 0)
    del again
    gc.collect()


def test_what_lies_outside_of_a_legacy_block_is_refused(owner):
    handle = handle_of(owner)
    for offset, shape in ((0, (4 * MIB,)), (2 * MIB, (1,)), (1, (2 * MIB,)), (2**63, (1,))):
        lie = poolbridge.LegacyHandle(handle.handle, offset)
        with pytest.raises(poolbridge.InvalidArgumentError, match="outside"):
            lie.open(shape=shape)
        with pytest.raises(poolbridge.InvalidArgumentError, match="outside"):
            LegacyPool("legacy", 0).map_block(shape[0], bytes(lie), Descriptors())


def test_the_handle_of_a_dead_owner_is_said_to_be_one(owner):
    handle = handle_of(owner)
    handle.open().close()
    owner.kill()
    owner.wait(60)
    with pytest.raises(poolbridge.OwnerDiedError, match="gone") as caught:
        handle.open()
    assert caught.value.code == "unavailable"


@contextmanager
def second_context(ordinal: int = 0) -> Iterator[int]:
    """Make a second context, in addition to the primary context, and make it current."""
    made = ask("cuCtxCreate", None, 0, ordinal)
    try:
        yield int(made)
    finally:
        ask("cuCtxDestroy", made)


def elsewhere(function: Callable[[], T]) -> T:
    """Call the function on another thread, which has no current context."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result(60)


def open_in_own(handle: poolbridge.LegacyHandle) -> poolbridge.OpenedMemory:
    return handle.open(shape=(1 << 19,), dtype="float32", own_context=True)


def test_a_legacy_handle_opens_in_a_second_context_where_it_is_not_open_in_the_primary_one(owner):
    handle = handle_of(owner)
    handle.open().close()  # from now on the primary context exists
    with second_context():
        memory = open_in_own(handle)
        assert memory.address
        with _cuda.current(0):  # `to_numpy` works with any current context
            assert (memory.to_numpy() == np.arange(1 << 19) + 100).all()
        doubled = memory.to_numpy() * 2
        elsewhere(lambda: memory.copy_from(doubled))
        assert elsewhere(memory.to_numpy)[3] == 206
        elsewhere(memory.close)
        assert memory.closed
        lie = poolbridge.LegacyHandle(handle.handle, 2 * MIB)
        with pytest.raises(poolbridge.InvalidArgumentError, match="outside"):
            lie.open(shape=(1,), own_context=True)
    assert handle.open().to_numpy().view(np.float32)[3] == 206


def test_all_that_is_done_with_opened_memory_is_done_in_its_context(owner, monkeypatch):
    handle = handle_of(owner)
    handle.open().close()
    call, seen = _cuda.call, []

    def spy(name, *arguments):
        if name in {"cuMemcpy", "cuCtxSynchronize", "cuIpcCloseMemHandle"}:
            seen.append((name, int(call("cuCtxGetCurrent"))))
        return call(name, *arguments)

    with second_context() as second:
        held = [open_in_own(handle)]
        monkeypatch.setattr(_cuda, "call", spy)
        elsewhere(lambda: held[0].copy_from(held[0].to_numpy()))
        elsewhere(held.clear)  # the finaliser closes the memory
        assert [context for _, context in seen] == [second] * len(seen)
        assert [name for name, _ in seen[-2:]] == ["cuCtxSynchronize", "cuIpcCloseMemHandle"]
        assert [name for name, _ in seen].count("cuMemcpy") == 2
        seen.clear()
        with handle.open() as memory:
            memory.to_numpy()
        assert second not in {context for _, context in seen}


def test_a_legacy_handle_that_is_open_in_the_primary_context_is_refused_clearly_in_a_second_one(owner):
    handle = handle_of(owner)
    opened = handle.open()
    with second_context():
        with pytest.raises(poolbridge.SecondContextError, match="primary") as caught:
            handle.open(own_context=True)
        assert caught.value.code == "unavailable"
        handle.open().close()  # the handle opens in the primary context, with any current context
        assert opened.to_numpy().view(np.float32)[3] == 103
        opened.close()
        handle.open(own_context=True).close()


def test_the_handle_of_a_dead_owner_is_said_to_be_one_in_a_second_context_too(owner):
    handle = handle_of(owner)
    owner.kill()
    owner.wait(60)
    with second_context(), pytest.raises(poolbridge.OwnerDiedError, match="gone"):
        handle.open(own_context=True)


def test_without_a_current_context_the_primary_one_is_meant(owner):
    handle = handle_of(owner)
    with handle.open() as memory, elsewhere(lambda: handle.open(own_context=True)) as again:
        assert memory.address == again.address  # both calls return the same mapping, as within one context


@pytest.mark.skipif(len(_cuda.devices()) < 2, reason="needs two GPUs")
def test_a_current_context_of_another_gpu_is_refused(owner):
    handle = handle_of(owner)
    with second_context(1), pytest.raises(poolbridge.InvalidArgumentError, match="GPU 1.*GPU 0"):
        handle.open(0, own_context=True)


@pytest.mark.skipif(not SIMULATED, reason="a real driver may not survive the handle of a context that is destroyed")
def test_with_its_context_gone_nothing_is_left_to_close(owner):
    handle = handle_of(owner)
    with second_context():
        memory = handle.open(own_context=True)
    memory.close()
    assert memory.closed


def test_a_handle_cannot_be_opened_by_its_owner():
    memory = _cuda.Allocation(0, 2 * MIB)
    with _cuda.current(0):
        boxed = ask("cuIpcGetMemHandle", memory.address)
    handle = poolbridge.LegacyHandle.from_bytes(ctypes.string_at(int(boxed.getPtr()), 64))
    with pytest.raises(poolbridge.UnavailableError, match="owns"):
        handle.open()


def test_bytes_at_random_are_no_legacy_handle():
    for data in (bytes(64), os.urandom(64), os.urandom(72)):
        with pytest.raises((poolbridge.InvalidArgumentError, poolbridge.OwnerDiedError)):
            poolbridge.LegacyHandle.from_bytes(data).open()


# All kinds


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned"])
def test_a_gpu_that_this_process_cannot_see_is_named(kind):
    elsewhere = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    descriptors = descriptor_of("/dev/null")
    with pytest.raises(poolbridge.DeviceNotVisibleError, match=elsewhere):
        _kinds.load(kind).map_pool(pool(kind, elsewhere), b"", descriptors)
    descriptors.close()


def test_a_saved_buffer_is_loaded_with_what_it_holds(tmp_path, owner):
    handle = handle_of(owner)
    saved = {
        "poolbridge": 1, "kind": "legacy", "device": UUID, "bytes": 400, "dtype": "float32", "shape": [99],
        "byte_offset": 4, "handle": base64.b64encode(bytes(handle)).decode(),
    }  # fmt: skip
    path = tmp_path / "frame.json"
    path.write_text(json.dumps(saved))
    with poolbridge.LegacyHandle.load(path).open() as memory:
        assert memory.to_numpy().tolist() == (np.arange(1, 100) + 100).tolist()

"""Tests the unmodified packages cuda-core and cuda-bindings on the simulated driver.

Each test starts one or two new Python processes, and does not fork. Two processes are an owner and a user of memory,
which exchange descriptors over a Unix socket. Run the tests with any Python that has both packages and pytest. The
tests need the built library (``make -C tests/simcuda``) and no GPU.
"""

import importlib.util
import json
import mmap
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = pathlib.Path(os.environ.get("SIMCUDA_DIR", HERE.parents[1] / "build" / "simcuda"))
MIB = 1 << 20


# ---- the processes: functions owner_* and user_*, each with its end of a socket, and functions alone_* ----


def call(result):
    """Return the values in `result`, which a call of cuda.bindings has returned; or raise the error in it."""
    from cuda.bindings import driver

    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error.name)
    return values[0] if len(values) == 1 else tuple(values)


def device(ordinal=0):
    from cuda.core import Device

    dev = Device(ordinal)
    dev.set_current()
    return dev, dev.create_stream()


def close(stream, buffer, pool):
    """Free a buffer and close its pool in the right order. A user must do this before the owner frees the memory."""
    buffer.close(stream)
    stream.sync()
    pool.close()


def read(address, size):
    from cuda.bindings import driver

    data = bytearray(size)
    call(driver.cuMemcpyDtoH(data, int(address), size))
    return bytes(data)


def payload_of(descriptor):
    return descriptor.__reduce__()[1][0]


def make_pool(dev, size=64 * MIB):
    from cuda.core import DeviceMemoryResource, DeviceMemoryResourceOptions

    return DeviceMemoryResource(dev, DeviceMemoryResourceOptions(ipc_enabled=True, max_size=size))


def open_buffer(dev, stream, message, fds):
    from cuda.core import Buffer, DeviceMemoryResource
    from cuda.core._memory._ipc import IPCBufferDescriptor

    pool = DeviceMemoryResource.from_allocation_handle(dev, fds[0])
    os.close(fds[0])
    descriptor = IPCBufferDescriptor._init(message[:64], struct.unpack("<Q", message[64:72])[0])
    return pool, Buffer.from_ipc_descriptor(pool, descriptor, stream=stream)


def offer(sock, pool, buffer, extra=()):
    message = payload_of(buffer.ipc_descriptor) + struct.pack("<Q", buffer.size)
    socket.send_fds(sock, [message], [int(pool.allocation_handle), *extra])


def owner_buffer(sock):
    dev, stream = device()
    assert dev.name == "simulated GPU 0"
    pool = make_pool(dev)
    buffer = pool.allocate(MIB, stream=stream)
    buffer.fill(7, stream=stream)
    stream.sync()
    assert not buffer.is_mapped
    offer(sock, pool, buffer)
    assert sock.recv(16) == b"written"
    assert read(buffer.handle, MIB) == b"\x09" * MIB
    sock.send(b"seen")
    assert sock.recv(16) == b"closed"
    buffer.close(stream)
    stream.sync()
    assert pool.attributes.used_mem_current == 0
    pool.close()


def user_buffer(sock):
    dev, stream = device()
    message, fds, _, _ = socket.recv_fds(sock, 128, 4)
    pool, buffer = open_buffer(dev, stream, message, fds)
    assert buffer.is_mapped
    assert pool.is_mapped
    assert buffer.size == MIB
    assert read(buffer.handle, MIB) == b"\x07" * MIB
    own = dev.allocate(MIB, stream=stream)
    own.fill(9, stream=stream)
    buffer.copy_from(own, stream=stream)
    stream.sync()
    sock.send(b"written")
    assert sock.recv(16) == b"seen"
    own.close(stream)
    close(stream, buffer, pool)
    sock.send(b"closed")


def register(fd, prot):
    """Register a page of a memfd with the driver; return the page, its address on the device and its address."""
    import ctypes

    from cuda.bindings import driver

    page = mmap.mmap(fd, 4096, mmap.MAP_SHARED, prot)
    if prot & mmap.PROT_WRITE:
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    else:  # NumPy takes a read-only buffer, ctypes does not
        import numpy as np

        address = np.frombuffer(page, dtype=np.uint8).ctypes.data
    flags = driver.CU_MEMHOSTREGISTER_DEVICEMAP
    if not prot & mmap.PROT_WRITE:
        flags |= driver.CU_MEMHOSTREGISTER_READ_ONLY
    call(driver.cuMemHostRegister(address, 4096, flags))
    return page, int(call(driver.cuMemHostGetDevicePointer(address, 0))), address


def owner_words(sock):
    from cuda.bindings import driver

    dev, stream = device()
    pool = make_pool(dev)
    buffer = pool.allocate(4096, stream=stream)
    fd = os.memfd_create("words")
    os.ftruncate(fd, 4096)
    page, word, _ = register(fd, mmap.PROT_READ | mmap.PROT_WRITE)
    offer(sock, pool, buffer, [fd])
    assert sock.recv(16) == b"waiting"
    buffer.fill(42, stream=stream)
    call(driver.cuStreamWriteValue64(stream.handle, word, 5, 0))
    assert sock.recv(16) == b"done"
    assert struct.unpack_from("<Q", page)[0] == 5
    close(stream, buffer, pool)


def user_words(sock):
    from cuda.bindings import driver

    dev, stream = device()
    message, fds, _, _ = socket.recv_fds(sock, 128, 4)
    pool, buffer = open_buffer(dev, stream, message, fds)
    _page, word, _ = register(fds[1], mmap.PROT_READ)
    own = dev.allocate(4096, stream=stream)
    call(driver.cuStreamWaitValue64(stream.handle, word, 5, driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ))
    own.copy_from(buffer, stream=stream)
    assert driver.cuStreamQuery(stream.handle)[0] == driver.CUresult.CUDA_ERROR_NOT_READY
    sock.send(b"waiting")
    stream.sync()
    assert read(own.handle, 4096) == b"\x2a" * 4096
    close(stream, buffer, pool)
    sock.send(b"done")


def owner_event(sock):
    from cuda.core import EventOptions

    _, stream = device()
    event = stream.record(options=EventOptions(ipc_enabled=True))
    sock.send(event.ipc_descriptor.__reduce__()[1][0])
    assert sock.recv(16) == b"waited"
    stream.sync()


def user_event(sock):
    from cuda.core import Event
    from cuda.core._event import IPCEventDescriptor

    _, stream = device()
    event = Event.from_ipc_descriptor(IPCEventDescriptor._init(sock.recv(64), False))
    stream.wait(event)
    stream.sync()
    assert event.is_done
    sock.send(b"waited")


def owner_killed(sock):
    dev, stream = device()
    pool = make_pool(dev)
    buffer = pool.allocate(MIB, stream=stream)
    buffer.fill(3, stream=stream)
    stream.sync()
    offer(sock, pool, buffer)
    sock.recv(16)
    os.kill(os.getpid(), signal.SIGKILL)


def user_killed(sock):
    dev, stream = device()
    message, fds, _, _ = socket.recv_fds(sock, 128, 4)
    pool, buffer = open_buffer(dev, stream, message, fds)
    sock.send(b"die")
    assert sock.recv(16) == b""  # the owner is gone
    assert read(buffer.handle, MIB) == b"\x03" * MIB
    buffer.fill(4, stream=stream)
    stream.sync()
    assert read(buffer.handle, 8) == b"\x04" * 8
    close(stream, buffer, pool)


def owner_virtual(sock):
    from cuda.bindings import driver

    device()
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = 0
    prop.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    size = call(driver.cuMemGetAllocationGranularity(prop, driver.CUmemAllocationGranularity_flags(0)))
    handle = call(driver.cuMemCreate(size, prop, 0))
    address = call(driver.cuMemAddressReserve(size, 0, 0, 0))
    call(driver.cuMemMap(address, size, 0, handle, 0))
    call(driver.cuMemSetAccess(address, size, [access(3)], 1))
    call(driver.cuMemsetD32(address, 0xDEADBEEF, size // 4))
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    fd = call(driver.cuMemExportToShareableHandle(handle, kind, 0))
    call(driver.cuCtxSynchronize())
    socket.send_fds(sock, [struct.pack("<Q", size)], [fd])
    os.close(fd)
    assert sock.recv(16) == b"read"
    call(driver.cuMemUnmap(address, size))
    call(driver.cuMemRelease(handle))
    call(driver.cuMemAddressFree(address, size))


def access(flags):
    from cuda.bindings import driver

    desc = driver.CUmemAccessDesc()
    desc.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    desc.location.id = 0
    desc.flags = driver.CUmemAccess_flags(flags)
    return desc


def user_virtual(sock):
    from cuda.bindings import driver

    device()
    message, fds, _, _ = socket.recv_fds(sock, 8, 1)
    size = struct.unpack("<Q", message)[0]
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handle = call(driver.cuMemImportFromShareableHandle(fds[0], kind))
    os.close(fds[0])
    address = call(driver.cuMemAddressReserve(size, 0, 0, 0))
    call(driver.cuMemMap(address, size, 0, handle, 0))
    call(driver.cuMemSetAccess(address, size, [access(1)], 1))
    assert read(address, size) == b"\xef\xbe\xad\xde" * (size // 4)
    assert driver.cuMemsetD32(address, 0, 1)[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE
    call(driver.cuMemUnmap(address, size))
    call(driver.cuMemRelease(handle))
    call(driver.cuMemAddressFree(address, size))
    sock.send(b"read")


def owner_pinned(sock):
    from cuda.core import PinnedMemoryResource, PinnedMemoryResourceOptions

    _, stream = device()
    pool = PinnedMemoryResource(PinnedMemoryResourceOptions(ipc_enabled=True, max_size=32 * MIB))
    buffer = pool.allocate(4096, stream=stream)
    grant(pool)
    buffer.fill(5, stream=stream)
    stream.sync()
    assert buffer.is_host_accessible
    assert buffer.is_device_accessible
    assert bytes_at(buffer.handle, 8) == b"\x05" * 8
    offer(sock, pool, buffer)
    assert sock.recv(16) == b"done"
    assert bytes_at(buffer.handle, 8) == b"\x06" * 8
    close(stream, buffer, pool)


def grant(pool):
    """Give device 0 access to a pool in host memory. Without this call, neither the owner nor the user has access."""
    from cuda.bindings import driver

    call(driver.cuMemPoolSetAccess(pool.handle, [access(3)], 1))


def bytes_at(address, size):
    import ctypes

    return ctypes.string_at(int(address), size)


def user_pinned(sock):
    from cuda.core import Buffer, PinnedMemoryResource
    from cuda.core._memory._ipc import IPCBufferDescriptor

    _, stream = device()
    message, fds, _, _ = socket.recv_fds(sock, 128, 4)
    pool = PinnedMemoryResource.from_allocation_handle(fds[0])
    os.close(fds[0])
    descriptor = IPCBufferDescriptor._init(message[:64], struct.unpack("<Q", message[64:72])[0])
    buffer = Buffer.from_ipc_descriptor(pool, descriptor, stream=stream)
    assert bytes_at(buffer.handle, 8) == b"\x05" * 8
    grant(pool)
    buffer.fill(6, stream=stream)
    close(stream, buffer, pool)
    sock.send(b"done")


def alone_copies(sock):
    import numpy as np
    from cuda.core import LegacyPinnedMemoryResource
    from cuda.core.utils import StridedMemoryView

    dev, stream = device()
    host = LegacyPinnedMemoryResource().allocate(1024, stream=stream)
    a = dev.allocate(1024, stream=stream)
    b = dev.allocate(1024, stream=stream)
    host.fill(b"\x01\x02\x03\x04", stream=stream)
    a.copy_from(host, stream=stream)
    a.copy_to(b, stream=stream)
    stream.sync()
    assert read(b.handle, 1024) == b"\x01\x02\x03\x04" * 256
    assert b.__dlpack_device__() == (2, 0)
    view = StridedMemoryView.from_buffer(b, shape=(16, 16), dtype=np.dtype("float32"))
    assert (view.shape, view.device_id, view.ptr) == ((16, 16), 0, int(b.handle))
    events = [dev.create_event({"timing_enabled": True}) for _ in range(2)]
    stream.record(events[0])
    stream.record(events[1])
    stream.sync()
    assert events[1] - events[0] >= 0
    other = dev.create_stream()
    other.wait(events[1])
    other.sync()


PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry poolbridge_fill_u32_xor(.param .u64 out, .param .u64 n, .param .u32 multiply, .param .u32 add,
                                        .param .u32 mask) { ret; }
"""


def alone_kernel(sock):
    import numpy as np
    from cuda.core import LaunchConfig, ObjectCode, launch

    dev, stream = device()
    n = 1000
    buffer = dev.allocate(4 * n, stream=stream)
    kernel = ObjectCode.from_ptx(PTX).get_kernel("poolbridge_fill_u32_xor")
    args = [np.uint64(n), np.uint32(2), np.uint32(1337), np.uint32(0xDEADBEEF)]
    launch(stream, LaunchConfig(grid=8, block=128), kernel, buffer, *args)
    stream.sync()
    i = np.arange(n, dtype=np.uint32)
    expected = (2 * i + 1337) ^ np.uint32(0xDEADBEEF)
    assert (np.frombuffer(read(buffer.handle, 4 * n), dtype=np.uint32) == expected).all()


def alone_host_pool(sock):
    """Test that copies to memory of a host pool work even if no device has access to the pool."""
    from cuda.core import PinnedMemoryResource

    dev, stream = device()
    assert dev.properties.host_memory_pools_supported
    pool = PinnedMemoryResource()
    buffer, other = pool.allocate(MIB, stream=stream), dev.allocate(MIB, stream=stream)
    other.fill(5, stream=stream)
    buffer.copy_from(other, stream=stream)
    stream.sync()
    assert memoryview(as_array(buffer))[-1] == 5
    other.close(stream)
    buffer.close(stream)


def as_array(buffer):
    import numpy as np

    return np.from_dlpack(buffer)


def alone_fault(sock):
    from cuda.core._utils.cuda_utils import CUDAError

    dev, stream = device()
    pool = make_pool(dev)
    buffer = pool.allocate(4096, stream=stream)
    try:
        pool.allocate(4096, stream=stream)
    except CUDAError as error:
        told = str(error)
    else:
        told = "nothing"
    assert "OUT_OF_MEMORY" in told
    close(stream, buffer, pool)


def alone_exit(sock):
    """Exit while a stream waits for a word that no process writes."""
    from cuda.bindings import driver

    _, stream = device()
    fd = os.memfd_create("words")
    os.ftruncate(fd, 4096)
    globals()["kept"] = register(fd, mmap.PROT_READ | mmap.PROT_WRITE), stream
    call(driver.cuStreamWaitValue64(stream.handle, globals()["kept"][0][1], 1, 0))


def child_of_multiprocessing(queue, back):
    _, stream = device()
    buffer = queue.get(timeout=60)
    back.put(read(buffer.handle, 4))
    buffer.fill(8, stream=stream)
    stream.sync()
    buffer.close(stream)
    back.put("done")


def alone_multiprocessing(sock):
    import multiprocessing

    dev, stream = device()
    pool = make_pool(dev)
    context = multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=child_of_multiprocessing, args=(queue, back))
    buffer = pool.allocate(4096, stream=stream)
    buffer.fill(6, stream=stream)
    stream.sync()
    child.start()
    queue.put(buffer)
    assert back.get(timeout=60) == b"\x06" * 4
    assert back.get(timeout=60) == "done"
    child.join()
    assert child.exitcode == 0
    assert read(buffer.handle, 4) == b"\x08" * 4
    close(stream, buffer, pool)


# ---- the tests ----


def start(role, env, sock=None):
    command = [sys.executable, str(HERE / "test_cuda_core.py"), role, str(sock.fileno() if sock else -1)]
    return subprocess.Popen(
        command, env=env, pass_fds=[sock.fileno()] if sock else [], stderr=subprocess.PIPE, text=True
    )


def environment(folder, **more):
    env = dict(os.environ, **more)
    env["LD_LIBRARY_PATH"] = str(LIBRARY)
    env["SIMCUDA_MISUSE"] = str(folder / "misuse")
    env["SIMCUDA_COUNTS"] = str(folder)
    env["SIMCUDA_MACHINE"] = f"test{os.getpid()}"
    return env


def misuse(folder):
    """Return the detector's reports. Leave out leaks, because cuda.core does not free its context before the exit."""
    path = folder / "misuse"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if "kind=leak" not in line and "kind=forgotten-fd" not in line]


def run_pair(folder, what, killed=False):
    env = environment(folder)
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    processes = [start(f"{role}_{what}", env, end) for role, end in zip(("owner", "user"), ends, strict=True)]
    for end in ends:
        end.close()
    for process, role in zip(processes, ("owner", "user"), strict=True):
        _, errors = process.communicate(timeout=120)
        wanted = -signal.SIGKILL if killed and role == "owner" else 0
        assert process.returncode == wanted, f"{role}: {errors}"
    assert misuse(folder) == []


def run_alone(folder, what, **more):
    process = start(f"alone_{what}", environment(folder, **more))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert misuse(folder) == []


def test_a_buffer_of_a_pool_goes_to_another_process_and_back(tmp_path):
    run_pair(tmp_path, "buffer")


def test_a_stream_waits_for_a_word_of_another_process(tmp_path):
    run_pair(tmp_path, "words")


def test_an_event_of_another_process(tmp_path):
    run_pair(tmp_path, "event")


def test_the_death_of_the_owner_loses_nothing(tmp_path):
    run_pair(tmp_path, "killed", killed=True)


def test_virtual_memory_is_read_only_where_it_is_mapped_so(tmp_path):
    run_pair(tmp_path, "virtual")


def test_pinned_memory_is_shared(tmp_path):
    run_pair(tmp_path, "pinned")


def test_copies_views_and_events(tmp_path):
    run_alone(tmp_path, "copies")


def test_a_pool_of_the_host_is_there(tmp_path):
    run_alone(tmp_path, "host_pool")


def test_a_pattern_kernel_runs(tmp_path):
    run_alone(tmp_path, "kernel")


def test_a_fault_reaches_the_program(tmp_path):
    run_alone(tmp_path, "fault", SIMCUDA_FAULTS="call=cuMemAllocFromPoolAsync nth=2 error=OUT_OF_MEMORY")


def test_buffers_travel_through_multiprocessing(tmp_path):
    run_alone(tmp_path, "multiprocessing")


def test_a_process_exits_although_a_stream_waits(tmp_path):
    before = time.monotonic()
    run_alone(tmp_path, "exit")
    assert time.monotonic() - before < 30


def test_calls_are_counted_by_process(tmp_path):
    run_alone(tmp_path, "copies")
    counts = {}
    for path in tmp_path.glob("*.counts"):
        counts.update(read_counts(path))
    assert counts["cuMemAllocAsync"] + counts["cuMemAllocFromPoolAsync"] == 2
    assert counts["*"] > 50, json.dumps(counts)


def read_counts(path):
    data = path.read_bytes()
    magic, version, entries = struct.unpack_from("<8sII", data)
    assert (magic, version) == (b"SIMCOUNT", 1)
    found = {}
    for i in range(entries):
        name, value = struct.unpack_from("<48sq", data, 64 + 64 * i)
        found[name.rstrip(b"\0").decode()] = value
    return found


def pytest_reason():
    if not (LIBRARY / "libcuda.so.1").exists():
        return f"{LIBRARY}/libcuda.so.1 is not built: make -C tests/simcuda"
    for package in ("cuda.bindings", "cuda.core"):
        try:
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed"
        except ModuleNotFoundError:
            return f"{package} is not installed"
    return None


if __name__ == "__main__":
    fd = int(sys.argv[2])
    globals()[sys.argv[1]](socket.socket(fileno=fd) if fd >= 0 else None)
else:
    import pytest

    pytestmark = pytest.mark.skipif(pytest_reason() is not None, reason=str(pytest_reason()))

"""Test leases of kind ``device``: how clients import the memory, make arrays of it, and copy it.

`test_device` runs these tests on the simulated driver. On a machine with a GPU, pytest also runs them directly.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rig import ENVIRONMENT
from test_arrays import look

import poolbridge
from poolbridge._cuda import cuda as _cuda, pools as _pools
from poolbridge._memory import arrow as _arrow, dlpack as _dlpack
from poolbridge._memory.mappings import MAPPINGS

DEVICES = _cuda.devices()


@pytest.fixture(scope="module")
def device_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    script = str(Path(__file__).with_name("deviceservice.py"))
    first = str(tmp_path_factory.mktemp("first") / "d.sock")
    with subprocess.Popen(
        [sys.executable, script, first], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.communicate(timeout=60)


@pytest.fixture
def device_service(device_process: subprocess.Popen[str], tmp_path: Path) -> str:
    """Start a service for one test, and give the path of its socket."""
    path = str(tmp_path / "d.sock")
    assert device_process.stdin is not None
    assert device_process.stdout is not None
    device_process.stdin.write(f"{path}\n")
    device_process.stdin.flush()
    assert device_process.stdout.readline() == "ready\n"
    return path


@pytest.fixture
def client(device_service: str) -> Iterator[poolbridge.Client]:
    with poolbridge.connect(device_service, timeout=60) as connected:
        connected.create_pool("gpu", kind="device", max_bytes=64 << 20)
        yield connected


def test_an_arena_for_numpy_takes_no_memory_of_a_gpu(client, device_service):
    async def of_asyncio() -> None:
        async with await poolbridge.connect_async(device_service) as aclient:
            await aclient.arena(4096, pool="gpu")

    for make in (lambda: client.empty(4, pool="gpu"), lambda: asyncio.run(of_asyncio())):
        with pytest.raises(poolbridge.InvalidArgumentError, match="'gpu' is memory of a GPU"):
            make()
    assert (client.stats().leases, client.stats().pools[0].reserved) == (0, 0)


def test_a_buffer_is_another_processs_memory(client):
    lease = client.allocate((4, 8), "float32")
    assert (lease.device, lease.kind, lease.__dlpack_device__()) == ("cuda:0", "device", (2, 0))
    lease.copy_from(np.arange(32).reshape(4, 8))
    evidence = lease._evidence()
    assert evidence["mapped"]
    assert evidence["route"] == "cuda.core"
    assert evidence["ordinal"] == 0
    lease.publish("x")
    assert client.get("x").to_numpy().tolist() == np.arange(32).reshape(4, 8).tolist()


def test_a_worker_process_reads_and_writes_it(device_service, client):
    lease = client.allocate(1000, "float32")
    lease.copy_from(np.arange(1000) + 100)
    lease.publish("x", keep=True)
    lease.release()
    code = f"""
import numpy, poolbridge
with poolbridge.connect({device_service!r}) as client:
    with client.get("x", write=True) as lease:
        assert (lease.to_numpy() == numpy.arange(1000) + 100).all()
        lease.copy_from(-numpy.arange(1000))
"""
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=ENVIRONMENT,
        check=True,
        timeout=60,
    )
    assert (client.get("x").to_numpy() == -np.arange(1000)).all()


def test_capsules_say_where_the_memory_is(client):
    lease = client.allocate((2, 3), "int16")
    pointer = lease._evidence()["pointer"]
    for stream in (None, 1, 2, -1, 12345678):
        seen = look(lease.__dlpack__(stream=stream, max_version=(1, 0)))
        assert (seen.device, seen.data, seen.shape, seen.strides) == ((2, 0), pointer, [2, 3], [3, 1])
        assert (seen.version, seen.flags) == ((1, 0), 0)
    assert look(lease.__dlpack__(dl_device=(2, 0), copy=False)).device == (2, 0)
    assert look(client.allocate(3, "bfloat16").__dlpack__()).dtype == (4, 16, 1)
    assert look(client.allocate(3, "bool").__dlpack__()).dtype == (6, 8, 1)
    for stream in (0, -2):
        with pytest.raises(ValueError, match="stream"):
            lease.__dlpack__(stream=stream)
    with pytest.raises(BufferError):
        lease.__dlpack__(dl_device=(2, 7))


def test_arrow_gets_memory_of_the_gpu_when_its_content_is_complete(client, monkeypatch):
    lease = client.allocate(5, "float32")
    with pytest.raises(BufferError, match=r"cuda:0 cannot be an Arrow array of the CPU: copy it by lease\.to_numpy"):
        lease.__arrow_c_array__()
    state = lease._lease_state
    waits = []
    monkeypatch.setattr(state.memory, "synchronize", lambda: waits.append(state.streams))
    capsules = lease.__arrow_c_device_array__()
    seen = _arrow._Array.from_address(_dlpack.pointer(capsules[1], b"arrow_device_array"))
    assert (seen.device_type, seen.device_id, seen.sync_event) == (2, 0, None)
    assert (seen.length, seen.buffers[0], seen.buffers[1]) == (5, None, lease._evidence()["pointer"])
    assert (waits, state.unordered) == ([], True)
    del capsules
    lease.__dlpack__(stream=2)
    lease.__arrow_c_device_array__()
    assert len(waits) == 1
    monkeypatch.undo()
    lease.release()


def test_read_only_is_said(client):
    client.allocate(4).publish("x")
    lease = client.get("x")
    assert look(lease.__dlpack__(max_version=(1, 1))).flags == 1
    with pytest.raises(BufferError, match="legacy"):
        lease.__dlpack__(stream=1)
    assert look(lease.view(legacy=True).__dlpack__(stream=1)).version is None
    assert lease.view().__cuda_array_interface__["data"][1] is True


def test_copies_to_the_cpu_and_on_the_device(client):
    lease = client.allocate(4, "int32")
    lease.copy_from([1, 2, 3, 4])
    assert np.from_dlpack(lease, device="cpu").tolist() == [1, 2, 3, 4]
    assert np.from_dlpack(lease, device="cpu", copy=True).tolist() == [1, 2, 3, 4]
    with pytest.raises(BufferError, match="copy=False"):
        np.from_dlpack(lease, device="cpu", copy=False)
    seen = look(lease.__dlpack__(max_version=(1, 0), copy=True))
    assert (seen.device, seen.flags) == ((2, 0), 2)
    assert seen.data is not None
    assert seen.data != lease._evidence()["pointer"]
    out = np.empty(4, np.int32)
    _cuda.copy_to_host(0, out, seen.data)
    assert out.tolist() == [1, 2, 3, 4]
    assert lease.array_count == 0
    with pytest.raises(TypeError, match="cuda:0"):
        np.asarray(lease)
    with pytest.raises(TypeError, match="cuda:0"):
        lease.memoryview()


def test_bfloat16(client):
    lease = client.allocate(3, "bfloat16")
    lease.copy_from([1.5, -2.0, 0.0])
    assert lease.to_numpy().tolist() == [1.5, -2.0, 0.0]
    for exporter in (lease, lease.view()):
        with pytest.raises(poolbridge.UnsupportedError, match="bfloat16: use DLPack"):
            _ = exporter.__cuda_array_interface__
    seen = look(lease.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert (seen.device, seen.dtype, seen.flags) == ((1, 0), (4, 16, 1), 2)


def test_pairs_of_4_bit_floats(client):
    lease = client.allocate((2, 2), "float4_e2m1fn_x2")
    bits = lease.view(dtype="uint8")
    bits.copy_from(np.array([[0x10, 0x32], [0x54, 0x76]], np.uint8))
    assert bits.to_numpy().tolist() == [[0x10, 0x32], [0x54, 0x76]]
    assert bits.__cuda_array_interface__["typestr"] == "|u1"
    with pytest.raises(poolbridge.UnsupportedError, match=r'float4_e2m1fn_x2: use DLPack, or .*view\(dtype="uint8"\)'):
        _ = lease.__cuda_array_interface__
    seen = look(lease.__dlpack__(max_version=(1, 0)))
    assert (seen.device, seen.dtype, seen.data) == ((2, 0), (17, 4, 2), look(bits.__dlpack__()).data)
    with client.put(bits.view(dtype=lease.dtype_name), "pairs") as copy:  # by the GPU
        assert (copy.dtype_name, copy.view(dtype="uint8").to_numpy().tolist()) == (
            lease.dtype_name,
            bits.to_numpy().tolist(),
        )


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_small_shapes(client, shape):
    lease = client.allocate(shape, "float64")
    lease.copy_from(np.full(shape, 2.5))
    assert lease.to_numpy().tolist() == np.full(shape, 2.5).tolist()
    interface = lease.view().__cuda_array_interface__
    assert (interface["data"][0] == 0) == (lease.size == 0)


def test_the_cuda_array_interface(client):
    lease = client.allocate((2, 3), "float32")
    view = lease.view()
    assert view.__cuda_array_interface__ == {
        "version": 3,
        "shape": (2, 3),
        "typestr": "<f4",
        "strides": None,
        "data": (lease._evidence()["pointer"], False),
        "stream": None,
    }
    assert not hasattr(view, "__array_interface__")
    del view
    assert lease.__cuda_array_interface__["shape"] == (2, 3)
    with pytest.raises(poolbridge.LeaseInUseError, match="force=True"):
        lease.release()
    lease.release(force=True)


def test_cuda_core_takes_it(client):
    from cuda.core.utils import StridedMemoryView

    lease = client.allocate((2, 3), "float32")
    view = StridedMemoryView.from_dlpack(lease, stream_ptr=1)
    assert (view.ptr, view.shape, view.device_id, view.readonly) == (lease._evidence()["pointer"], (2, 3), 0, False)
    assert lease.array_count == 1
    other = client.allocate((2, 3), "float32")
    lease.copy_from(np.arange(6).reshape(2, 3))
    other.copy_from(view)
    other.copy_from(lease)
    other.copy_from(lease.view())
    assert other.to_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    wide = client.allocate((2, 3), "float64")
    wide.copy_from(lease)
    assert wide.to_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    del view
    assert lease.array_count == 0


def test_host_and_device_copy_into_each_other(client):
    client.create_pool("cpu", max_bytes=1 << 20)
    host = client.allocate(5, "int64", pool="cpu")
    device = client.allocate(5, "int64")
    host.copy_from([1, 2, 3, 4, 5])
    device.copy_from(host)
    host.copy_from(0)
    host.copy_from(device)
    assert host.to_numpy().tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("target", ["gpu", "cpu"])
@pytest.mark.parametrize("source", ["gpu", "cpu"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_bfloat16_is_copied_by_its_values(client, source, target, dtype):
    client.create_pool("cpu", max_bytes=1 << 20)
    numbers = client.allocate(3, "bfloat16", pool=source)
    numbers.copy_from([1.5, -2.0, 3.0])
    copy = client.allocate(3, dtype, pool=target)
    copy.copy_from(numbers)
    assert copy.to_numpy().tolist() == [1.5, -2.0, 3.0]


def test_a_lease_that_was_copied_can_be_released(client):
    client.create_pool("cpu", max_bytes=1 << 20)
    lease = client.allocate(3, "int32")
    lease.copy_from([1, 2, 3])
    client.allocate(3, "int32", pool="cpu").copy_from(lease)
    client.allocate(3, "int32").copy_from(lease)
    lease.release()


def test_one_import_however_many_clients_and_threads(device_service, client):
    client.allocate(16).publish("x", keep=True)
    before = dict(MAPPINGS.imports)
    found = []

    def work() -> None:
        with poolbridge.connect(device_service) as other:
            leases = [other.get("x") for _ in range(3)]
            found.append({lease._evidence()["pointer"] for lease in leases})

    threads = [threading.Thread(target=work) for _ in range(8)]
    keep = client.get("x")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert MAPPINGS.imports["blocks"] == before["blocks"]
    assert found == [{keep._evidence()["pointer"]}] * 8
    assert keep.to_numpy().shape == (16,)


def test_a_recalled_block_is_unmapped_and_imported_again(client):
    lease = client.allocate(16)
    lease.copy_from(1)
    lease.release()
    before = MAPPINGS.imports["blocks"]
    assert client.trim() > 0
    while client._session.core.blocks:
        client.stats()
    again = client.allocate(16)
    assert MAPPINGS.imports["blocks"] == before + 1
    again.copy_from(3)
    assert again.to_numpy()[0] == 3


def test_dropping_the_last_array_releases(client):
    capsule = client.allocate(16).__dlpack__(max_version=(1, 0))
    client.stats()
    gc.collect()
    assert client.stats().leases == 1
    del capsule
    while client.stats().leases:
        pass


def test_the_callers_context_stays_as_it_was(client):
    from cuda.bindings import driver

    def current() -> int:
        result, context = driver.cuCtxGetCurrent()
        assert result == driver.CUresult.CUDA_SUCCESS
        return int(context)

    def work() -> None:
        lease = client.allocate(16)
        lease.copy_from(1)
        lease.to_numpy()
        lease.__dlpack__(copy=True)
        seen.append(current())

    seen: list[int] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0]


def test_the_public_route_leads_to_the_same_memory(device_service, client, monkeypatch):
    monkeypatch.setattr(_pools, "_core_descriptors", lambda: None)
    with poolbridge.connect(device_service) as other:
        other.create_pool("second", kind="device", max_bytes=1 << 20)
        lease = other.allocate(16, "float32")
        assert lease._evidence()["route"] == "driver"
        assert lease._evidence()["mapped"]
        lease.copy_from(np.arange(16))
        lease.publish("y", keep=True)
    monkeypatch.undo()
    assert client.get("y").to_numpy().tolist() == list(range(16))


@pytest.mark.skipif(len(DEVICES) < 2, reason="needs two GPUs")
def test_a_gpu_is_found_by_its_uuid(device_service, client):
    client.create_pool("second", kind="device", device=1, max_bytes=1 << 20)
    lease = client.allocate(16, pool="second")
    assert lease.device == "cuda:1"
    lease.copy_from(np.arange(16))
    lease.publish("y", keep=True)
    code = f"""
import numpy, poolbridge
with poolbridge.connect({device_service!r}) as client:
    lease = client.get("y")
    assert lease.device == "cuda:0", lease.device
    assert (lease.to_numpy() == numpy.arange(16)).all()
    lease.release()
    client.create_pool("first", kind="device", max_bytes=1 << 20)
    try:
        client.allocate(1, pool="first")
    except poolbridge.DeviceNotVisibleError as error:
        assert {DEVICES[0]["uuid"]!r} in str(error) and "CUDA_VISIBLE_DEVICES" in str(error)
    else:
        raise AssertionError("it was visible")
    assert client.stats().leases == 1
"""
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": "1"},
        check=True,
        timeout=60,
    )

"""Tests consumers on one GPU that read memory of another GPU.

`test_device` runs these tests on the simulated driver. On a machine with two GPUs, pytest also runs them directly.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from types import SimpleNamespace

import kernels
import numpy as np
import pytest
from cuda.core.utils import StridedMemoryView
from gates import fill, finish, idle, read, waits_until
from rig import ENVIRONMENT, HERE, POOLSVC, N, address, gate, has_poolsvc, use

import poolbridge
from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._cuda.cuda import call, current
from poolbridge._memory import dlpack as _dlpack

__all__ = ["gate"]  # a fixture

DEVICES = _cuda.devices()
WORDS = N // 4
PATTERN = kernels.masked(WORDS).values().view(np.uint8)
KINDS = ("device", "vmm", "legacy", "pinned")
SIMULATED = "simulated" in DEVICES[0]["name"]

pytestmark = [
    pytest.mark.skipif(len(DEVICES) < 2, reason="there is only one GPU"),
    pytest.mark.skipif(not has_poolsvc(), reason="poolsvc is not built, and the small service has one kind of memory"),
]
with_peers = pytest.mark.skipif(
    len(DEVICES) > 1 and not _cuda.can_access_peer(1, 0), reason="these GPUs do not reach each other's memory"
)


@pytest.fixture
def service(tmp_path) -> Iterator[str]:
    path = str(tmp_path / "run" / "d.sock")
    pools = [text for kind in KINDS for text in ("--pool", f"name={kind},kind={kind},max=64MiB")]
    with subprocess.Popen([POOLSVC, "serve", "--socket", path, *pools], env=ENVIRONMENT) as process:
        yield path
        process.terminate()


@pytest.fixture
def client(service: str) -> Iterator[poolbridge.Client]:
    with poolbridge.connect(service, timeout=60, wait=60) as connected:
        yield connected


def stream_on(ordinal: int) -> int:
    with current(ordinal):
        return int(call("cuStreamCreate", 1))


def fill_there(at: int, byte: int, stream: int) -> None:
    with current(1):
        call("cuMemsetD8Async", at, byte, N, stream)


def published(client: poolbridge.Client, kind: str) -> poolbridge.Lease:
    lease = client.allocate(N, "uint8", pool=kind)
    lease.copy_from(PATTERN)
    lease.publish(kind, keep=True)
    return lease


# This program reads every buffer with the second GPU: first by a copy, then by a kernel. For each buffer, it prints
# both results or the error.
CONSUMER = """
import sys, poolbridge
sys.path[:0] = [{here!r}]
import kernels
import numpy as np
from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._cuda.cuda import call, current
from poolbridge._memory import dlpack as _dlpack
class Copy:
    "A copy, which is memory of the GPU that it says."
    def __init__(self, lease):
        from cuda.core.utils import StridedMemoryView
        self.lease = lease
        self.device = self.__dlpack_device__()[1]
        self.view = StridedMemoryView.from_dlpack(self, stream_ptr=-1)
        self.pointer = int(self.view.ptr)
    def __dlpack_device__(self):
        return self.lease.view(device="cuda").__dlpack_device__()
    def __dlpack__(self, **asked):
        return self.lease.view(device="cuda").__dlpack__(**asked, copy=True)
with poolbridge.connect({path!r}, device={device!r}) as client:
    with current({ordinal}):
        stream = int(call("cuStreamCreate", 1))
    for kind in {kinds!r}:
        for attempt in range(2):
            try:
                lease = client.get(kind)
            except poolbridge.UnavailableError as error:
                print(kind, type(error).__name__, error.code, error, flush=True)
                continue
            lease.used_on(stream)
            mine = _cuda.Allocation({ordinal}, lease.nbytes)
            with current({ordinal}):
                call("cuMemcpyAsync", mine.address, lease._evidence()["pointer"], lease.nbytes, stream)
                call("cuStreamSynchronize", stream)
            out = np.empty(lease.nbytes, np.uint8)
            _cuda.copy_to_host({ordinal}, out, mine.address)
            differ = kernels.differ({ordinal}, lease._evidence()["pointer"], lease.nbytes // 4)
            expected = kernels.masked(lease.nbytes // 4).values().view(np.uint8)
            print(kind, lease.view(device="cuda").device, bool((out == expected).all()), differ, flush=True)
            copy = Copy(lease)
            assert kernels.differ(copy.device, copy.pointer, lease.nbytes // 4) == 0
            del copy
            lease.release()
    own = _cuda.Allocation({ordinal}, 16)
    _cuda.copy_from_host({ordinal}, own.address, np.arange(16, dtype=np.uint8))
"""


def consume(service: str, *, device: int | str | None, ordinal: int = 1, **environment: str) -> list[str]:
    code = CONSUMER.format(here=str(HERE), path=service, device=device, ordinal=ordinal, kinds=KINDS)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**ENVIRONMENT, **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("way", ["put", "publish"])
@pytest.mark.parametrize("named", ["own", "legacy", "per thread", "none"])
def test_an_array_of_another_gpu_is_copied_after_the_work_there(client, gate, way, named):
    channel = client.create_channel("c", pool="device", capacity=2)
    frames, memory = client.subscribe("c"), _cuda.Allocation(1, N)
    stream = {"own": stream_on(1), "per thread": 2}.get(named, 1)
    interface = {"version": 3, "shape": (N,), "typestr": "|u1", "data": (memory.address, False)}
    interface["stream"] = None if named == "none" else stream
    given = SimpleNamespace(__cuda_array_interface__=interface)
    client.put(given, "before", pool="device").release()
    gate.hold(stream, 1)
    fill_there(memory.address, 5, stream)
    copy = partial(client.put, given, "it", pool="device") if way == "put" else partial(channel.publish, given)
    waits_until(gate.open, copy, must=False)
    with client.get("it") if way == "put" else next(frames) as found:
        assert (found.to_numpy() == 5).all()


def test_pinned_memory_is_given_back_after_the_work_of_all_gpus(client, gate):
    lease, memory, stream = client.allocate(N, "uint8", pool="pinned"), _cuda.Allocation(1, N), stream_on(1)
    lease.copy_from(PATTERN)
    lease.__dlpack__(max_version=(1, 0))  # as PyTorch, which may copy the memory on any stream
    gate.hold(stream, 1)
    with current(1):
        call("cuMemcpyAsync", memory.address, address(lease), N, stream)
    waits_until(gate.open, lease.release)


@with_peers
@pytest.mark.parametrize("kind", ["device", "vmm", "legacy"])
def test_a_lease_is_copied_into_after_the_work_of_another_gpu_on_it(service, client, gate, kind):
    with poolbridge.connect(service, timeout=60, device=1) as other:
        stream, memory = stream_on(1), _cuda.Allocation(0, N)
        lease = other.allocate(N, "uint8", pool=kind)
        lease.used_on(stream)
        _cuda.copy_from_host(0, memory.address, np.full(N, 5, np.uint8))
        interface = {"version": 3, "shape": (N,), "typestr": "|u1", "data": (memory.address, False), "stream": 1}
        gate.hold(stream, 1)
        fill_there(address(lease), 9, stream)
        waits_until(gate.open, lambda: lease.copy_from(SimpleNamespace(__cuda_array_interface__=interface)))
        assert (lease.to_numpy() == 5).all()


@pytest.mark.parametrize(
    ("way", "to"),
    [*product(["put", "copy_from", "publish"], ["device", "vmm", "pinned", "host"]), ("copy=True", "device")],
)
def test_pinned_memory_is_copied_after_the_work_of_another_gpu_on_it(client, gate, to, way):
    client.create_pool("host", max_bytes=1 << 20)
    client.create_pool("source", kind="pinned", max_bytes=4 << 20)
    stream, channel = stream_on(1), client.create_channel("c", pool=to, capacity=2)
    frames, lease = client.subscribe("c"), client.allocate(N, "uint8", pool="source")
    copy = client.put(lease, "before", pool=to, keep=True)
    target = client.allocate(N, "uint8", pool=to)
    lease.used_on(stream)
    gate.hold(stream, 1)
    fill_there(address(lease), 5, stream)
    ways = {
        "put": lambda: client.put(lease, "it", pool=to, keep=True),
        "copy_from": lambda: target.copy_from(lease),
        "publish": lambda: channel.publish(lease),
        "copy=True": lambda: lease.view(device="cuda").__dlpack__(copy=True, max_version=(1, 0), stream=1),
    }
    copied = waits_until(gate.open, ways[way])
    if way == "copy=True":
        out = np.empty(N, np.uint8)
        _cuda.copy_to_host(0, out, _dlpack.read_tensor(copied).address)
        assert (out == 5).all()
    else:
        found = {"put": copied, "copy_from": target}.get(way) or next(frames)
        assert (found.to_numpy() == 5).all()
    copy.release()


@with_peers
@pytest.mark.parametrize("to", ["host", "vmm", "pinned"])
@pytest.mark.parametrize("kind", ["device", "legacy"])
@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_memory_is_copied_after_the_work_of_another_gpu_on_it(service, client, gate, to, kind, dtype):
    with poolbridge.connect(service, timeout=60, device=1) as other:
        client.create_pool("host", max_bytes=1 << 20)
        stream = stream_on(1)
        lease, target = other.allocate(N, "uint8", pool=kind), client.allocate(N, dtype, pool=to)
        target.copy_from(lease)
        lease.used_on(stream)
        gate.hold(stream, 1)
        fill_there(address(lease), 5, stream)
        waits_until(gate.open, lambda: target.copy_from(lease))
        assert (target.to_numpy() == 5).all()


class DefaultStreamThere:
    """The default stream of the second GPU, as PyTorch's object."""

    cuda_stream = 0
    device_index = 1


@with_peers
@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_a_default_stream_is_that_of_the_gpu_that_its_object_names(service, client, gate, kind):
    with poolbridge.connect(service, timeout=60, device=1) as other:
        reader, lease = stream_on(0), other.allocate(N, "uint8", pool=kind)
        lease.used_on(DefaultStreamThere())
        gate.hold(1, 1)
        fill_there(address(lease), 5, 1)
        lease.publish("x")
        seen = read(use(client.get("x"), reader), N, reader)
        waits_until(gate.open, lambda: finish(reader))
        assert (seen == 5).all()


@pytest.mark.parametrize("stream", [1, 2, DefaultStreamThere()], ids=["legacy", "per thread", "an object"])
def test_an_array_of_another_gpu_is_copied_after_its_default_stream(client, gate, stream):
    channel, memory = client.create_channel("c", pool="device", capacity=2), _cuda.Allocation(1, N)
    frames, handle = client.subscribe("c"), stream if isinstance(stream, int) else 1
    interface = {"version": 3, "shape": (N,), "typestr": "|u1", "data": (memory.address, False), "stream": 1}
    given = SimpleNamespace(__cuda_array_interface__=interface)
    channel.publish(given, stream=stream)
    next(frames).release()

    def publish():
        gate.hold(handle, 1)  # a per-thread default stream is this thread's
        fill_there(memory.address, 5, handle)
        channel.publish(given, stream=stream)

    waits_until(gate.open, publish)
    assert (next(frames).to_numpy() == 5).all()


@with_peers
def test_a_frame_goes_back_after_the_other_gpu_when_its_stream_cannot_write(service, client, gate, monkeypatch):
    def wrap(lease):
        return StridedMemoryView.from_dlpack(lease, stream_ptr=reader)

    def refuse(ordinal, stream, *arguments):
        if stream == reader:
            raise poolbridge.DriverError("refused")
        return write(ordinal, stream, *arguments)

    def again():
        arrays.release()  # this may wait, or a thread of the client's
        return client.allocate(N, "uint8", pool="one", timeout=60)

    writer, reader, seen, write = stream_on(0), stream_on(1), _cuda.Allocation(1, N), _cuda_stream.write
    client.create_pool("one", kind="device", max_bytes=N)
    with poolbridge.connect(service, timeout=60, device=1) as other:
        channel = client.create_channel("c", mode="queue", pool="one")
        arrays = other.subscribe("c", credit=1).arrays(wrap, stream=reader)
        for byte in range(3):
            lease = client.allocate(N, "uint8", pool="one", timeout=60)
            fill(use(lease, writer), N, byte, writer)
            channel.publish(lease)
            del lease
            array = next(arrays)
            if byte < 2:
                arrays.release()
        finish(writer)
        gate.hold(reader, 1)
        with current(1):
            call("cuMemcpyAsync", seen.address, array.ptr, N, reader)
        monkeypatch.setattr(_cuda_stream, "write", refuse)
        waits_until(gate.open, again)


@with_peers
@pytest.mark.parametrize("device", [1, "cuda:1", DEVICES[-1]["uuid"]])
def test_another_gpu_reads_memory_of_every_kind(service, client, device):
    kept = [published(client, kind) for kind in KINDS]
    # A consumer opens a legacy handle on its own GPU, `cuda:1`: only the GPU that opens the handle can run kernels on
    # the memory.
    named = {kind: "cuda:1" if kind == "legacy" else "cuda:0" for kind in KINDS}
    assert consume(service, device=device) == [f"{kind} {named[kind]} True 0" for kind in KINDS for _ in range(2)]
    assert len(kept) == len(KINDS)


@pytest.mark.skipif(not SIMULATED, reason="only simulated GPUs can do without peer access at will")
def test_where_gpus_do_not_reach_each_other_the_error_names_both(service, client):
    kept = [published(client, kind) for kind in KINDS]
    lines = consume(service, device=1, SIMCUDA_PEER="0")
    assert lines[-2:] == ["pinned cuda:0 True 0"] * 2  # kind `pinned` is memory of the host, which needs no peer access
    for line, kind in zip(lines[:-2], [kind for kind in KINDS[:-1] for _ in range(2)], strict=True):
        assert line.startswith(f"{kind} PeerAccessError unavailable GPU 1"), line
        for device in DEVICES[:2]:
            assert device["uuid"] in line
            assert device["name"] in line
    assert len(kept) == len(KINDS)


@pytest.mark.skipif(not SIMULATED, reason="only the simulated driver refuses on demand: make simcuda")
def test_a_handle_that_the_driver_does_not_open_for_another_gpu_is_not_of_a_dead_owner(service, client):
    kept = [published(client, kind) for kind in KINDS]
    refusal = "call=cuIpcOpenMemHandle nth=1 error=INVALID_HANDLE"
    lines = consume(service, device=1, SIMCUDA_FAULTS=refusal)
    refused, again = (line for line in lines if line.startswith("legacy "))
    assert refused.startswith("legacy PeerAccessError unavailable GPU 1"), refused
    assert again == "legacy cuda:1 True 0"
    assert len(kept) == len(KINDS)


def test_a_process_that_numbers_the_gpus_otherwise_finds_them_by_uuid(service, client):
    kept = [published(client, kind) for kind in KINDS]
    turned = f"{DEVICES[1]['uuid']},{DEVICES[0]['uuid']}"
    for visible in ("1,0", turned):
        lines = consume(service, device=None, ordinal=1, CUDA_VISIBLE_DEVICES=visible)
        assert lines == [f"{kind} cuda:1 True 0" for kind in KINDS for _ in range(2)]
    assert len(kept) == len(KINDS)


def test_a_process_that_does_not_see_the_gpu_is_told_which(service, client):
    kept = [published(client, kind) for kind in KINDS]
    lines = consume(service, device=None, ordinal=0, CUDA_VISIBLE_DEVICES="1")
    for line, kind in zip(lines, [kind for kind in KINDS for _ in range(2)], strict=True):
        assert line.startswith(f"{kind} DeviceNotVisibleError unavailable"), line
        assert DEVICES[0]["uuid"] in line
        assert "CUDA_VISIBLE_DEVICES=1" in line
    assert len(kept) == len(KINDS)


def test_the_service_numbers_the_gpus_otherwise_and_the_memory_is_found_by_uuid(tmp_path):
    path = str(tmp_path / "run" / "d.sock")
    pool = ("--pool", "name=device,kind=device,device=0,max=64MiB")
    with subprocess.Popen(
        [POOLSVC, "serve", "--socket", path, *pool], env={**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": "1,0"}
    ) as process:
        with poolbridge.connect(path, timeout=60, wait=60) as client:
            lease = published(client, "device")
            assert lease.device == "cuda:1"
            assert (lease.to_numpy() == PATTERN).all()
        process.terminate()


@with_peers
@pytest.mark.parametrize("kind", KINDS)
def test_streams_of_both_gpus_are_kept_in_order(service, client, gate, kind):
    with poolbridge.connect(service, timeout=60, device=1) as other:
        writer, last, reader = stream_on(0), stream_on(0), stream_on(1)
        seen = _cuda.Allocation(1, N)
        # The pool has memory for only one block, so both the first and the last writer get this block.
        client.create_pool("one", kind=kind, max_bytes=max(N, 2 << 20) if kind in {"vmm", "legacy"} else N)
        # Map the memory for reading and writing before a stream waits: a call that maps memory may wait for the stream.
        lease = client.allocate(N, "uint8", pool="one")
        lease.publish("mapped")
        address(other.get("mapped"))
        client.unpublish("mapped")
        lease.release()
        other.stats()
        lease = client.allocate(N, "uint8", pool="one")
        lease.used_on(writer)
        gate.hold(writer)
        fill(address(lease), N, 7, writer)
        lease.publish("x")
        got = other.get("x")
        got.used_on(reader)
        with current(1):
            call("cuMemcpyAsync", seen.address, address(got), N, reader)
        assert not idle(reader)
        got.release()
        other.stats()  # the service has heard of it
        client.unpublish("x")
        block = lease._lease_state.grant.block
        lease.release()
        again = client.allocate(N, "uint8", pool="one")
        assert again._lease_state.grant.block == block
        again.used_on(last)
        fill(address(again), N, 8, last)
        assert not idle(last), "the next writer waits for the reader on the other GPU"
        gate.open()
        finish(last)
        finish(reader)
        out = np.empty(N, np.uint8)
        _cuda.copy_to_host(1, out, seen.address)
        assert (out == 7).all()


@with_peers
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_of_another_gpu_write_the_memory(service, client, kind):
    with poolbridge.connect(service, timeout=60, device=1) as other:
        lease = other.allocate(N, "uint8", pool=kind)
        kernels.write(1, address(lease), WORDS)
        assert kernels.differ(1, address(lease), WORDS) == 0
        assert (lease.to_numpy() == PATTERN).all(), "as its client copies it"
        lease.publish("x")
        with client.get("x") as seen:
            assert kernels.differ(0, address(seen), WORDS) == 0, "as kernels of the memory's own GPU see it"
        lease.release()


@with_peers
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_client_on_one_gpu_lets_go_of_stays_for_that_on_the_other(service, client, kind):
    with poolbridge.connect(service, timeout=60, device=1) as other:
        lease = published(client, kind)
        with other.get(kind) as seen:
            assert kernels.differ(1, address(seen), WORDS) == 0
        other.close()
        assert kernels.differ(0, address(lease), WORDS) == 0
        lease.release()


def test_a_handle_is_opened_for_the_gpu_that_works_on_the_memory(service, client, tmp_path):
    lease = published(client, "legacy")
    saved = tmp_path / "saved"
    done = subprocess.run([POOLSVC, "export", "--socket", service, "legacy", str(saved)], check=True, env=ENVIRONMENT)
    assert done.returncode == 0
    handle = poolbridge.LegacyHandle.load(saved)
    if not _cuda.can_access_peer(1, 0):
        with pytest.raises(poolbridge.PeerAccessError, match="GPU 1 .* GPU 0 "):
            handle.open(1)
        return
    with handle.open(1) as memory:
        assert memory.device == "cuda:1"
        assert kernels.differ(1, memory.address, WORDS) == 0
        assert (memory.to_numpy() == PATTERN).all()
    assert (lease.to_numpy() == PATTERN).all()


def test_a_gpu_that_is_not_there_is_named(service):
    with (
        poolbridge.connect(service, timeout=60, wait=60, device="cuda:99") as client,
        pytest.raises(poolbridge.DeviceNotVisibleError, match="GPU 99"),
    ):
        client.allocate(N, "uint8", pool="device")


def test_on_memory_of_the_cpu_a_gpu_means_nothing(service):
    with poolbridge.connect(service, timeout=60, wait=60, device=1) as client:
        client.create_pool("cpu", max_bytes=1 << 20)
        assert client.allocate(4, "uint8", pool="cpu").device == "cpu"


class Array:
    "What a library has made of a lease: it does not say that the memory is poolbridge's."

    def __init__(self, lease):
        self.__dlpack_device__, self.__dlpack__ = lease.__dlpack_device__, lease.__dlpack__


@pytest.mark.parametrize("to", ["device", "vmm"])
@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_a_pool_of_another_gpu_is_copied(client, kind, to):
    client.create_pool("far", kind=kind, device=1, max_bytes="64MiB")
    far = client.allocate(N, "uint8", pool="far")
    far.copy_from(PATTERN)
    client.put(far, "lease", pool=to)
    client.put(Array(far), "array", pool=to)
    client.put({"a": Array(far), "n": np.arange(3)}, "dict", pool=to)
    whole = client.get("dict")
    for copy in (client.get("lease"), client.get("array"), whole["a"]):
        assert copy.device == "cuda:0"
        np.testing.assert_array_equal(copy.to_numpy(), PATTERN)
    channel = client.create_channel("c", pool=to, capacity=2)
    frames = client.subscribe("c")
    channel.publish(Array(far))
    np.testing.assert_array_equal(next(frames).to_numpy(), PATTERN)
    channel.publish({"a": Array(far)})
    np.testing.assert_array_equal(next(frames)["a"].to_numpy(), PATTERN)

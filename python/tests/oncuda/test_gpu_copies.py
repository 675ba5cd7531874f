"""Test `channel.publish(array)` with arrays that are on a GPU, or that are copied to a GPU.

`test_device` runs these tests on the simulated driver. On a machine with a GPU, pytest also runs them directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.core import Buffer
from gates import fill, finish, idle, new_stream, read, waits_until
from realservice import until
from rig import CHANNELS, N, address, client, device_service, gate, other, use
from test_gpu_channels import OfALibrary

import poolbridge
from poolbridge._client import copies as _copies
from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._memory import dlpack as _dlpack
from poolbridge._memory.legacyhandle import OpenedMemory
from poolbridge._memory.tensor import ELEMENT_TYPES
from poolbridge._session import returns as _returns

pytestmark = CHANNELS

__all__ = ["client", "device_service", "gate", "other"]  # fixtures


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Let publishers live on however slowly a test runs."""
    monkeypatch.setattr(_copies, "_SOON", 3600)
    monkeypatch.setattr(_returns, "_IDLE", 3600)


class OfAStream:
    """An array that names the stream that writes it, as CuPy's arrays do."""

    def __init__(self, lease, stream):
        self.lease = lease
        self.__cuda_array_interface__ = {**lease.view(device="cuda").__cuda_array_interface__, "stream": stream}


def arenas(client):
    return [arena for chunks in client._session.returns._chunks for arena in chunks.arenas]


@pytest.fixture
def mine(client):
    client.create_pool("mine", kind="device", max_bytes=64 << 20)
    return client.allocate(N, "uint8", pool="mine")


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned", "host"])
@pytest.mark.parametrize("source", ["numpy", "named", "unknown"])
def test_copies_have_their_content_in_every_kind_of_memory(client, other, mine, kind, source):
    client.create_pool(kind, kind=kind, max_bytes=64 << 20)
    channel = client.create_channel("c", pool=kind, capacity=2, mode="queue")
    frames, stream = other.subscribe("c"), new_stream()
    for byte in range(30):
        if source == "numpy":
            given: Any = np.full(N, byte, np.uint8)
        else:
            fill(address(mine), N, byte, stream)
            if source == "unknown":
                finish(stream)
            given = OfAStream(mine, stream) if source == "named" else OfALibrary(mine)
        channel.publish(given, timeout=60)
        with next(frames) as frame:
            assert (frame.to_numpy() == byte).all()
    assert len(arenas(client)) == 1


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned", "host"])
@pytest.mark.parametrize("way", ["publish", "dict", "put", "copy_from"])
def test_an_array_that_names_no_stream_is_copied_after_the_work_on_the_default_stream(client, mine, gate, kind, way):
    client.create_pool(kind, kind=kind, max_bytes=64 << 20)
    channel = client.create_channel("c", pool=kind, capacity=2, mode="queue")
    frames, lease, given = client.subscribe("c"), client.allocate(N, "uint8", pool=kind), OfAStream(mine, None)
    for _ in range(3):  # so that the last copies are a publisher's
        channel.publish({"a": given} if way == "dict" else given, timeout=60)
        next(frames).release()
    gate.hold(1)
    fill(address(mine), N, 5, 1)
    ways: dict[str, Any] = {
        "publish": lambda: channel.publish(given, timeout=60),
        "dict": lambda: channel.publish({"a": given}, timeout=60),
        "put": lambda: client.put(given, "copy", pool=kind),
        "copy_from": lambda: lease.copy_from(given),
    }
    copied = waits_until(gate.open, ways[way], must=False)
    found: Any = {"put": copied, "copy_from": lease}.get(way) or next(frames)
    assert ((found["a"] if way == "dict" else found).to_numpy() == 5).all()


@pytest.mark.parametrize("source", ["several arrays", "in a dict", "of another pool"])
@pytest.mark.parametrize("known", ["a stream", "two streams", "unknown", "another thread's"])
def test_a_lease_is_copied_after_the_work_on_it(client, gate, source, known):
    client.create_pool("other", kind="device", max_bytes=64 << 20)
    channel = client.create_channel("c", pool="gpu", capacity=2, mode="queue")
    frames, first, second = client.subscribe("c"), new_stream(), new_stream()
    shape = {"a": (N, "uint8")} if source == "several arrays" else N
    pool_name = "gpu" if source == "several arrays" else "other"
    before, lease = (client.allocate(shape, "uint8", pool=pool_name) for _ in range(2))
    array = lease["a"] if source == "several arrays" else lease
    given = {"a": lease} if source == "in a dict" else lease
    channel.publish(
        {"a": before} if source == "in a dict" else before, timeout=60
    )  # so that later calls make no streams
    next(frames).release()
    streams = {"a stream": [first], "two streams": [second, first], "unknown": [-1], "another thread's": [2]}[known]
    for stream in streams:
        array.__dlpack__(stream=stream, max_version=(1, 0))
    gate.hold(streams[-1] if known == "another thread's" else first)
    fill(address(lease), N, 5, streams[-1] if known == "another thread's" else first)
    waits_until(gate.open, lambda: channel.publish(given, timeout=60), must=False)
    with next(frames) as frame:
        assert ((frame if source == "of another pool" else frame["a"]).to_numpy() == 5).all()


class LikeOpenedMemory(OfALibrary):
    __module__ = OpenedMemory.__module__


@pytest.mark.parametrize("what", ["a buffer of cuda.core", "opened memory"])
def test_an_array_whose_dlpack_makes_no_stream_wait_is_copied_after_the_work_on_it(client, mine, gate, what):
    channel = client.create_channel("c", pool="gpu", capacity=2, mode="queue")
    frames, stream = client.subscribe("c"), new_stream()
    given: Any = Buffer.from_handle(address(mine), N) if what == "a buffer of cuda.core" else LikeOpenedMemory(mine)
    channel.publish(given, timeout=60)
    next(frames).release()
    gate.hold(stream)
    fill(address(mine), N, 5, stream)
    waits_until(gate.open, lambda: channel.publish(given, timeout=60), must=False)
    with next(frames) as frame:
        assert (frame.to_numpy() == 5).all()


def test_every_copy_of_a_lease_is_done_when_publish_returns(client, gate):
    client.create_pool("pinned", kind="pinned", max_bytes=64 << 20)
    channel = client.create_channel("c", pool="gpu", capacity=2, mode="queue")
    frames, lease = client.subscribe("c"), client.allocate(N, "uint8", pool="pinned")
    for byte in range(3):
        np.asarray(lease)[:] = byte
        if byte == 2:
            gate.hold(_cuda.own_stream(0))
            waits_until(gate.open, lambda: channel.publish(lease, timeout=60))
        else:
            channel.publish(lease, timeout=60)
        np.asarray(lease)[:] = 9
        with next(frames) as frame:
            assert (frame.to_numpy() == byte).all()


def test_a_named_stream_copies_a_frame_after_its_producers_work(client, other, mine, gate):
    client.create_pool("onward", kind="device", max_bytes=64 << 20)
    first = client.create_channel("first", pool="gpu", capacity=4)
    onward = other.create_channel("onward", pool="onward", capacity=4)
    frames, last = other.subscribe("first"), client.subscribe("onward")
    producing, copying = new_stream(), new_stream()
    for byte in range(3):
        if byte == 2:
            gate.hold(producing)
        fill(address(mine), N, byte, producing)
        first.publish(OfAStream(mine, producing), timeout=60)
        with next(frames) as frame:
            onward.publish(frame, timeout=60, stream=copying)
        if byte == 2:
            assert not idle(producing)
            gate.open()
        with next(last) as frame:
            assert (frame.to_numpy() == byte).all()


def test_a_lease_that_a_named_stream_copies_is_not_written_before_the_copy(client, other, gate):
    client.create_pool("onward", kind="device", max_bytes=64 << 20)
    onward = other.create_channel("onward", pool="onward", capacity=4)
    last, stream, writing = client.subscribe("onward"), new_stream(), new_stream()
    onward.publish(np.zeros(N, "uint8"), timeout=60)  # so that later calls make no streams
    next(last).release()
    lease = client.allocate(N, "uint8", pool="gpu")
    lease.copy_from(np.full(N, 5, np.uint8))
    lease.publish("it")
    lease.release()
    read_lease = other.get("it")
    gate.hold(stream)
    onward.publish(read_lease, timeout=60, stream=stream)
    read_lease.release()
    until(lambda: other.stats().leases == 1 or client.names()[0].session)  # the service has the release
    again = client.get("it", write=True, timeout=60)
    fill(use(again, writing), N, 7, writing)
    gate.open()
    with next(last) as frame:
        assert (frame.to_numpy() == 5).all()
    finish(writing)


def wrapped_as_by_torch(lease):
    """Keep a capsule of memory of kind `pinned`, which PyTorch may copy on any stream."""
    return SimpleNamespace(capsule=lease.__dlpack__(max_version=(1, 0)), at=address(lease))


def test_frames_of_pinned_memory_are_not_written_before_unknown_streams_have_read_them(client, other, gate):
    client.create_pool("pinned", kind="pinned", max_bytes=64 << 20)
    channel = client.create_channel("c", pool="pinned", capacity=2)
    stream, got = new_stream(), other.subscribe("c").arrays(wrapped_as_by_torch)
    for byte in range(4):
        channel.publish(np.full(N, byte, np.uint8), timeout=60)
        array = next(got)
    gate.hold(stream)
    seen = read(array.at, N, stream)
    del array
    for byte in range(4, 24):
        channel.publish(np.full(N, byte, np.uint8), timeout=60)
        next(got)
    gate.open()
    finish(stream)
    assert (seen == 3).all()


def test_a_loan_of_pinned_memory_is_published_after_the_work_of_unknown_streams(client, other, gate):
    client.create_pool("pinned", kind="pinned", max_bytes=64 << 20)
    channel = client.create_channel("c", pool="pinned", capacity=2)
    frames, stream = other.subscribe("c"), new_stream()
    with channel.publisher(N, "uint8", wrap=wrapped_as_by_torch) as publisher:
        publisher.loan(60)
        publisher.publish(timeout=60)
        next(frames).release()
        gate.hold(stream)
        fill(publisher.loan(60).at, N, 5, stream)
        waits_until(gate.open, lambda: publisher.publish(timeout=60))
    with next(frames) as frame:
        assert (frame.to_numpy() == 5).all()


def test_each_array_of_a_dict_is_copied_on_its_own_stream(client, gate):
    client.create_pool("other", kind="device", max_bytes=64 << 20)
    channel = client.create_channel("c", pool="gpu", capacity=2, mode="queue")
    frames, stream = client.subscribe("c"), new_stream()
    one, two, three = (client.allocate(N, "uint8", pool="other") for _ in range(3))
    given = {"one": OfAStream(one, 1), "two": OfAStream(two, stream), "three": OfAStream(three, 1)}
    channel.publish(given, timeout=60)
    next(frames).release()
    gate.hold(1)
    fill(address(three), N, 5, 1)
    channel.publish(given, timeout=60)
    gate.open()
    with next(frames) as frame:
        assert (frame["three"].to_numpy() == 5).all()


class OfALazyLibrary:
    """An array whose elements are made for the capsule, which owns them."""

    shape, dtype = (N,), np.dtype("uint8")

    def __init__(self, stream, free):
        self.stream, self.free = stream, free

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream=None, max_version=None, **_):
        memory, free = self.free.pop(), self.free
        fill(memory.address, N, 5, self.stream)

        class Elements:
            __array_interface__ = {"version": 3, "shape": (N,), "typestr": "|u1", "data": (memory.address, False)}  # noqa: RUF012

            def __del__(self):
                free.append(memory)

        return _dlpack.make_capsule(np.asarray(Elements()), ELEMENT_TYPES["uint8"], (2, 0), versioned=True)


def test_what_owns_the_elements_of_an_array_lives_until_its_stream_has_copied_them(client, gate):
    stream, free = new_stream(), [_cuda.Allocation(0, N)]
    channel = client.create_channel("c", pool="gpu", capacity=4)
    frames = client.subscribe("c")
    for _ in range(3):  # the last copies are a publisher's
        channel.publish(OfALazyLibrary(stream, free), stream=stream)
        next(frames).release()
        until(lambda: free)
    gate.hold(stream)
    channel.publish(OfALazyLibrary(stream, free), stream=stream)
    gc.collect()
    assert not free
    gate.open()
    assert (next(frames).to_numpy() == 5).all()


@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_a_stream_refreshes_a_copy_after_the_other_streams_that_read_it(client, gate, kind):
    client.create_pool("of this kind", kind=kind, max_bytes=64 << 20)
    client.create_pool("host", max_bytes=1 << 20)
    client.put(np.full(N, 1, np.uint8), "x", pool="of this kind", keep=True).release()
    stream, reader = new_stream(), new_stream()
    copy = client.get_copy("x", pool="of this kind", stream=stream)
    at = use(copy, reader)
    client.put(np.full(N, 2, np.uint8), "x", pool="of this kind", keep=True, replace=True).release()
    gate.hold(reader)
    seen = read(at, N, reader)
    assert copy.refresh(stream=stream)
    waits_until(gate.open, lambda: finish(stream))
    finish(reader)
    assert (seen == 1).all()
    assert (copy.to_numpy() == 2).all()


@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_a_stream_refreshes_a_copy_from_memory_of_the_cpu_after_its_earlier_work(client, gate, kind):
    client.create_pool("of this kind", kind=kind, max_bytes=64 << 20)
    client.create_pool("host", max_bytes=1 << 20)
    client.put(np.full(N, 1, np.uint8), "x", pool="host", keep=True).release()
    stream = new_stream()
    copy = client.get_copy("x", pool="of this kind", stream=stream)
    client.put(np.full(N, 2, np.uint8), "x", pool="host", keep=True, replace=True).release()
    gate.hold(stream)
    seen = read(address(copy), N, stream)
    waits_until(gate.open, lambda: copy.refresh(stream=stream))
    finish(stream)
    assert (seen == 1).all()


def test_a_stream_that_made_a_copy_is_not_the_only_one_that_uses_it(client, gate):
    client.put(np.full(N, 1, np.uint8), "x", pool="gpu", keep=True).release()
    stream, unknown = new_stream(), new_stream()
    copy = client.get_copy("x", pool="gpu", stream=stream)
    finish(stream)
    assert copy.view().__cuda_array_interface__["stream"] is None
    gate.hold(unknown)
    seen = read(address(copy), N, unknown)
    waits_until(gate.open, copy.release)
    assert (seen == 1).all()


def test_the_cpu_waits_only_for_streams_that_use_the_memory_it_copies(client, gate):
    client.create_pool("pinned", kind="pinned", max_bytes=64 << 20)
    lease, used, elsewhere = (
        client.allocate({"a": (N, "uint8"), "b": (N, "uint8")}, pool="pinned"),
        new_stream(),
        new_stream(),
    )
    lease.used_on(used)
    finish(used)
    gate.hold(elsewhere)
    lease["a"].copy_from(np.full(N, 5, np.uint8))
    assert np.array(lease["a"]).tolist() == [5] * N
    gate.hold(used)  # views wait for no stream of this process
    lease["a"].__dlpack__(max_version=(1, 0))
    lease["b"].__dlpack__(max_version=(1, 0))
    assert np.asarray(lease["b"]).shape == (N,)


def test_arrays_of_the_cpu_in_a_dict_do_not_wait_for_the_stream_that_copies_the_others(client, mine, gate):
    client.create_pool("pinned", kind="pinned", max_bytes=64 << 20)
    channel, stream = client.create_channel("c", pool="pinned", capacity=2), new_stream()
    frames = client.subscribe("c")
    gate.hold(stream)
    fill(address(mine), N, 5, stream)
    channel.publish({"image": OfAStream(mine, stream), "label": np.full(8, 3, np.uint8)}, stream=stream)
    gate.open()
    with next(frames) as frame:
        assert (frame["image"].to_numpy() == 5).all()
        assert (frame["label"].to_numpy() == 3).all()


def is_gone(lives):
    return lives() is None


def test_what_a_stream_copies_lives_on_if_the_channel_is_full(client, mine, gate):
    channel, stream = client.create_channel("c", pool="gpu", capacity=1, mode="queue"), new_stream()

    def publish():
        given = OfAStream(mine, stream)
        with contextlib.suppress(poolbridge.WaitTimeoutError):
            channel.publish(given, stream=stream, timeout=0)
        return weakref.ref(given)

    for _ in range(3):  # the last copies are a publisher's
        gate.hold(stream)
        lives = publish()
        gc.collect()
        assert not is_gone(lives)
        gate.open()
        until(partial(is_gone, lives))
        gate.shut()


def test_a_per_thread_stream_of_asyncio_refreshes_a_copy_without_a_wait(device_service, client, gate):
    elsewhere = new_stream()

    async def main():
        async with await poolbridge.connect_async(device_service, timeout=60) as own:
            client.put(np.full(N, 1, np.uint8), "x", pool="gpu", keep=True).release()
            copy = await own.get_copy("x", stream=2)
            client.put(np.full(N, 2, np.uint8), "x", pool="gpu", keep=True, replace=True).release()
            gate.hold(elsewhere)
            assert await copy.refresh(stream=2)
            gate.open()
            await copy.release()

    asyncio.run(main())


def test_a_copy_needs_a_stream_that_has_an_order(client, mine):
    channel = client.create_channel("c", pool="gpu", capacity=2, mode="queue")
    with pytest.raises(poolbridge.InvalidArgumentError, match="stream -1 asks for no order"):
        channel.publish(OfALibrary(mine), stream=-1)
    mine.publish("it")
    with pytest.raises(poolbridge.InvalidArgumentError, match="stream -1 asks for no order"):
        client.get_copy("it", stream=-1)
    assert client.stats().leases == 1


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned", "host"])
def test_a_frame_of_several_arrays_has_arrays_of_the_cpu_and_of_the_gpu(client, other, mine, kind):
    client.create_pool(kind, kind=kind, max_bytes=64 << 20)
    channel = client.create_channel("c", pool=kind, capacity=2, mode="queue")
    onward = other.create_channel("onward", pool="gpu", capacity=2, mode="queue")
    frames, last, stream = other.subscribe("c"), client.subscribe("onward"), new_stream()
    for byte in range(30):
        fill(address(mine), N, byte, stream)
        named = OfAStream(mine, stream) if byte % 2 else OfALibrary(mine)
        if not byte % 2:
            finish(stream)
        channel.publish({"gpu": named, "cpu": np.full(3, byte, "int64"), "none": np.empty((0, 2), "int8")}, timeout=60)
        with next(frames) as frame:
            onward.publish(frame, timeout=60)
            assert (frame["gpu"].to_numpy() == byte).all()
            assert frame["cpu"].to_numpy().tolist() == [byte] * 3
            assert frame["none"].shape == (0, 2)
        with next(last) as frame:
            assert (frame["gpu"].to_numpy() == byte).all()
            assert frame["cpu"].to_numpy().tolist() == [byte] * 3


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned"])
def test_streams_write_and_read_the_arrays_of_a_frame_in_their_order(client, other, kind, gate):
    client.create_pool(kind, kind=kind, max_bytes=64 << 20)
    channel = client.create_channel("c", pool=kind, capacity=2, mode="queue")
    frames, writer, reader = other.subscribe("c"), new_stream(), new_stream()
    shapes = {"a": (N, "uint8"), "b": ((2, N), "uint8")}
    got = frames.arrays(lambda view: OfAStream(view, 1), stream=reader)

    def at(array):
        return array.__cuda_array_interface__["data"][0]

    with channel.publisher(shapes, wrap=lambda view: OfAStream(view, 1)) as publisher:
        for byte in range(20):
            if byte == 19:
                gate.hold(writer)
            arrays = publisher.loan(60, stream=writer)
            fill(at(arrays["a"]), N, byte, writer)
            fill(at(arrays["b"]), 2 * N, byte + 1, writer)
            publisher.publish()
            views = next(got)
            seen = [read(at(views["a"]), N, reader), read(at(views["b"]), 2 * N, reader)]
            if byte == 19:
                assert not idle(reader)
                gate.open()
            finish(reader)
            assert (seen[0] == byte).all()
            assert (seen[1] == byte + 1).all()
            del views


def test_nothing_but_the_readers_streams_waits_for_the_copy(client, other, mine, gate):
    channel = client.create_channel("c", pool="gpu", capacity=2, mode="queue")
    frames, stream, reader = other.subscribe("c"), new_stream(), new_stream()
    for byte in range(5):
        fill(address(mine), N, byte, stream)
        channel.publish(OfAStream(mine, stream), timeout=60)
        with next(frames) as frame:
            assert (frame.to_numpy() == byte).all()
    gate.hold(stream)
    fill(address(mine), N, 7, stream)
    channel.publish(OfAStream(mine, stream), timeout=60)
    fill(address(mine), N, 8, stream)  # the same stream writes the array after the copy
    frame = next(frames)
    seen = read(use(frame.lease, reader), N, reader)
    assert not idle(stream)
    assert not idle(reader)
    gate.open()
    finish(reader)
    finish(stream)
    assert (seen == 7).all()


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned", "host"])
def test_a_dict_of_arrays_is_found_by_its_name_in_every_kind_of_memory(client, other, mine, kind):
    client.create_pool(kind, kind=kind, max_bytes=64 << 20)
    mine.copy_from(np.full(N, 7, np.uint8))
    given = {"gpu": OfALibrary(mine), "cpu": np.arange(5), "tied": OfALibrary(mine), "nothing": np.empty((0, 2), "f2")}
    client.put(given, "model", pool=kind, metadata={"step": "1"}, digests=True).release()
    with other.get("model", expect={"step": "1"}) as found, other.get_copy("model") as copy:
        found.verify()
        copy.verify()
        copy["gpu"].copy_from(np.full(N, 8, np.uint8))
        with pytest.raises(poolbridge.ContentFailedError, match="array 'gpu'"):
            copy.verify()
        assert found.keys() == list(given)
        assert (found["gpu"].to_numpy() == 7).all()
        assert found["cpu"].to_numpy().tolist() == [0, 1, 2, 3, 4]
        assert found["nothing"].shape == (0, 2)
        assert found.nbytes < N + 2048
    with client.allocate({"a": (3, "int16"), "b": (N, "uint8")}, pool=kind) as lease:
        lease["a"].copy_from([1, 2, 3])
        lease["b"].copy_from(OfALibrary(mine))
        lease.publish("written")
    copied = other.get_dict("written")
    assert copied["a"].tolist() == [1, 2, 3]
    assert (copied["b"] == 7).all()


def test_the_names_of_arrays_are_read_before_streams_have_written_them(client, other, gate):
    stream = new_stream()
    other.put({"first": np.zeros(1)}, "use the GPU once", pool="gpu")
    other.get("use the GPU once").release()
    lease = client.allocate({"a": (N, "uint8")}, pool="gpu")
    gate.hold(stream)
    lease["a"].__dlpack__(stream=stream, max_version=(1, 0))
    fill(address(lease), N, 5, stream)
    lease.publish("model")
    with other.get("model") as found:
        assert found.keys() == ["a"]
        assert not idle(stream)
        gate.open()
        assert (found["a"].to_numpy() == 5).all()
    finish(stream)


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned"])
def test_names_are_written_and_read_while_all_streams_wait(client, other, gate, kind):
    stream = new_stream()
    client.create_pool(kind, kind=kind, max_bytes=64 << 20)
    client.put({"a": np.arange(3)}, "model", pool=kind).release()
    later = client.allocate(N, "uint8", pool="gpu")
    promise = later.promise()
    later.publish("later")
    waiting = other.get("later")
    assert waiting.view().__cuda_array_interface__["stream"] == _cuda.own_stream(0)
    gate.hold(stream)
    with other.get("model") as found, client.allocate({"b": ((), "int8")}, pool=kind) as lease:
        assert (found.keys(), lease.keys()) == (["a"], ["b"])
        assert not idle(stream)
        assert not idle(_cuda.own_stream(0))
    gate.open()
    promise.complete()
    waiting.release()
    finish(stream)


def test_pools_are_imported_while_a_stream_waits(client, gate):
    stream = new_stream()
    client.allocate(N, "uint8", pool="gpu").release()
    gate.hold(stream)
    for n in range(44):  # the driver makes room for 43 streams at a time, and first waits until all are idle
        client.create_pool(f"{n}", kind="device", max_bytes=32 << 20)
        client.allocate(N, "uint8", pool=f"{n}").release()
    assert not idle(stream)
    gate.open()
    finish(stream)


@pytest.mark.parametrize("several", [False, True], ids=["one array", "several arrays"])
@pytest.mark.parametrize("before", [0, 3], ids=["in a lease", "in a chunk"])
def test_an_array_that_was_copied_is_let_go_without_another_call(client, other, mine, gate, several, before):
    channel = client.create_channel("c", pool="gpu", capacity=4, mode="queue")
    frames, stream, gone = other.subscribe("c"), new_stream(), threading.Event()

    def publish():
        given = OfAStream(mine, stream)
        channel.publish({"a": given} if several else given, timeout=60)
        return given

    for _ in range(before):
        publish()
        next(frames).release()
    gate.hold(stream)
    weakref.finalize(publish(), gone.set)
    assert not gone.is_set()
    gate.open()
    assert gone.wait(60)


@pytest.mark.parametrize("client", [16 * N], indirect=True, ids=["no room for more chunks"])
def test_a_slot_is_written_again_after_the_streams_of_its_readers(client, other, mine, gate):
    channel = client.create_channel("c", pool="gpu", capacity=2, mode="queue")
    frames, stream, reader = other.subscribe("c"), new_stream(), new_stream()

    def publish(byte):
        fill(address(mine), N, byte, stream)
        channel.publish(OfAStream(mine, stream), timeout=60)

    for byte in range(5):
        publish(byte)
        next(frames).release()
    gate.hold(reader)
    publish(100)
    frame = next(frames)
    seen = read(use(frame.lease, reader), N, reader)
    frame.release()
    for byte in range(3):  # fewer than there are chunks
        publish(byte)
        next(frames).release()
    assert not idle(reader)
    gate.open()
    finish(reader)
    for byte in range(20):
        publish(byte)
        with next(frames) as frame:
            assert (frame.to_numpy() == byte).all()
    assert (seen == 100).all()


def test_a_copy_in_an_unknown_stream_is_waited_for_and_one_that_fails_frees_its_slot(
    client, other, mine, gate, monkeypatch
):
    channel = client.create_channel("c", pool="gpu", capacity=1, mode="queue")
    frames, own = other.subscribe("c"), _cuda.own_stream(0)
    wait, waited = _cuda_stream.synchronize_stream, []

    def open_and_wait(ordinal, stream):
        gate.open()
        wait(ordinal, stream)
        waited.append(stream)

    monkeypatch.setattr(_cuda_stream, "synchronize_stream", open_and_wait)
    mine.copy_from(np.full(N, 1, np.uint8))
    for _ in range(4):
        channel.publish(OfALibrary(mine), timeout=60)
        next(frames).release()
    channel.publish(OfALibrary(mine), timeout=60)
    for _ in range(30):  # more often than there are chunks
        with pytest.raises(poolbridge.WaitTimeoutError):
            channel.publish(OfALibrary(mine), timeout=0)
    next(frames).release()
    waited.clear()
    gate.hold(own)
    channel.publish(OfALibrary(mine), timeout=60)
    assert waited == [own]
    writer = new_stream()
    fill(address(mine), N, 2, writer)
    finish(writer)
    assert (next(frames).to_numpy() == 1).all()
    assert len(arenas(client)) == 1


def test_a_copy_to_the_cpu_leaves_out_the_long_gaps_of_a_strided_array(client, monkeypatch):
    shape, strides = (2, 6, 2), (1 << 20, -100_000, 3)
    whole = np.random.default_rng(1).integers(0, 256, 2 << 20, "uint8")
    client.create_pool("big", kind="device", max_bytes=64 << 20)
    lease, copy = client.allocate(len(whole), "uint8", pool="big"), client.allocate(shape, "uint8", pool="gpu")
    lease.copy_from(whole)

    interface = {**lease.__cuda_array_interface__, "shape": shape, "strides": tuple(map(np.int64, strides))}
    far = SimpleNamespace(__cuda_array_interface__={**interface, "data": (address(lease) + 500_000, False)})
    read, copy_to_host = [], _cuda.copy_to_host

    def count(ordinal, out, address, own=None):
        read.append(out.nbytes)
        copy_to_host(ordinal, out, address, own)

    monkeypatch.setattr(_cuda, "copy_to_host", count)
    copy.copy_from(far)
    assert sum(read) == 2 * 6 * 4
    assert (copy.to_numpy() == np.ndarray(shape, "uint8", whole, 500_000, strides)).all()


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned"])
def test_a_stream_takes_newer_content_after_its_own_earlier_work(client, other, gate, kind):
    client.create_pool(kind, kind=kind, max_bytes=64 << 20)
    versions = []
    for n in range(1, 4):
        versions.append(client.allocate({"w": (N, "uint8"), "b": (N, "uint8")}, pool=kind))
        versions[-1]["w"].copy_from(np.full(N, n, "uint8"))
    first, second, third = versions
    first.publish("m", replace=True)
    stream = new_stream()
    copy = other.get_copy("m", stream=stream)
    place = copy["w"].view(device="cuda").__cuda_array_interface__["data"][0]
    second.publish("m", replace=True)
    gate.hold(stream)
    old = read(place, N, stream)  # the program still uses the first content
    assert copy.refresh(stream=stream)
    new = read(place, N, stream)
    assert not idle(stream)
    third.publish("m", replace=True)
    gate.open()
    finish(stream)
    assert ((old == 1).all(), (new == 2).all(), copy.version) == (True, True, 2)
    assert copy.refresh()
    assert copy["w"].view(device="cuda").__cuda_array_interface__["data"][0] == place
    last = read(place, N, stream)
    finish(stream)
    assert ((last == 3).all(), copy.version) == (True, 3)


@pytest.mark.parametrize("end", ["published", "released"])
def test_a_copy_that_ends_while_it_waits_for_newer_content_is_not_written(client, other, end):
    def put(n):
        client.put(np.full(N, n, "uint8"), "m", pool="gpu", replace=True).release()

    put(1)
    stream, raised = new_stream(), []
    copy = other.get_copy("m", stream=stream)

    def refresh():
        with pytest.raises((poolbridge.InvalidArgumentError, poolbridge.LeaseReleasedError)) as error:
            copy.refresh(stream=stream, timeout=60)
        raised.append(error.type)

    waits = threading.Thread(target=refresh)
    waits.start()
    until(lambda: any(one.waits for one in client.sessions()))
    copy.publish("mine") if end == "published" else copy.release()
    put(2)
    waits.join(60)
    finish(stream)
    assert raised == [poolbridge.InvalidArgumentError if end == "published" else poolbridge.LeaseReleasedError]
    if end == "published":
        assert (client.get("mine").to_numpy() == 1).all()


def test_a_buffer_may_be_larger_than_a_block_of_a_cuda_memory_pool(client, other):
    size, stream = (4 << 30) + 100, new_stream()
    client.create_pool("large", kind="device", max_bytes=size + (4 << 20))
    lease = client.allocate(size, "uint8", pool="large", timeout=60)
    at = use(lease, stream)
    fill(at, 100, 3, stream)
    fill(at + size - 100, 100, 5, stream)
    lease.publish("x")
    got = other.get("x")
    assert (got.nbytes, got.pool, got.kind) == (size, "large", "device")
    at = use(got, stream)
    seen = read(at, 100, stream), read(at + size - 100, 100, stream)
    finish(stream)
    assert (seen[0] == 3).all()
    assert (seen[1] == 5).all()
    (pool,) = (pool for pool in client.stats().pools if pool.pool.name == "large")
    assert pool.reserved % (2 << 20) == 0
    with pytest.raises(poolbridge.PoolLimitError):
        other.allocate(size, "uint8", pool="large", timeout=0)
    lease.release()
    got.release()
    client.unpublish("x")
    client.allocate(size, "uint8", pool="large", timeout=60)

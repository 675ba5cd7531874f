"""Test the order of work on a GPU: fences make streams wait, and the CPU does not wait.

`test_device` runs these tests on the simulated driver. On a machine with a GPU, pytest also runs them directly.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda.core import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM
from gates import Gate, counts, fill, finish, gets_idle, idle, new_stream, read, waits_until
from realservice import until
from rig import CHANNELS, ENVIRONMENT, HERE, ONE_BLOCK, N, address, client, device_service, gate, other, use
from test_interrupts import at_every_step

import poolbridge
from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._memory.mappings import MAPPINGS
from poolbridge._order import fences as _fences

__all__ = ["client", "device_service", "gate", "other"]  # fixtures

STEADY = 8  # blocks
STEADY_POOL = pytest.mark.parametrize("client", [STEADY * N], indirect=True)


def all_blocks(client):
    """Lease every block of the pool once, because a client does extra work for the first lease of a block."""
    return [client.allocate(N, "uint8") for _ in range(STEADY)]


def slow_frame(client, gate, byte, stream, channel=None):
    """Publish a buffer that `stream` will write when the gate opens."""
    lease = client.allocate(N, "uint8")
    at = use(lease, stream)
    gate.hold(stream)
    fill(at, N, byte, stream)
    if channel is None:
        lease.publish(f"frame{byte}")
    else:
        channel.publish(lease)
    return lease


def test_nobody_waits_for_a_slow_producer_but_the_consumers_stream(client, other, gate):
    producer, consumer = new_stream(), new_stream()
    slow_frame(client, gate, 7, producer)
    got = other.get("frame7")
    seen = read(use(got, consumer), N, consumer)
    assert not idle(producer)
    assert not idle(consumer)
    gate.open()
    finish(consumer)
    assert (seen == 7).all()
    assert not got.failed


def test_a_second_thread_uses_a_stream_only_after_the_wait_that_the_first_is_about_to_queue(
    client, other, gate, monkeypatch
):
    producer, consumer = new_stream(), new_stream()
    slow_frame(client, gate, 7, producer)
    got = other.get("frame7")
    queue, main = _cuda_stream.wait, threading.get_ident()
    reached, go_on = threading.Event(), threading.Event()

    def slowly(*given):
        if threading.get_ident() != main:
            reached.set()
            assert go_on.wait(60)
        queue(*given)

    monkeypatch.setattr(_cuda_stream, "wait", slowly)
    first = threading.Thread(target=use, args=(got, consumer))
    first.start()
    try:
        assert reached.wait(60)
        seen = read(use(got, consumer), N, consumer)
    finally:
        go_on.set()
        first.join()
    gate.open()
    finish(consumer)
    assert (seen == 7).all()


@CHANNELS
def test_nor_does_the_cpu_of_another_process(device_service, client, gate):
    channel = client.create_channel("c", capacity=4)
    code = f"""
import sys, poolbridge
sys.path[:0] = [{str(HERE)!r}]
from gates import finish, idle, new_stream, read
with poolbridge.connect({device_service!r}) as client:
    stream = new_stream()
    for frame in client.subscribe("c"):
        frame.__dlpack__(stream=stream, max_version=(1, 0))
        seen = read(frame._evidence()["pointer"], {N}, stream)
        frame.release()
        print(idle(stream), flush=True)
        finish(stream)
        print(int(seen.min()), int(seen.max()), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        producer = new_stream()
        slow_frame(client, gate, 9, producer, channel)
        assert process.stdout.readline() == "False\n"
        assert not idle(producer)
        gate.open()
        assert process.stdout.readline() == "9 9\n"
        channel.close()
        assert process.wait(60) == 0


@ONE_BLOCK
def test_the_next_writer_waits_on_its_stream_for_a_slow_reader(client, other, gate):
    writer, reader = new_stream(), new_stream()
    lease = client.allocate(N, "uint8")
    fill(use(lease, writer), N, 1, writer)
    lease.publish("x")
    at = address(lease)
    got = other.get("x")
    mapped = use(got, reader)
    gate.hold(reader)
    seen = read(mapped, N, reader)
    got.release()
    client.unpublish("x")
    lease.release()
    other.stats()
    again = client.allocate(N, "uint8")
    assert address(again) == at
    fill(use(again, writer), N, 2, writer)
    assert not idle(writer)
    gate.open()
    finish(writer)
    finish(reader)
    assert (seen == 1).all()


def test_one_stream_of_two_clients_does_not_wait_for_what_it_has_yet_to_write(client, other, monkeypatch):
    stream, told, waits = new_stream(), threading.Event(), threading.Event()
    client.create_pool("one", kind="device", max_bytes=N)
    lease = client.allocate(N, "uint8", pool="one")
    fill(use(lease, stream), N, 1, stream)
    lease.publish("x")
    got = other.get("x")
    use(got, stream)
    client.unpublish("x")
    lease.release()

    def write_again():
        again = client.allocate(N, "uint8", pool="one", timeout=60)
        told.set()
        use(again, stream)
        waits.set()
        again.release()

    writer = threading.Thread(target=write_again)
    write = _cuda_stream.write

    def write_late(*arguments):
        if threading.current_thread() is not writer:
            writer.start()
            assert told.wait(60)
            waits.wait(0.2)  # `write_again` must not make the stream wait before this write is queued
        write(*arguments)

    monkeypatch.setattr(_cuda_stream, "write", write_late)
    got.release()
    writer.join(60)
    assert gets_idle(stream)


def test_dropping_the_last_array_is_no_wait_either(client, other, gate):
    producer, reader = new_stream(), new_stream()
    lease = client.allocate(N, "uint8")
    fill(use(lease, producer), N, 1, producer)
    lease.publish("x", keep=True)
    capsule = other.get("x").__dlpack__(stream=reader, max_version=(1, 0))
    gate.hold(reader)
    del capsule
    gc.collect()
    assert other.stats().leases == 1
    assert not idle(reader)
    gate.open()


@CHANNELS
@STEADY_POOL
@pytest.mark.skipif(counts() is None, reason="only the simulated driver counts its calls")
def test_steady_streaming_calls_the_driver_for_words_only(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c", credit=3)
    producer, consumer = new_stream(), new_stream()

    def step(lease: poolbridge.Lease) -> None:
        lease.__dlpack__(stream=producer, max_version=(1, 0))
        channel.publish(lease)
        with next(frames) as frame:
            frame.__dlpack__(stream=consumer, max_version=(1, 0))

    for lease in all_blocks(client):
        step(lease)
    imports, before = dict(MAPPINGS.imports), counts()
    for _ in range(100):
        step(client.allocate(N, "uint8", timeout=60))
    after = counts()
    assert before is not None
    assert after is not None
    calls = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert calls.pop("cuStreamWriteValue64") == 200
    assert calls.pop("cuStreamWaitValue64", 0) <= 200
    assert 200 <= calls.pop("cuStreamIsCapturing") <= 800
    assert calls == {}
    assert MAPPINGS.imports == imports


@CHANNELS
@STEADY_POOL
@pytest.mark.skipif(counts() is None, reason="only the simulated driver counts its calls")
def test_borrowed_arrays_call_the_driver_for_words_only(client, other):
    from cuda.core.utils import StridedMemoryView

    channel = client.create_channel("c", capacity=4)
    producer, consumer = new_stream(), new_stream()
    made = []

    def wrap(lease: poolbridge.Lease) -> StridedMemoryView:
        made.append(lease)
        return StridedMemoryView.from_dlpack(lease, stream_ptr=consumer)

    arrays = other.subscribe("c", credit=3).arrays(wrap, stream=consumer)

    def step(lease: poolbridge.Lease) -> None:
        lease.__dlpack__(stream=producer, max_version=(1, 0))
        channel.publish(lease)
        assert next(arrays).shape == (N,)

    for lease in all_blocks(client):
        step(lease)
    arrays.release()
    del made[:]
    before = counts()
    for _ in range(100):
        step(client.allocate(N, "uint8", timeout=60))
    arrays.release()
    after = counts()
    assert before is not None
    assert after is not None
    calls = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert calls.pop("cuStreamWriteValue64") == 200
    assert calls.pop("cuStreamWaitValue64", 0) <= 200
    assert 200 <= calls.pop("cuStreamIsCapturing") <= 800
    assert calls == {}
    assert made == []


@CHANNELS
@ONE_BLOCK
def test_a_borrowed_array_waits_on_its_stream_and_its_memory_is_allocated_again_only_after_that(client, other, gate):
    from cuda.core.utils import StridedMemoryView

    channel = client.create_channel("c", mode="queue")
    producer, consumer = new_stream(), new_stream()

    def wrap(lease: poolbridge.Lease) -> StridedMemoryView:
        return StridedMemoryView.from_dlpack(lease, stream_ptr=consumer)

    arrays = other.subscribe("c", credit=1).arrays(wrap, stream=consumer)
    for byte in (1, 2):  # the first frame makes the array, the second frame uses the same array
        lease = client.allocate(N, "uint8")
        fill(use(lease, producer), N, byte, producer)
        channel.publish(lease)
        first = next(arrays).ptr
        arrays.release()
        finish(consumer)
        other.stats()  # after this reply, the service has seen the release
        del lease
    lease = client.allocate(N, "uint8")
    at = use(lease, producer)
    gate.hold(producer)
    fill(at, N, 7, producer)
    channel.publish(lease)
    del lease
    array = next(arrays)
    assert array.ptr == first, "it was made once"
    seen = read(array.ptr, N, consumer)
    del array
    arrays.release()
    other.stats()
    with pytest.raises(poolbridge.PoolLimitError):
        client.allocate(N, "uint8")
    assert not idle(producer)
    assert not idle(consumer)
    gate.open()
    again = client.allocate(N, "uint8", timeout=60)
    assert address(again) == at
    fill(use(again, producer), N, 8, producer)
    finish(producer)
    finish(consumer)
    assert (seen == 7).all(), "complete, and not overwritten"


def test_several_streams_are_one_fence(client, other, gate):
    first, second, consumer = new_stream(), new_stream(), new_stream()
    lease = client.allocate(N, "uint8")
    at = use(lease, first)
    gate.hold(first)
    fill(at, N // 2, 1, first)
    lease.used_on(second)
    fill(at + N // 2, N // 2, 2, second)
    lease.publish("x")
    got = other.get("x")
    seen = read(use(got, consumer), N, consumer)
    assert not idle(consumer)
    gate.open()
    finish(consumer)
    assert seen.tolist() == [1] * (N // 2) + [2] * (N // 2)


def test_a_stream_that_has_used_a_lease_waits_for_the_other_streams_once_it_is_published(client, gate):
    reader, writer = new_stream(), new_stream()
    lease = client.allocate(N, "uint8")
    use(lease, reader)
    at = use(lease, writer)
    gate.hold(writer)
    fill(at, N, 7, writer)
    lease.publish("x")
    seen = read(use(lease, reader), N, reader)
    waits_until(gate.open, lambda: finish(reader))
    assert (seen == 7).all()


@ONE_BLOCK
@pytest.mark.parametrize("promised", [False, True])
def test_the_next_writer_waits_for_streams_that_had_a_lease_before_it_was_published(client, other, gate, promised):
    reader, last, writer = new_stream(), new_stream(), new_stream()
    lease = client.allocate(N, "uint8")
    at = use(lease, reader)
    use(lease, last)
    fill(at, N, 1, last)
    promise = lease.promise() if promised else None
    lease.publish("x")
    if promise is not None:
        promise.complete()
    finish(last)
    gate.hold(reader)
    seen = read(at, N, reader)
    client.unpublish("x")
    lease.release()
    other.stats()
    fill(use(client.allocate(N, "uint8", timeout=60), writer), N, 2, writer)
    waits_until(gate.open, lambda: finish(writer))
    finish(reader)
    assert (seen == 1).all()


@pytest.mark.parametrize("promised", [False, True])
def test_streams_that_write_again_after_a_refused_publication_are_waited_for(client, other, gate, promised):
    stream, last, reader = new_stream(), new_stream(), new_stream()
    client.allocate(N, "uint8").publish("taken", keep=True)
    lease = client.allocate(N, "uint8")
    at = use(lease, stream)
    if not promised:
        use(lease, last)
    promise = lease.promise() if promised else None
    with pytest.raises(poolbridge.AlreadyExistsError):
        lease.publish("taken")
    if promise is not None:
        promise.complete()
    gate.hold(stream)
    fill(at, N, 7, stream)
    lease.publish("free")
    seen = read(use(other.get("free"), reader), N, reader)
    waits_until(gate.open, lambda: finish(reader))
    assert (seen == 7).all()


def test_a_stream_that_another_thread_names_during_a_publication_waits_for_the_content(client, gate, monkeypatch):
    writer, late, joined = new_stream(), new_stream(), _fences._joined
    lease = client.allocate(N, "uint8")
    at = use(lease, writer)

    def interrupted(*arguments):
        fence = joined(*arguments)
        thread = threading.Thread(target=use, args=(lease, late))
        thread.start()
        thread.join()
        return fence

    monkeypatch.setattr(_fences, "_joined", interrupted)
    gate.hold(writer)
    fill(at, N, 7, writer)
    lease.publish("x")
    seen = read(use(lease, late), N, late)
    waits_until(gate.open, lambda: finish(late))
    assert (seen == 7).all()


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("device", "copy_from"),
        *(("pinned", way) for way in ("copy_from", "array", "another dtype", "bytes")),
    ],
)
def test_the_cpu_copies_after_the_streams_that_write_the_memory(client, gate, kind, way):
    client.create_pool("p", kind=kind, max_bytes=64 << 20)
    stream, lease = new_stream(), client.allocate(N, "uint8", pool="p")
    lease.used_on(stream)
    gate.hold(stream)
    fill(address(lease), N, 9, stream)
    ways: dict[str, Callable[[], Any]] = {
        "copy_from": lambda: lease.copy_from(np.full(N, 5, np.uint8)),
        "array": lambda: np.array(lease),
        "another dtype": lambda: np.asarray(lease, "int32"),
        "bytes": lambda: list(bytes(lease)),
    }
    copied = waits_until(gate.open, ways[way])
    assert (lease.to_numpy() if way == "copy_from" else np.asarray(copied)).tolist() == [
        5 if way == "copy_from" else 9
    ] * N


@ONE_BLOCK
def test_an_interrupted_release_keeps_the_memory_for_the_streams_that_read_it(client, gate):
    first, second, writer = new_stream(), new_stream(), new_stream()

    def try_it(interrupter):
        gate.shut()
        lease = client.allocate(N, "uint8", timeout=60)
        at = use(lease, first)
        use(lease, second)
        fill(at, N, 1, first)
        gate.hold(second)
        finish(first)
        seen = read(at, N, second)
        with interrupter:
            lease.release()
        if not lease.released:
            lease.release()
        again = client.allocate(N, "uint8", timeout=60)
        fill(use(again, writer), N, 9, writer)
        assert not gets_idle(writer, 0.02), interrupter.where
        gate.open()
        finish(second)
        assert (seen == 1).all(), interrupter.where
        again.release()

    assert at_every_step(try_it) > 30


@ONE_BLOCK
def test_an_interrupted_release_keeps_the_memory_for_streams_that_nobody_named(client, gate, monkeypatch):
    reader, lease = new_stream(), client.allocate(N, "uint8")
    at = use(lease, -1)
    fill(at, N, 1, reader)
    finish(reader)
    gate.hold(reader)
    seen = read(at, N, reader)

    def interrupt(*_arguments):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(_cuda, "synchronize", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    with pytest.raises(poolbridge.PoolLimitError):
        client.allocate(N, "uint8", timeout=0.2)
    gate.open()
    again = client.allocate(N, "uint8", timeout=60)
    fill(use(again, reader), N, 9, reader)
    finish(reader)
    assert (seen == 1).all()


@ONE_BLOCK
def test_a_release_ends_the_lease_even_if_the_gpu_has_no_memory_for_the_wait(client, monkeypatch):
    lease = client.allocate(N, "uint8")
    use(lease, -1)

    def refuse(*_arguments):
        raise poolbridge.DeviceMemoryError("cuCtxSynchronize: out of memory")

    monkeypatch.setattr(_cuda, "synchronize", refuse)
    with pytest.raises(poolbridge.DeviceMemoryError):
        lease.release()
    monkeypatch.undo()
    client.allocate(N, "uint8", timeout=60).release()


def test_a_handler_that_publishes_while_its_thread_makes_a_fence_waits_for_the_content(
    client, other, gate, monkeypatch
):
    streams = new_stream(), new_stream(), new_stream()
    first, second = client.allocate(N, "uint8"), client.allocate(N, "uint8")
    use(first, streams[0])
    at = use(second, streams[1])
    gate.hold(streams[1])
    fill(at, N, 7, streams[1])
    write = _cuda_stream.write

    def interrupted(*arguments):
        monkeypatch.undo()
        second.publish("second")
        write(*arguments)

    monkeypatch.setattr(_cuda_stream, "write", interrupted)
    waits_until(gate.open, lambda: first.publish("first"))
    seen = read(use(other.get("second"), streams[2]), N, streams[2])
    finish(streams[2])
    assert (seen == 7).all()


def test_an_interrupted_publication_completes_no_later_one(client, other, gate):
    writer, reader = new_stream(), new_stream()

    def try_it(interrupter):
        gate.shut()
        lease = client.allocate(N, "uint8")
        at = use(lease, writer)
        fill(at, N, 1, writer)
        with interrupter:
            lease.publish("x", replace=True)
        finish(writer)
        if interrupter.where is not None and lease._lease_state.write:
            gate.hold(writer)
            fill(at, N, 2, writer)
            lease.publish("x", replace=True)
            got = other.get("x", timeout=60)
            seen = read(use(got, reader), N, reader)
            assert not gets_idle(reader, 0.02), interrupter.where
            gate.open()
            finish(reader)
            assert (seen == 2).all(), interrupter.where
            got.release()
        lease.release()

    assert at_every_step(try_it) > 30


@CHANNELS
def test_an_array_that_is_copied_is_copied_in_order(client, other, gate):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c")
    stream = new_stream()

    class Foreign:
        def __init__(self) -> None:
            self.memory = _cuda.Allocation(0, N)
            self.__cuda_array_interface__ = {
                "version": 3, "shape": (N,), "typestr": "|u1", "strides": None,
                "data": (self.memory.address, False), "stream": stream,
            }  # fmt: skip

    array = Foreign()
    gate.hold(stream)
    fill(array.memory.address, N, 5, stream)
    channel.publish(array)
    del array
    gc.collect()
    frame = next(frames)
    assert not idle(stream)
    assert len(client._session.returns._sources) == 1
    gate.open()
    assert (frame.to_numpy() == 5).all()


@CHANNELS
def test_an_array_in_a_lease_is_not_copied(client, other):
    from cuda.core.utils import StridedMemoryView

    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c")
    stream = new_stream()
    lease = client.allocate((8, 8), "float32")
    lease.copy_from(np.arange(64).reshape(8, 8))
    at = address(lease)
    interface = lease.view()
    channel.publish(interface, stream=stream)
    assert address(next(frames)) == at
    del interface
    again = client.allocate((8, 8), "float32")
    view = StridedMemoryView.from_dlpack(again, stream_ptr=stream)
    assert poolbridge._array.sources.find(client._session, again._lease_state.grant.pool, again) is not None

    class Part:
        def __init__(self, at: int) -> None:
            self.__cuda_array_interface__ = {
                "version": 3, "shape": (2, 4), "typestr": "<f4", "strides": (32, 8), "data": (at, False),
            }  # fmt: skip

    channel.publish(Part(view.ptr + 32))
    part = next(frames)
    assert (part.shape, part.strides, address(part)) == ((2, 4), (32, 8), view.ptr + 32)
    del view


def test_the_cuda_array_interface_names_a_stream_to_follow(client, other, gate):
    producer, consumer = new_stream(), new_stream()
    slow_frame(client, gate, 3, producer)
    got = other.get("frame3")
    view = got.view()
    stream = view.__cuda_array_interface__["stream"]
    assert stream == _cuda.own_stream(0)
    assert not idle(stream)
    got.used_on(consumer)
    gate.open()
    finish(consumer)
    assert view.__cuda_array_interface__["stream"] is None
    del view
    got.release()


# This program uses poolbridge's stream. The program prints how many streams poolbridge has made: after the first use of
# the GPU, and at its end.
USER = """
import poolbridge
from poolbridge._cuda import cuda
made, call = [], cuda.call
cuda.call = lambda name, *arguments: (name == "cuStreamCreate" and made.append(1)) or call(name, *arguments)
with poolbridge.connect({path!r}) as client:
    lease = client.allocate({n}, "uint8")
    lease.__dlpack__(stream=1, max_version=(1, 0))
    print(len(made), flush=True)
    got = client.get("frame3")
    print(got.view().__cuda_array_interface__["stream"] != 0, flush=True)
    got.release()
    lease.release()
print(len(made), flush=True)
"""


def test_poolbridge_makes_its_streams_before_it_makes_any_stream_wait(device_service, client, gate):
    # One of about 40 calls of cuStreamCreate returns only when every stream of the context is idle.
    slow_frame(client, gate, 3, new_stream())
    program = USER.format(path=device_service, n=N)
    with subprocess.Popen(
        [sys.executable, "-c", program], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        before = [process.stdout.readline() for _ in range(2)]
        gate.open()
        assert [*before, process.stdout.read()] == ["2\n", "True\n", "2\n"]


def test_a_stream_that_nobody_named_is_waited_for(client, gate):
    stream = new_stream()
    lease = client.allocate(N, "uint8")
    lease.__dlpack__(stream=-1, max_version=(1, 0))
    gate.hold(stream)
    threading.Thread(target=gate.open).start()
    lease.release()
    assert idle(stream)
    named = client.allocate(N, "uint8")
    named.__dlpack__(stream=-1, max_version=(1, 0))
    named.used_on(stream)
    second = Gate()
    second.hold(stream)
    named.release()
    assert not idle(stream)
    second.close()


@pytest.mark.parametrize("stream", [LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM])
def test_a_default_stream_of_cuda_core_needs_no_context(client, stream):
    lease, said = client.allocate(N, "uint8"), []

    def name():  # a thread that has no context
        lease.used_on(stream)
        said.append(True)

    thread = threading.Thread(target=name)
    thread.start()
    thread.join()
    assert said


def test_a_per_thread_stream_belongs_to_its_thread(client):
    lease = client.allocate(N, "uint8")
    lease.__dlpack__(stream=2, max_version=(1, 0))
    other = threading.Thread(target=lease.release)
    other.start()
    other.join()
    assert lease.released
    mine = client.allocate(N, "uint8")
    mine.__dlpack__(stream=2, max_version=(1, 0))
    mine.release()
    legacy = client.allocate(N, "uint8")
    legacy.__dlpack__(max_version=(1, 0))
    legacy.release()
    assert len(client._session.timelines.own.words) == 2


def test_what_the_cpu_copies_waits_for_the_stream(client, other, gate):
    slow_frame(client, gate, 4, new_stream())
    got = other.get("frame4")
    other._session.patience = 0.01
    with pytest.raises(poolbridge.WaitTimeoutError):
        got.to_numpy()
    other._session.patience = 60
    threading.Thread(target=gate.open).start()
    assert (got.to_numpy() == 4).all()


@pytest.mark.parametrize("device_service", [("plain",)], indirect=True)
def test_a_service_without_timelines_gets_what_is_complete(client, gate):
    stream = new_stream()
    lease = client.allocate(N, "uint8")
    at = use(lease, stream)
    gate.hold(stream)
    fill(at, N, 6, stream)
    threading.Thread(target=gate.open).start()
    lease.publish("x")
    assert idle(stream)
    assert client._session.timelines.own is None


@pytest.mark.skipif(counts() is None, reason="only a simulated GPU can do without stream memory operations")
def test_a_gpu_whose_streams_cannot_write_words(device_service, client):
    lease = client.allocate(N, "uint8")
    lease.copy_from(np.full(N, 8, np.uint8))
    lease.publish("x")
    code = f"""
import numpy, poolbridge
with poolbridge.connect({device_service!r}) as client:
    got = client.get("x")
    got.__dlpack__(stream=1, max_version=(1, 0))
    assert (got.to_numpy() == 8).all()
    got.release()
    mine = client.allocate({N}, "uint8", pool=client.open_pool("gpu"))
    mine.copy_from(numpy.full({N}, 9, numpy.uint8))
    mine.used_on(1)
    mine.publish("y", keep=True)
"""
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**ENVIRONMENT, "SIMCUDA_STREAM_MEM_OPS": "0", "SIMCUDA_COUNTS": os.environ["SIMCUDA_COUNTS"]},
        check=True,
        timeout=60,
    )
    got = client.get("y")
    assert got._lease_state.grant.wait == ()
    assert (got.to_numpy() == 9).all()


def test_a_stream_waits_for_what_the_cpu_has_promised(client, other):
    writer, consumer = new_stream(), new_stream()
    lease = client.allocate(N, "uint8")
    promise, at = lease.promise(), address(lease)
    lease.publish("x")
    got = other.get("x")
    seen = read(use(got, consumer), N, consumer)
    assert not idle(consumer)
    fill(at, N, 6, writer)
    finish(writer)
    assert not idle(consumer)
    promise.complete()
    finish(consumer)
    assert (seen == 6).all()


def test_a_stream_that_has_used_a_lease_waits_for_the_promise_too(client):
    stream = new_stream()
    lease = client.allocate(N, "uint8")
    use(lease, stream)
    promise = lease.promise()
    lease.publish("x")
    read(use(lease, stream), N, stream)
    waits_until(promise.complete, lambda: finish(stream))


def test_a_stream_that_waits_for_a_promise_goes_on_when_it_fails(client, other):
    consumer = new_stream()
    lease = client.allocate(N, "uint8")
    promise = lease.promise()
    lease.publish("x")
    got = other.get("x")
    read(use(got, consumer), N, consumer)
    assert not idle(consumer)
    got.check()
    promise.fail(ValueError("no light"))
    finish(consumer)
    with pytest.raises(poolbridge.ContentFailedError, match="its producer says: ValueError: no light$"):
        got.check()
    with pytest.raises(poolbridge.ContentFailedError, match="no light"):
        use(got, new_stream())
    with pytest.raises(poolbridge.ContentFailedError, match="no light"):
        other.get("x", timeout=60)


def test_what_streams_were_given_before_a_promise_is_waited_for(client, other, gate):
    writer = new_stream()
    lease = client.allocate(N, "uint8")
    at = use(lease, writer)
    gate.hold(writer)
    fill(at, N, 6, writer)
    promise = lease.promise()
    threading.Thread(target=gate.open).start()
    lease.publish("x")
    assert idle(writer)
    promise.complete()
    assert (other.get("x").to_numpy() == 6).all()


@CHANNELS
def test_arrays_that_are_dropped_keep_their_stream_until_it_has_written(client, other, monkeypatch):
    from cuda.core.utils import StridedMemoryView

    class Stream:
        handle = new_stream()

        def __cuda_stream__(self):
            return (0, self.handle)

    channel = client.create_channel("c", capacity=4)
    stream = Stream()

    def wrap(lease: poolbridge.Lease) -> StridedMemoryView:
        return StridedMemoryView.from_dlpack(lease, stream_ptr=Stream.handle)

    arrays = other.subscribe("c", credit=3).arrays(wrap, stream=stream)
    while arrays._frame is None or arrays._lease_state is not None:  # until the block of a frame already has an array
        channel.publish(client.allocate(N, "uint8"))
        next(arrays)
    kept = weakref.ref(stream)
    later: list[Callable[[], None]] = []
    monkeypatch.setattr(other._reader, "background", later.append)
    del arrays, stream
    gc.collect()
    assert kept() is not None, "its owner would end it"
    later.pop()()
    gc.collect()
    assert kept() is None


def test_a_page_of_a_session_that_ended_is_unmapped_after_the_stream_that_waited_for_it(client, other, gate):
    producer, consumer, last = new_stream(), new_stream(), Gate()
    slow_frame(client, gate, 7, producer)
    got = other.get("frame7")
    use(got, consumer)
    gate.open()
    finish(producer)
    last.hold(consumer)
    got.release()
    pages, sessions = other._session.timelines.pages, len(other.sessions())
    client.close()
    until(lambda: len(other.sessions()) < sessions)
    kept = len(pages)
    last.close()
    other.stats()
    assert (kept, len(pages)) == (2, 1)

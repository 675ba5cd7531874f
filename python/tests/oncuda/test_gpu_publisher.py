"""Test publishers with arrays that GPU streams write.

`test_device` runs these tests on the simulated driver. On a machine with a GPU, pytest also runs them directly.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import gc
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from gates import Gate, counts, fill, finish, idle, new_stream, read, waits_until
from realservice import until
from rig import CHANNELS, ENVIRONMENT, HERE, N, address, client, device_service, gate, other, use
from test_interrupts import Interrupter, at_every_step

import poolbridge
from poolbridge._client import borrowed
from poolbridge._cuda import stream as _cuda_stream
from poolbridge._order import fences

pytestmark = CHANNELS
NO_MORE_BLOCKS = pytest.mark.parametrize("client", [16 * N], indirect=True, ids=["no room for more blocks"])

__all__ = ["client", "device_service", "gate", "other"]  # fixtures


def wrap(lease):
    from cuda.core.utils import StridedMemoryView

    return StridedMemoryView.from_dlpack(lease, stream_ptr=-1)


def send(publisher, byte, stream, **options):
    """Publish a frame that a stream fills with `byte`."""
    fill(publisher.loan(60, stream=stream).ptr, N, byte, stream)
    return publisher.publish(**options)


@pytest.mark.parametrize("kind", ["device", "vmm", "legacy", "pinned"])
def test_frames_have_their_content_in_every_kind_of_memory(device_service, kind):
    with poolbridge.connect(device_service, timeout=60, wait=60) as one, poolbridge.connect(device_service) as two:
        pool = one.create_pool(kind, kind=kind, max_bytes="64MiB")
        channel = one.create_channel("c", pool=pool, capacity=4)
        producer, consumer = new_stream(), new_stream()
        arrays = two.subscribe("c").arrays(wrap, stream=consumer)
        with channel.publisher(N, "uint8", wrap=wrap) as publisher:
            for byte in range(60):
                assert send(publisher, byte, producer, meta={"byte": str(byte)}) == byte + 1
                seen = read(next(arrays).ptr, N, consumer)
                assert arrays.meta == {"byte": str(byte)}
                finish(consumer)
                assert (seen == byte).all()


def test_nothing_but_the_consumers_stream_waits_for_content(client, other, gate):
    producer, consumer, careless = new_stream(), new_stream(), new_stream()
    arrays = other.subscribe(client.create_channel("c")).arrays(wrap, stream=consumer)
    with client.open_channel("c").publisher(N, "uint8", wrap=wrap) as publisher:
        for byte in (1, 2, 3):  # Python code handles the first uses of a block, native code handles the later uses
            send(publisher, byte, producer)
            next(arrays)
            finish(consumer)
        at = publisher.loan(60, stream=producer).ptr
        fill(at, N, 4, producer)
        finish(producer)
        gate.hold(producer)
        fill(at, N, 7, producer)
        publisher.publish()
        array = next(arrays)
        seen, wrong = read(array.ptr, N, consumer), read(array.ptr, N, careless)
        finish(careless)
        assert not idle(producer)
        assert not idle(consumer)
        gate.open()
        finish(consumer)
        assert (seen == 7).all()
        assert (wrong == 4).all(), "what a stream sees that does not wait"


@NO_MORE_BLOCKS
@pytest.mark.parametrize("readers", [1, 2])
def test_a_block_is_written_again_after_the_streams_of_all_readers_which_only_the_writers_stream_waits_for(
    client, other, gate, readers
):
    channel = client.create_channel("c", capacity=2)
    producer, careless, streams = new_stream(), new_stream(), [new_stream() for _ in range(readers)]
    arrays = [other.subscribe(channel).arrays(wrap, stream=stream) for stream in streams]
    with channel.publisher(N, "uint8", wrap=wrap) as publisher:
        for byte in range(40):
            send(publisher, byte, producer)
            for one in arrays:
                next(one)
        known = publisher._chunks.counts[0]
        gate.hold(streams[-1])
        seen = {}
        for byte in range(100, 100 + known):  # the last stream reads each chunk once, after the gate opens
            send(publisher, byte, producer, timeout=60)
            for one, stream in zip(arrays, streams, strict=True):
                seen[byte, stream] = read(next(one).ptr, N, stream)
        for one in arrays:
            one.release()
        at = publisher.loan(60, stream=producer).ptr
        fill(at, N, 9, producer)
        late = read(at, N, careless)
        finish(careless)
        assert (late != 9).all(), "the writer's stream waits"
        assert not idle(producer)
        assert publisher._chunks.counts[0] == known, "the chunk came back though it is still read"
        gate.open()
        finish(producer)
        for stream in streams:
            finish(stream)
        assert all((found == byte).all() for (byte, _), found in seen.items()), "not overwritten"


@NO_MORE_BLOCKS
def test_a_frame_costs_each_side_one_write_of_a_word_and_no_wait_for_what_is_known_to_be_done(client, other):
    if counts() is None:
        pytest.skip("a real driver does not count its calls")
    channel = client.create_channel("c", capacity=4)
    producer, consumer = new_stream(), new_stream()
    made = []

    def counted(lease):
        made.append(lease)
        return wrap(lease)

    arrays = other.subscribe("c").arrays(wrap, stream=consumer)
    with channel.publisher(N, "uint8", wrap=counted) as publisher:
        for _ in range(60):
            publisher.loan(60, stream=producer)
            publisher.publish()
            next(arrays)
        arrays.release()
        finish(consumer)
        before, arrays_made, asked = counts(), len(made), client._session.core._number
        for _ in range(100):
            publisher.loan(60, stream=producer)
            publisher.publish()
            finish(producer)
            next(arrays)
            arrays.release()
            finish(consumer)
        after = counts()
        assert before is not None
        assert after is not None
        calls = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        for name in ("cuStreamSynchronize", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode"):
            del calls[name]  # calls of `finish`
        assert calls.pop("cuStreamWriteValue64") == 200, "one of the writer, one of the reader"
        assert calls.pop("cuStreamIsCapturing") == 300, "one of the writer, two of the reader"
        assert calls == {}, "no wait where the readers are known to be done"
        assert (len(made), client._session.core._number) == (arrays_made, asked)


@pytest.fixture
def together(monkeypatch):
    """Make frames share a fence even if the consumer releases them at very different times."""
    monkeypatch.setattr(borrowed, "_TOGETHER_SECONDS", 3600.0)


def ready_to_share(client, other, consumer, *, capacity=32, frames=0):
    """Make a publisher and a subscription; publish until each block has an array, then publish `frames` more frames."""
    channel = client.create_channel("c", capacity=capacity)
    subscription = other.subscribe("c")
    arrays = subscription.arrays(wrap, stream=consumer)
    publisher, producer = channel.publisher(N, "uint8", wrap=wrap), new_stream()
    known = -1
    while known < (known := len(other._session.core.blocks)):  # until every block has an array
        for _ in range(capacity):
            send(publisher, 1, producer)
        for _ in range(capacity):
            next(arrays)
        arrays.release()
    finish(consumer)
    for _ in range(frames):
        send(publisher, 2, producer)
    finish(producer)
    return publisher, producer, arrays, subscription._consumer.native


def test_frames_that_come_together_share_a_fence(client, other, together):
    if counts() is None:
        pytest.skip("a real driver does not count its calls")
    publisher, _, arrays, native = ready_to_share(client, other, new_stream(), frames=32)
    with publisher:
        before = counts()
        for number in range(32):
            next(arrays)
            assert len(native.in_hand) <= 32 // 8 + 1, number
        arrays.release()
        after = counts()
        assert before is not None
        assert after is not None
        assert after["cuStreamWriteValue64"] - before["cuStreamWriteValue64"] == 7, "one for five frames, and the rest"
        assert native.in_hand == []


def test_frames_without_a_fence_get_one_before_the_consumer_waits_for_the_next(client, other, together):
    publisher, producer, arrays, native = ready_to_share(client, other, new_stream(), frames=3)
    with publisher, concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            next(arrays)
        assert len(native.in_hand) == 3
        waiting = pool.submit(next, arrays)
        until(lambda: native.in_hand == [])
        assert not waiting.done()
        send(publisher, 3, producer)
        waiting.result(60)
        arrays.release()


def test_the_fence_of_earlier_frames_does_not_wait_for_content_of_the_next(client, other, together, gate):
    consumer = new_stream()
    publisher, producer, arrays, native = ready_to_share(client, other, consumer, frames=2)
    with publisher:
        next(arrays)
        next(arrays)
        assert len(native.in_hand) == 2
        at = publisher.loan(60, stream=producer).ptr
        gate.hold(producer)
        fill(at, N, 3, producer)
        publisher.publish()
        next(arrays)
        assert len(native.in_hand) == 1, "the two before it have their fence"
        assert not idle(consumer), "which the stream writes before it waits for the third frame"
        own = other._session.timelines.own
        assert own.words
        until(lambda: all(own.reached(word.index, word.value) for word in own.words.values()))
        gate.open()
        arrays.release()
        finish(consumer)


@pytest.mark.parametrize(
    "options",
    [{"mode": "queue", "capacity": 32}, {"full": "drop-oldest", "capacity": 32}, {"capacity": 7}],
    ids=["queue", "may be dropped", "few places"],
)
def test_where_a_frame_in_hand_costs_others_something_each_has_its_own_fence(client, other, together, options):
    channel, producer = client.create_channel("c", **options), new_stream()
    subscription = other.subscribe("c")
    arrays = subscription.arrays(wrap, stream=new_stream())
    with channel.publisher(N, "uint8", wrap=wrap) as publisher:
        for _ in range(20):
            for _ in range(4):
                send(publisher, 1, producer)
            for _ in range(4):
                next(arrays)
                assert len(subscription._consumer.native.in_hand) == 1
        arrays.release()


def test_frames_without_a_fence_go_back_when_the_arrays_are_dropped(client, other, together):
    publisher, _, arrays, native = ready_to_share(client, other, new_stream(), frames=3)
    with publisher:
        for _ in range(3):
            next(arrays)
        assert len(native.in_hand) == 3
        del arrays
        gc.collect()
        until(lambda: native.in_hand == [])


def test_a_signal_keeps_no_frame_in_hand_of_those_that_share_a_fence(client, other, together):
    publisher, producer, arrays, native = ready_to_share(client, other, new_stream())

    def burst(interrupter):
        newest, seen = 0, []
        for byte in range(7):
            newest = send(publisher, byte, producer)
        with interrupter:
            for _ in range(7):
                next(arrays)
                seen.append(arrays._frame.number)
        while arrays._frame is None or arrays._frame.number < newest:
            next(arrays)
            seen.append(arrays._frame.number)
        assert len(set(seen)) == len(seen) >= 6, f"{interrupter.where} lost a frame"
        arrays.release()
        until(lambda: native.in_hand == [])

    with publisher:
        assert at_every_step(burst) > 50


def test_no_stream_waits_for_a_fence_that_is_about_to_be_reached(client, other, gate, monkeypatch):
    if counts() is None:
        pytest.skip("a real driver does not count its calls")
    monkeypatch.setattr(fences, "_POLL_SECONDS", 60.0)
    publisher, producer, arrays, _ = ready_to_share(client, other, new_stream())
    with publisher, concurrent.futures.ThreadPoolExecutor(1) as pool:
        at = publisher.loan(60, stream=producer).ptr
        gate.hold(producer)
        fill(at, N, 3, producer)
        publisher.publish()
        before = counts()
        opened = pool.submit(gate.open)
        next(arrays)
        opened.result(60)
        after = counts()
        assert before is not None
        assert after is not None
        assert after.get("cuStreamWaitValue64") == before.get("cuStreamWaitValue64")
        arrays.release()


def test_two_streams_that_write_an_array_are_one_fence(client, other, gate):
    first, second, consumer = new_stream(), new_stream(), new_stream()
    channel = client.create_channel("c", capacity=4)
    arrays = other.subscribe("c").arrays(wrap, stream=consumer)
    with channel.publisher(N, "uint8", wrap=wrap) as publisher:
        for _ in range(3):
            held = Gate()
            array = publisher.loan(60, stream=first)
            held.hold(first)
            fill(array.ptr, N // 2, 1, first)
            assert publisher.loan(stream=second) is array
            fill(array.ptr + N // 2, N // 2, 2, second)
            publisher.publish(stream=second)
            seen = read(next(arrays).ptr, N, consumer)
            assert not idle(consumer)
            held.open()
            finish(consumer)
            assert (seen[: N // 2] == 1).all()
            assert (seen[N // 2 :] == 2).all()
            finish(first)
            finish(second)
            held.close()


@pytest.mark.parametrize("client", [2 * N], indirect=True)
def test_another_stream_for_the_next_frame_waits_for_the_one_before(client, gate):
    first, second, careless = new_stream(), new_stream(), new_stream()
    with client.create_channel("c", capacity=1, full="drop-oldest").publisher(N, "uint8", wrap=wrap) as publisher:
        send(publisher, 1, first)
        send(publisher, 1, first)
        finish(first)
        at = publisher.loan(60, stream=first).ptr
        gate.hold(first)
        fill(at, N, 2, first)
        publisher.publish()
        send(publisher, 2, first)  # this call drops the frame before, so that its block is free
        assert publisher.loan(60, stream=second).ptr == at
        fill(at, N, 3, second)
        seen = read(at, N, careless)
        finish(careless)
        assert (seen == 1).all()
        gate.open()
        finish(second)
        seen = read(at, N, careless)
        finish(careless)
        assert (seen == 3).all()


def test_a_full_channel_leaves_the_array_on_loan_and_no_order_is_lost(client, other, gate):
    producer, consumer = new_stream(), new_stream()
    channel = client.create_channel("c", capacity=1)
    arrays = other.subscribe("c", credit=1).arrays(wrap, stream=consumer)
    with channel.publisher(N, "uint8", wrap=wrap) as publisher:
        send(publisher, 1, producer)
        array = publisher.loan(60, stream=producer)
        fill(array.ptr, N, 2, producer)
        with pytest.raises(poolbridge.WaitTimeoutError, match="stayed full"):
            publisher.publish(timeout=0.01)
        assert publisher.loan(stream=producer) is array
        gate.hold(producer)
        fill(array.ptr, N, 3, producer)
        next(arrays)
        arrays.release()
        assert publisher.publish(timeout=60) == 2
        seen = read(next(arrays).ptr, N, consumer)
        assert not idle(consumer)
        gate.open()
        finish(consumer)
        assert (seen == 3).all()


@pytest.mark.parametrize("loaned", [True, False], ids=["loaned again", "as it is"])
def test_the_streams_of_a_loan_that_a_full_channel_refused_may_write_it_again(client, other, gate, loaned):
    first, second, reader = new_stream(), new_stream(), new_stream()
    frames = other.subscribe(client.create_channel("c", capacity=1), credit=1)
    with client.open_channel("c").publisher(N, "uint8", wrap=wrap) as publisher:
        send(publisher, 1, first)
        at = publisher.loan(60, stream=first).ptr
        publisher.loan(60, stream=second)
        with pytest.raises(poolbridge.WaitTimeoutError, match="stayed full"):
            publisher.publish(timeout=0.01)
        gate.hold(first)
        if loaned:
            publisher.loan(60, stream=second)
        fill(at, N, 7, first)
        next(frames).release()
        assert publisher.publish(timeout=60) == 2
        frame = next(frames)
        seen = read(use(frame, reader), N, reader)
        waits_until(gate.open, lambda: finish(reader))
        assert (seen == 7).all()
        frame.release()
        send(publisher, 3, second)  # the next loans have streams of their own
        assert (next(frames).to_numpy() == 3).all()


def test_a_loan_of_pinned_memory_goes_back_after_the_work_of_unknown_streams(client, other, gate):
    client.create_pool("pinned", kind="pinned", max_bytes="1MiB")
    stream, channel = new_stream(), client.create_channel("c", pool="pinned")

    def as_pytorch(lease):  # which copies to memory of a GPU, and back, on streams that nobody names
        return SimpleNamespace(capsule=lease.__dlpack__(max_version=(1, 0)), at=address(lease))

    publisher = channel.publisher(N, "uint8", wrap=as_pytorch)
    at = publisher.loan(60).at
    gate.hold(stream)
    fill(at, N, 9, stream)

    def leave():
        publisher.close()
        gc.collect()
        until(lambda: other.stats().leases == 0)

    waits_until(gate.open, leave)


def test_what_names_no_stream_or_makes_no_array_is_refused(client):
    channel = client.create_channel("c")
    with channel.publisher(N, "uint8") as publisher, pytest.raises(poolbridge.InvalidArgumentError, match="wrap="):
        publisher.loan(stream=new_stream())
    assert client.stats().leases == 0
    with channel.publisher(N, "uint8", wrap=wrap) as publisher:
        for _ in range(2):
            with pytest.raises(poolbridge.InvalidArgumentError, match="stream="):
                publisher.loan()
            with pytest.raises(poolbridge.InvalidArgumentError, match="stream="):
                publisher.publish()
            with pytest.raises(poolbridge.InvalidArgumentError, match="stream -1"):
                publisher.loan(stream=-1)
            with pytest.raises(ValueError, match="ambiguous"):
                publisher.loan(stream=0)
        send(publisher, 1, new_stream())
        with pytest.raises(poolbridge.LeaseReleasedError, match="loan"):
            publisher.publish()


def test_pinned_memory_that_the_cpu_writes_has_no_stream(client):
    pool = client.create_pool("pinned", kind="pinned", max_bytes="1MiB")
    channel = client.create_channel("c", pool=pool)
    with channel.publisher(N, "uint8") as publisher:
        publisher.loan()[:] = 1
        publisher.publish()
        publisher.loan()[:] = 2
        with pytest.raises(poolbridge.InvalidArgumentError, match="written by the CPU"):
            publisher.loan(stream=new_stream())
        assert publisher.publish() == 2


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_loan_that_is_not_published_ends_after_the_work_on_it(client, other, gate, how):
    stream, reader = new_stream(), new_stream()
    publisher = client.create_channel("c").publisher(N, "uint8", wrap=wrap)
    gate.hold(stream)
    fill(publisher.loan(60, stream=stream).ptr, N, 1, stream)
    if how == "closed":
        publisher.close()
        with pytest.raises(poolbridge.ClosedError, match="publisher"):
            publisher.loan(stream=stream)
    del publisher
    gc.collect()
    lease = client.allocate(N, "uint8", timeout=60)
    fill(int(lease._evidence()["pointer"]), N, 2, reader)
    finish(reader)
    gate.open()
    finish(stream)
    seen = read(int(lease._evidence()["pointer"]), N, reader)
    finish(reader)
    assert (seen == 2).all(), "another block, or written after the work"
    lease.release()
    until(lambda: other.stats().leases == 0)


def test_an_array_that_outlives_its_publisher_keeps_its_lease_until_its_stream_is_done(client, other, gate):
    stream = new_stream()
    publisher = client.create_channel("c").publisher(N, "uint8", wrap=wrap)
    array = publisher.loan(60, stream=stream)
    gate.hold(stream)
    fill(array.ptr, N, 1, stream)
    publisher.close()
    assert other.stats().leases == 1
    del array, publisher
    gc.collect()
    gate.open()
    until(lambda: other.stats().leases == 0)


def test_a_forked_child_has_no_loan_and_makes_no_call_of_the_driver(client):
    stream = new_stream()
    publisher = client.create_channel("c").publisher(N, "uint8", wrap=wrap)
    send(publisher, 1, stream)
    publisher.loan(60, stream=stream)
    child = os.fork()
    if not child:
        status = 0
        for call in (
            lambda: publisher.loan(stream=stream),
            publisher.publish,
            lambda: publisher.publish(stream=stream),
        ):
            try:
                call()
            except poolbridge.ForkError:
                continue
            status = 1
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert publisher.publish() == 2
    publisher.close()


def test_no_signal_loses_a_block_or_the_order(client, other):
    producer, consumer = new_stream(), new_stream()
    channel = client.create_channel("c", capacity=4)
    arrays = other.subscribe("c").arrays(wrap, stream=consumer)
    publisher = channel.publisher(N, "uint8", wrap=wrap)
    sent = 0

    def take():
        nonlocal sent
        while client._session.producers[channel.id].native.in_flight[-1][0] > sent:
            sent += 1
            seen = read(next(arrays).ptr, N, consumer)
            finish(consumer)
            assert (seen == sent % 256).all()

    for _ in range(30):
        send(publisher, (sent + 1) % 256, producer)
        take()
    chunks = publisher._chunks
    at = steps = 0
    while steps < 150:
        interrupter = Interrupter(at)
        with interrupter:
            array = publisher.loan(stream=producer)
            fill(array.ptr, N, (sent + 1) % 256, producer)
            publisher.publish()
        steps += 1
        at = 0 if interrupter.where is None else at + 1
        take()
        if chunks.loan:
            send(publisher, (sent + 1) % 256, producer)
            take()
        assert chunks.counts == (
            sum(one.chunks for one in chunks.arenas),
            chunks.counts[0] - sum(one.sent for one in chunks.arenas),
        )
    publisher.close()


def test_a_consumer_that_is_killed_while_its_stream_reads_keeps_no_block(device_service, client):
    channel = client.create_channel("c", capacity=1)
    code = f"""
import sys, poolbridge
sys.path[:0] = [{str(HERE)!r}]
from gates import Gate, new_stream, read
from test_gpu_publisher import wrap
with poolbridge.connect({device_service!r}) as client:
    stream = new_stream()
    arrays = client.subscribe("c").arrays(wrap, stream=stream)
    print("ready", flush=True)
    gate = Gate()
    for array in arrays:
        if arrays.seq == 30:
            gate.hold(stream)
            read(array.ptr, {N}, stream)
        print(arrays.seq, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        stream = new_stream()
        with channel.publisher(N, "uint8", wrap=wrap) as publisher:
            for number in range(1, 32):
                assert send(publisher, number, stream, timeout=60) == number
                assert process.stdout.readline() == f"{number}\n"
            process.send_signal(signal.SIGKILL)
            process.wait(60)
            for number in range(32, 72):
                assert send(publisher, number, stream, timeout=60) == number
            finish(stream)


def test_the_asyncio_client_has_them_too(device_service, gate):
    async def main():
        async with await poolbridge.connect_async(device_service, timeout=60, wait=60) as one:
            await one.create_pool("gpu", kind="device", max_bytes="64MiB")
            channel = await one.create_channel("c", capacity=4)
            producer, consumer = new_stream(), new_stream()
            async with one.subscribe(channel) as frames, channel.publisher(N, "uint8", wrap=wrap) as publisher:
                arrays = frames.arrays(wrap, stream=consumer)
                for byte in range(20):
                    array = await publisher.loan(60, stream=producer)
                    if byte == 19:
                        gate.hold(producer)
                    fill(array.ptr, N, byte, producer)
                    assert await publisher.publish({"byte": str(byte)}) == byte + 1
                    seen = read((await anext(arrays)).ptr, N, consumer)
                    if byte == 19:
                        assert not idle(consumer)
                        gate.open()
                    finish(consumer)
                    assert (seen == byte).all()

    asyncio.run(main())


def test_streams_are_ordered_in_the_same_way_without_the_native_call(client, other, gate, monkeypatch):
    monkeypatch.setattr(_cuda_stream, "_stream_words", None)
    test_nothing_but_the_consumers_stream_waits_for_content(client, other, gate)


def test_streams_that_write_no_words_are_waited_for(client, other, monkeypatch):
    monkeypatch.setattr(_cuda_stream, "supported", lambda _ordinal: False)
    producer, consumer = new_stream(), new_stream()
    arrays = other.subscribe(client.create_channel("c")).arrays(wrap, stream=consumer)
    with client.open_channel("c").publisher(N, "uint8", wrap=wrap) as publisher:
        for byte in range(10):
            send(publisher, byte, producer)
            assert idle(producer)
            seen = read(next(arrays).ptr, N, consumer)
            finish(consumer)
            assert (seen == byte).all()


def test_a_word_that_the_driver_refuses_to_write_is_waited_for(client, other, monkeypatch):
    producer, consumer = new_stream(), new_stream()
    arrays = other.subscribe(client.create_channel("c")).arrays(wrap, stream=consumer)

    def refuse(*_arguments):
        raise poolbridge.DriverError("cuStreamWriteValue64: CUDA_ERROR_UNKNOWN")

    refused = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint)(
        lambda *_arguments: 999
    )
    with client.open_channel("c").publisher(N, "uint8", wrap=wrap) as publisher:
        for byte in range(10):
            array = publisher.loan(60, stream=producer)
            fill(array.ptr, N, byte, producer)
            publisher._chunks.follower.function = ctypes.cast(refused, ctypes.c_void_p).value
            with monkeypatch.context() as patch:
                patch.setattr(_cuda_stream, "write", refuse)
                publisher.publish()
                assert idle(producer)
            seen = read(next(arrays).ptr, N, consumer)
            finish(consumer)
            assert (seen == byte).all()

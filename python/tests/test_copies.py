"""Tests `channel.publish(array)`, which copies into a publisher that the channel keeps for arrays of one layout."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import array as _array
import asyncio
import gc
import os
import signal
import sys
import threading
import tracemalloc

import numpy as np
from realservice import check_arrays_in_hand, leases, until
from test_arrays import OnlyDLPack, fill, patterns
from test_interrupts import at_every_step
from test_members import service as service  # noqa: PLC0414 - a fixture
from test_stopped_service import stop

import poolbridge
from poolbridge._client import copies as _copies
from poolbridge._memory.tensor import ELEMENT_TYPES
from poolbridge._session import returns as _returns

KIB = 1024


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Let publishers live on however slowly a test runs."""
    monkeypatch.setattr(_copies, "_SOON", 3600)
    monkeypatch.setattr(_returns, "_IDLE", 3600)


def arenas(client):
    return [arena for chunks in client._session.returns._chunks for arena in chunks.arenas]


def numbers(value, count=4):
    return np.full(count, value, "int32")


def send(channel, frames, values, count=4):
    """Publish an array for each value, and check and release its frame."""
    for value in values:
        channel.publish(numbers(value, count), timeout=60)
        with next(frames) as frame:
            assert np.asarray(frame).tolist() == [value] * count


def test_the_second_copy_of_a_layout_makes_an_arena_and_later_ones_ask_the_service_nothing(client, other):
    channel = client.create_channel("c", mode="queue", capacity=4)
    frames = other.subscribe("c")
    send(channel, frames, [0])
    assert not arenas(client)
    send(channel, frames, [1])
    assert len(arenas(client)) == 1
    until(lambda: leases(client) == 1)
    send(channel, frames, range(2, 20))
    asked = client._session.core._number
    send(channel, frames, range(20, 200))
    assert client._session.core._number == asked
    assert len(arenas(client)) == 1


def test_copies_have_their_content_layout_meta_and_number(client, other):
    channel = client.create_channel("c", capacity=2)
    frames = other.subscribe("c")
    source = np.arange(24, dtype="float32").reshape(4, 6)
    for number in range(1, 30):
        given = (source + number)[:, ::2] if number % 2 else np.asfortranarray((source + number)[:, ::2])
        assert channel.publish(given, meta={"n": str(number)}) == number
        given[:] = 0  # the copy is complete
        frame = next(frames)
        assert (frame.seq, frame.meta, frame.dtype_name, frame.shape) == (number, {"n": str(number)}, "float32", (4, 3))
        assert (np.asarray(frame) == (source + number)[:, ::2]).all()
    assert len(arenas(client)) == 1


@pytest.mark.parametrize("kind", ["memory", "frame", "scalar", "empty", "bfloat16", "large"])
def test_arrays_of_every_kind_are_copied_into_chunks(client, other, kind):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    held = client.allocate(
        4, "bfloat16" if kind == "bfloat16" else "int32", pool=client.create_pool("p", max_bytes=64 * KIB)
    )
    for value in range(10):
        held.copy_from(np.full(4, value))
        given = {
            "memory": _array.array("d", [value] * 4),
            "frame": held,
            "bfloat16": held,
            "scalar": np.float32(value),
            "empty": np.zeros((0, 3)),
            "large": np.full(1 << 18, value, "int32"),
        }[kind]
        channel.publish(given, timeout=60)
        with next(frames) as frame:
            assert frame.shape == np.shape(given)
            assert (frame.to_numpy() == value).all()
    assert len(arenas(client)) == 1


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_a_copy_of_a_lease_has_its_bits(client, other, name):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    held = client.allocate(len(patterns(name)), name, pool=client.create_pool("p", max_bytes=1 << 20))
    expected = fill(held, name)
    for _ in range(3):  # in a lease, and then in chunks
        channel.publish(held.view(), timeout=60)
        with next(frames) as frame:
            assert bytes(frame.memoryview()) == expected


def test_a_view_is_published_as_its_type_and_its_numpy_array_as_that_of_the_lease(client, other):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    for source, expected in ((lambda view: view, "uint8"), (np.asarray, "float4_e2m1fn_x2")):
        lease = client.allocate(4, "float4_e2m1fn_x2")
        channel.publish(source(lease.view(dtype="uint8")))
        with next(frames) as frame:
            assert (frame.dtype_name, frame.buffer_id) == (expected, lease.buffer_id)


def test_a_strided_array_that_has_only_dlpack_is_published_without_memory_for_its_gaps(client, other):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    apart = np.zeros(256 << 20, np.uint8)[:: 32 << 20]
    for value in range(3):
        apart[:] = value
        tracemalloc.start()
        try:
            channel.publish(OnlyDLPack(lambda: apart), timeout=60)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
        with next(frames) as frame:
            assert (np.asarray(frame) == value).all()


def test_arrays_whose_layout_changes_each_time_make_no_arena(client, other):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    for value in range(20):
        send(channel, frames, [value], count=1 + value % 2)
        channel.publish(np.zeros(4, ["float32", "float64"][value % 2]))
        next(frames).release()
    assert not arenas(client)


def test_the_publisher_of_one_layout_stays_until_two_copies_of_another_layout_follow_each_other(client, other):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    send(channel, frames, [0, 1])
    [first] = arenas(client)
    send(channel, frames, [2], count=8)
    send(channel, frames, [3, 4])
    assert arenas(client) == [first]
    send(channel, frames, [5, 6], count=8)
    [second] = arenas(client)
    assert second is not first
    until(lambda: leases(client) == 1)


def test_copies_that_come_slowly_make_no_arena(client, other, monkeypatch):
    monkeypatch.setattr(_copies, "_SOON", 0)
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    send(channel, frames, range(10))
    assert not arenas(client)


def test_an_idle_publisher_gives_its_arena_back_and_the_next_copy_needs_none(client, other, monkeypatch):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    send(channel, frames, range(10))
    monkeypatch.setattr(_returns, "_IDLE", 0.01)
    until(lambda: leases(client) == 0)
    monkeypatch.setattr(_copies, "_SOON", 0)
    send(channel, frames, [10])
    assert not arenas(client)
    monkeypatch.setattr(_returns, "_IDLE", 3600)
    monkeypatch.setattr(_copies, "_SOON", 3600)
    send(channel, frames, [11])
    assert len(arenas(client)) == 1


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_a_small_pool_carries_copies_without_an_error(client, other, blocks):
    pool = client.create_pool("small", kind="host", max_bytes=blocks * 64 * KIB)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=4)
    frames = other.subscribe("c")
    send(channel, frames, range(30), count=16 * KIB)


def test_a_pool_without_room_for_an_arena_carries_copies_in_leases_and_is_not_asked_again_each_time(client, other):
    pool = client.create_pool("small", kind="host", max_bytes=128 * KIB)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=4)
    frames = other.subscribe("c", credit=4)
    theirs = client.allocate(64 * KIB, "uint8", pool=pool)
    channel.publish(numbers(0, 16 * KIB), timeout=60)
    waits = threading.Thread(target=lambda: channel.publish(numbers(1, 16 * KIB), timeout=60))
    waits.start()
    refused = channel._copies
    until(lambda: refused._newest is not None and (kept := refused._newest()) is not None and kept._refused)
    frame = next(frames)
    frame.release()
    waits.join()
    with next(frames) as frame:
        assert (np.asarray(frame) == 1).all()
    assert not arenas(client)
    until(lambda: leases(client) == 1)
    asked = client._session.core._number
    send(channel, frames, [2], count=16 * KIB)
    assert not arenas(client)
    assert client._session.core._number <= asked + 8
    theirs.release()


def test_another_client_gets_the_arena_of_an_idle_publisher(client, other):
    pool = client.create_pool("small", kind="host", max_bytes=128 * KIB)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=1)
    frames = other.subscribe("c")
    send(channel, frames, range(10), count=4 * KIB)
    theirs = other.open_pool("small")
    other.allocate(128 * KIB, "uint8", pool=theirs, timeout=60).release()
    send(channel, frames, range(10), count=4 * KIB)


def test_a_time_limit_ends_the_wait_for_memory_and_loses_nothing(client, other):
    pool = client.create_pool("small", kind="host", max_bytes=3 * 64 * KIB)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=4)
    frames = other.subscribe("c", ack="manual", credit=8)
    held = []
    with pytest.raises(poolbridge.PoolLimitError, match='pool "small"'):
        for value in range(10):
            channel.publish(numbers(value, 16 * KIB), timeout=0)
            held.append(next(frames))
    sent = len(held)
    assert sent >= 1
    with pytest.raises(poolbridge.PoolLimitError, match='pool "small"'):
        channel.publish(numbers(sent, 16 * KIB), timeout=0.05)
    waits = threading.Thread(target=lambda: channel.publish(numbers(sent, 16 * KIB)))
    waits.start()
    for value, frame in enumerate(held):
        assert (np.asarray(frame) == value).all()
        frame.release()
    waits.join()
    with next(frames) as frame:
        assert (frame.seq, np.asarray(frame)[0]) == (sent + 1, sent)


@pytest.mark.parametrize("full", ["block", "fail"])
def test_a_full_channel_refuses_a_copy_and_takes_the_next(client, other, full):
    channel = client.create_channel("c", mode="queue", capacity=2, full=full)
    frames = other.subscribe("c", ack="manual")
    send(channel, frames, [1, 2, 3])
    for value in (4, 5):
        channel.publish(numbers(value))
    error = poolbridge.WaitTimeoutError if full == "block" else poolbridge.PoolLimitError
    for _ in range(20):  # more often than there are chunks
        with pytest.raises(error, match="channel 'c' .*full"):
            channel.publish(numbers(9), timeout=0)
    for value in (4, 5):
        with next(frames) as frame:
            assert np.asarray(frame)[0] == value
    assert channel.publish(numbers(6)) == 6
    with next(frames) as frame:
        assert np.asarray(frame)[0] == 6
    assert len(arenas(client)) == 1


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
@pytest.mark.parametrize("full", ["block", "drop-oldest", "latest"])
def test_no_slot_is_written_while_its_frame_is_in_hand(client, other, mode, full):
    channel = client.create_channel("c", mode=mode, capacity=2, full=full)
    enough = threading.Event()

    def publish():
        value = 0
        while not enough.is_set():
            try:
                channel.publish(np.full(16, value), timeout=0.1)
            except poolbridge.WaitTimeoutError:
                continue
            value += 1

    frames = other.subscribe("c", credit=8)
    sender = threading.Thread(target=publish)
    sender.start()
    check_arrays_in_hand(frames)
    enough.set()
    sender.join(60)


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_publish_copies_through_one_channel(client, other, threads):
    channel = client.create_channel("c", mode="queue", capacity=4)
    frames = other.subscribe("c")
    failed = []

    def publish(first):
        try:
            for value in range(first, first + 1000):
                channel.publish(np.full(KIB, value), timeout=60)
        except poolbridge.PoolbridgeError as error:
            failed.append(error)

    senders = [threading.Thread(target=publish, args=(1000 * i,)) for i in range(threads)]
    for sender in senders:
        sender.start()
    last: dict[int, int] = {}
    for _ in range(1000 * threads):
        with frames.receive(60) as frame:
            found = np.asarray(frame)
            value = int(found[0])
            assert (found == value).all()
            assert value == last.get(value // 1000, 1000 * (value // 1000) - 1) + 1
            last[value // 1000] = value
            del found
    for sender in senders:
        sender.join()
    assert not failed


def test_a_channel_that_is_closed_says_so_and_nothing_is_left(client, other):
    channel = client.create_channel("c", capacity=2)
    for value in range(5):
        channel.publish(numbers(value))
    assert arenas(client)
    channel.close()
    with pytest.raises(poolbridge.ClosedError):
        channel.publish(numbers(5))
    until(lambda: leases(other) == 0)


def test_a_channel_object_that_is_dropped_gives_its_arena_back(client, other):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    send(channel, frames, range(5))
    assert leases(client) == 1
    del channel
    gc.collect()
    until(lambda: leases(client) == 0)


def test_a_client_that_is_closed_publishes_nothing_and_keeps_no_memory(service, other):
    with poolbridge.connect(service.path, timeout=60) as client:
        pool = client.create_pool("p", kind="host", max_bytes=64 * KIB)
        channel = client.create_channel("c", pool=pool, mode="queue", capacity=1)
        frames = other.subscribe("c")
        send(channel, frames, range(5))
    with pytest.raises(poolbridge.ClientClosedError):
        channel.publish(numbers(5))
    other.allocate(64 * KIB, "uint8", pool=other.open_pool("p"), timeout=60).release()


def test_a_client_that_is_closed_during_a_copy_leaves_the_slot_mapped(client, other, monkeypatch):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    send(channel, frames, range(5))
    copyto = np.copyto

    def close_and_copy(target, source):
        client.close()
        copyto(target, source)

    monkeypatch.setattr(np, "copyto", close_and_copy)
    with pytest.raises(poolbridge.ClientClosedError):
        channel.publish(numbers(5))


def test_a_forked_child_publishes_nothing_and_the_parent_goes_on(client, other):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    send(channel, frames, range(5))
    child = os.fork()
    if not child:
        try:
            channel.publish(numbers(5))
        except poolbridge.ForkError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    send(channel, frames, range(5, 10))


def test_copies_go_on_while_the_service_is_stopped(service, client, other):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    send(channel, frames, range(5))
    stop(service)
    try:
        send(channel, frames, range(100))
    finally:
        os.kill(service.process.pid, signal.SIGCONT)


def test_leases_and_their_arrays_are_published_in_place_beside_copies(client, other):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    send(channel, frames, range(5))
    lease = client.allocate(4, "int32")
    inside = np.asarray(lease)
    inside[:] = 7
    channel.publish(inside)
    with next(frames) as frame:
        assert (frame.lease.buffer_id, np.asarray(frame)[0]) == (lease.buffer_id, 7)
    with pytest.raises(poolbridge.LeaseReleasedError):
        channel.publish(inside)
    send(channel, frames, range(5))


def test_no_frame_and_no_slot_is_lost_where_a_signal_comes(client, other, monkeypatch):
    # A signal may come in a finaliser. pytest would keep the finaliser's error until the end of the test, and the error
    # would keep the array.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    channel = client.create_channel("c", mode="queue", capacity=4)
    frames = other.subscribe("c")
    send(channel, frames, [0, 0])

    def try_it(interrupter):
        with interrupter:
            channel.publish(numbers(1))
        channel.publish(numbers(2))
        seen = 0
        while seen != 2:
            with next(frames) as frame:
                seen = int(np.asarray(frame)[0])
                assert (np.asarray(frame) == seen).all()

    at_every_step(try_it)
    channel._copies._kept.clear()
    until(lambda: leases(client) == 0)


# Asyncio


def run(main, service):
    async def connected():
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            await client.create_pool("p", kind="host", max_bytes=64 << 20)
            await main(client)

    asyncio.run(connected())


async def exchange(channel, frames, value, count=4):
    await channel.publish(numbers(value, count), timeout=60)
    async with await frames.receive(60) as frame:
        assert (np.asarray(frame) == value).all()


@pytest.mark.parametrize("count", [4, 1 << 18])
def test_the_asyncio_client_copies_into_a_publisher_too(service, count):
    async def main(client):
        channel = await client.create_channel("c", mode="queue", capacity=4)
        async with client.subscribe("c") as frames:
            for value in range(50):
                await exchange(channel, frames, value, count)
                assert len(arenas(client)) == (value > 0)
            asked = client._session.core._number
            for value in range(50):
                await exchange(channel, frames, value, count)
            assert client._session.core._number == asked

    run(main, service)


def test_a_cancelled_copy_has_no_frame_and_the_next_one_is_published(service):
    async def main(client):
        channel = await client.create_channel("c", mode="queue", capacity=1)
        async with client.subscribe("c") as frames:
            for value in range(4):
                await exchange(channel, frames, value)
            await channel.publish(numbers(4))
            for _ in range(10):  # more often than there are chunks
                waiting = asyncio.create_task(channel.publish(numbers(9)))
                await asyncio.sleep(0)  # it begins to wait
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            async with await frames.receive(60) as frame:
                assert np.asarray(frame)[0] == 4
            await exchange(channel, frames, 5)
            assert len(arenas(client)) == 1

    run(main, service)


def test_tasks_publish_copies_through_one_channel(service):
    async def main(client):
        channel = await client.create_channel("c", mode="queue", capacity=2)
        async with client.subscribe("c") as frames:
            for value in range(4):
                await exchange(channel, frames, value)
            publishing = [asyncio.create_task(channel.publish(numbers(value), timeout=60)) for value in range(20)]
            seen = []
            for _ in range(20):
                async with await frames.receive(60) as frame:
                    found = np.asarray(frame).tolist()
                    assert found == [found[0]] * 4
                    seen.append(found[0])
            await asyncio.gather(*publishing)
            assert sorted(seen) == list(range(20))

    run(main, service)

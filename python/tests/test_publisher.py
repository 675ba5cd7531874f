"""Tests publishers, which make one array for each block, and publish the arrays as frames."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
from realservice import check_arrays_in_hand, leases, until
from test_interrupts import Interrupter, at_every_step
from test_members import service  # noqa: F401 - a fixture
from test_returned_leases import let_go_later

import poolbridge
from poolbridge._memory.mappings import MAPPINGS
from poolbridge._session import returns as _returns

KIB = 1024


def fill(publisher, value, **options):
    publisher.loan(60)[:] = value
    return publisher.publish(**options)


def test_frames_of_a_publisher_come_in_order_with_their_content_and_meta(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c")
    with channel.publisher((2, 3), "int32") as publisher:
        for value in range(20):
            array = publisher.loan()
            assert array.shape == (2, 3)
            assert array.dtype == np.int32
            array[:] = value
            assert publisher.publish({"value": str(value)}) == value + 1
            frame = next(frames)
            assert (frame.seq, frame.meta) == (value + 1, {"value": str(value)})
            assert np.asarray(frame).tolist() == [[value] * 3] * 2


def test_what_the_guide_shows_publishes_every_frame(service, monkeypatch):  # noqa: F811
    guide = (Path(__file__).parents[2] / "docs" / "streaming.md").read_text()
    [block] = [block for block in guide.split("```python\n")[1:] if "channel.publisher((" in block]
    code = compile(block.partition("```")[0], "streaming.md", "exec")
    monkeypatch.setenv("POOLBRIDGE_SOCKET", service.path)
    with poolbridge.connect() as client:
        pool = client.create_pool("frames", kind="host", max_bytes="64MiB")
        frames = client.subscribe(client.create_channel("fast camera", pool=pool))
        sender = threading.Thread(target=exec, args=(code, {}))
        sender.start()
        seen = [(np.asarray(frame).max(), frame.meta) for frame in frames]
        sender.join()
    assert seen == [(number, {"exposure": 8}) for number in range(300)]


def test_arrays_are_made_once_and_no_frame_costs_a_packet(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c").arrays()
    made = []

    def wrap(lease):
        made.append(np.asarray(lease))
        return made[-1]

    publisher = channel.publisher(4, "int32", wrap=wrap)
    for value in range(20):
        fill(publisher, value)
        assert next(frames)[0] == value
    asked, arrays = client._session.core._number, len(made)
    for value in range(100):
        array = publisher.loan()
        assert any(array is one for one in made)
        array[:] = value
        publisher.publish()
        assert next(frames)[0] == value
    assert (client._session.core._number, len(made)) == (asked, arrays)
    assert arrays <= 4 + 2 + 4
    publisher.close()


def test_a_loan_stays_the_same_until_it_is_published(client):
    publisher = client.create_channel("c").publisher(4)
    assert publisher.loan() is publisher.loan()
    publisher.publish()
    with pytest.raises(poolbridge.LeaseReleasedError, match="loan"):
        publisher.publish()
    publisher.close()


def test_publishers_of_one_channel_have_shapes_and_buffers_of_their_own(client, other):
    channel = client.create_channel("c", capacity=2)
    frames = other.subscribe("c")
    with channel.publisher(4, "int32") as small, channel.publisher((8, 8), "uint8") as large:
        for value in range(10):
            one, two = small.loan(), large.loan()
            one[:], two[:] = value, value + 1
            small.publish()
            assert np.asarray(next(frames)).tolist() == [value] * 4
            large.publish()
            assert (np.asarray(next(frames)) == np.full((8, 8), value + 1)).all()


def test_a_full_channel_leaves_the_array_on_loan(client, other):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c")
    with channel.publisher(4, "int32") as publisher:
        fill(publisher, 1)
        array = publisher.loan()
        array[:] = 2
        with pytest.raises(poolbridge.WaitTimeoutError, match="stayed full .* larger capacity"):
            publisher.publish(timeout=0.01)
        assert publisher.loan() is array
        next(frames).release()
        assert publisher.publish(timeout=60) == 2
        assert np.asarray(next(frames)).tolist() == [2] * 4


def test_a_channel_that_is_to_fail_leaves_the_array_on_loan(client, other):
    channel = client.create_channel("c", capacity=1, full="fail")
    frames = other.subscribe("c")
    with channel.publisher(4, "int32") as publisher:
        fill(publisher, 1)
        array = publisher.loan()
        with pytest.raises(poolbridge.PoolLimitError, match="is full.* larger capacity"):
            publisher.publish()
        assert publisher.loan() is array
        next(frames).release()
        array[:] = 2
        assert publisher.publish() == 2


@pytest.fixture
def waits(monkeypatch):
    """Return an event that is set when a publisher begins to wait for room in its channel."""
    begun, publish = threading.Event(), _returns.Chunks.publish

    def watched(chunks, *arguments):
        if arguments[-1] != 0.0:
            begun.set()
        return publish(chunks, *arguments)

    monkeypatch.setattr(_returns.Chunks, "publish", watched)
    return begun


def test_a_publisher_waits_for_room_in_its_channel(client, other, waits):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c", ack="manual")
    with channel.publisher(4, "int32") as publisher:
        fill(publisher, 1)
        first = next(frames)
        later = threading.Thread(target=fill, args=(publisher, 2))
        later.start()
        assert waits.wait(60)
        first.release()
        later.join()
        assert np.asarray(next(frames)).tolist() == [2] * 4


@pytest.mark.parametrize("timeout", [-1, "x"])
def test_a_timeout_that_is_none_is_refused_and_the_array_stays_on_loan(client, other, timeout):
    channel = client.create_channel("c", capacity=1)
    other.subscribe("c", ack="manual").close()
    with channel.publisher(4) as publisher:
        with pytest.raises(poolbridge.InvalidArgumentError):
            publisher.loan(timeout)
        array = publisher.loan()
        with pytest.raises(poolbridge.InvalidArgumentError):
            publisher.loan(timeout)
        with pytest.raises(poolbridge.InvalidArgumentError):
            publisher.publish(timeout=timeout)
        assert publisher.loan() is array


class Interrupted(Exception):
    pass


def test_a_frame_that_was_sent_before_a_signal_is_not_written_again(client, other, monkeypatch):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c")
    with channel.publisher(4, "int32") as publisher:
        fill(publisher, 1)
        array = publisher.loan()
        array[:] = 2
        send = _returns.Chunks.send

        def sent(chunks, *arguments):
            send(chunks, *arguments)
            raise Interrupted

        monkeypatch.setattr(_returns.Chunks, "send", sent)
        with pytest.raises(Interrupted):
            publisher.publish()
        monkeypatch.undo()
        assert publisher.loan() is not array
        fill(publisher, 3)
        assert [int(np.asarray(next(frames))[0]) for _ in range(3)] == [1, 2, 3]


def test_meta_that_cannot_be_leaves_the_array_on_loan(client):
    with client.create_channel("c").publisher(4) as publisher:
        array = publisher.loan()
        with pytest.raises(poolbridge.InvalidArgumentError):
            publisher.publish({"key": "x" * 9000})
        assert publisher.loan() is array
        assert publisher.publish({"key": "x"}) == 1


def test_a_channel_that_is_closed_says_so_and_nothing_is_left(client, other):
    channel = client.create_channel("c", capacity=2)
    publisher = channel.publisher(4, "int32")
    for value in range(3):
        fill(publisher, value)
    publisher.loan()
    channel.close()
    with pytest.raises(poolbridge.ClosedError, match="has closed it"):
        publisher.publish()
    publisher.close()
    until(lambda: leases(other) == 0)
    with pytest.raises(poolbridge.ClosedError, match="publisher of channel 'c' was closed"):
        publisher.loan()


def test_an_idle_publisher_has_no_memory_and_takes_some_for_its_next_array(client, other):
    channel = client.create_channel("c", mode="queue", capacity=4)
    frames = other.subscribe("c")
    publisher = channel.publisher(4, "int32")
    for value in range(10):
        fill(publisher, value)
        next(frames).release()
    assert publisher._chunks.arenas
    until(lambda: leases(client) == 0)
    assert publisher._chunks.counts == (0, 0)
    fill(publisher, 10)
    frame = next(frames)
    assert np.asarray(frame).tolist() == [10] * 4
    frame.release()
    publisher.close()
    until(lambda: not len(client._session.returns))


def test_a_publisher_with_an_array_on_loan_or_a_frame_in_the_channel_is_not_idle(client, other, monkeypatch):
    monkeypatch.setattr(_returns, "_IDLE", 0.0)
    monkeypatch.setattr(_returns, "_REST", 0.001)
    channel = client.create_channel("c", mode="queue", capacity=4)
    frames = other.subscribe("c")
    publisher = channel.publisher(4, "int32")
    turns: list[int] = []
    turn = client._session.returns._turn

    def counted():
        turns.append(1)
        return turn()

    monkeypatch.setattr(client._session.returns, "_turn", counted)
    array = publisher.loan()
    until(lambda: len(turns) > 3)
    assert publisher.loan() is array
    array[:] = 1
    publisher.publish()
    frame = next(frames)
    turns.clear()
    until(lambda: len(turns) > 3)
    assert np.asarray(frame).tolist() == [1] * 4
    assert leases(client) == 1
    frame.release()
    until(lambda: leases(client) == 0)
    publisher.close()


def test_an_idle_publisher_gives_its_memory_at_once_to_a_client_that_needs_room(service, client, other, monkeypatch):  # noqa: F811
    monkeypatch.setattr(_returns, "_IDLE", 3600)
    pool = client.create_pool("small", kind="host", max_bytes=256 * KIB)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=1)
    frames = other.subscribe("c")
    publisher = channel.publisher(64 * KIB, "uint8")
    for value in range(8):
        fill(publisher, value)
        next(frames).release()
    with poolbridge.connect(service.path, timeout=60) as third:
        big = third.allocate(256 * KIB, "uint8", pool=third.open_pool("small"), timeout=60)
        with pytest.raises(poolbridge.PoolLimitError):
            publisher.loan(0)
        big.release()
        fill(publisher, 9)
        assert (np.asarray(next(frames)) == 9).all()
    publisher.close()


def grow(publisher, frames, count):
    """Hold `count` frames at the same time, so that the publisher takes more arenas, and release them."""
    held = []
    for value in range(count):
        fill(publisher, value)
        held.append(frames.receive(60))
    for frame in held:
        frame.release()


@pytest.mark.parametrize("chunks", [14, 32])
def test_a_publisher_uses_its_whole_pool_again_after_arenas_went_back(client, other, chunks):
    nbytes = 512 * KIB
    for kept in range(0, chunks, 3):
        pool = client.create_pool(f"keeps {kept}", kind="host", max_bytes=chunks * nbytes)
        channel = client.create_channel(f"keeps {kept}", pool=pool, mode="queue", capacity=2)
        frames = other.subscribe(channel.name, credit=64)
        with channel.publisher(nbytes, "uint8") as publisher:
            held = []
            for _ in range(chunks):
                publisher.loan(60)
                publisher.publish()
                held.append(frames.receive(60))
            stays = held.pop(kept)
            for frame in held:
                frame.release()
            with client._session.lock:
                client._session.returns._sweep(channel._info.pool)
            assert leases(client) == 1
            again = []
            for _ in range(chunks - 1):
                publisher.loan(60)
                publisher.publish()
                again.append(frames.receive(60))
            for frame in (*again, stays):
                frame.release()
        until(lambda: leases(client) == 0)


@pytest.mark.parametrize("full", ["block", "drop-oldest", "latest"])
def test_an_idle_publisher_keeps_only_arenas_with_frames_that_a_broadcast_keeps(client, other, full):
    channel = client.create_channel("c", capacity=3, full=full)
    frames = other.subscribe("c", credit=64)
    with channel.publisher(16 * KIB, "uint8") as publisher:
        grow(publisher, frames, 60)
        grown = leases(client)
        assert grown == len(publisher._chunks.arenas) > 3
        for value in range(12):
            fill(publisher, value)
            frames.receive(60).release()
        until(lambda: leases(client) < grown and all(0 < arena.sent <= 3 for arena in publisher._chunks.arenas))
        assert sum(arena.sent for arena in publisher._chunks.arenas) == 3
        assert leases(client) == len(publisher._chunks.arenas)
        assert (np.asarray(other.open_channel("c").latest()) == 11).all()
        fill(publisher, 12)
        assert (np.asarray(frames.receive(60)) == 12).all()


@pytest.mark.parametrize("state", ["published", "on loan", "waits for room"])
def test_a_publisher_of_a_broadcast_gives_free_arenas_at_once_to_a_client_that_needs_room(
    service,  # noqa: F811
    client,
    other,
    monkeypatch,
    waits,
    state,
):
    monkeypatch.setattr(_returns, "_IDLE", 3600)
    pool = client.create_pool("small", kind="host", max_bytes=2048 * KIB)
    channel = client.create_channel("c", pool=pool, capacity=3)
    frames = other.subscribe("c", credit=126)
    publisher = channel.publisher(16 * KIB, "uint8")
    grow(publisher, frames, 126)
    grow(publisher, frames, 3)
    sender = threading.Thread(target=fill, args=(publisher, 4))
    if state == "on loan":
        array = publisher.loan(60)
        array[:] = 4
    elif state == "waits for room":
        for value in range(1, 4):
            fill(publisher, value)
        waits.clear()
        sender.start()
        assert waits.wait(60)
    with poolbridge.connect(service.path, timeout=60) as third:
        # The arena with the loan is anywhere, and so may leave less than 1,024 KiB in one piece.
        third.allocate(704 * KIB, "uint8", pool=third.open_pool("small"), timeout=60)
        if state == "on loan":
            assert publisher.loan() is array
            publisher.publish()
        elif state == "waits for room":
            for value in range(1, 4):
                frame = frames.receive(60)
                assert (np.asarray(frame) == value).all()
                frame.release()
            sender.join()
        else:
            fill(publisher, 4)
        assert (np.asarray(frames.receive(60)) == 4).all()
    publisher.close()


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 7])
def test_a_small_pool_has_as_many_slots_as_fit(client, other, blocks):
    pool = client.create_pool("small", kind="host", max_bytes=blocks * 64 * KIB)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=4)
    frames = other.subscribe("c", credit=8, ack="manual")
    with channel.publisher(64 * KIB, "uint8") as publisher:
        held = []
        for value in range(blocks):
            fill(publisher, value)
            held.append(frames.receive(60))
        assert publisher._chunks.counts == (blocks, 0)
        with pytest.raises(poolbridge.PoolLimitError, match=f"all {blocks} chunks .* hold the others.* release frames"):
            publisher.loan(0)
        for value, frame in enumerate(held):
            assert (np.asarray(frame) == value).all()
            frame.release()
        for value in range(100):
            fill(publisher, value)
            frame = frames.receive(60)
            assert (np.asarray(frame) == value).all()
            frame.release()
        # The service asked for unused memory when the loan above found no room. So an arena without frames may be gone.
        assert publisher._chunks.counts[0] <= blocks
        for value in range(blocks):
            fill(publisher, value)
            held[value] = frames.receive(60)
        assert publisher._chunks.counts == (blocks, 0)
        assert [int(np.asarray(frame)[0]) for frame in held] == list(range(blocks))


def test_slots_grow_with_what_consumers_hold_and_not_otherwise(client, other):
    channel = client.create_channel("c", capacity=2, full="drop-oldest")
    frames = other.subscribe("c", credit=100, ack="manual")
    with channel.publisher(4, "int32") as publisher:
        for value in range(100):
            fill(publisher, value)
            next(frames).release()
        assert publisher._chunks.counts[0] == 2 + 2 + 4
        held = []
        for value in range(100):
            fill(publisher, value)
            held.append(next(frames))
        assert publisher._chunks.counts[0] == 16 * (2 + 2 + 4)
        assert [int(np.asarray(frame)[0]) for frame in held] == list(range(100))
        assert leases(client) == 5


def test_a_client_that_closes_lets_nobody_have_the_memory_of_an_array_that_is_used(service, other):  # noqa: F811
    mapped = len(MAPPINGS)
    with poolbridge.connect(service.path, timeout=60) as client:
        pool = client.create_pool("p", kind="host", max_bytes=64 * KIB)
        publisher = client.create_channel("c", pool=pool).publisher(64 * KIB, "uint8")
        array = publisher.loan()
    array[:] = 2
    theirs = other.open_pool("p")
    with pytest.raises(poolbridge.PoolLimitError):
        other.allocate(KIB, pool=theirs)
    for call in publisher.publish, publisher.loan:
        with pytest.raises(poolbridge.ClientClosedError):
            call()
    publisher.close()
    del array, publisher, call
    gc.collect()
    until(lambda: len(MAPPINGS) <= mapped)


def test_a_client_that_closes_ends_a_loan_whose_array_is_not_used(service, other):  # noqa: F811
    with poolbridge.connect(service.path, timeout=60) as client:
        pool = client.create_pool("p", kind="host", max_bytes=64 * KIB)
        publisher = client.create_channel("c", pool=pool).publisher(64 * KIB, "uint8")
        publisher.loan()
    theirs = other.open_pool("p")
    other.allocate(KIB, pool=theirs, timeout=60).release()
    publisher.close()


def test_an_array_that_outlives_its_publisher_keeps_its_lease(client, other):
    channel = client.create_channel("c", capacity=1)
    with channel.publisher(4) as publisher:
        array = publisher.loan()
    array[:] = 1
    assert leases(other) == 1
    del array, publisher
    gc.collect()
    until(lambda: leases(other) == 0)


def test_a_publisher_that_is_dropped_gives_its_buffers_back(client, other):
    publisher = client.create_channel("c", mode="queue", capacity=1).publisher(4)
    frames = other.subscribe("c")
    fill(publisher, 1)
    publisher.loan()
    assert leases(other) == 1
    del publisher
    gc.collect()
    next(frames).release()
    until(lambda: leases(other) == 0)


@pytest.mark.parametrize("first", ["frame", "array"])
def test_memory_of_a_closed_publisher_goes_back_after_its_last_frame_and_its_last_array(client, other, first):
    channel = client.create_channel("c", mode="queue", capacity=4)
    frames = other.subscribe("c")
    publisher = channel.publisher(4, "int32")
    fill(publisher, 1)
    frame, array = next(frames), publisher.loan()
    publisher.close()
    array[:] = 2
    assert np.asarray(frame).tolist() == [1] * 4
    returns = client._session.returns
    for step in (first, "array" if first == "frame" else "frame"):
        [arena] = returns._leaving.values()
        assert leases(other) == 1
        if step == "frame":
            frame.release()
            until(lambda: not any(one.sent for one in returns._leaving.values()))
        else:
            assert array.tolist() == [2] * 4
            del array
            gc.collect()
        del arena
    until(lambda: leases(other) == 0 and not len(returns))  # the client sends the release, and forgets the lease then


def test_nobody_gets_the_memory_of_an_array_and_of_a_frame_of_a_client_that_was_closed(service, other):  # noqa: F811
    with poolbridge.connect(service.path, timeout=60) as client:
        pool = client.create_pool("p", kind="host", max_bytes=128 * KIB)
        channel = client.create_channel("c", pool=pool, capacity=2)
        frames = other.subscribe("c", ack="manual")
        publisher = channel.publisher(64 * KIB, "uint8")
        fill(publisher, 1)
        frame, array = next(frames), publisher.loan()
    array[:] = 2
    assert (np.asarray(frame) == 1).all()
    theirs = other.open_pool("p")
    frame.release()
    frames.close()
    other.open_channel("c").close()
    with pytest.raises(poolbridge.PoolLimitError):
        other.allocate(KIB, pool=theirs)
    assert (array == 2).all()
    publisher.close()
    del array, publisher, channel
    gc.collect()
    other.allocate(128 * KIB, "uint8", pool=theirs, timeout=60).release()


def test_a_buffer_that_a_gpu_still_reads_is_not_on_loan(client, other):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c")
    with channel.publisher(4, "int32") as publisher:
        fill(publisher, 1)
        own = let_go_later(other, frames.receive(60), 5)
        for value in range(2, 12):
            publisher.loan()[:] = value
            assert publisher._chunks.loan[1] != 0, "the first frame was in the first chunk"
            publisher.publish()
            next(frames).release()
        own.page.store(0, 5)


def test_a_publisher_of_copies_is_refused_and_keeps_no_lease(client, other):
    publisher = client.create_channel("c").publisher(4, wrap=lambda lease: np.array(lease))
    with pytest.raises(poolbridge.InvalidArgumentError, match="copy"):
        publisher.loan()
    until(lambda: leases(other) == 0)
    publisher.close()


def test_a_wrap_that_gives_nothing_is_refused_and_keeps_no_lease(client, other):
    publisher = client.create_channel("c").publisher(4, wrap=lambda lease: None)
    with pytest.raises(poolbridge.InvalidArgumentError, match="wrap="):
        publisher.loan()
    until(lambda: leases(other) == 0)
    publisher.close()


def test_calls_at_the_same_time_are_refused(service):  # noqa: F811
    async def both():
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            await client.create_pool("p", kind="host", max_bytes=64 * KIB)
            channel = await client.create_channel("c", capacity=1)
            async with channel.publisher(4) as publisher:
                got = await asyncio.gather(publisher.loan(), publisher.loan(), return_exceptions=True)
                assert [type(one) for one in got] == [np.ndarray, poolbridge.InvalidArgumentError]
                assert await publisher.loan() is got[0]

    asyncio.run(both())


def test_a_pool_without_room_is_waited_for_as_long_as_was_said(client, other):
    pool = client.create_pool("tiny", kind="host", max_bytes=64 * KIB)
    channel = client.create_channel("c", pool=pool)
    with client.allocate(64 * KIB, "uint8", pool=pool), channel.publisher(KIB) as publisher:
        for timeout in 0, 0.05:
            with pytest.raises(poolbridge.PoolLimitError):
                publisher.loan(timeout)


def test_a_pool_that_has_room_for_no_more_buffers_than_needed_is_enough(client, other):
    pool = client.create_pool("exact", kind="host", max_bytes=4 * 64 * KIB)
    channel = client.create_channel("c", pool=pool, capacity=2)
    frames = other.subscribe("c").arrays()
    with channel.publisher(64 * KIB, "uint8") as publisher:
        for value in range(100):
            fill(publisher, value)
            assert (next(frames) == value).all()


def test_a_forked_child_has_no_loan(client):
    publisher = client.create_channel("c").publisher(4)
    fill(publisher, 1)
    child = os.fork()
    if not child:
        try:
            publisher.loan()
        except poolbridge.ForkError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    fill(publisher, 2)
    publisher.close()


def test_the_asyncio_client_has_publishers_too(service):  # noqa: F811
    async def stream():
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            await client.create_pool("p", kind="host", max_bytes=64 * KIB)
            channel = await client.create_channel("c", capacity=1)
            frames = client.subscribe("c", ack="manual", credit=8)
            async with channel.publisher(4, "int32") as publisher:
                (await publisher.loan())[:] = 1
                assert await publisher.publish({"n": "1"}) == 1
                first = await frames.receive(60)
                assert first is not None
                (await publisher.loan())[:] = 2
                waiting = asyncio.create_task(publisher.publish())
                done, _ = await asyncio.wait([waiting], timeout=0.05)
                assert not done
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                assert (await publisher.loan()).tolist() == [2] * 4, "the array stays on loan"
                await first.release()
                assert await publisher.publish() == 2
                second = await frames.receive(60)
                assert second is not None
                assert np.asarray(second).tolist() == [2] * 4
                await second.release()
            await frames.close()

    asyncio.run(stream())


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
@pytest.mark.parametrize("full", ["block", "drop-oldest", "latest"])
def test_no_array_is_on_loan_while_its_frame_is_in_hand(service, client, mode, full):  # noqa: F811
    channel = client.create_channel("c", mode=mode, capacity=2, full=full)
    enough = threading.Event()

    def send():
        with channel.publisher(16, "int64") as publisher:
            value = 0
            while not enough.is_set():
                array = publisher.loan(60)
                array[:] = value
                try:
                    publisher.publish(timeout=0.1)
                except poolbridge.WaitTimeoutError:
                    continue
                value += 1

    with poolbridge.connect(service.path, timeout=60) as other:
        frames = other.subscribe("c", credit=8)
        sender = threading.Thread(target=send)
        sender.start()
        check_arrays_in_hand(frames)
        enough.set()
        sender.join(60)


def test_a_publisher_that_is_closed_while_it_waits_leaves_nothing(client, other, waits):
    channel = client.create_channel("c", mode="queue", capacity=1)
    frames = other.subscribe("c", ack="manual")
    publisher = channel.publisher(4, "int32")
    fill(publisher, 1)
    failed = []

    def send():
        try:
            fill(publisher, 2)
        except poolbridge.ClosedError as error:
            failed.append(str(error))

    later = threading.Thread(target=send)
    later.start()
    assert waits.wait(60)
    publisher.close()
    later.join()
    assert failed
    next(frames).release()
    until(lambda: leases(other) == 0)


def test_an_array_that_is_published_long_after_its_loan_comes_back(client, other, monkeypatch):
    monkeypatch.setattr(_returns, "_IDLE", 0.05)
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    with channel.publisher(4, "int32") as publisher:
        publisher.loan()
        until(lambda: time.monotonic() - publisher._chunks.used > 0.1)
        publisher.publish()
        next(frames).release()
        until(lambda: leases(client) == 0)


def lockstep(client, other, nbytes, blocks=1):
    """Make a pool for `blocks` buffers of `nbytes` bytes, a channel in it, and a subscription of another client."""
    pool = client.create_pool("one", kind="host", max_bytes=blocks * nbytes)
    channel = client.create_channel("l", pool=pool, capacity=2, mode="queue")
    frames = other.subscribe("l")
    return pool, channel, frames


@pytest.mark.parametrize("own", [False, True])
def test_a_loan_gets_others_memory_or_a_slot_that_comes_back_or_ends_in_time(client, other, own):
    _, channel, frames = lockstep(client, other, 64 * KIB, blocks=2)
    theirs = other.allocate(64 * KIB, "uint8", pool=other.open_pool("one"))
    publisher = channel.publisher(64 * KIB, "uint8")
    fill(publisher, 1)
    frame = next(frames)
    with pytest.raises(poolbridge.PoolLimitError, match="all 1 chunks"):
        publisher.loan(timeout=0.02)
    later = threading.Thread(target=frame.release if own else theirs.release)
    later.start()
    assert fill(publisher, 2) == 2
    later.join()
    assert publisher._chunks.counts[0] == (1 if own else 2)
    (theirs if own else frame).release()
    publisher.close()


def test_closing_the_client_ends_the_wait_for_a_slot(client, other):
    _, channel, frames = lockstep(client, other, 64 * KIB)
    publisher = channel.publisher(64 * KIB, "uint8")
    fill(publisher, 1)
    frame = next(frames)
    errors = []

    def loan():
        try:
            publisher.loan()
        except poolbridge.PoolbridgeError as error:
            errors.append(error)

    waits = threading.Thread(target=loan)
    waits.start()
    until(lambda: publisher._refused)
    client.close()
    waits.join()
    assert isinstance(errors[0], poolbridge.ClosedError)
    frame.release()


def test_an_asyncio_publisher_has_its_one_buffer_back(service):  # noqa: F811
    async def main():
        async with await poolbridge.connect_async(service.path) as client:
            pool = await client.create_pool("one", kind="host", max_bytes=64 * KIB)
            channel = await client.create_channel("l", pool=pool, capacity=2, mode="queue")
            frames = client.subscribe("l")
            async with channel.publisher(64 * KIB, "uint8") as publisher:
                held = None
                for value in range(20):
                    loaning = asyncio.create_task(publisher.loan(60))
                    if held is not None:
                        await held.release()
                    (await loaning)[:] = value
                    await publisher.publish()
                    held = await anext(frames)
                    assert (np.asarray(held) == value).all()
            assert held is not None
            await held.release()

    asyncio.run(main())


def test_what_a_publisher_does_for_each_frame_loses_nothing_where_a_signal_comes(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c").arrays()
    publisher = channel.publisher(4, "int32")
    sent = 0

    def take():
        nonlocal sent
        while client._session.producers[channel.id].native.in_flight[-1][0] > sent:
            sent += 1
            assert next(frames)[0] == sent

    for value in range(30):
        fill(publisher, value + 1)
        take()
    chunks = publisher._chunks
    at = steps = 0
    while steps < 200:
        interrupter = Interrupter(at)
        with interrupter:
            publisher.loan()[:] = sent + 1
            publisher.publish()
        steps += 1
        at = 0 if interrupter.where is None else at + 1
        take()
        if chunks.loan:
            fill(publisher, sent + 1)
            take()
        [arena] = chunks.arenas
        assert chunks.counts == (arena.chunks, arena.chunks - arena.sent)
    publisher.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a signal may come in a finaliser
def test_no_slot_is_lost_where_a_signal_comes_while_its_array_is_made(client, other):
    channel = client.create_channel("c", mode="queue", capacity=4)
    frames = other.subscribe("c")

    def try_it(interrupter):
        publisher = channel.publisher(4, "int32")
        fill(publisher, 1)
        with interrupter:
            publisher.loan()[:] = 1
            publisher.publish()
        fill(publisher, 2)
        publisher.close()
        seen = 0
        while seen != 2:
            with next(frames) as frame:
                seen = int(np.asarray(frame)[0])
        with client._session.lock:
            client._session.returns.collect()
        assert not len(client._session.returns), interrupter.where

    at_every_step(try_it)
    until(lambda: leases(client) == 0)


def test_a_publisher_leaves_to_python_what_is_out_of_the_ordinary(client, other):
    channel = client.create_channel("c", capacity=4)
    publisher = channel.publisher(4, "int32")
    chunks = publisher._chunks
    assert (chunks.take(), chunks.send()) == (None, None), "it has nothing yet"
    array = publisher.loan()
    assert chunks.take() is array
    for name in "closed", "busy":
        setattr(chunks, name, True)
        assert (chunks.take(), chunks.send()) == (None, None)
        setattr(chunks, name, False)
    assert chunks.send(b"no meta") is None
    assert chunks.take() is array
    with pytest.raises(TypeError):
        chunks.send("text")
    with pytest.raises(poolbridge.InvalidArgumentError):
        chunks.publish(b"no meta", 0, 0, 0.0)
    assert chunks.send() == 1
    assert chunks.loan is None
    assert chunks.send() is None
    with pytest.raises(poolbridge.LeaseReleasedError):
        chunks.publish(b"", 0, 0, 0.0)
    array = publisher.loan()
    channel.close()
    assert chunks.send() is None
    assert chunks.take() is array
    publisher.close()
    assert chunks.take() is None

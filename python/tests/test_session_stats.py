"""Tests what a client reports about itself: frames, bytes, drops, waits and leases."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import threading

import numpy as np
from realservice import until
from test_members import service  # noqa: F401 - a fixture

import poolbridge
from poolbridge._session import tally as _tally

NEVER = poolbridge.Waits(0, 0.0)


def counts(client):
    """Return the counts of the only channel of a client."""
    [channel] = client.session_stats().channels
    return channel


def test_a_client_that_did_nothing_counts_nothing(other):
    assert other.session_stats() == poolbridge.SessionStats(0, 0, 0, 0, NEVER, ())


def test_frames_and_bytes_of_both_directions_are_counted_whichever_way_they_go(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c")
    for _ in range(3):
        channel.publish(client.allocate(4, "int32", timeout=60))
        next(frames).release()
    with channel.publisher(8, "int32") as publisher, other.subscribe("c") as more:
        arrays = more.arrays()
        for value in range(50):
            publisher.loan(60)[:] = value
            publisher.publish()
            while next(arrays)[0] != value:
                pass
            next(frames).release()
        del arrays
    assert counts(client) == poolbridge.ChannelCounts("c", 53, 3 * 16 + 50 * 32, 0, 0, 0, NEVER, NEVER)
    received = counts(other)
    assert (received.published, received.published_bytes, received.dropped) == (0, 0, 0)
    # The subscription `more` began with the newest frame. The client keeps the counts of `more` after `more` has ended.
    assert received.received == 3 + 50 + 1 + 50
    assert received.received_bytes == 4 * 16 + 100 * 32


def test_frames_that_a_subscription_missed_are_counted(client, other):
    channel = client.create_channel("c", capacity=2, full="drop-oldest")
    frames = other.subscribe("c")
    for _ in range(5):
        channel.publish(np.zeros(4, "int32"), timeout=60)
    assert [next(frames).dropped, next(frames).dropped] == [3, 0]
    assert (counts(other).received, counts(other).dropped) == (2, 3)


def test_a_wait_for_a_frame_is_counted_and_one_in_vain_has_only_its_time(client, other):
    channel = client.create_channel("c")
    frames = other.subscribe("c")
    with pytest.raises(poolbridge.WaitTimeoutError):
        frames.receive(0.01)
    waits = counts(other).frame_waits
    assert waits.count == 0
    assert waits.seconds > 0

    def waited():
        """Publish a frame while a thread probably waits for it, and return how many waits are counted."""
        thread = threading.Thread(target=frames.receive)
        thread.start()
        until(lambda: frames._consumer._looking.locked())
        channel.publish(np.zeros(4), timeout=60)
        thread.join()
        return counts(other).frame_waits.count

    until(waited)
    assert counts(other).frame_waits.seconds > waits.seconds


def test_a_wait_for_room_in_a_channel_is_counted(client, other):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c")
    channel.publish(np.zeros(4))
    lease = client.allocate(4)
    with pytest.raises(poolbridge.WaitTimeoutError):
        channel.publish(lease, timeout=0.01)
    waits = counts(client).room_waits
    assert waits.count == 0
    assert waits.seconds > 0
    assert counts(client).published == 1
    receiver = threading.Thread(target=lambda: [frames.receive().release() for _ in range(2)])
    receiver.start()
    channel.publish(lease)
    receiver.join()
    assert counts(client).published == 2


def test_requests_for_memory_are_counted_and_leases_while_the_program_has_them(client):
    leases = [client.allocate(4, "int32") for _ in range(3)]
    stats = client.session_stats()
    assert (stats.leases, stats.lease_bytes, stats.allocated, stats.allocated_bytes) == (3, 48, 3, 48)
    assert stats.memory_waits.count == 3
    assert stats.memory_waits.seconds > 0
    leases.pop().release()
    leases.pop()
    assert (client.session_stats().leases, client.session_stats().allocated) == (1, 3)
    with pytest.raises(poolbridge.PoolLimitError):
        client.allocate(1 << 30)
    assert (client.session_stats().allocated, client.session_stats().memory_waits.count) == (3, 4)


def test_a_publisher_allocates_once_for_many_frames(client, other):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c")
    with channel.publisher(4) as publisher:
        for _ in range(20):
            publisher.loan(60)
            publisher.publish(timeout=60)
            next(frames).release()
    stats = client.session_stats()
    assert stats.allocated == 1
    assert stats.channels[0].published == 20


def test_a_client_that_was_closed_still_says_what_it_did(client):
    channel = client.create_channel("c")
    channel.publish(np.zeros(4, "int32"))
    lease = client.allocate(4)
    client.close()
    assert lease.released
    assert (counts(client).published, client.session_stats().leases) == (1, 0)


def test_an_asyncio_client_says_what_it_did_too(service, client):  # noqa: F811
    async def main():
        async with await poolbridge.connect_async(service.path, timeout=60) as connected:
            await connected.open_pool("frames")
            channel = await connected.create_channel("c")
            async with connected.subscribe(channel) as frames:
                await channel.publish(await connected.allocate(4, "int32"))
                await (await anext(frames)).release()
            stats = connected.session_stats()
            assert (stats.leases, stats.allocated) == (0, 1)
            counted = stats.channels[0]
            assert (counted.name, counted.published, counted.received, counted.received_bytes) == ("c", 1, 1, 16)

    asyncio.run(main())


def test_the_counts_of_very_many_channels_are_bounded(client, monkeypatch):
    monkeypatch.setattr(_tally, "_MOST", 4)
    kept = client.subscribe(client.create_channel("kept"))
    for number in range(20):
        channel = client.create_channel(str(number))
        with client.subscribe(channel):
            pass
        channel.close()
    names = [channel.name for channel in client.session_stats().channels]
    assert len(names) <= 4
    assert names[0] == "kept"
    assert names[-1] == "19"
    kept.close()

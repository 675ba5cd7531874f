"""Arrays that are made once for each block and used again for every frame in it."""

from __future__ import annotations

import asyncio
import gc
import os

import numpy as np
import pytest
from fakechannels import ChannelService

import poolbridge
from poolbridge import _borrowed, _pump
from poolbridge import _messages as m
from poolbridge._mappings import MAPPINGS


@pytest.fixture
def service(tmp_path):
    running = ChannelService(str(tmp_path / "c.sock"))
    yield running
    running.close()


def publish(client, channel, value, shape=(4,)):
    lease = client.allocate(shape, "int32")
    np.asarray(lease)[:] = value
    return channel.publish(lease, meta={"value": str(value)})


def test_every_frame_is_seen_and_known(client, other):
    channel = client.create_channel("video", capacity=16)
    frames = other.subscribe("video", credit=3)
    for value in range(10):
        publish(client, channel, value)
    channel.shut()
    seen = []
    arrays = frames.arrays()
    for array in arrays:
        assert array.tolist() == [int(arrays.meta["value"])] * 4
        assert not array.flags.writeable
        assert arrays.time == arrays.time_ns / 1e9 > 0
        seen.append((arrays.seq, arrays.dropped))
    assert seen == [(number + 1, 0) for number in range(10)]


def test_an_array_is_made_once_for_a_block_and_a_shape(client, other):
    channel = client.create_channel("video", capacity=2)
    made = []

    def wrap(view):
        made.append(view.shape)
        return np.asarray(view)

    arrays = other.subscribe("video").arrays(wrap)
    shapes = []
    for value in range(30):
        shape = (4,) if value % 3 else (2, 2)
        publish(client, channel, value, shape)
        array = next(arrays)
        assert array.shape == shape
        assert (array == value).all()
        shapes.append(shape)
    assert len(made) <= 2 * len(other._session.core.blocks), "each is used again"
    assert set(made) == set(shapes)
    assert other._session.holds == {}


def test_a_frame_is_let_go_of_when_the_next_is_asked_for(service, client, other):
    channel = client.create_channel("video", capacity=4, full="block")
    arrays = other.subscribe("video", credit=1).arrays()
    publish(client, channel, 1)
    publish(client, channel, 2)
    first = next(arrays)
    assert first.tolist() == [1] * 4
    assert next(arrays).tolist() == [2] * 4, "whose credit came with the end of the first"
    arrays.release()
    arrays.release()
    with pytest.raises(poolbridge.InvalidArgumentError, match="no frame"):
        _ = arrays.seq


def backlog(service, client, other, count, **options):
    """Give arrays of `count` frames that the client has, in blocks that had frames before."""
    channel = client.create_channel("video", capacity=count, **options)
    arrays = other.subscribe("video", credit=32).arrays()
    for last in (False, False, True):
        for value in range(count):
            publish(client, channel, value)
        while len(arrays._feed.frames) < count:
            other.stats()
        for _ in range(0 if last else count):
            next(arrays)
        arrays.release()
        other.stats()
    service.log.clear()
    return arrays


def released(service):
    return sum(1 + len(request.al) for request in service.log if isinstance(request, m.Release))


def test_frames_that_follow_each_other_closely_are_let_go_of_together(service, client, other, monkeypatch):
    monkeypatch.setattr(_borrowed, "_QUICK", 3600)
    monkeypatch.setattr(_pump, "_TICK", 3600)
    arrays = backlog(service, client, other, 8)
    other._pump._ticking = True  # for an hour
    for value in range(4):
        assert next(arrays).tolist() == [value] * 4
    assert len(arrays._spent) == 3
    assert service.seen(m.Release) == []
    assert next(arrays).tolist() == [4] * 4
    assert not arrays._spent, "an eighth of the credit is not held back any longer"
    for value in range(5, 8):
        assert next(arrays).tolist() == [value] * 4
    assert len(arrays._spent) == 3
    other.stats()
    assert not arrays._spent, "what was let go of comes before a request"
    assert [1 + len(request.al) for request in service.seen(m.Release)] == [4, 3]
    arrays.release()
    other.stats()
    assert released(service) == 8
    other._pump._bell.ring()


def test_what_was_held_back_is_let_go_of_when_the_consumer_takes_no_more(service, client, other, monkeypatch):
    monkeypatch.setattr(_borrowed, "_QUICK", 3600)
    arrays = backlog(service, client, other, 8)
    for _ in range(4):
        next(arrays)
    service.wait(lambda: released(service) >= 3)


def test_what_was_held_back_is_let_go_of_with_the_arrays(service, client, other, monkeypatch):
    monkeypatch.setattr(_borrowed, "_QUICK", 3600)
    monkeypatch.setattr(_pump, "_TICK", 3600)
    arrays = backlog(service, client, other, 8)
    for _ in range(4):
        next(arrays)
    del arrays
    gc.collect()
    service.wait(lambda: released(service) >= 8)
    other._pump._bell.ring()


def test_a_frame_of_a_queue_is_let_go_of_at_once(service, client, other, monkeypatch):
    monkeypatch.setattr(_borrowed, "_QUICK", 3600)
    arrays = backlog(service, client, other, 4, mode="queue")
    for _ in range(3):
        next(arrays)
    assert not arrays._spent
    other.stats()
    assert len(service.seen(m.Release)) == 2, "a release says that the frame was dealt with"


def test_a_recalled_block_is_unmapped_once_its_array_is_gone(service, client, other):
    channel = client.create_channel("video")
    arrays = other.subscribe("video").arrays()
    publish(client, channel, 1)
    array = next(arrays)
    block = next(iter(other._session.core.blocks))
    arrays.release()
    assert other._session.core.blocks[block].arrays
    service.connections[-1].recall(block)
    other.stats()
    assert block in other._session.core.blocks, "the array that a user still has keeps it mapped"
    assert array.tolist() == [1] * 4
    del array
    gc.collect()
    other.stats()
    assert block not in other._session.core.blocks


def test_nothing_is_left_when_the_client_closes(service, client):
    channel = client.create_channel("video")
    publish(client, channel, 0)  # from here on the producer has mapped all that it will
    before = len(MAPPINGS)
    with poolbridge.connect(service.path, timeout=60) as other:
        arrays = other.subscribe("video").arrays()
        assert next(arrays).tolist() == [0] * 4
    del arrays
    gc.collect()
    assert len(MAPPINGS) == before


def test_a_wrap_that_fails_costs_the_frame_and_nothing_else(client, other):
    channel = client.create_channel("video")
    fails = [True]

    def wrap(view):
        if fails.pop() if fails else False:
            raise RuntimeError("not this one")
        return np.asarray(view)

    arrays = other.subscribe("video", credit=1).arrays(wrap)
    publish(client, channel, 1)
    publish(client, channel, 2)
    with pytest.raises(RuntimeError, match="not this one"):
        next(arrays)
    assert next(arrays).tolist() == [2] * 4


def test_the_asyncio_client_has_them_too(service, client):
    channel = client.create_channel("video", capacity=16)
    for value in range(5):
        publish(client, channel, value)

    async def take():
        seen = []
        async with await poolbridge.connect_async(service.path, timeout=60) as other:
            arrays = other.subscribe("video", oldest=True, credit=2).arrays()
            async for array in arrays:
                seen.append((arrays.seq, array.tolist()[0]))
                del array
                if len(seen) == 5:
                    break
        return seen

    assert asyncio.run(take()) == [(number + 1, number) for number in range(5)]


def test_a_channel_that_is_shut_ends_the_arrays(client, other):
    channel = client.create_channel("video")
    arrays = other.subscribe("video").arrays()
    channel.shut()
    assert list(arrays) == []


def test_an_array_that_a_wrap_kept_before_it_failed_keeps_its_memory_mapped(service, client, other):
    channel = client.create_channel("video")
    kept = []

    def wrap(view):
        kept.append(np.asarray(view))
        raise RuntimeError("not this one")

    arrays = other.subscribe("video").arrays(wrap)
    publish(client, channel, 1)
    with pytest.raises(RuntimeError, match="not this one"):
        next(arrays)
    gc.collect()
    block = next(iter(other._session.core.blocks))
    service.connections[-1].recall(block)
    other.stats()
    assert kept[0].tolist() == [1] * 4
    assert block in other._session.core.blocks
    kept.clear()
    gc.collect()
    other.stats()
    assert block not in other._session.core.blocks


def test_a_wrap_that_copies_does_so_for_every_frame(client, other):
    channel = client.create_channel("video", capacity=2)
    arrays = other.subscribe("video").arrays(lambda view: np.asarray(view).copy())
    for value in range(10):
        publish(client, channel, value)
        assert next(arrays).tolist() == [value] * 4


def test_a_wrap_cannot_end_the_lease_of_its_frame(client, other):
    channel = client.create_channel("video")

    def wrap(view):
        with view:
            return np.asarray(view).sum()

    arrays = other.subscribe("video", credit=1).arrays(wrap)
    publish(client, channel, 1)
    publish(client, channel, 2)
    for _ in range(2):
        with pytest.raises(poolbridge.LeaseInUseError, match="ends by itself"):
            next(arrays)
    gc.collect()
    other.stats()
    assert [block.leases for block in other._session.core.blocks.values()] == [0] * len(other._session.core.blocks)


class Broken:
    """A follower whose driver fails."""

    def before(self, grant):
        raise poolbridge.DriverError("no wait")


def test_a_frame_whose_order_fails_is_let_go_of(client, other):
    channel = client.create_channel("video", capacity=4, full="block")
    arrays = other.subscribe("video", credit=1).arrays()
    for value in range(4):
        publish(client, channel, value)
    next(arrays)
    arrays._follower = Broken()
    with pytest.raises(poolbridge.DriverError, match="no wait"):
        next(arrays)
    arrays._follower = None
    assert next(arrays).tolist() == [2] * 4


def test_a_forked_child_gets_no_arrays(client, other):
    channel = client.create_channel("video", capacity=2)
    arrays = other.subscribe("video").arrays()
    for value in range(6):  # from here on every block has its array
        publish(client, channel, value)
        next(arrays)
    publish(client, channel, 7)
    while not arrays._feed.frames:
        other.stats()
    child = os.fork()
    if not child:
        try:
            next(arrays)
        except poolbridge.ForkError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert next(arrays).tolist() == [7] * 4

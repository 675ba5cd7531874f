"""Tests arrays that a client makes once for each block, and uses again for every frame in the block."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import gc
import os

import numpy as np
from realservice import RealService, until

import poolbridge
from poolbridge._memory.mappings import MAPPINGS


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "r.sock"))
    yield running
    running.close()


def publish(client, channel, value, shape=(4,)):
    lease = client.allocate(shape, "int32")
    np.asarray(lease)[:] = value
    return channel.publish(lease, meta={"value": str(value)})


def reserved(client, channel):
    """Close a channel, wait until all leases have ended, and return how many bytes the pool still reserves."""
    channel.close()
    until(lambda: client.stats().leases == 0)
    client.trim()
    client.stats()
    return client.stats().pools[0].reserved


def test_every_frame_is_seen_and_known(client, other):
    channel = client.create_channel("video", capacity=16)
    frames = other.subscribe("video", credit=3)
    for value in range(10):
        publish(client, channel, value)
    channel.close()
    seen = []
    arrays = frames.arrays()
    for array in arrays:
        assert array.tolist() == [int(arrays.meta["value"])] * 4
        assert not array.flags.writeable
        assert arrays.time == arrays.time_ns / 1e9 > 0
        seen.append((arrays.seq, arrays.dropped))
    assert seen == [(number + 1, 0) for number in range(10)]


def test_a_wrap_that_is_no_function_is_refused_at_once(client):
    channel = client.create_channel("video")
    with pytest.raises(poolbridge.InvalidArgumentError, match="wrap must be a function .*, not 3"):
        client.subscribe("video").arrays(3)
    with pytest.raises(poolbridge.InvalidArgumentError, match="wrap must be a function .*, not 3"):
        channel.publisher(4, "uint8", wrap=3)


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
    assert other._session.lease_states == {}


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


def test_a_frame_that_the_program_keeps_stays_while_the_arrays_go_on(client, other):
    channel = client.create_channel("video", capacity=4, full="block")
    frames = other.subscribe("video", credit=2)
    for value in range(3):
        publish(client, channel, value)
    kept = frames.receive(5)
    arrays = frames.arrays()
    for value in range(1, 40):
        assert next(arrays).tolist() == [value] * 4
        publish(client, channel, value + 2)
    assert np.asarray(kept).tolist() == [0] * 4
    kept.release()
    for value in range(40, 80):
        assert next(arrays).tolist() == [value] * 4
        publish(client, channel, value + 2)


def test_a_recalled_block_is_unmapped_once_its_array_is_gone(client, other):
    channel = client.create_channel("video")
    arrays = other.subscribe("video").arrays()
    publish(client, channel, 1)
    array = next(arrays)
    arrays.release()
    assert reserved(client, channel) == 4096, "the array that a user still has keeps it mapped"
    assert array.tolist() == [1] * 4
    del array
    gc.collect()
    until(lambda: client.stats().pools[0].reserved == 0)
    assert not other._session.core.blocks


def test_nothing_is_left_when_the_client_closes(service, client):
    channel = client.create_channel("video")
    publish(client, channel, 0)  # now the producer has mapped its memory
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


def test_a_channel_that_is_closed_ends_the_arrays(client, other):
    channel = client.create_channel("video")
    arrays = other.subscribe("video").arrays()
    channel.close()
    assert list(arrays) == []


def test_an_array_that_a_wrap_kept_before_it_failed_keeps_its_memory_mapped(client, other):
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
    assert reserved(client, channel) == 4096
    assert kept[0].tolist() == [1] * 4
    kept.clear()
    gc.collect()
    until(lambda: client.stats().pools[0].reserved == 0)


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

    def before(self, fences):
        raise poolbridge.DriverError("no wait")

    def done(self, say):
        try:
            raise poolbridge.DriverError("no more work for this GPU")
        finally:
            say(())


def taken(client, other, count):
    """Publish and take `count` frames, so that every block has its array; return the channel and the arrays."""
    channel = client.create_channel("video", capacity=2, full="block")
    arrays = other.subscribe("video", credit=1).arrays()
    for value in range(count):
        publish(client, channel, value)
        next(arrays)
    return channel, arrays


def test_a_frame_whose_order_fails_is_let_go_of(client, other):
    channel, arrays = taken(client, other, 6)
    arrays.release()
    for value in range(6, 8):
        publish(client, channel, value)
    arrays._follower = Broken()
    with pytest.raises(poolbridge.DriverError, match="no more work"):
        next(arrays)
    arrays._follower = None
    assert next(arrays).tolist() == [7] * 4


def test_a_frame_is_let_go_of_though_its_stream_takes_no_more_work(client, other):
    channel, arrays = taken(client, other, 6)
    arrays._follower = Broken()
    with pytest.raises(poolbridge.DriverError, match="no more work"):
        next(arrays)
    arrays._follower = None
    for value in range(6, 8):
        publish(client, channel, value)
        assert next(arrays).tolist() == [value] * 4


def fork_error_of(work):
    """Return whether `work` raises ForkError in a forked child."""
    child = os.fork()
    if not child:
        try:
            work()
        except poolbridge.ForkError:
            os._exit(7)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_frame_that_is_released_by_closing_the_subscription_just_then_is_not_used(client, other, monkeypatch):
    class Closing(set):
        """Closes the subscription when the iterator asks for the buffers that were lost."""

        def __bool__(self):
            frames.close()
            return False

    channel = client.create_channel("video", mode="queue", capacity=4)
    frames = other.subscribe("video", credit=3)
    arrays = frames.arrays()
    while arrays._frame is None or arrays._lease_state is not None:  # until the block of a frame already has an array
        publish(client, channel, 1)
        next(arrays)
    publish(client, channel, 2)
    monkeypatch.setattr(other._session, "lost", Closing())
    with pytest.raises(poolbridge.ClosedError):
        next(arrays)
    assert client.subscribe("video").receive(60).to_numpy().tolist() == [2] * 4


def test_a_forked_child_gets_no_arrays_and_lets_go_of_none(client, other):
    channel, arrays = taken(client, other, 6)
    publish(client, channel, 7)
    assert fork_error_of(lambda: next(arrays))
    assert fork_error_of(arrays.release)
    assert next(arrays).tolist() == [7] * 4


def test_arrays_may_be_dropped_by_whoever_holds_the_lock_of_a_closed_client(service, client):
    with poolbridge.connect(service.path, timeout=60) as other:
        _, arrays = taken(client, other, 6)
    with other._session.lock:  # the garbage collector may run while a thread has this lock
        del arrays
        gc.collect()

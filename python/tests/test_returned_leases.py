"""Tests leases that a producer gets back when consumers release the frames, and then releases."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import gc
import os
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from weakref import ref

import numpy as np
from realservice import leases, no_collector, publish, until
from test_members import service as service  # noqa: PLC0414 - a fixture

import poolbridge
from poolbridge._session import returns as _returns
from poolbridge._wire.messages import Fence

PAGE = 4096


def test_leases_that_came_back_are_released_though_nothing_is_allocated(client, other):
    channel = client.create_channel("c", mode="queue", capacity=2)
    frames = other.subscribe("c")
    for value in range(20):
        publish(client, channel, value)
        next(frames).release()
        assert leases(client) <= 3
    until(lambda: leases(client) == 0)


def test_an_allocation_that_waits_gets_memory_that_comes_back_to_its_client_meanwhile(client, other):
    pool = client.create_pool("one", max_bytes=PAGE)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=2)
    frames = other.subscribe("c")
    publish(client, channel, 0, timeout=60)
    for value in range(1, 50):
        frame = next(frames)
        later = threading.Thread(target=frame.release)
        later.start()
        assert publish(client, channel, value, timeout=60) == value + 1
        later.join()


def test_memory_of_a_frame_is_not_allocated_again_while_an_array_of_its_producer_lives(client, other):
    channel = client.create_channel("c", mode="queue", capacity=1)
    frames = other.subscribe("c")
    first = client.allocate(4, "i4")
    old = np.asarray(first)
    view = old.data  # can be written to, also after the publication
    channel.publish(first)
    next(frames).release()
    lease = client.allocate(4, "i4")
    new = np.asarray(lease)
    new[:] = 7
    view[:] = array("i", [1, 1, 1, 1])
    assert (new == 7).all()
    with pytest.raises(poolbridge.LeaseReleasedError, match="published before"):
        channel.publish(old)
    channel.publish(new)
    with next(frames) as frame:
        assert (frame.to_numpy() == 7).all()
    del old, view
    until(lambda: leases(client) == 1)  # the lease of `new`
    del new
    until(lambda: leases(client) == 0)


def test_leases_take_turns_if_each_array_lives_until_the_next_is_made(client, other):
    channel = client.create_channel("c", mode="queue", capacity=1)
    frames = other.subscribe("c")
    for value in range(40):
        lease = client.allocate(4, "i4")
        made = np.asarray(lease)
        made[:] = value
        channel.publish(lease)
        with next(frames) as frame:
            assert (frame.to_numpy() == value).all()
    # Two, and one more each time that a busy machine stops this program for so long that the client gives one back.
    assert 2 <= client.session_stats().allocated <= 10


def test_an_allocation_that_fails_says_which_arrays_keep_the_memory(client, other):
    pool = client.create_pool("one", max_bytes=PAGE)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=1)
    frames = other.subscribe("c")
    lease = client.allocate(4, "i4", pool=pool)
    made = np.asarray(lease)
    channel.publish(lease)
    next(frames).release()
    with pytest.raises(poolbridge.PoolLimitError) as failed:
        client.allocate(4, "i4", pool=pool, timeout=0)
    assert "1 frame of the pool came back, and arrays that this program made" in failed.value.__notes__[0]
    del made
    client.allocate(4, "i4", pool=pool, timeout=0).release()


def view_of_a_lease(client, channel):
    lease = client.allocate(4, "i4", pool=channel.pool)
    view = np.asarray(lease).data
    channel.publish(lease)
    return view


def view_of_a_publisher(client, channel):
    with channel.publisher(4, "i4") as publisher:
        view = publisher.loan().data
        publisher.publish()
    return view


@pytest.mark.parametrize("place", ["in the channel", "in hand", "back"])
@pytest.mark.parametrize("mode", ["queue", "broadcast"])
@pytest.mark.parametrize("view_of", [view_of_a_lease, view_of_a_publisher])
def test_nobody_gets_memory_of_a_frame_while_an_array_of_its_closed_producer_lives(client, other, view_of, mode, place):
    pool = client.create_pool("one", max_bytes=PAGE)
    channel = client.create_channel("c", pool=pool, mode=mode, capacity=1)
    frames = other.subscribe("c")
    theirs = other.open_pool("one")
    view = view_of(client, channel)
    if place != "in the channel":
        frame = next(frames)
    if place == "back":
        frame.release()
    client.close()
    if place == "in the channel":
        frame = next(frames)
    if place != "back":
        frame.release()
    frames.close()
    other.open_channel("c").close()
    assert leases(other) == 1
    with pytest.raises(poolbridge.PoolLimitError):
        other.allocate(4, pool=theirs, timeout=0)
    view[:] = array("i", [1, 1, 1, 1])
    del view
    other.allocate(4, pool=theirs, timeout=60).release()
    until(lambda: [session.pid for session in other.sessions()].count(os.getpid()) == 1)


@pytest.mark.parametrize("mode", ["queue", "broadcast"])
@pytest.mark.parametrize("channel_closed", [False, True])
def test_nobody_gets_memory_of_a_closed_publisher_while_its_array_lives(client, other, mode, channel_closed):
    pool = client.create_pool("one", max_bytes=PAGE)
    channel = client.create_channel("c", pool=pool, mode=mode, capacity=1)
    theirs = other.open_pool("one")
    frames = other.subscribe("c")
    view = view_of_a_publisher(client, channel)
    next(frames).release()
    frames.close()
    if mode == "broadcast" or channel_closed:
        channel.close()
    with client._session.lock:
        client._session.returns._sweep()
    assert leases(other) == 1
    with pytest.raises(poolbridge.PoolLimitError):
        other.allocate(4, pool=theirs, timeout=0.2)
    view[:] = array("i", [1, 1, 1, 1])
    del view
    other.allocate(4, pool=theirs, timeout=60).release()


def test_a_producer_leaves_its_channel_when_the_last_array_of_its_frames_is_gone(client, other):
    channel = client.create_channel("c", mode="queue", capacity=4)
    frames = other.subscribe("c", no_producers="end")
    views = [make(client, channel) for make in (view_of_a_lease, view_of_a_publisher, view_of_a_lease)]
    publisher = channel.publisher(4, "i4")
    publisher.loan()
    publisher.publish()
    views.append(publisher.loan().data)
    client.close()
    for _ in range(4):
        next(frames).release()
    while views:
        assert leases(other) == 4
        del views[-1]
        with client._session.lock:
            client._session.returns._sweep()
    assert list(frames) == []
    until(lambda: [session.pid for session in other.sessions()].count(os.getpid()) == 1)


def test_all_memory_of_a_closed_client_is_free_once_the_one_array_that_it_kept_is_gone(service):
    with poolbridge.connect(service.path, timeout=60) as other:
        client = poolbridge.connect(service.path, timeout=60)
        client.create_pool("pages", max_bytes=16 * PAGE)
        channel = client.create_channel("c", pool="pages", mode="queue", capacity=8)
        for number in range(8):
            lease = client.allocate(PAGE, "uint8", pool="pages")
            array = np.asarray(lease)
            if number == 0:
                view = array.data
            channel.publish(lease)
            del lease, array
        client.close()
        frames = other.subscribe("c")
        for _ in range(8):
            next(frames).release()
        del view
        other.allocate(16 * PAGE, "uint8", pool="pages", timeout=60).release()


@pytest.fixture
def one_notice(client, monkeypatch):
    """Return an event that is set at the first notice that memory is wanted of `client`, who hears no later notice.

    Its thread that looks now and then does not look.
    """
    monkeypatch.setattr(_returns, "_REST", 3600)
    monkeypatch.setattr(_returns, "_WANTED", 3600)
    returns, heard = client._session.returns, threading.Event()
    want = returns.want

    def once(pool):
        if not heard.is_set():
            want(pool)
            heard.set()

    monkeypatch.setattr(returns, "want", once)
    return heard


def waiters():
    return [thread for thread in threading.enumerate() if thread.name == "poolbridge-wanted"]


@pytest.mark.parametrize("by", ["client", "other"])
@pytest.mark.parametrize("way", ["lease", "publisher"])
def test_memory_that_comes_back_goes_to_an_allocation_that_waits(client, other, one_notice, by, way):
    pool = client.create_pool("one", max_bytes=PAGE)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=1)
    frames = other.subscribe("c", ack="manual")
    if way == "lease":
        publish(client, channel, 1, timeout=60)
    else:
        publisher = channel.publisher(4, "int32")
        publisher.loan(60)[:] = 1
        publisher.publish()
    frame, got = next(frames), []
    allocate = (client if by == "client" else other).allocate
    theirs = pool if by == "client" else other.open_pool("one")
    waiting = threading.Thread(target=lambda: got.append(allocate(4, pool=theirs, timeout=60)))
    waiting.start()
    assert one_notice.wait(60)
    assert len(waiters()) == 1
    frame.release()
    waiting.join()
    assert got


def test_memory_that_somebody_wants_is_not_allocated_again(client, other, one_notice):
    pool = client.create_pool("one", max_bytes=PAGE)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=1)
    frames, got = other.subscribe("c", ack="manual"), []
    publish(client, channel, 1, timeout=60)
    next(frames).release()
    lease = client.allocate(4, pool=pool, timeout=60)
    theirs = other.open_pool("one")
    waiting = threading.Thread(target=lambda: got.append(other.allocate(4, pool=theirs, timeout=60)))
    waiting.start()
    until(lambda: any(session.waits_for for session in client.sessions()))
    assert one_notice.wait(60)
    channel.publish(lease)
    next(frames).release()
    asked = client.session_stats().allocated
    with suppress(poolbridge.PoolLimitError):
        client.allocate(4, pool=pool, timeout=0).release()
        assert client.session_stats().allocated == asked + 1, "the client asks the service"
    waiting.join()
    assert got


@pytest.mark.parametrize("closes", [False, True])
def test_a_client_waits_for_memory_that_somebody_wants_until_it_closes_or_nobody_wants_it(
    client, other, one_notice, monkeypatch, closes
):
    if not closes:
        monkeypatch.setattr(_returns, "_WANTED", 0.01)
    pool = client.create_pool("one", max_bytes=PAGE)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=1)
    frames = other.subscribe("c", ack="manual")
    publish(client, channel, 1, timeout=60)
    frame = next(frames)
    with pytest.raises(poolbridge.PoolLimitError):
        other.allocate(4, pool=other.open_pool("one"))
    assert one_notice.wait(60)
    if closes:
        assert waiters()
        client.close()
    until(lambda: not waiters())
    frame.release()


def test_memory_goes_to_who_waits_and_the_session_lives_where_no_thread_can_start(client, other, monkeypatch):
    def refuse(thread, start=threading.Thread.start):
        if thread.name in {"poolbridge-wanted", "poolbridge-returns"}:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    refused = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool = client.create_pool("one", max_bytes=PAGE)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=1)
    frames = other.subscribe("c", ack="manual")
    publish(client, channel, 1, timeout=60)
    frame = next(frames)
    with ThreadPoolExecutor() as threads:
        allocating = threads.submit(other.allocate, 4, pool=other.open_pool("one"), timeout=60)
        until(lambda: "poolbridge-wanted" in refused)
        frame.release()
        assert allocating.result().pool == "one"
    assert client.stats().leases >= 1


def test_an_allocation_of_the_asyncio_client_waits_for_memory_of_its_own_frame(service, other):
    async def main():
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            pool = await client.create_pool("one", max_bytes=PAGE)
            channel = await client.create_channel("c", pool=pool, mode="queue", capacity=2)
            frames = other.subscribe("c")
            frame = None
            for value in range(1, 20):
                allocating = asyncio.create_task(client.allocate(4, "int32", pool=pool, timeout=60))
                await asyncio.sleep(0)
                if frame is not None:
                    frame.release()
                assert await channel.publish(await allocating) == value
                frame = await asyncio.to_thread(next, frames)

    asyncio.run(main())


CONTENT = np.arange(6, dtype="int32").reshape(2, 3)


def put(client):
    client.put(CONTENT, "w", keep=True).release()


def publish_a_lease(client):
    with client.allocate((2, 3), "int32") as lease:
        lease.copy_from(CONTENT)
        lease.publish("w", keep=True)


def publish_a_promise(client):
    lease = client.allocate((2, 3), "int32")
    array, promise = np.asarray(lease), lease.promise()
    lease.publish("w", keep=True)
    array[:] = CONTENT
    promise.complete()


def give_leases_back(client, other):
    """Make a channel give leases of six float32 back to `client`."""
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c")
    for _ in range(3):
        channel.publish(np.ones(6, "float32"))
        next(frames).release()


@pytest.mark.parametrize("way", [put, publish_a_lease, publish_a_promise])
def test_readers_see_the_dtype_and_shape_of_what_was_published_after_other_frames(client, other, way):
    give_leases_back(client, other)
    way(client)
    named = other.get("w")
    for lease in (named, other.lease(named.buffer_id, named.generation)):
        assert (lease.dtype_name, lease.shape) == ("int32", (2, 3))
        assert (np.asarray(lease) == CONTENT).all()
    entries = [*other.names(), *(one for one in other.buffers() if one.id == named.buffer_id)]
    assert [(one.dtype_name, one.shape) for one in entries] == [("int32", (2, 3))] * 2


def test_lists_show_the_dtype_and_shape_of_a_buffer_that_is_being_written_after_other_frames(client, other):
    give_leases_back(client, other)
    lease = client.allocate((2, 3), "int32")
    entry = next(one for one in other.buffers() if one.id == lease.buffer_id)
    assert (entry.dtype_name, entry.shape) == ("int32", (2, 3))


def test_a_publisher_leaves_no_dtype_and_shape_behind(client, other):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c")
    with channel.publisher(6, "float32") as publisher:
        for _ in range(8):
            publisher.loan()[:] = 1
            publisher.publish()
            next(frames).release()
    put(client)
    assert (other.get("w").to_numpy() == CONTENT).all()


def test_a_lease_that_has_a_name_is_released_when_it_comes_back(client, other):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c")
    with client.allocate(4, "int32") as lease:
        lease.publish("named")
    held = client.get("named", write=True)
    channel.publish(held)
    next(frames)
    publish(client, channel, 1)
    next(frames)
    buffer = held.buffer_id
    assert client.allocate(4, "int32").buffer_id != buffer
    assert other.get("named").buffer_id == buffer


def test_a_pool_with_one_block_more_than_the_channel_has_places_streams_on_and_on(service):
    with poolbridge.connect(service.path, timeout=60) as client, poolbridge.connect(service.path, timeout=60) as other:
        client.create_pool("small", max_bytes=5 * PAGE)
        channel = client.create_channel("c", capacity=4)
        frames = other.subscribe("c", credit=1)
        seen: list[int] = []

        def consume():
            seen.extend(int(np.asarray(frame)[0]) for frame in frames)

        consumer = threading.Thread(target=consume)
        consumer.start()
        for value in range(1000):
            publish(client, channel, value, timeout=60)
        channel.close()
        consumer.join(60)
        assert seen == list(range(1000))


def test_another_client_gets_the_memory_that_a_producer_keeps(service):
    with poolbridge.connect(service.path, timeout=60) as client, poolbridge.connect(service.path, timeout=60) as other:
        client.create_pool("small", max_bytes=6 * PAGE)
        other.open_pool("small")
        channel = client.create_channel("c", capacity=2)
        frames = other.subscribe("c", credit=8)
        arrays = []
        for value in range(6):
            publish(client, channel, value, timeout=60)
            arrays.append(np.asarray(next(frames)))
        with pytest.raises(poolbridge.PoolLimitError):
            other.allocate(4)
        waiting = threading.Timer(0.2, arrays.clear)
        waiting.start()
        with other.allocate(4, timeout=60):
            pass
        waiting.join()


def test_a_producer_leaves_a_channel_that_was_closed_once_its_leases_are_back(client, other):
    for number in range(70):  # more channels than a session may have members
        channel = client.create_channel("c", capacity=2)
        frames = other.subscribe("c")
        publish(client, channel, number)
        assert next(frames).to_numpy().tolist() == [number] * 4
        frames.close()
        channel.close()
    client.allocate(4).release()
    until(lambda: len(client._session.core.members) <= 1)


def test_a_lease_that_came_back_is_allocated_again_without_the_service(client, other, monkeypatch):
    monkeypatch.setattr("poolbridge._session.returns._REST", 3600.0)  # then the client releases leases only once
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c")
    for value in range(20):
        publish(client, channel, value)
        assert next(frames).to_numpy().tolist() == [value] * 4
    assert client.session_stats().allocated <= 4


def test_a_lease_that_is_allocated_again_has_its_own_description(client, other):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c")
    for dtype in ("int32", "float32", "int32", "float32", "uint8"):
        with client.allocate((2, 4), dtype) as lease:
            assert (lease.shape, lease.dtype_name) == ((2, 4), dtype)
            array = np.asarray(lease)
            array[:] = 7
            channel.publish(array.reshape(8)[:6])
            del array
        with next(frames) as frame:
            assert (frame.shape, frame.dtype_name) == ((6,), dtype)
    lease = client.allocate((2, 4), "float32")
    lease.publish("named")
    with other.get("named") as named:
        assert (named.shape, named.dtype_name) == ((2, 4), "float32")
    lease.release()


def let_go_later(client, frame, value):
    """Release a frame, but make the producer wait for a fence, as if a GPU still worked on the frame."""
    own, state = client._session.timelines.own, frame._lease_state
    state.released = True
    client._session.release(state, (Fence(own.id, 0, value),), failed=False)
    return own


def test_the_leases_of_a_channel_that_was_closed_come_back_though_nothing_is_allocated(client, other):
    channel = client.create_channel("c", capacity=4)
    for value in range(4):
        publish(client, channel, value)
    channel.close()
    until(lambda: leases(other) == 0)


def test_a_client_that_is_dropped_without_close_keeps_no_block(service, client):
    channel = client.create_channel("c", capacity=2)
    with pytest.warns(ResourceWarning):
        dropped = poolbridge.connect(service.path, timeout=60)
        theirs = dropped.open_channel("c")
        pool = dropped.open_pool("frames")
        for value in range(8):
            lease = dropped.allocate(4, "int32", pool=pool)
            np.asarray(lease)[:] = value
            theirs.publish(lease)
        del lease, theirs, pool, dropped
        gc.collect()
        until(lambda: client.stats().sessions == 1)
    stats = client.stats().pools[0]
    assert stats.held == 0
    channel.close()
    until(lambda: client.stats().pools[0].leased == 0)


def test_a_lease_whose_consumer_is_gone_with_its_timeline_is_used_again_or_released(service, client):
    channel = client.create_channel("c", capacity=1)
    with poolbridge.connect(service.path, timeout=60) as other:
        frames = other.subscribe("c")
        publish(client, channel, 1)
        own = let_go_later(other, frames.receive(60), 5)
        publish(client, channel, 2)
        next(frames).release()
        with client._session.lock:
            client._session.producers[channel.id].collect()
        assert len(client._session.returns)
        own.page.store(0, 5)
    until(lambda: client.stats().sessions == 1)
    asked = client._session.core._number
    client.allocate(4, "int32").release()
    until(lambda: leases(client) <= 1)
    assert client._session.core._number < asked + 100


class Leaving:
    """Wraps a native producer: the producer leaves the channel as soon as blocks have come back."""

    def __init__(self, producer):
        self.native = producer.native
        self.leave = producer.leave

    def __getattr__(self, name):
        return getattr(self.native, name)

    def reclaim(self):
        came = self.native.reclaim()
        if came:
            self.leave()
        return came


def test_blocks_that_come_back_as_their_producer_leaves_are_nobodys(client):
    channel = client.create_channel("c", capacity=1)
    publish(client, channel, 0)
    producer = client._session.producers[channel.id]
    producer.native = Leaving(producer)  # the thread that takes the block: this one or the session's
    publish(client, channel, 1)
    producer.await_back(0.01)
    until(lambda: not producer.outstanding)


class Late:
    """Wraps a native producer: in the thread `late`, the first call that looks returns only when the test says so."""

    def __init__(self, native):
        self.native = native
        self.came, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name):
        found = getattr(self.native, name)
        if threading.current_thread().name != "late" or self.came.is_set() or not callable(found):
            return found

        def call(*arguments):
            came = found(*arguments)
            self.came.set()
            self.go_on.wait(60)
            return came

        return call


def test_an_allocation_gets_memory_for_whose_return_another_thread_waits(client, other):
    pool = client.create_pool("one", max_bytes=PAGE)
    channel = client.create_channel("c", pool=pool, mode="queue", capacity=1)
    frames = other.subscribe("c")
    publish(client, channel, 1)
    producer = client._session.producers[channel.id]
    late = producer.native = Late(producer.native)
    waiting = threading.Thread(target=producer.await_back, args=(60,), name="late")
    waiting.start()
    next(frames).release()
    assert late.came.wait(60)
    client.allocate(4, pool=pool, timeout=0).release()
    late.go_on.set()
    waiting.join()
    assert not producer.outstanding


def test_what_waits_for_an_answer_to_the_session_goes_without_the_garbage_collector(client):
    class Then:
        def __call__(self, timeline):
            heard.append(timeline)

    heard: list[int] = []
    then = Then()
    gone = ref(then)
    with no_collector(), client._session.lock:
        client._session.learn_timeline(4711, then)
        del then
    with no_collector():
        until(lambda: heard == [4711])
        until(lambda: gone() is None)


def test_a_lease_of_a_producer_that_leaves_is_released_once_though_the_client_closes_meanwhile(client, monkeypatch):
    session = client._session
    ended: list[object] = []
    monkeypatch.setattr(session, "end_lease", ended.append)
    grant = object()
    with session.lock:
        session.leave_and_release(SimpleNamespace(channel=SimpleNamespace(id=4711), member=4711), grant)
        session.core.abandon_all(poolbridge.ClientClosedError("the client is closed"))
        session._flush()
    assert ended == [grant]
    client.stats()  # the answer to the first request came before
    assert ended == [grant]


def test_leases_are_given_back_though_the_thread_that_does_so_has_failed_before(client, other, monkeypatch):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c")
    returns = client._session.returns
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(returns, "_soon", lambda: 1 / 0)
    for value in range(3):
        publish(client, channel, value)
        next(frames)
    until(lambda: failed)
    monkeypatch.undo()
    for _ in range(2):
        client.allocate(1000).release()
    publish(client, channel, 3)
    next(frames)
    client.allocate(1000).release()
    until(lambda: leases(client) == 1)

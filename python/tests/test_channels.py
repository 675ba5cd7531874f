"""Tests channels of the blocking client: the order of frames, modes, limits, and how channels end."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import array
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
from realservice import RealService, leases, publish, until

import poolbridge
from poolbridge._memory.mappings import MAPPINGS
from poolbridge._session import consumer as _consumer
from poolbridge._session.consumer import Credit, claim
from poolbridge._session.producer import Producer
from poolbridge._sys.deferred import Flag
from poolbridge._wire import messages as m


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "r.sock"))
    yield running
    running.close()


def test_frames_come_in_order_and_end_with_the_channel(client, other):
    channel = client.create_channel("video", capacity=16)
    frames = other.subscribe("video", credit=3)
    for value in range(10):
        assert publish(client, channel, value) == value + 1
    channel.close()
    seen = []
    for frame in frames:
        array = np.asarray(frame)
        assert array.tolist() == [int(frame.meta["value"])] * 4
        assert not array.flags.writeable
        seen.append((frame.seq, frame.dropped))
        assert abs(frame.time - frame.time_ns / 1e9) < 1
        del array
    assert seen == [(number + 1, 0) for number in range(10)]
    assert frames.closed
    assert list(frames) == []
    assert frames.receive() is None


def asked_for(client, kind):
    """Return a list. After this call, the session adds each request of the type `kind` that it begins to this list."""
    core, seen = client._session.core, []
    start = core.start

    def note(request, *others):
        if isinstance(request, kind):
            seen.append(request)
        return start(request, *others)

    core.start = note
    return seen


def in_hand(frames):
    """Return the numbers of the frames whose memory a subscription keeps."""
    return frames._consumer.native.in_hand


def test_a_channel_says_what_it_is(client, other):
    made = client.create_channel("c", mode="queue", capacity=3, full="fail")
    found = other.open_channel("c")
    assert (found.id, found.name, found.mode, found.capacity, found.full, found.pool) == (
        made.id, "c", "queue", 3, "fail", "frames",
    )  # fmt: skip
    assert repr(found) == "<poolbridge.Channel 'c', queue of 3 frames, full: fail, pool 'frames'>"
    assert client.create_channel("c", mode="queue", capacity=3, full="fail").id == made.id
    with pytest.raises(poolbridge.AlreadyExistsError):
        client.create_channel("c", capacity=3)
    with pytest.raises(poolbridge.NotFoundError):
        client.open_channel("none")
    with pytest.raises(poolbridge.WaitTimeoutError):
        client.subscribe("none", timeout=0.01)


def test_publishing_what_lives_in_a_lease_costs_no_copy(client, other):
    channel = client.create_channel("c", capacity=8)
    frames = other.subscribe(channel.name)
    held = client.allocate((4, 6), "float32")
    array = np.asarray(held)
    array[:] = np.arange(24).reshape(4, 6)
    buffers = [held.buffer_id]
    channel.publish(array)
    held = client.allocate((4, 6), "float32")
    part = np.from_dlpack(held)
    part[:] = np.arange(24).reshape(4, 6)
    buffers.append(held.buffer_id)
    channel.publish(part[1:3, ::2])
    lease = client.allocate((4, 6), "float32")
    buffers.append(lease.buffer_id)
    channel.publish(lease.view())
    whole, piece, viewed = (frames.receive() for _ in range(3))
    assert [frame.buffer_id for frame in (whole, piece, viewed)] == buffers
    assert np.asarray(whole).tolist() == np.arange(24).reshape(4, 6).tolist()
    assert np.asarray(piece).tolist() == np.arange(24).reshape(4, 6)[1:3, ::2].tolist()
    assert piece.strides == (24, 8)
    assert lease.released
    assert not array.flags.writeable
    with pytest.raises(poolbridge.LeaseReleasedError):
        channel.publish(lease)
    with pytest.raises(poolbridge.LeaseReleasedError):
        lease.release()
    del array, part


def test_an_array_of_a_lease_that_was_sent_keeps_its_memory_mapped(client):
    channel = client.create_channel("c", capacity=4)
    lease = client.allocate(4, "int32")
    array = np.asarray(lease)
    array[:] = 7
    channel.publish(lease)
    publish(client, channel, 8)
    channel.close()
    until(lambda: leases(client) == 1)  # nobody else gets the memory of the array
    client.trim()
    until(lambda: client.stats().pools[0].reserved == 4096)
    assert array.tolist() == [7] * 4
    del lease, array
    until(lambda: leases(client) == 0)
    client.trim()
    until(lambda: client.stats().pools[0].reserved == 0)


def test_any_other_array_is_copied_once(client, other):
    channel = client.create_channel("c", capacity=8)
    frames = other.subscribe("c")
    allocations = asked_for(client, m.Alloc)
    source = np.arange(6, dtype=np.int16).reshape(2, 3)
    channel.publish(source)
    channel.publish(source.T)
    channel.publish(array.array("d", [1.5, 2.5]))
    channel.publish(frames.receive())
    assert len(allocations) == 4
    assert [next(frames).to_numpy().tolist() for _ in range(3)] == [
        source.T.tolist(), [1.5, 2.5], source.tolist(),
    ]  # fmt: skip


def test_what_is_no_array_is_not_made_one(client):
    channel = client.create_channel("video")
    held = client.allocate(4, "float32")
    both = (np.zeros(4, np.float32), np.ones(4, np.float32))
    for given in (both, list(both), (held, held), [1.5, 2.5], 7, "frame", None):
        name = type(given).__name__
        with pytest.raises(poolbridge.InvalidArgumentError, match=f"^a {name} is no array: .*numpy.stack"):
            channel.publish(given)
    with pytest.raises(poolbridge.InvalidArgumentError, match="^array 'frame': a tuple is no array: "):
        channel.publish({"frame": both})
    assert channel.publish(np.stack(both)) == 1
    assert channel.publish(np.float32(7)) == 2, "an array without axes"
    assert channel.publish(held) == 3


def test_bytes_are_published_as_unsigned_bytes(client):
    channel = client.create_channel("c")
    subscription = client.subscribe("c")
    for given in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        channel.publish(given)
        array = np.from_dlpack(next(subscription))
        assert array.dtype == np.uint8
        assert bytes(array) == b"abc"


@pytest.mark.parametrize("capacity", [0, 1025])
def test_a_capacity_out_of_range_is_refused_with_the_range(client, capacity):
    with pytest.raises(poolbridge.InvalidArgumentError, match=f"^capacity {capacity} is out of range: .* 1 to 1024$"):
        client.create_channel("c", capacity=capacity)


def test_what_a_stranger_publishes_is_copied(client, other):
    channel = client.create_channel("c", capacity=8)
    other.open_pool("frames")
    lease = other.allocate(3, "int8")
    np.asarray(lease)[:] = 5
    channel.publish(lease)
    assert not lease.released
    assert client.subscribe("c").receive(60).to_numpy().tolist() == [5, 5, 5]


def test_a_frame_is_released_with_its_last_array(client, other):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c", credit=1)
    publish(client, channel, 1)
    array = np.asarray(next(frames))
    with pytest.raises(poolbridge.WaitTimeoutError, match="is behind"):
        channel.publish(np.zeros(4), timeout=0.01)
    del array
    gc.collect()
    assert in_hand(frames) == []
    assert publish(client, channel, 2) == 2
    assert next(frames).seq == 2


def test_a_producer_goes_on_when_the_consumer_whose_file_it_could_not_map_has_left(client, other, monkeypatch):
    def refuse(*_file):
        raise poolbridge.PoolLimitError("no memory")

    def keep(_producer, slot, member, fd):
        files.append((slot, member, os.dup(fd)))

    channel = client.create_channel("c", capacity=4)
    files: list[tuple[int, int, int]] = []
    publish(client, channel, 1)
    (producer,) = client._session.core.members
    with monkeypatch.context() as patch:
        patch.setattr(Producer, "_add", refuse)
        frames = other.subscribe("c")
        with pytest.raises(poolbridge.PoolLimitError, match="no memory"):
            publish(client, channel, 2)
        frames.close()
    with monkeypatch.context() as patch:
        patch.setattr(Producer, "meet", keep)
        frames = other.subscribe("c")
        until(lambda: files)
    ((slot, member, fd),) = files
    with ThreadPoolExecutor() as threads:
        number = threads.submit(publish, client, channel, 2)
        until(lambda: producer.native.unknown == (slot, member))
        with client._session.lock:
            producer.meet(slot, member, fd)
        os.close(fd)
        while not number.done():
            client.stats()  # the session looks again when a packet comes
        assert number.result() == 2
    assert [next(frames).seq, next(frames).seq] == [1, 2]


def test_a_wait_without_credit_says_what_to_do(client, other):
    channel = client.create_channel("work", mode="queue", capacity=8)
    frames = other.subscribe("work", credit=1, ack="manual")
    with pytest.raises(poolbridge.WaitTimeoutError, match="no frame came"):
        frames.receive(0.01)
    for value in range(2):
        publish(client, channel, value)
    first = frames.receive(60)
    with pytest.raises(poolbridge.WaitTimeoutError, match="channel 'work', after 0.01 s: as many frames .* credit="):
        frames.receive(0.01)
    first.release()
    assert frames.receive(60).seq == 2


def test_iteration_lets_go_of_a_frame_when_it_goes_on(client, other):
    channel = client.create_channel("work", mode="queue", capacity=8)
    frames = other.subscribe("work", credit=2)
    for value in range(4):
        publish(client, channel, value)
    channel.close()
    first = next(frames)
    second = next(frames)
    assert first.released
    assert first.shape == (4,)
    with pytest.raises(poolbridge.LeaseReleasedError):
        np.asarray(first)
    array, kept = np.asarray(second), second.lease
    third = next(frames)
    assert second.released
    assert not kept.released
    assert array.tolist() == [1] * 4
    assert in_hand(frames) == [2, 3]
    del array
    assert kept.to_numpy().tolist() == [1] * 4
    kept.release()
    assert in_hand(frames) == [3]
    assert next(frames).seq == 4
    assert third.released
    assert list(frames) == []


def test_a_block_lets_go_of_its_frame_though_an_array_lives_on(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c", credit=1)
    publish(client, channel, 5)
    with next(frames) as frame:
        array = np.asarray(frame)
    assert frame.released
    assert frame.seq == 1
    with pytest.raises(poolbridge.LeaseReleasedError):
        np.asarray(frame)
    assert in_hand(frames) == [1]
    assert array.tolist() == [5] * 4
    del array
    assert in_hand(frames) == []
    publish(client, channel, 6)
    with next(frames) as frame:
        assert int(np.asarray(frame)[0]) == 6
    assert in_hand(frames) == []


def test_a_full_channel_fails_and_the_lease_lives_on(client, other):
    channel = client.create_channel("c", capacity=1, full="fail")
    frames = other.subscribe("c", credit=1)
    publish(client, channel, 1)
    lease = client.allocate(4, "int32")
    with pytest.raises(poolbridge.PoolLimitError):
        channel.publish(lease)
    np.asarray(lease)[:] = 9
    next(frames).release()
    other.stats()
    assert channel.publish(lease) == 2
    assert next(frames).to_numpy().tolist() == [9] * 4


@pytest.mark.parametrize(("full", "error"), [("block", "WaitTimeoutError"), ("fail", "PoolLimitError")])
def test_the_error_of_a_full_queue_says_how_many_consumers_it_has(client, other, full, error):
    channel = client.create_channel("c", mode="queue", capacity=1, full=full)
    publish(client, channel, 1)

    def refused(text):
        with pytest.raises((poolbridge.WaitTimeoutError, poolbridge.PoolLimitError)) as refusal:
            channel.publish(client.allocate(4, "int32"), timeout=0.01)
        return refusal.type.__name__ == error and text in str(refusal.value)

    assert refused("; it has 0 consumers; start one (`client.subscribe`), or")
    worker = other.subscribe("c")
    until(lambda: refused("; its 1 consumer is behind; release frames sooner, or"))  # the client hears of it later
    worker.close()
    other.stats()
    assert refused("; it has 0 consumers; start one")


def test_a_late_subscriber_begins_with_the_newest_or_the_oldest_kept(client, other):
    channel = client.create_channel("c", capacity=3)
    for value in range(5):
        publish(client, channel, value)
    assert next(other.subscribe("c")).seq == 5
    assert [frame.seq for frame in islice(other.subscribe("c", oldest=True), 3)] == [3, 4, 5]


def test_a_queue_keeps_what_a_closed_subscription_did_not_take(client, other):
    channel = client.create_channel("work", mode="queue", capacity=8)
    with other.subscribe("work", credit=4) as mine:
        for value in range(3):
            publish(client, channel, value)
        with mine.receive(60) as frame:
            assert frame.seq == 1
    theirs = client.subscribe("work")
    assert [theirs.receive(60).seq for _ in range(2)] == [2, 3]


def test_a_closed_queue_keeps_its_frames_for_workers_that_come_later(client, other, service):
    channel = client.create_channel("work", mode="queue", capacity=8)
    publisher = channel.publisher((4,), "float32")
    for value in range(3):
        publisher.loan()[...] = value
        publisher.publish()
    channel.close()
    with other.subscribe("work", timeout=0) as leaving:
        leaving.receive(60).requeue()
    client.close()
    with poolbridge.connect(service.path) as worker:
        assert [float(frame.to_numpy()[0]) for frame in worker.subscribe("work", timeout=0)] == [0, 1, 2]
    with pytest.raises(poolbridge.NotFoundError):
        other.subscribe("work", timeout=0)


def test_producers_of_a_name_find_the_open_channel_while_workers_drain_a_closed_queue(client, other):
    first = client.create_channel("work", mode="queue")
    publish(client, first, 1)
    first.close()
    with pytest.raises(poolbridge.NotFoundError):
        other.open_channel("work")
    client.create_channel("work", mode="queue")
    publish(other, other.open_channel("work"), 2)
    for value in 1, 2:  # workers get the frames of the closed queue before those of the open one
        with client.subscribe("work") as frames, frames.receive(60) as frame:
            assert frame.to_numpy().reshape(-1)[0] == value
    other.open_channel("work").close()
    with pytest.raises(poolbridge.NotFoundError):
        client.open_channel("work")


def test_a_second_thread_gets_an_error_while_another_thread_takes_a_frame(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c")
    arrays = frames.arrays()
    for asked in (frames, arrays, arrays):  # the second call of `arrays` swaps frames
        seen: list[object] = []
        thread = threading.Thread(target=lambda asked=asked, seen=seen: seen.append(next(asked)))
        thread.start()
        refused: list[str] = []

        def asks(refused=refused):
            try:
                frames.receive(0)
            except poolbridge.InvalidArgumentError as error:
                refused.append(str(error))
            except poolbridge.WaitTimeoutError:
                pass  # the thread does not wait yet
            return refused

        until(asks)
        assert "subscribe once for each thread" in refused[0]
        with pytest.raises(poolbridge.InvalidArgumentError, match="once for each thread"):
            next(frames.arrays())
        publish(client, channel, 1)
        thread.join()
        assert len(seen) == 1
    publish(client, channel, 2)
    assert frames.receive(60).seq == 4, "threads may use a subscription one after the other"


def test_a_thread_does_not_get_the_frame_that_another_thread_has_taken_and_not_yet_returned(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c")
    publish(client, channel, 1)
    frames.receive(60)  # so that this session knows the producer
    publish(client, channel, 2)
    consumer = frames._consumer
    taken = consumer.at_once()
    assert consumer.native.offered is taken
    with ThreadPoolExecutor(1) as pool, pytest.raises(poolbridge.InvalidArgumentError, match="once for each thread"):
        pool.submit(lambda: claim(consumer, taken)).result()
    assert frames.receive(60).seq == 2


def test_a_frame_that_was_taken_before_another_thread_closed_the_subscription_is_no_lease(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c")
    publish(client, channel, 1)
    frames.receive(60).release()  # so that this session knows the producer
    publish(client, channel, 2)
    consumer = frames._consumer
    taken = consumer.at_once()
    frames.close()
    with pytest.raises(poolbridge.ClosedError, match="this subscription was closed"):
        claim(consumer, taken)
    assert not consumer._frames
    assert not any(block.leases for block in other._session.core.blocks.values())


def test_the_end_of_a_wait_for_credit_does_not_keep_a_later_wait_from_being_woken(monkeypatch):
    class FirstWait(Flag):
        def wait(self, seconds):
            monkeypatch.undo()
            second.start()
            until(lambda: credit._changed is not self)
            return False

    credit = Credit(1)
    credit.unsettled.add(1)
    second = threading.Thread(target=credit.wait, args=(60,))
    monkeypatch.setattr(_consumer, "Flag", FirstWait)
    credit.wait(60)
    credit.unsettled.clear()
    credit.tell()
    second.join(30)
    assert not second.is_alive()


def test_no_two_threads_get_the_same_frame_of_a_subscription(client, other):
    channel = client.create_channel("c", capacity=8)
    frames = other.subscribe("c")
    seen, refused = [], []

    def work():
        while not frames.closed:
            try:
                frame = frames.receive()
            except poolbridge.InvalidArgumentError:
                refused.append(1)
            else:
                if frame is not None:
                    seen.append(frame.seq)
                    frame.release()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for value in range(300):
        publish(client, channel, value)
    until(lambda: refused)
    channel.close()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 301))


def test_a_dropped_subscription_ends_by_itself(client, other):
    channel = client.create_channel("c", capacity=2)
    publish(client, channel, 0)
    for frame in other.subscribe("c"):
        frame.release()
        break
    frames = other.subscribe("c")
    del frames
    gc.collect()
    assert not other._session.core.members
    for value in range(5):
        publish(client, channel, value, timeout=60)


def test_a_subscriber_may_be_another_thread_than_the_publisher(client):
    channel = client.create_channel("c", capacity=4)
    frames = client.subscribe("c", credit=2)
    seen: list[int] = []

    def consume():
        seen.extend(int(np.asarray(frame)[0]) for frame in frames)

    consumer = threading.Thread(target=consume)
    consumer.start()
    for value in range(200):
        publish(client, channel, value)
    channel.close()
    consumer.join(60)
    assert seen == list(range(200))


def test_steady_streaming_maps_nothing(service, client, other):
    channel = client.create_channel("c", capacity=2)
    frames = other.subscribe("c")
    before = MAPPINGS.imports["blocks"]
    for value in range(100):
        publish(client, channel, value)
        assert np.asarray(next(frames))[0] == value
    assert MAPPINGS.imports["blocks"] - before < 6


def test_closing_the_client_ends_a_waiting_subscriber_with_an_error(service):
    client = poolbridge.connect(service.path)
    client.create_pool("p", max_bytes=1 << 16)
    client.create_channel("c")
    frames = client.subscribe("c")
    caught = []

    def consume():
        try:
            next(frames)
        except poolbridge.PoolbridgeError as error:
            caught.append(type(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    client.close()
    consumer.join(60)
    assert caught == [poolbridge.ClientClosedError]


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.create_channel("c", mode="ring"),
        lambda client: client.create_channel("c", full="maybe"),
        lambda client: client.create_channel("c", capacity=0),
        lambda client: client.create_channel("c", capacity=1025),
        lambda client: client.create_channel(""),
        lambda client: client.create_channel("made").publish(np.zeros(3), meta={"a": "x" * 8400}),
        lambda client: client.create_channel("made").publish(np.zeros(3), meta={"a": {1, 2}}),
        lambda client: client.create_channel("made").publish(np.zeros(3), meta={1: "a"}),
        lambda client: client.create_channel("made").publish(np.array(["text"])),
        lambda client: client.subscribe(client.create_channel("made"), credit=0),
        lambda client: client.subscribe(client.create_channel("made"), credit=257),
        lambda client: client.subscribe(client.create_channel("made"), full="maybe"),
        lambda client: client.subscribe(client.create_channel("made"), ack="never"),
    ],
)
def test_bad_arguments_are_refused(client, call):
    with pytest.raises(poolbridge.InvalidArgumentError):
        call(client)


@pytest.mark.parametrize(
    "call",
    [
        lambda client, long: client.create_channel("made").publish(np.zeros(3), meta=long),
        lambda client, long: client.create_channel(long),
        lambda client, long: client.create_channel("c", mode=long),
        lambda client, long: client.allocate((long,)),
    ],
)
def test_an_error_does_not_repeat_a_long_value(service, client, call):
    with pytest.raises(poolbridge.InvalidArgumentError, match=r"100,00\d characters") as caught:
        call(client, "x" * 100_000)
    assert len(str(caught.value)) < 400


def test_any_whole_number_will_do_as_a_number_of_frames(client):
    channel = client.create_channel("c", capacity=np.int64(2))
    assert channel.capacity == 2
    assert client.subscribe(channel, credit=np.int64(2))._consumer.credit.most == 2


def test_a_channel_is_no_context_manager_and_says_what_to_write(client, other):
    channel = client.create_channel("c")
    with pytest.raises(TypeError, match=r"ends it for all clients.*channel\.close\(\) after the last frame"), channel:
        pass
    assert other.open_channel("c").id == channel.id


def test_a_pool_is_no_context_manager_and_says_what_to_write(client, other):
    pool = client.create_pool("with", max_bytes="1MiB")
    with pytest.raises(TypeError, match=r"client\.destroy_pool\(pool\) ends it for all clients"), pool:
        pass
    assert other.open_pool("with").name == "with"


def test_a_channel_may_be_closed_twice(client):
    channel = client.create_channel("c")
    channel.close()
    channel.close()
    with pytest.raises(poolbridge.ClosedError):
        channel.publish(np.zeros(3))


def test_a_subscriber_may_spin(service, client, other):
    channel = client.create_channel("c")
    frames = other.subscribe("c")
    frames.spin = 0.05
    with pytest.raises(poolbridge.WaitTimeoutError):
        frames.receive(timeout=0.001)
    late = threading.Timer(0.1, publish, (client, channel, 3))
    late.start()
    assert np.asarray(frames.receive()).tolist() == [3] * 4
    late.join()


MAKERS = {
    "asarray": np.asarray,
    "from_dlpack": np.from_dlpack,
    "slice": lambda lease: np.asarray(lease)[1:],
    "memoryview": lambda lease: lease.memoryview(),
    "view": lambda lease: np.asarray(lease.view()),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_array_in_memory_that_was_published_as_a_frame_is_not_published_again(client, other, make):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c", credit=4)
    array = make(client.allocate(4, "int32"))
    channel.publish(array)
    for again in (channel.publish, lambda one: client.put(one, "name")):
        with pytest.raises(poolbridge.LeaseReleasedError, match="from a new lease"):
            again(array)
    assert [one.name for one in client.names()] == []
    assert leases(client) == 1, "nothing was allocated"
    assert channel.publish(np.array(array)) == 2, "a copy is new memory"
    next(frames).release()
    next(frames).release()
    channel.publish(np.ones(4, "int32"))
    with pytest.raises(poolbridge.LeaseReleasedError):  # also when the lease is back and may be used again
        channel.publish(array)


def test_an_array_of_another_lease_is_published_while_an_earlier_array_lives(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c", credit=4)
    arrays: list[np.ndarray] = []
    for value in range(20):
        arrays = [*arrays[-2:], np.asarray(client.allocate(4, "int32"))]
        arrays[-1][:] = value
        assert channel.publish(arrays[-1]) == value + 1
        assert next(frames).to_numpy().tolist() == [value] * 4


def test_an_array_of_a_named_buffer_or_of_a_frame_is_published_as_a_copy(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = client.subscribe("c", credit=4)
    named = client.allocate(4, "int32")
    array = np.asarray(named)
    array[:] = 7
    named.publish("named")
    channel.publish(array)
    for number in range(2, 5):
        frame = np.asarray(next(frames))
        assert channel.publish(frame) == number
        client.put(frame, f"frame {number}")
    assert other.get("frame 4").to_numpy().tolist() == [7] * 4


def test_the_array_of_a_publisher_is_published_otherwise_only_while_it_is_on_loan(client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c", credit=4)
    with channel.publisher(4, "int32") as publisher:
        array = publisher.loan()
        array[:] = 5
        client.put(array, "on loan")
        publisher.publish()
        for again in (channel.publish, lambda one: client.put(one, "sent")):
            with pytest.raises(poolbridge.LeaseReleasedError, match=r"loan\(\)"):
                again(array)
        with pytest.raises(poolbridge.LeaseReleasedError, match=r"loan\(\)"):
            publisher.publish()
    assert other.get("on loan").to_numpy().tolist() == next(frames).to_numpy().tolist() == [5] * 4


def test_a_lease_is_published_once(client):
    channel = client.create_channel("c", capacity=4)
    lease = client.allocate(4, "int32")
    channel.publish(lease)
    for again in (channel.publish, lambda one: client.put(one, "name"), lambda one: one.publish("name")):
        with pytest.raises(poolbridge.LeaseReleasedError, match="published as a frame"):
            again(lease)


# The newest frame


def test_latest_takes_the_newest_frame_again_and_again(client, other):
    channel = client.create_channel("c", capacity=4)
    mirror = other.open_channel("c")
    with pytest.raises(poolbridge.WaitTimeoutError):
        mirror.latest(timeout=0)
    for value in range(6):
        channel.publish(np.full(4, value))
    for _ in range(300):  # more than the 256 frames that one subscription may hold
        frame = mirror.latest(timeout=60)
        assert (frame.seq, int(np.asarray(frame)[0])) == (6, 5)
    array = np.asarray(frame)
    del frame
    channel.publish(np.full(4, 6))
    assert mirror.latest(timeout=60).seq == 7
    assert array.tolist() == [5] * 4, "an array of a frame stays valid"
    del array
    until(lambda: other.session_stats().leases == 0)
    until(lambda: not any(one.consumers for one in client.channels()))
    channel.close()
    with pytest.raises(poolbridge.ClosedError):
        mirror.latest(timeout=60)


def test_the_error_of_a_channel_that_is_gone_has_its_name(client, other):
    channel = client.create_channel("camera")
    mirror = other.open_channel("camera")
    channel.close()
    for use in (
        lambda: mirror.latest(timeout=60),
        lambda: mirror.publish(np.arange(3)),
        lambda: mirror.publisher(3, "int64").loan(),
        lambda: other.subscribe(mirror),
        lambda: mirror.wait_for_consumers(1, timeout=60),
    ):
        with pytest.raises(
            poolbridge.ClosedError, match="channel 'camera' is gone: .*; make it again .*create_channel"
        ):
            use()
    other.close()
    with pytest.raises(poolbridge.ClientClosedError):
        mirror.latest(timeout=60)


def test_latest_waits_for_the_first_frame(client, other):
    channel, mirror = client.create_channel("c"), other.open_channel("c")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(mirror.latest, 60)
        channel.wait_for_consumers(1, timeout=60)
        channel.publish(np.arange(3))
        assert np.asarray(waiting.result()).tolist() == [0, 1, 2]


def test_a_queue_has_no_latest_frame(client):
    with pytest.raises(poolbridge.InvalidArgumentError, match="'q' is a queue"):
        client.create_channel("q", mode="queue").latest(timeout=0)


def test_a_channel_of_another_service_is_no_channel_of_this_one(client, tmp_path):
    elsewhere = RealService(str(tmp_path / "other.sock"))
    try:
        with poolbridge.connect(elsewhere.path, timeout=60) as other:
            other.create_pool("frames", max_bytes=1 << 20)
            theirs = other.create_channel("theirs")
            client.create_channel("ours")
            with pytest.raises(poolbridge.InvalidArgumentError, match="'theirs' is of another service"):
                client.subscribe(theirs)
    finally:
        elsewhere.close()

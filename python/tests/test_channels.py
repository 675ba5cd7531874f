"""Channels of the blocking client: frames in order, modes, limits and ends."""

from __future__ import annotations

import array
import gc
import threading
from itertools import islice

import msgspec
import numpy as np
import pytest
from fakechannels import ChannelService

import poolbridge
from poolbridge import _channel_messages as cm
from poolbridge import _messages as m
from poolbridge._mappings import MAPPINGS


@pytest.fixture
def service(tmp_path):
    running = ChannelService(str(tmp_path / "c.sock"))
    yield running
    running.close()


def publish(client, channel, value):
    lease = client.allocate(4, "int32")
    np.asarray(lease)[:] = value
    return channel.publish(lease, meta={"value": str(value)})


def test_frames_come_in_order_and_end_with_the_channel(client, other):
    channel = client.create_channel("video", capacity=16)
    frames = other.subscribe("video", credit=3)
    for value in range(10):
        assert publish(client, channel, value) == value + 1
    channel.shut()
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


def test_publishing_what_lives_in_a_lease_costs_no_copy(service, client, other):
    channel = client.create_channel("c", capacity=8)
    frames = other.subscribe(channel.name)
    array = np.asarray(client.allocate((4, 6), "float32"))
    array[:] = np.arange(24).reshape(4, 6)
    allocations = len(service.seen(m.Alloc))
    channel.publish(array)
    part = np.from_dlpack(client.allocate((4, 6), "float32"))
    part[:] = np.arange(24).reshape(4, 6)
    channel.publish(part[1:3, ::2])
    lease = client.allocate((4, 6), "float32")
    channel.publish(lease.view())
    assert len(service.seen(m.Alloc)) == allocations + 2
    whole, piece, _ = (frames.receive() for _ in range(3))
    assert np.asarray(whole).tolist() == np.arange(24).reshape(4, 6).tolist()
    assert np.asarray(piece).tolist() == np.arange(24).reshape(4, 6)[1:3, ::2].tolist()
    assert piece.strides == (24, 8)
    sent = service.seen(cm.Send)
    assert [request.t is msgspec.UNSET for request in sent] == [True, False, True]
    assert lease.released
    assert not array.flags.writeable
    with pytest.raises(poolbridge.LeaseReleasedError):
        channel.publish(lease)
    with pytest.raises(poolbridge.LeaseReleasedError):
        lease.release()
    del array, part


def test_a_lease_that_was_sent_keeps_its_block_mapped_only_for_arrays(service, client):
    channel = client.create_channel("c", capacity=4)
    sent, used = client.allocate(4, "int32"), client.allocate(4, "int32")
    array = np.asarray(used)
    blocks = [lease._hold.grant.bl for lease in (sent, used)]
    channel.publish(sent)
    channel.publish(used)
    service.connections[0].recall(*blocks)
    service.wait(lambda: service.seen(m.Dropped) == [m.Dropped(bl=(blocks[0],))])
    array.tolist()
    del used, array
    service.wait(lambda: service.seen(m.Dropped)[1:] == [m.Dropped(bl=(blocks[1],))])
    assert sent.released


def test_any_other_array_is_copied_once(service, client, other):
    channel = client.create_channel("c", capacity=8)
    frames = other.subscribe("c")
    source = np.arange(6, dtype=np.int16).reshape(2, 3)
    channel.publish(source)
    channel.publish(source.T)
    channel.publish(array.array("d", [1.5, 2.5]))
    channel.publish(frames.receive())
    assert len(service.seen(m.Alloc)) == 4
    assert [next(frames).to_numpy().tolist() for _ in range(3)] == [
        source.T.tolist(), [1.5, 2.5], source.tolist(),
    ]  # fmt: skip


def test_what_is_no_array_is_not_made_one(client):
    channel = client.create_channel("video")
    held = client.allocate(4, "float32")
    both = (np.zeros(4, np.float32), np.ones(4, np.float32))
    for given in (both, list(both), (held, held), [1.5, 2.5], 7, "frame", None, {"frame": both}):
        name = type(given).__name__
        with pytest.raises(poolbridge.InvalidArgumentError, match=f"^a {name} is no array: .*numpy.stack"):
            channel.publish(given)
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


def test_a_frame_is_released_with_its_last_array(service, client, other):
    channel = client.create_channel("c", capacity=1)
    frames = other.subscribe("c", credit=1)
    publish(client, channel, 1)
    array = np.asarray(next(frames))
    other.stats()
    assert service.leases == 1
    with pytest.raises(poolbridge.WaitTimeoutError, match="process 42"):
        channel.publish(np.zeros(4), timeout=0.01)
    del array
    gc.collect()
    other.stats()
    client.stats()  # the copy that was not published has been released, too
    assert service.leases == 0
    assert publish(client, channel, 2) == 2
    assert next(frames).seq == 2


def test_iteration_lets_go_of_a_frame_when_it_goes_on(service, client, other):
    channel = client.create_channel("work", mode="queue", capacity=8)
    frames = other.subscribe("work", credit=2)
    for value in range(4):
        publish(client, channel, value)
    channel.shut()
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
    other.stats()
    assert service.leases == 3  # the array's, the third and the fourth
    del array
    assert kept.to_numpy().tolist() == [1] * 4
    kept.release()
    assert next(frames).seq == 4
    assert third.released
    assert list(frames) == []


def test_a_block_lets_go_of_its_frame_though_an_array_lives_on(service, client, other):
    channel = client.create_channel("c", capacity=4)
    frames = other.subscribe("c", credit=1)
    publish(client, channel, 5)
    with next(frames) as frame:
        array = np.asarray(frame)
    assert frame.released
    assert frame.seq == 1
    with pytest.raises(poolbridge.LeaseReleasedError):
        np.asarray(frame)
    other.stats()
    assert service.leases == 1
    assert array.tolist() == [5] * 4
    del array
    other.stats()
    assert service.leases == 0
    publish(client, channel, 6)
    with next(frames) as frame:
        assert int(np.asarray(frame)[0]) == 6
    other.stats()
    assert service.leases == 0


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


def test_who_is_behind_is_told_how_many_frames_it_missed(client, other):
    channel = client.create_channel("c", capacity=2, full="drop-oldest")
    frames = other.subscribe("c", credit=1)
    for value in range(6):
        publish(client, channel, value)
    first = next(frames)
    assert (first.seq, first.dropped) == (1, 0)
    first.release()
    second = next(frames)
    assert (second.seq, second.dropped) == (5, 3)


def test_a_late_subscriber_begins_with_the_newest_or_the_oldest_kept(client, other):
    channel = client.create_channel("c", capacity=3)
    for value in range(5):
        publish(client, channel, value)
    assert next(other.subscribe("c")).seq == 5
    assert [frame.seq for frame in islice(other.subscribe("c", oldest=True), 3)] == [3, 4, 5]


def test_a_queue_has_back_what_a_closed_subscription_did_not_take(client, other):
    channel = client.create_channel("work", mode="queue", capacity=8)
    with other.subscribe("work", credit=4) as mine:
        for value in range(3):
            publish(client, channel, value)
        assert mine.receive(60).seq == 1
    other.stats()
    theirs = client.subscribe("work")
    assert sorted(theirs.receive(60).seq for _ in range(2)) == [2, 3]


def test_a_dropped_subscription_ends_by_itself(service, client):
    channel = client.create_channel("c", capacity=2)
    publish(client, channel, 0)
    for frame in client.subscribe("c"):
        frame.release()
        break
    frames = client.subscribe("c")
    del frames
    gc.collect()
    client.stats()
    assert len(service.seen(cm.Unsubscribe)) == 2
    for value in range(5):
        publish(client, channel, value)
    assert client._session.core.feeds == {}


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
    channel.shut()
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


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
def test_a_frame_costs_one_packet(service, client, other, mode):
    channel = client.create_channel("c", mode=mode, capacity=4)
    frames = other.subscribe("c", credit=8)
    for value in range(40):
        publish(client, channel, value)
        frame = next(frames)
    other.stats()
    assert len(service.seen(m.Release)) == frame.seq - 1
    assert not service.seen(cm.Credit)
    assert not service.seen(cm.Ack)


def test_an_incomplete_frame_is_an_error_at_that_frame_only(service, client, other):
    channel = client.create_channel("c", capacity=8)
    frames = other.subscribe("c", credit=2)
    publish(client, channel, 1)
    with service.changed:
        (subscriber,) = service.channels["c"].subscribers
        subscriber.connection.send(cm.Frame(sb=subscriber.id, sq=2, ts=1, e=m.WireError("failed", "the producer died")))
    seen = []

    def take():
        for frame in frames:
            seen.append(frame.seq)
            if frame.seq == 3:
                return

    with pytest.raises(poolbridge.ProducerDiedError, match="frame 2"):
        take()
    with service.changed:
        service.channels["c"].number = 2
    publish(client, channel, 3)
    take()
    assert seen == [1, 3]


def test_a_lost_connection_is_an_error_not_an_end(service, other):
    other.create_pool("p", max_bytes=1 << 16)
    other.create_channel("c")
    frames = other.subscribe("c")
    service.connections[-1].hang_up()
    with pytest.raises(poolbridge.ConnectionLostError):
        next(frames)
    with pytest.raises(poolbridge.ClosedError):
        next(frames)


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
        lambda client: client.create_channel("made").publish(np.zeros(3), meta={"a": "x" * 257}),
        lambda client: client.create_channel("made").publish(np.zeros(3), meta={"a": 1}),
        lambda client: client.create_channel("made").publish(np.zeros(3), meta={str(i): "" for i in range(17)}),
        lambda client: client.create_channel("made").publish(np.array(["text"])),
        lambda client: client.subscribe(client.create_channel("made"), credit=0),
        lambda client: client.subscribe(client.create_channel("made"), credit=257),
        lambda client: client.subscribe(client.create_channel("made"), full="maybe"),
        lambda client: client.subscribe(client.create_channel("made"), ack="never"),
    ],
)
def test_bad_arguments_are_refused(service, client, call):
    with pytest.raises(poolbridge.InvalidArgumentError):
        call(client)
    assert not service.seen(cm.Send)
    assert not service.seen(cm.Subscribe)


@pytest.mark.parametrize(
    "call",
    [
        lambda client, long: client.create_channel("made").publish(np.zeros(3), meta={"a": long}),
        lambda client, long: client.create_channel(long),
        lambda client, long: client.create_channel("c", mode=long),
        lambda client, long: client.allocate((long,)),
    ],
)
def test_an_error_does_not_repeat_a_long_value(service, client, call):
    with pytest.raises(poolbridge.InvalidArgumentError, match=r"100,00\d characters") as caught:
        call(client, "x" * 100_000)
    assert len(str(caught.value)) < 400


def test_any_whole_number_will_do_as_a_number_of_frames(service, client):
    channel = client.create_channel("c", capacity=np.int64(2))
    assert [request.cp for request in service.seen(cm.MakeChannel)] == [2]
    client.subscribe(channel, credit=np.int64(2))
    assert [request.cr for request in service.seen(cm.Subscribe)] == [2]


def test_a_service_without_channels_says_so(tmp_path):
    from fakeservice import Service

    service = Service(str(tmp_path / "old.sock"))
    with poolbridge.connect(service.path) as client:
        client.create_pool("p", max_bytes=1 << 16)
        with pytest.raises(poolbridge.UnsupportedError, match="no channels"):
            client.create_channel("c")
        with pytest.raises(poolbridge.UnsupportedError):
            client.open_channel("c")
    service.close()


def test_shutting_twice(client):
    channel = client.create_channel("c")
    channel.shut()
    with pytest.raises(poolbridge.PoolbridgeError):
        channel.shut()
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

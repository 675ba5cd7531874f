"""Tests what acknowledges a frame, what requeues a frame, and what keeps the memory of a frame."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import asyncio
import gc
import threading

import numpy as np
from realservice import RealService, leases, until

import poolbridge

MODES = pytest.mark.parametrize("mode", ["broadcast", "queue"])


@pytest.fixture
def service(tmp_path):
    running = RealService(str(tmp_path / "r.sock"))
    yield running
    running.close()


@pytest.fixture
def queue(client):
    return client.create_channel("work", mode="queue", capacity=16)


def publish(channel, *values):
    for value in values:
        channel.publish(np.full(4, value, dtype=np.int32))


def left(client):
    """Take and acknowledge all frames in the queue; return their numbers."""
    found = []
    with client.subscribe("work") as frames:
        while client.channels()[0].used:
            with frames.receive(60) as frame:
                found.append(frame.seq)
    return found


@MODES
def test_asking_for_the_next_frame_acknowledges_those_before_though_their_arrays_live(client, other, mode):
    channel = client.create_channel("c", mode=mode, capacity=2)
    frames = other.subscribe("c", credit=1)
    kept = []
    for value in range(8):  # more frames than the channel keeps
        publish(channel, value)
        kept.append(np.asarray(next(frames)))
    assert [int(array[0]) for array in kept] == list(range(8))
    channel.close()
    assert list(frames) == []
    del kept
    gc.collect()
    until(lambda: leases(client) == 0)


@MODES
@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_an_array_that_is_kept_throughout_holds_nobody_up(client, other, mode, capacity):
    channel = client.create_channel("c", mode=mode, capacity=capacity)
    frames = other.subscribe("c", credit=4)

    def produce():
        for value in range(30):
            channel.publish(np.full(4, value, dtype=np.int32), timeout=60)
        channel.close()

    producer = threading.Thread(target=produce)
    producer.start()
    first = np.asarray(next(frames))
    assert [int(np.asarray(frame)[0]) for frame in frames] == list(range(1, 30))
    assert first.tolist() == [0] * 4
    producer.join()


def test_a_frame_that_a_loop_was_left_with_goes_to_another(service, client, other, queue):
    publish(queue, 1, 2, 3)

    def consume():
        for frame in other.subscribe("work"):
            if frame.seq == 2:
                return

    consume()
    gc.collect()
    other.stats()
    rest = client.subscribe("work")
    assert {rest.receive(60).seq, rest.receive(60).seq} == {2, 3}  # frame 3 comes first if frame 2 is requeued later


def test_a_block_acknowledges_a_frame_whose_array_lives_on(client, other, queue):
    publish(queue, 1, 2)
    frames = other.subscribe("work", credit=1, ack="manual")
    with next(frames) as frame:
        array = np.asarray(frame)
    with pytest.raises(poolbridge.FrameSettledError, match="by the end of its block"):
        frame.ack()
    with next(frames) as frame:
        assert frame.seq == 2
    frames.close()
    assert array.tolist() == [1] * 4
    assert left(client) == []


def test_a_block_that_an_exception_leaves_gives_its_frame_back_at_once(service, client, other, queue):
    publish(queue, 1)
    mine, theirs = client.subscribe("work", credit=1), other.subscribe("work", credit=1)
    with pytest.raises(ZeroDivisionError) as caught, mine.receive(60) as frame:
        array = np.asarray(frame)
        raise ZeroDivisionError
    assert "ends when the arrays" in caught.value.__notes__[0]
    mine.close()
    again = theirs.receive(60)
    assert again.seq == 1
    assert array.tolist() == again.to_numpy().tolist()


def test_an_interrupt_says_nothing_of_arrays(client, queue):
    publish(queue, 1)
    with pytest.raises(KeyboardInterrupt) as caught, client.subscribe("work").receive(60) as frame:
        array = np.asarray(frame)
        raise KeyboardInterrupt
    assert not hasattr(caught.value, "__notes__")
    assert array.tolist() == [1] * 4


def test_a_frame_is_acknowledged_by_hand_where_that_was_asked_for(client, other, queue):
    publish(queue, 1, 2, 3, 4)
    frames = other.subscribe("work", ack="manual")
    first, second, third, fourth = (next(frames) for _ in range(4))
    assert not first.released
    second.ack()
    third.release()
    assert second.to_numpy().tolist() == [2] * 4
    for settled, how in (second, r"acknowledged before, by ack\(\)"), (third, "acknowledged before, by its release"):
        with pytest.raises(poolbridge.FrameSettledError, match=f"frame {settled.seq} was {how}: .* once"):
            settled.ack()
        with pytest.raises(poolbridge.FrameSettledError):
            settled.requeue()
    second.release()
    frames.close()
    assert left(client) == []
    first.ack()  # closing a subscription does not acknowledge frames
    del fourth
    gc.collect()
    assert left(client) == [4]


def test_a_frame_that_was_acknowledged_by_asking_for_the_next_says_so(client, queue):
    publish(queue, 1, 2)
    frames = client.subscribe("work")
    first = next(frames)
    array = np.asarray(first)
    next(frames)
    with pytest.raises(poolbridge.FrameSettledError, match='asked for the next frame: .* ack="manual"'):
        first.ack()
    assert array.tolist() == [1] * 4


def test_a_frame_that_nobody_has_any_more_goes_back_where_it_is_acknowledged_by_hand(service, client, other, queue):
    publish(queue, 1)
    frames = other.subscribe("work", ack="manual")
    assert frames.receive(60).seq == 1
    assert frames.receive(60).seq == 1


def test_a_requeued_frame_goes_to_another_though_an_array_lives_on(service, client, other, queue):
    mine, theirs = client.subscribe("work", credit=1), other.subscribe("work", credit=1)
    publish(queue, 1)
    frame = mine.receive(60)
    array = np.asarray(frame)
    frame.requeue()
    mine.close()
    assert theirs.receive(60).to_numpy().tolist() == array.tolist()
    with pytest.raises(poolbridge.FrameSettledError, match=r"frame 1 was requeued before, by requeue\(\): .* once"):
        frame.requeue()


def test_no_frame_is_given_back_to_a_broadcast(client):
    channel = client.create_channel("b")
    publish(channel, 1)
    frame = client.subscribe("b").receive(60)
    with pytest.raises(poolbridge.InvalidArgumentError, match="broadcast"):
        frame.requeue()
    frame.ack()


def test_acknowledging_after_the_end_of_the_session_says_that_it_is_too_late(service, client, queue):
    publish(queue, 1)
    with poolbridge.connect(service.path, timeout=60) as gone:
        frame = next(gone.subscribe("work", ack="manual"))
    with pytest.raises(poolbridge.ClientClosedError):
        frame.ack()


def test_arrays_that_are_made_once_are_acknowledged_by_asking_only(client, other, queue):
    publish(queue, 1, 2, 3)
    arrays = other.subscribe("work", credit=1).arrays()
    assert [int(next(arrays)[0]) for _ in range(2)] == [1, 2]
    del arrays
    gc.collect()
    assert left(client) == [2, 3]


def test_arrays_that_are_made_once_are_not_acknowledged_by_hand(client, queue):
    with pytest.raises(poolbridge.InvalidArgumentError, match="manual"):
        client.subscribe(queue, ack="manual").arrays()


def test_an_async_frame_is_settled_once(service):
    async def main():
        async with await poolbridge.connect_async(service.path, timeout=60) as client:
            await client.create_pool("frames", max_bytes=1 << 20)
            channel = await client.create_channel("work", mode="queue", capacity=4)
            for value in range(3):
                await channel.publish(np.full(4, value))
            frames = client.subscribe("work", ack="manual")
            first, second, third = [await anext(frames) for _ in range(3)]
            await first.ack()
            await second.requeue()
            async with third:
                array = np.asarray(third)
            for frame in first, second, third:
                with pytest.raises(poolbridge.FrameSettledError):
                    await frame.ack()
            assert (await anext(frames)).seq == 2
            assert array.tolist() == [2] * 4

    asyncio.run(main())


def test_a_frame_counts_its_deliveries_and_is_dropped_at_the_bound(client, other):
    channel = client.create_channel("work", mode="queue", max_deliveries=3)
    assert (channel.max_deliveries, client.channels()[0].max_deliveries) == (3, 3)
    publish(channel, 1, 2)
    frames, deliveries = client.subscribe("work", ack="manual"), []
    worker = other.subscribe("work")
    deliveries.append(worker.receive(60).delivery)
    other.close()  # its frame goes back
    for _ in range(2):
        frame = frames.receive(60)
        deliveries.append(frame.delivery)
        assert frame.seq == 1
        frame.requeue()
    with frames.receive(0) as frame:
        assert (frame.seq, frame.delivery) == (2, 1)
    assert deliveries == [1, 2, 3]
    with pytest.raises(poolbridge.WaitTimeoutError):
        frames.receive(0)
    until(lambda: [one for one in client.events() if one.kind == "frame-undeliverable"])
    event = next(one for one in client.events() if one.kind == "frame-undeliverable")
    assert 'dropped frame 1 of queue "work": consumers got it 3 times' in event.text
    assert client.channels()[0].dropped == 1
    channel.close()
    assert list(frames) == []


def test_arrays_of_a_queue_count_deliveries(client, other):
    publish(client.create_channel("work", mode="queue", max_deliveries=2), 1, 2)
    for delivery in 1, 2:
        arrays = other.subscribe("work").arrays()
        next(arrays)
        assert (arrays.seq, arrays.delivery) == (1, delivery)
        del arrays  # it asked for no other array, so the frame goes back
        gc.collect()
    arrays = other.subscribe("work").arrays()
    next(arrays)
    assert (arrays.seq, arrays.delivery) == (2, 1)


def test_a_frame_of_a_broadcast_is_delivered_once(client, other):
    publish(client.create_channel("work"), 1)
    assert [one.subscribe("work").receive(60).delivery for one in (client, other)] == [1, 1]


@pytest.mark.parametrize("wrong", [0, -1, 65_536, 2.5, "3", True])
def test_a_bound_of_deliveries_is_a_number_of_a_queue(client, wrong):
    with pytest.raises(poolbridge.InvalidArgumentError, match="max_deliveries"):
        client.create_channel("work", mode="queue", max_deliveries=wrong)
    with pytest.raises(poolbridge.InvalidArgumentError, match=r"max_deliveries=2 is for queues.*leave it out"):
        client.create_channel("work", max_deliveries=2)
    with pytest.raises(poolbridge.AlreadyExistsError, match="its max_deliveries is 2, not 0"):
        client.create_channel("work", mode="queue", max_deliveries=2)
        client.create_channel("work", mode="queue")

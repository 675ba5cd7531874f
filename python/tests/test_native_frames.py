"""Tests frames between producers and consumers of the native module, in broadcasts and in queues.

See ``docs/streams.md``.
"""

from __future__ import annotations

import gc
import mmap
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import streamservice as service
from nativeworld import DROPS, LINE, MATRIX, MISSED, World, back, numbers, take, world, worlds as worlds  # noqa: PLC0414 - fixtures
from streamservice import BLOCK, DROP_OLDEST, FAIL, LATEST, description, memfd, meta

from poolbridge import _native
from poolbridge._native import Condition, Consumer, Frame, Producer
from poolbridge._wire.meta import unpack_meta
from poolbridge.errors import (
    InvalidArgumentError,
    LeaseReleasedError,
)

# Frames


def test_a_frame_that_one_thread_takes_goes_to_no_other_thread(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    consumer.begin(True)
    assert w.publish(producer) == 1
    taken, accept = threading.Event(), threading.Event()

    def work() -> None:
        assert take(consumer).number == 1
        assert take(consumer).number == 1, "the thread has not accepted it"
        taken.set()
        accept.wait()
        consumer.offered = None

    thread = threading.Thread(target=work)
    thread.start()
    taken.wait()
    for call in (consumer.check_turn, lambda: consumer.take(0.0), lambda: consumer.swap(1, 0.0)):
        with pytest.raises(InvalidArgumentError, match="another thread"):
            call()
    consumer.any_thread = True
    assert take(consumer).number == 1
    consumer.any_thread = False
    accept.set()
    thread.join()
    assert w.publish(producer, 1) == 2
    assert take(consumer).number == 2


def test_a_frame_says_everything_that_its_producer_said(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce(timeline=9)
    before = time.time_ns()
    told = {"größe": "10 µm", "a": "", "": "x"}
    event = bytes(range(64))
    assert producer.publish(5, 6, 88, 3, MATRIX, meta(told), 511, 2**62 - 1, event) == 1
    frame = take(consumer)
    assert (frame.number, frame.block, frame.buffer, frame.nbytes, frame.description_id) == (1, 5, 6, 88, 3)
    assert (frame.word, frame.value, frame.timeline, frame.event) == (511, 2**62 - 1, 9, event)
    assert (frame.producer, frame.missed, frame.object) == (w.ids[True, 0], 0, None)
    assert before <= frame.time <= time.time_ns()
    assert frame.description == ("float32", (2, 3), (3, 1), 64)
    assert unpack_meta(frame.meta) == told
    assert repr(frame) == "<poolbridge._native.Frame 1, block 5>"
    producer.publish(1, 2, 3, 4, description("uint8", ()))
    assert take(consumer).description == ("uint8", (), None, 0)
    assert unpack_meta(frame.meta) == told
    assert consumer.in_hand == [1, 2]


def test_a_frame_is_offered_until_it_is_accepted(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    consumer.begin(True)
    for number in (1, 2, 3):
        producer.publish(number, number, 8, 1, LINE)
    first = take(consumer)
    assert take(consumer) is consumer.offered is first
    assert consumer.in_hand == [1]
    with pytest.raises(AttributeError, match="accepted with"):
        consumer.offered = first  # type: ignore[assignment]
    consumer.offered = None
    second = consumer.swap(1, 0.0)
    assert second is consumer.offered is take(consumer)
    assert consumer.in_hand == [2]
    consumer.offered = None
    assert take(consumer).number == 3
    assert second.number == 2


def test_what_a_frame_cannot_say_is_refused(worlds: list[World]) -> None:
    producer = world(worlds).produce()
    for bad in (b"\1", meta({"k": "v"}) * 2, b"\x81\xa1\xff\xc0", meta({"k": "v"})[:-1]):
        with pytest.raises(InvalidArgumentError, match="not in the form"):
            producer.publish(1, 1, 1, 1, LINE, bad)
    for bad in (LINE[:-1], LINE + bytes(65537)):
        with pytest.raises(InvalidArgumentError, match="a description must have 576"):
            producer.publish(1, 1, 1, 1, bad)
    for bad in (
        bytes(576),
        description("a b", ()),
        description("u1", (2**63,)),
        LINE + b"\0",
    ):
        with pytest.raises(InvalidArgumentError, match="not in the form"):
            producer.publish(1, 1, 1, 1, bad)
    with pytest.raises(InvalidArgumentError, match="or its id is 0"):
        producer.publish(1, 1, 1, 0, LINE)
    with pytest.raises(InvalidArgumentError, match="a word must be a number from 0 to 511, not 512"):
        producer.publish(1, 1, 1, 1, LINE, b"", 512)
    with pytest.raises(InvalidArgumentError, match="an event must have 64"):
        producer.publish(1, 1, 1, 1, LINE, b"", 0, 0, b"short")
    assert producer.in_flight == []


class Thing:
    pass


def test_what_is_kept_for_a_block_comes_back_with_its_frames(worlds: list[World]) -> None:
    w = world(worlds, capacity=32)
    consumer, producer = w.consume(), w.produce()
    things = {}
    for block in range(1, 101):
        things[block] = Thing()
        consumer.keep(w.ids[True, 0], block, 1, things[block])
    for block in (3, 99, 3, 7):
        w.publish(producer, block)
    frame = take(consumer)
    assert (frame.number, frame.block, frame.object, frame.description) == (1, 3, things[3], None)
    assert take(consumer).object is things[99]
    assert consumer.forget(3)
    assert not consumer.forget(3)
    assert take(consumer).description == ("uint8", (16,), None, 0)
    producer.publish(7, 1, 1, 2, MATRIX)
    assert take(consumer).object is things[7]
    assert take(consumer).object is None  # this frame has another description
    for block in range(1, 101):
        assert consumer.forget(block) == (block != 3)
    assert consumer.take(0.0) is Condition.TIMEOUT
    assert consumer.in_hand == [1, 2, 3, 4, 5]


def test_each_slot_of_an_arena_has_its_own_object_and_the_block_drops_them_all(worlds: list[World]) -> None:
    w = world(worlds, capacity=64)
    consumer, producer = w.consume(), w.produce()
    slots = [LINE[:544] + struct.pack("<Q", 512 * index) + LINE[552:] for index in range(40)]
    for index, slot in enumerate(slots):
        assert producer.publish(5, 1, 16, index + 1, slot) == index + 1
        frame = take(consumer)
        assert (frame.base, frame.object) == (512 * index, None)
        consumer.keep(frame.producer, 5, index + 1, things := Thing(), frame.base)
        things.index = index  # type: ignore[attr-defined]
        consumer.release(frame.number)
    consumer.keep(w.ids[True, 0], 6, 1, Thing())
    for index, slot in reversed(list(enumerate(slots))):
        producer.publish(5, 1, 16, index + 1, slot)
        frame = take(consumer)
        assert (frame.object.index, frame.base) == (index, 512 * index)
        consumer.release(frame.number)
    del frame
    assert consumer.forget(5)
    assert not consumer.forget(5)
    producer.publish(5, 1, 16, 1, slots[0])
    assert take(consumer).object is None
    assert consumer.forget(6)


def test_a_base_that_no_block_has_fails_its_frame(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    with pytest.raises(InvalidArgumentError, match="not in the form"):
        producer.publish(1, 1, 16, 1, LINE[:544] + struct.pack("<Q", 2**63) + LINE[552:])
    producer.publish(1, 1, 16, 1, LINE[:544] + struct.pack("<Q", 2**63 - 1) + LINE[552:])
    assert take(consumer).base == 2**63 - 1


def test_descriptions_without_end_do_not_fill_the_memory_of_a_consumer(worlds: list[World]) -> None:
    consumer = world(worlds).consume()
    things = [weakref.ref(thing) for thing in map(_keep(consumer), range(1, 16_386))]
    assert sum(one() is not None for one in things) == 1


def _keep(consumer: Consumer) -> Callable[[int], Thing]:
    def keep(number: int) -> Thing:
        consumer.keep(1, 1, number, thing := Thing())
        return thing

    return keep


def test_what_is_kept_dies_with_its_consumer(worlds: list[World]) -> None:
    w = world(worlds)
    consumer = w.consume()
    one, other = Thing(), Thing()
    dead = [weakref.ref(one), weakref.ref(other)]
    consumer.keep(1, 1, 1, one)
    consumer.keep(1, 1, 1, other)
    del one
    assert [ref() is None for ref in dead] == [True, False]
    other.consumer = consumer  # type: ignore[attr-defined]
    consumer.close()
    del other
    assert dead[1]() is None


def test_a_consumer_in_a_circle_is_collected(worlds: list[World]) -> None:
    channel = world(worlds).channel
    seat = channel.prepare(0, producer=False)
    consumer = Consumer(seat.roster, seat.sequencer, seat.file, 0, seat.member)
    thing = Thing()
    thing.consumer = consumer  # type: ignore[attr-defined]
    dead = weakref.ref(thing)
    consumer.keep(1, 1, 1, thing)
    del thing, consumer
    gc.collect()
    assert dead() is None


# Broadcasts


@pytest.mark.parametrize(("policy", "full"), [(BLOCK, Condition.TIMEOUT), (FAIL, Condition.NO_ROOM)])
def test_a_consumer_that_is_behind_holds_the_producer_up(worlds: list[World], policy: int, full: Condition) -> None:
    w = world(worlds, policy=policy)
    consumer, producer = w.consume(), w.produce()
    assert [w.publish(producer, block) for block in range(1, 6)] == [1, 2, 3, 4, full]
    assert take(consumer).number == 1
    assert w.publish(producer) is full
    assert consumer.release(1) is True
    assert w.publish(producer, 5) == 5
    assert w.publish(producer) is full
    assert back(producer) == [1]
    assert numbers(consumer) == [2, 3, 4, 5]
    assert back(producer) == []  # the channel keeps its last four frames
    assert producer.in_flight == [(2, 2), (3, 3), (4, 4), (5, 5)]


@pytest.mark.parametrize("policy", [DROP_OLDEST, LATEST])
def test_a_consumer_that_drops_holds_nobody_up(worlds: list[World], policy: int) -> None:
    w = world(worlds, policy=policy)
    consumer, producer = w.consume(), w.produce()
    for block in range(10):
        assert w.publish(producer, block) == block + 1
    frame = take(consumer)
    assert (frame.number, frame.missed) == ((7, 6) if policy == DROP_OLDEST else (10, 9))
    assert numbers(consumer) == ([8, 9, 10] if policy == DROP_OLDEST else [])
    assert _native.load_u64(w.channel.cursor(0), MISSED) == frame.missed
    for block in range(10, 20):
        w.publish(producer, block)
    assert back(producer) == [n - 1 for n in range(1, 17) if n != frame.number]
    take(consumer)
    assert _native.load_u64(w.channel.cursor(0), MISSED) == (6 + 6 if policy == DROP_OLDEST else 9 + 9), (
        "the sum, for people"
    )
    consumer.release(frame.number)
    assert back(producer) == ([frame.number - 1])


def test_each_consumer_has_its_policy(worlds: list[World]) -> None:
    w = world(worlds, capacity=2)
    slow, fast = w.consume(0, policy=LATEST), w.consume(1, policy=BLOCK)
    producer = w.produce()
    for number in range(1, 9):
        assert w.publish(producer) == number
        assert numbers(fast) == [number]
    assert numbers(slow) == [8]
    w.publish(producer)
    w.publish(producer)
    assert w.publish(producer) is Condition.TIMEOUT


def test_a_consumer_that_comes_late_begins_with_the_oldest_or_the_newest(worlds: list[World]) -> None:
    w = world(worlds)
    producer = w.produce()
    for _ in range(6):
        w.publish(producer)
    oldest, newest = w.consume(0, oldest=True), w.consume(1)
    assert w.publish(producer) is Condition.TIMEOUT  # consumer `oldest` has yet to get frame 3
    assert numbers(oldest) == [3, 4, 5, 6]
    assert w.publish(producer) == 7
    assert numbers(newest) == [6, 7]
    assert numbers(oldest) == [7]


def test_frames_are_released_in_any_order(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    for block in range(1, 5):
        w.publish(producer, block)
    for _ in range(4):
        take(consumer)
    for number in (3, 2, 4):
        consumer.release(number)
    assert w.publish(producer) is Condition.TIMEOUT
    consumer.release(1)
    assert [w.publish(producer, 4 + i) for i in range(4)] == [5, 6, 7, 8]
    assert back(producer) == [1, 2, 3, 4]
    with pytest.raises(LeaseReleasedError, match="not in hand"):
        consumer.release(1)
    with pytest.raises(InvalidArgumentError, match="this channel is a broadcast"):
        consumer.requeue(1)


def test_a_frame_of_a_broadcast_that_is_acknowledged_stays_in_hand_and_holds_no_producer_up(
    worlds: list[World],
) -> None:
    here = world(worlds, capacity=2)
    producer, consumer = here.produce(), here.consume()
    for block in range(1, 3):
        here.publish(producer, block)
    first, second = take(consumer), take(consumer)
    assert producer.behind == (here.ids[False, 0], 0)
    assert consumer.ack(second.number), "the first still holds the producer up"
    assert here.publish(producer, 2) is Condition.TIMEOUT
    assert consumer.ack(first.number)
    assert [here.publish(producer, block) for block in (3, 4)] == [3, 4]
    assert producer.reclaim() == [], "both blocks are in hand"
    assert consumer.release(first.number)
    assert producer.reclaim() == [(1, ())]
    third = take(consumer)
    assert here.publish(producer, 4) is Condition.TIMEOUT, "a frame that is not acknowledged"
    assert consumer.release(third.number)
    assert consumer.in_hand == [second.number]
    assert consumer.release(second.number)
    assert here.publish(producer, 4) == 5
    blocks = producer.reclaim()
    assert isinstance(blocks, list)
    assert sorted(block for block, _ in blocks) == [2, 3]


def test_a_frame_of_a_queue_that_is_given_back_stays_in_hand_and_can_be_taken_again(worlds: list[World]) -> None:
    here = world(worlds, queue=True)
    producer, consumer = here.produce(), here.consume()
    here.publish(producer, 7)
    frame = take(consumer)
    assert consumer.unclaim(frame.number)
    again = take(consumer)
    assert again.number == frame.number
    assert consumer.in_hand == [1, 1]
    assert consumer.ack(again.number), "it is acknowledged the second time, not requeued once more"
    assert consumer.take(0.0) is Condition.TIMEOUT
    assert consumer.release(1)
    assert producer.reclaim() == [], "it is in hand once more"
    assert consumer.release(1)
    assert producer.reclaim() == [(7, ())]
    assert producer.behind is None


def test_releasing_a_frame_that_is_in_hand_twice_lets_go_of_the_settled_one_first(worlds: list[World]) -> None:
    here = world(worlds, queue=True)
    producer, consumer, other = here.produce(), here.consume(), here.consume(1)
    here.publish(producer, 7)
    consumer.unclaim(take(consumer).number)
    take(consumer)
    assert consumer.release(1)
    assert other.take(0.0) is Condition.TIMEOUT, "its claim stands"
    assert consumer.requeue(1)
    assert take(other).number == 1


def asleep(here: World) -> Callable[[], bool]:
    """Mark the futex word `freed` as if a member slept on it. Return a function that says if a call woke the member."""
    word = _native.load_u64(here.channel.sequencer, 128)
    _native.store_u64(here.channel.sequencer, 128, word | 1)
    return lambda: not _native.load_u64(here.channel.sequencer, 128) & 1


@pytest.mark.parametrize("queue", [False, True])
def test_a_hold_that_is_cleared_without_a_frame_wakes_producers(worlds: list[World], queue: bool) -> None:
    here = world(worlds, policy=DROP_OLDEST, queue=queue)
    producer, consumer = here.produce(), here.consume()
    here.publish(producer)
    here.channel.part(0, producer=True, state=service.FREE)  # the frame's record now has no producer
    woken = asleep(here)
    assert consumer.take(0.0) is Condition.FAILED
    assert woken()


def test_publishing_in_a_broadcast_wakes_other_producers(worlds: list[World]) -> None:
    here = world(worlds, capacity=1)
    first, _, consumer = here.produce(), here.produce(1), here.consume()
    here.publish(first)
    consumer.release(take(consumer).number)
    woken = asleep(here)
    here.publish(first)
    assert woken(), "the frame that left may be theirs"


def test_a_consumer_has_256_frames_in_hand_at_most(worlds: list[World]) -> None:
    w = world(worlds, capacity=1024)
    consumer, producer = w.consume(), w.produce()
    for _ in range(257):
        w.publish(producer)
    for _ in range(256):
        take(consumer)
    assert consumer.take(0.0) is Condition.HANDS_FULL
    consumer.release(100)
    assert take(consumer).number == 257


def test_a_consumer_that_left_keeps_what_it_has_in_hand(worlds: list[World]) -> None:
    w = world(worlds, capacity=1)
    consumer, producer = w.consume(), w.produce()
    w.publish(producer, 10)
    take(consumer)
    assert w.publish(producer) is Condition.TIMEOUT
    consumer.leave()
    w.channel.part(0, producer=False)
    assert consumer.take(0.0) is Condition.EVICTED
    assert w.publish(producer, 11) == 2
    assert w.publish(producer, 12) == 3
    assert back(producer) == [11]
    consumer.release(1)
    assert back(producer) == [10]


def test_a_session_that_ended_keeps_what_its_process_may_use(worlds: list[World]) -> None:
    w = world(worlds, capacity=1)
    consumer, producer = w.consume(), w.produce()
    w.publish(producer, 10)
    take(consumer)
    w.channel.part(0, producer=False)
    assert [w.publish(producer, 11), w.publish(producer, 12)] == [2, 3]
    assert back(producer) == [11]
    assert consumer.take(0.0) is Condition.EVICTED
    w.channel.part(0, producer=False, state=service.FREE)
    assert back(producer) == [10]


# Fences


def test_the_next_writer_is_told_the_fences_of_those_that_used_the_block(worlds: list[World]) -> None:
    w = world(worlds, capacity=1)
    first, second = w.consume(0, timeline=7), w.consume(1)
    producer = w.produce()
    w.publish(producer, 10)
    take(first)
    take(second)
    assert first.release(1, 5, 40) is True
    assert second.release(1, 5, 50) is True  # `second` has no timeline, so its fence is ignored
    w.publish(producer, 11)
    assert producer.reclaim() == [(10, ((7, 5, 40),))]


def test_a_fence_that_would_be_lost_is_waited_for(worlds: list[World]) -> None:
    w = world(worlds, capacity=32)
    consumer, producer = w.consume(timeline=7), w.produce()
    for number in range(1, 130):
        assert w.publish(producer) == number
        take(consumer)
        if number == 1:
            consumer.release(1, 5, 40)
        elif number == 65:  # frame 65 has the slot of frame 1 in the ring
            assert consumer.release(65, 6, 1) is Condition.FENCE_PENDING
            assert consumer.release(65, 5, 39) is Condition.FENCE_PENDING
            assert consumer.in_hand == [65]
            assert consumer.release(65, 5, 41) is True
        elif number == 129:
            assert consumer.release(129, 6, 1) is Condition.FENCE_PENDING
            assert consumer.release(129, 6, 1, 5, 40) is Condition.FENCE_PENDING, "the slot has another by now"
            assert consumer.stored(129) == (5, 41)
            assert consumer.release(129, 6, 1, 5, 41) is True
        else:
            consumer.release(number)
    blocks = producer.reclaim()
    assert isinstance(blocks, list)
    # The done entry of a later frame also counts for earlier frames that have the same slot.
    assert [fences for _, fences in blocks if fences] == [((7, 6, 1),), ((7, 6, 1),)]


def test_a_fence_that_is_being_written_is_waited_for_and_an_impossible_one_is_not(worlds: list[World]) -> None:
    w = world(worlds, capacity=1)
    consumer, producer = w.consume(timeline=7), w.produce()
    cursor = w.channel.cursor(0)
    for number, entry in ((1, (0, 9, 5)), (3, (3, 2**62, 5)), (5, (5, 1, 512))):
        w.publish(producer, number)
        take(consumer)
        consumer.release(number)
        cursor[8192 + 32 * number : 8192 + 32 * number + 24] = struct.pack("<3Q", *entry)
        w.publish(producer, number + 1)
        numbers(consumer)
        if number == 1:
            assert back(producer) == []
            cursor[8192 + 32 : 8192 + 64] = bytes(32)
            assert producer.reclaim() == [(1, ())]
        else:
            assert producer.reclaim() == [(number - 1, ()), (number, ())]


# Queues


def test_each_frame_of_a_queue_goes_to_one(worlds: list[World]) -> None:
    w = world(worlds, queue=True)
    one, other, producer = w.consume(0), w.consume(1), w.produce()
    assert [w.publish(producer, block) for block in range(1, 6)] == [1, 2, 3, 4, Condition.TIMEOUT]
    assert [take(one).number, take(other).number, take(one).number] == [1, 2, 3]
    assert w.publish(producer, 5) == 5  # a frame that a consumer has taken needs no place in the queue
    assert one.ack(1) is True
    assert back(producer) == []  # the consumer still uses the block of frame 1
    assert one.release(1) is True
    assert one.release(3) is True
    assert back(producer) == [1, 3]
    assert other.requeue(2) is True
    assert [take(one).number for _ in range(3)] == [2, 4, 5]
    assert other.take(0.0) is Condition.TIMEOUT


@pytest.mark.parametrize(
    ("policy", "results", "left"),
    [
        (BLOCK, [1, 2, Condition.TIMEOUT], [(1, 0), (2, 0)]),
        (FAIL, [1, 2, Condition.NO_ROOM], [(1, 0), (2, 0)]),
        (DROP_OLDEST, [1, 2, 3], [(2, 1), (3, 0)]),
        (LATEST, [1, 2, 3], [(3, 2)]),
    ],
)
def test_a_queue_that_is_full_does_as_its_policy_says(
    worlds: list[World], policy: int, results: list[int | Condition], left: list[tuple[int, int]]
) -> None:
    w = world(worlds, queue=True, capacity=2, policy=policy)
    producer = w.produce()
    assert [w.publish(producer) for _ in range(3)] == results
    consumer = w.consume()
    found = []
    while isinstance(frame := consumer.take(0.0), Frame):
        found.append((frame.number, frame.missed))
    assert found == left
    assert _native.load_u64(w.channel.sequencer, DROPS) == sum(missed for _, missed in left), "it stays, for people"


def test_a_frame_in_hand_keeps_its_place_while_the_ring_goes_round(worlds: list[World]) -> None:
    w = world(worlds, queue=True, capacity=2)
    slow, fast, producer = w.consume(0), w.consume(1), w.produce()
    w.publish(producer, 1, who="first")
    assert take(slow).number == 1
    seen = []
    for _ in range(200):
        assert isinstance(w.publish(producer, 2), int)
        seen += numbers(fast)
        back(producer)
    assert seen == [n for n in range(2, 205) if n not in {65, 129, 193}]  # all have the slot of frame 1, still in use
    slow.requeue(1)
    again = take(fast)
    assert (again.number, again.block, unpack_meta(again.meta)) == (1, 1, {"who": "first"})
    fast.release(1)
    w.publish(producer)
    w.publish(producer)
    assert len(numbers(slow)) == 2


def test_a_queue_with_every_slot_in_hand_has_no_room(worlds: list[World]) -> None:
    w = world(worlds, queue=True, capacity=2, policy=DROP_OLDEST)
    consumer, producer = w.consume(), w.produce()
    for number in range(1, 64):
        assert w.publish(producer) == number
        take(consumer)
    assert w.publish(producer) == 64
    assert w.publish(producer) == 128  # frame 64 waited and was dropped, so its slot is free
    assert take(consumer).missed == 1
    assert w.publish(producer) is Condition.TIMEOUT
    consumer.release(40)
    assert isinstance(w.publish(producer), int)


def test_the_claims_of_a_consumer_that_died_go_to_another(worlds: list[World]) -> None:
    w = world(worlds, queue=True)
    one, other, producer = w.consume(0), w.consume(1), w.produce()
    for block in range(1, 4):
        w.publish(producer, block)
    assert [take(one).number, take(one).number] == [1, 2]
    w.channel.part(0, producer=False)
    w.channel.give_claims_back(0)
    assert one.take(0.0) is Condition.EVICTED
    assert one.ack(1) is False
    assert numbers(other) == [1, 2, 3]
    assert back(producer) == [3]  # the process of `one` may still use the other blocks
    assert one.release(2) is False
    assert back(producer) == [2]
    w.channel.part(0, producer=False, state=service.FREE)
    assert back(producer) == [1]


# The end, and unknown members


def test_a_closed_broadcast_ends_after_its_last_frame_and_all_blocks_come_back(worlds: list[World]) -> None:
    w = world(worlds)
    one, other, producer = w.consume(0), w.consume(1, policy=LATEST), w.produce()
    for block in range(1, 4):
        w.publish(producer, block)
    w.channel.close()
    assert w.publish(producer) is Condition.END
    assert back(producer) == []
    assert numbers(other) == [3]
    assert back(producer) == []
    assert take(one).number == 1
    assert back(producer) == []
    assert numbers(one) == [2, 3]
    assert one.take(0.0) is other.take(0.0) is Condition.END
    assert back(producer) == []
    one.release(1)
    assert back(producer) == [1, 2, 3]


def test_a_closed_queue_ends_when_everything_is_acknowledged(worlds: list[World]) -> None:
    w = world(worlds, queue=True)
    one, other, producer = w.consume(0), w.consume(1), w.produce()
    w.publish(producer)
    take(one)
    w.channel.close()
    assert other.take(0.0) is Condition.TIMEOUT  # `one` may requeue the frame
    ended: list[object] = []
    thread = threading.Thread(target=lambda: ended.append(other.take(60.0)))
    thread.start()
    one.release(1)
    thread.join()
    assert ended == [Condition.END]
    assert one.take(0.0) is Condition.END


@pytest.mark.parametrize("queue", [False, True])
def test_a_destroyed_channel_gives_no_frame_and_all_blocks_but_those_in_hand(worlds: list[World], queue: bool) -> None:
    w = world(worlds, queue=queue)
    consumer, producer = w.consume(), w.produce()
    for block in range(1, 4):
        w.publish(producer, block)
    take(consumer)
    w.channel.close(service.DESTROYED)
    assert consumer.take(0.0) is Condition.DESTROYED
    assert w.publish(producer) is Condition.DESTROYED
    assert back(producer) == [2, 3]
    consumer.release(1)
    assert back(producer) == [1]


def test_members_that_are_not_known_are_asked_for(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    hidden = w.channel.prepare(5, producer=False)
    stranger = Consumer(hidden.roster, hidden.sequencer, hidden.file, 5, hidden.member)
    w.channel.join(5, producer=False)
    assert w.publish(producer) is Condition.UNKNOWN_MEMBER
    assert producer.reclaim() == []  # no frame is in flight
    assert producer.unknown == (5, hidden.member)
    producer.add_cursor(5, hidden.member, hidden.file)
    assert w.publish(producer) == 1
    assert stranger.take(0.0) is Condition.EVICTED  # `stranger` has not called `begin`
    assert stranger.begin() == 1
    assert stranger.take(0.0) is Condition.UNKNOWN_MEMBER
    assert stranger.unknown == (0, w.ids[True, 0])
    stranger.add_track(0, w.ids[True, 0], w.channel.files[True, 0])
    assert numbers(stranger) == numbers(consumer) == [1]
    stranger.close()


def test_a_member_that_is_not_active_takes_and_publishes_nothing(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    w.publish(producer)
    w.channel.part(0, producer=True)
    assert w.publish(producer) is Condition.EVICTED
    assert producer.reclaim() is Condition.EVICTED
    assert numbers(consumer) == [1]


def test_a_record_that_a_dead_producer_did_not_publish_is_not_taken(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, dead = w.consume(), w.produce()
    track = mmap.mmap(w.channel.files[True, 0], w.channel.track_size, prot=mmap.PROT_READ)
    w.publish(dead, 1)
    numbers(consumer)
    # The producer dies after it has written the record of frame 2, and before it publishes the frame. The test writes
    # the record into a copy of the producer's track.
    size = w.channel.track_size
    copy = memfd("copy", size)
    content = bytearray(track)
    content[4096 + 128 : 4096 + 192] = struct.pack("<8Q", 2, 66, 66, 66, 0, 0, 0, 1)
    os.pwrite(copy, content, 0)
    consumer.add_track(0, w.ids[True, 0], copy)
    os.close(copy)
    track.close()
    w.channel.part(0, producer=True, state=service.FREE)
    seat = w.channel.prepare(0, producer=True)
    successor = Producer(seat.roster, seat.sequencer, seat.file, 0, seat.member)
    successor.add_cursor(0, w.ids[False, 0], w.channel.files[False, 0])
    w.channel.join(0, producer=True)
    assert w.publish(successor, 5) == 2
    assert consumer.take(0.0) is Condition.UNKNOWN_MEMBER
    assert consumer.unknown == (0, seat.member)
    consumer.add_track(0, seat.member, seat.file)
    assert take(consumer).block == 5
    successor.close()

"""Tests members that read the memory of a member that breaks the rules of ``docs/streams.md``."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

from nativeworld import World, numbers, take, world, worlds as worlds  # noqa: PLC0414 - fixtures
from streamservice import BLOCK, DROP_OLDEST, FAIL, LATEST

from poolbridge import _native
from poolbridge._native import Condition, Consumer, Frame, Producer
from poolbridge._wire.meta import unpack_meta
from poolbridge.errors import (
    ProtocolError,
)

# Wrong records and words


def record(w: World, slot: int) -> mmap.mmap:
    return mmap.mmap(w.channel.files[True, slot], w.channel.track_size)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (4096 + 64, 2),  # seq
        (4096 + 64 + 40, 2**62),  # value of a fence
        (4096 + 64 + 48, 512),  # word of a fence
        (4096 + 64 + 48, 2 << 16),  # flags
        (4096 + 64 + 48, 8321 << 32),  # bytes of meta
        (4096 + 64 + 48, 3 << 32),  # meta that is no map
        (4096 + 64 * 64 + 576 + 8, 33),  # number of dimensions
        (4096 + 64 * 64 + 576 + 16, 0x20),  # element type
        (4096 + 64 * 64 + 576 + 32, 2**63),  # shape
        (4096 + 64 * 64 + 576 + 552, 65537),  # bytes of the layout
    ],
)
@pytest.mark.parametrize(("queue", "policy"), [(False, BLOCK), (False, DROP_OLDEST), (True, BLOCK)])
def test_a_frame_whose_record_lies_fails_and_the_next_is_taken(
    worlds: list[World], at: int, value: int, queue: bool, policy: int
) -> None:
    w = world(worlds, queue=queue, policy=policy)
    consumer = w.consume()
    seat = w.channel.prepare(0, producer=True)
    track = record(w, 0)
    producer = Producer(seat.roster, seat.sequencer, seat.file, 0, seat.member)
    producer.add_cursor(0, w.ids[False, 0], w.channel.files[False, 0])
    consumer.add_track(0, seat.member, seat.file)
    w.channel.join(0, producer=True)
    w.publish(producer, 1)
    w.publish(producer, 2)
    _native.store_u64(track, at, value)
    assert consumer.take(0.0) is Condition.FAILED
    assert consumer.failed == 1
    assert consumer.in_hand == []
    assert take(consumer).number == 2
    track.close()
    producer.close()


@pytest.mark.parametrize(
    ("word", "delivery"),
    [
        (9, 1),  # of an older frame
        (65 << 16 | 9, 1),  # of another frame in the slot
        (2**64 - 1, 1),
        (1 << 16 | 2, 3),
        (1 << 16 | 3, 0),  # as often as allowed: not delivered
        (1 << 16 | 0xFFFF, 0),
    ],
)
def test_a_count_of_deliveries_that_a_member_invented_fails_its_frame_only(
    worlds: list[World], word: int, delivery: int
) -> None:
    w = world(worlds, queue=True, deliveries=3)
    consumer, producer = w.consume(), w.produce()
    w.publish(producer, 1)
    w.publish(producer, 2)
    _native.store_u64(w.channel.sequencer, 8192 + 8 * (2 * w.channel.slots + 1), word)
    if delivery:
        assert take(consumer).delivery == delivery
    else:
        assert consumer.take(0.0) is Condition.UNDELIVERABLE
        assert (consumer.failed, consumer.spent) == (1, word & 0xFFFF)
    assert take(consumer).number == 2


def test_a_count_of_deliveries_stops_at_its_greatest_value(worlds: list[World]) -> None:
    w = world(worlds, queue=True)
    consumer, producer = w.consume(), w.produce()
    w.publish(producer)
    _native.store_u64(w.channel.sequencer, 8192 + 8 * (2 * w.channel.slots + 1), 1 << 16 | 0xFFFF)
    for _ in range(2):
        assert take(consumer).delivery == 0xFFFF
        consumer.requeue(1)


def test_a_contradiction_ends_a_consumer_after_100_ms(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    w.publish(producer)
    assert numbers(consumer) == [1]
    _native.store_u64(w.channel.sequencer, 0, 3 << 16 | 2)  # two frames that were never published
    assert numbers_until_error(consumer) == []
    assert w.publish(producer, 4) == 4


def numbers_until_error(consumer: Consumer) -> list[int]:
    found = []
    with pytest.raises(ProtocolError, match="contradicts itself"):
        while isinstance(frame := consumer.take(60.0), Frame):
            found.append(frame.number)
            consumer.release(frame.number)
    return found


def test_a_tail_that_went_back_ends_a_consumer(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    w.publish(producer)
    w.publish(producer)
    assert numbers(consumer) == [1, 2]
    _native.store_u64(w.channel.sequencer, 0, 1 << 16 | 2)
    assert numbers_until_error(consumer) == []


HEAD, TICKETS, WAITING = 320, 192, 512  # byte offsets of words in the sequencer


@pytest.mark.parametrize("head", [4, 2**40, 2**64 - 1])
def test_a_wrong_head_ends_no_queue_that_has_frames(worlds: list[World], head: int) -> None:
    w = world(worlds, queue=True)
    consumer, producer = w.consume(), w.produce()
    for block in range(1, 4):
        w.publish(producer, block)
    w.channel.close()
    for number in range(1, 4):
        _native.store_u64(w.channel.sequencer, HEAD, head)
        assert take(consumer).number == number
        consumer.release(number)
    assert consumer.take(0.0) is Condition.END


def test_a_frame_that_a_wrong_head_hides_is_found_by_a_consumer_that_waits(worlds: list[World]) -> None:
    w = world(worlds, queue=True)
    consumer, producer = w.consume(), w.produce()
    assert consumer.take(0.0) is Condition.TIMEOUT  # it reads every slot, so the next call need not
    w.publish(producer)
    _native.store_u64(w.channel.sequencer, HEAD, 2)
    frame = consumer.take(60.0)
    assert isinstance(frame, Frame)
    assert frame.number == 1


def test_a_frame_that_a_wrong_head_hides_comes_although_newer_frames_come(worlds: list[World]) -> None:
    w = world(worlds, queue=True, capacity=1024)
    consumer, producer = w.consume(), w.produce()
    w.publish(producer, 1)
    _native.store_u64(w.channel.sequencer, HEAD, 2)
    found = []
    for block in range(2, 2 + 256):
        w.publish(producer, block)
        frame = take(consumer)
        consumer.release(frame.number)
        found.append(frame.number)
    assert 1 in found


def test_a_producer_that_shows_more_and_more_tickets_holds_nobody_up_for_ever(worlds: list[World]) -> None:
    w = world(worlds)
    _greedy, producer = w.produce(0), w.produce(1)
    producer.patience = 3600  # time alone ends no turn
    ticket = 0
    for _ in range(2):
        for _ in range(63):
            ticket += 1
            _native.store_u64(w.channel.sequencer, TICKETS, ticket)
            _native.store_u64(w.channel.sequencer, WAITING, ticket)
            assert w.publish(producer) is Condition.TIMEOUT
        ticket += 1
        _native.store_u64(w.channel.sequencer, TICKETS, ticket)
        _native.store_u64(w.channel.sequencer, WAITING, ticket)
        assert isinstance(w.publish(producer), int)


INPUTS = int(os.environ.get("POOLBRIDGE_TEST_FUZZ", "4000"))
"""How many times the hostile member changes its memory, in all tests together. More changes may find more errors."""


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("policy", [BLOCK, FAIL, DROP_OLDEST, LATEST])
def test_hostile_memory_does_no_harm(worlds: list[World], policy: int, queue: bool) -> None:
    chance = random.Random(policy)
    w = world(worlds, queue=queue, policy=policy)
    seat = w.channel.prepare(0, producer=True)
    track = record(w, 0)
    producer = Producer(seat.roster, seat.sequencer, seat.file, 0, seat.member)
    w.channel.join(0, producer=True)
    consumer = w.consume()
    consumer.add_track(0, seat.member, seat.file)
    producer.add_cursor(0, w.ids[False, 0], w.channel.files[False, 0])

    def look() -> None:
        if isinstance(frame := consumer.take(0.0), Frame):
            assert len(unpack_meta(frame.meta)) <= 8320
            assert frame.description is None or len(frame.description) == 4

    calls: list[Callable[[], object]] = [
        lambda: w.publish(producer, 1),
        lambda: [consumer.release(number) for number in consumer.in_hand],
        producer.reclaim,
        look,
    ]
    for _ in range(INPUTS // 8):
        memory = chance.choice([w.channel.sequencer, track, w.channel.cursor(0)])
        near = w.channel.tail
        anything = 1 << chance.randrange(64)
        value = chance.choice([near, near + 1, near << 16, near << 6, near << 12 | 2, 0, 2**64 - 1, anything])
        _native.store_u64(memory, 8 * chance.randrange(min(len(memory), 16384) // 8), value)
        try:
            chance.choice(calls)()
        except ProtocolError:
            pass
    producer.close()
    track.close()

"""Tests waits of the native module: for frames, and for space in a channel; see ``docs/streams.md``."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

from nativeworld import LINE, Interrupted, World, back, interrupt as interrupt, take, world, worlds as worlds  # noqa: PLC0414 - fixtures
from realservice import until

from poolbridge import _native
from poolbridge._native import Condition, Frame, Producer
from poolbridge.errors import (
    ClosedError,
    InvalidArgumentError,
    LeaseReleasedError,
)

# Waiting


def test_a_consumer_sleeps_until_a_frame_comes(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(consumer.take(None)))
    thread.start()
    until(lambda: _native.load_u64(w.channel.sequencer, 64) & 1)
    w.publish(producer)
    thread.join()
    assert isinstance(taken[0], Frame)


@pytest.mark.parametrize("spin", [None, 0.0, 0.02])
def test_a_wait_ends_at_its_time_limit(worlds: list[World], spin: float | None) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    begin = time.monotonic()
    assert consumer.take(0.05, spin) is Condition.TIMEOUT
    assert time.monotonic() - begin >= 0.05
    for _ in range(4):
        w.publish(producer)
    assert producer.publish(1, 1, 1, 1, LINE, b"", 0, 0, None, 0.05, spin) is Condition.TIMEOUT
    assert producer.reclaim(0.05, spin) == []
    with pytest.raises(InvalidArgumentError, match="a time must be"):
        consumer.take(float("nan"))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one CPU no wait polls adaptively")
def test_a_member_that_polled_in_vain_polls_less_and_less_often(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    for asleep in (1, 3, 7, 15, 31, 63, 63):
        assert consumer.waits_asleep == 0
        assert consumer.take(0.001) is Condition.TIMEOUT
        assert consumer.waits_asleep == asleep
        for _ in range(asleep):
            assert consumer.take(0.0001) is Condition.TIMEOUT
    w.publish(producer)
    assert isinstance(consumer.take(), Frame)
    assert consumer.waits_asleep == 0, "a frame that is there is not waited for"
    assert producer.reclaim(0.001) == []
    assert producer.waits_asleep == 1, "each member learns for itself"


def test_a_wait_for_memory_ends_when_another_thread_takes_the_memory_back(
    worlds: list[World],
) -> None:
    w = world(worlds, queue=1)
    consumer, producer = w.consume(), w.produce()
    for block in (1, 2):
        w.publish(producer, block)
    frame, came = take(consumer), []
    thread = threading.Thread(target=lambda: came.append(producer.reclaim(None)), daemon=True)
    thread.start()
    until(lambda: _native.load_u64(w.channel.sequencer, 128) & 1)  # the thread sleeps
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # so that this thread is the first one that looks
    try:
        consumer.release(frame.number)
        assert back(producer) == [1]
    finally:
        sys.setswitchinterval(interval)
    thread.join(60)
    assert came == [[]]


def test_a_swap_lets_go_of_a_frame_and_takes_the_next(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    for _ in range(2):
        w.publish(producer)
    first = consumer.take()
    assert isinstance(first, Frame)
    second = consumer.swap(first.number)
    assert isinstance(second, Frame)
    assert second.number == first.number + 1
    assert consumer.in_hand == [second.number]
    with pytest.raises(LeaseReleasedError):
        consumer.swap(first.number)
    assert consumer.in_hand == [second.number]
    assert consumer.swap(second.number, 0.0) is Condition.TIMEOUT
    assert consumer.in_hand == []


def test_a_swap_waits_for_the_next_frame(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    w.publish(producer)
    first = consumer.take()
    assert isinstance(first, Frame)
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(consumer.swap(first.number)))
    thread.start()
    until(lambda: _native.load_u64(w.channel.sequencer, 64) & 1)
    in_hand = consumer.in_hand
    w.publish(producer)
    thread.join()
    assert in_hand == [], "the frame is let go of before the wait"
    assert isinstance(taken[0], Frame)
    assert taken[0].number == first.number + 1


def test_a_signal_ends_a_swap_that_waits(
    worlds: list[World], interrupt: Callable[[Callable[[], object]], None]
) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    w.publish(producer)
    first = consumer.take()
    assert isinstance(first, Frame)
    with pytest.raises(Interrupted):
        interrupt(lambda: _native.load_u64(w.channel.sequencer, 64) & 1)
        consumer.swap(first.number)
    assert consumer.in_hand == []


def test_a_signal_ends_a_wait_for_a_frame(
    worlds: list[World], interrupt: Callable[[Callable[[], object]], None]
) -> None:
    w = world(worlds)
    consumer = w.consume()
    with pytest.raises(Interrupted):
        interrupt(lambda: _native.load_u64(w.channel.sequencer, 64) & 1)
        consumer.take(None)


def test_a_signal_ends_a_wait_for_room(worlds: list[World], interrupt: Callable[[Callable[[], object]], None]) -> None:
    w = world(worlds, capacity=1)
    w.consume()
    producer = w.produce()
    w.publish(producer)
    with pytest.raises(Interrupted):
        interrupt(lambda: _native.load_u64(w.channel.sequencer, 512))
        producer.publish(1, 1, 1, 1, LINE)
    assert not _native.load_u64(w.channel.sequencer, 512)  # the producer does not wait any more


def test_frames_are_released_while_another_thread_waits(worlds: list[World]) -> None:
    w = world(worlds, capacity=1)
    consumer, producer = w.consume(), w.produce()
    w.publish(producer)
    frame = take(consumer)
    results: list[object] = []
    waiting = [
        threading.Thread(target=lambda: results.append(consumer.take(60.0))),
        threading.Thread(target=lambda: results.append(producer.publish(1, 1, 1, 1, LINE, b"", 0, 0, None, 60.0))),
    ]
    for thread in waiting:
        thread.start()
    time.sleep(0.02)
    consumer.release(frame.number)
    for thread in waiting:
        thread.join()
    assert {type(result) for result in results} == {int, Frame}


def test_a_member_that_is_closed_ends_its_waits(worlds: list[World]) -> None:
    w = world(worlds)
    consumer = w.consume()
    raised: list[type[BaseException]] = []

    def wait() -> None:
        try:
            consumer.take(None)
        except ClosedError as error:
            raised.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: _native.load_u64(w.channel.sequencer, 64) & 1)
    consumer.close()
    thread.join()
    assert raised == [ClosedError]
    consumer.close()
    for call in (consumer.take, consumer.begin, consumer.leave, lambda: consumer.release(1)):
        with pytest.raises(ClosedError, match="is closed"):
            call()


def test_producers_get_room_in_the_order_in_which_they_began_to_wait(worlds: list[World]) -> None:
    w = world(worlds, capacity=1)
    consumer = w.consume()
    order: list[int] = []
    w.publish(w.produce(62))

    def publish(slot: int, producer: Producer) -> None:
        number = producer.publish(slot, 1, 1, 1, LINE, b"", 0, 0, None, 60.0)
        assert isinstance(number, int)
        order.append(slot)

    threads = []
    for slot in (4, 2, 9):
        producer = w.produce(slot)
        producer.patience = 3600  # a producer must not lose its turn on a slow machine
        thread = threading.Thread(target=publish, args=(slot, producer))
        thread.start()
        until(partial(_native.load_u64, w.channel.sequencer, 512 + 8 * slot))
        threads.append(thread)
    blocks = []
    for _ in range(4):
        frame = consumer.take(60.0)
        assert isinstance(frame, Frame)
        blocks.append(frame.block)
        consumer.release(frame.number)
    for thread in threads:
        thread.join()
    assert blocks == [1, 4, 2, 9]


def test_a_producer_that_waits_and_does_not_come_is_passed_over(worlds: list[World]) -> None:
    w = world(worlds)
    stopped, producer = w.produce(0), w.produce(1)
    _native.store_u64(w.channel.sequencer, 192, 1)
    _native.store_u64(w.channel.sequencer, 512, 1)  # producer `stopped` has the first ticket
    assert w.publish(producer) is Condition.TIMEOUT
    assert producer.publish(1, 1, 1, 1, LINE, b"", 0, 0, None, 60.0) == 1
    assert w.publish(producer) == 2
    assert w.publish(stopped) == 3

"""Tests the native module: words in memory, files, garbage collection and forks; see ``docs/streams.md``."""

from __future__ import annotations

import gc
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import streamservice as service
from nativeworld import Interrupted, World, interrupt as interrupt, numbers, take, world, worlds as worlds  # noqa: PLC0414 - fixtures
from streamservice import memfd

from poolbridge import _native
from poolbridge._native import Condition, Consumer, Frame, Producer
from poolbridge._wire.meta import unpack_meta
from poolbridge.errors import (
    ForkError,
    InvalidArgumentError,
    ProtocolError,
)

# Words


def test_words_are_loaded_stored_and_exchanged() -> None:
    memory = bytearray(24)
    _native.store_u64(memory, 8, 2**64 - 1)
    assert _native.load_u64(memory, 8) == 2**64 - 1
    assert bytes(memory) == b"\0" * 8 + b"\xff" * 8 + b"\0" * 8
    assert not _native.compare_exchange_u64(memory, 8, 5, 6)
    assert _native.compare_exchange_u64(memory, 8, 2**64 - 1, 6)
    assert _native.load_u64(memoryview(memory)[8:], 0) == 6
    _native.barrier()


@pytest.mark.parametrize("offset", [17, 24, 4, 2**63 - 1])
def test_a_word_outside_of_its_buffer_or_not_aligned_is_refused(offset: int) -> None:
    with pytest.raises(InvalidArgumentError, match="no aligned word of 8 bytes"):
        _native.load_u64(bytearray(24), offset)


def test_arguments_of_words_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="an offset must be"):
        _native.load_u64(bytearray(8), -1)
    with pytest.raises(InvalidArgumentError, match="a value must be"):
        _native.store_u64(bytearray(8), 0, 2**64)
    with pytest.raises(BufferError):
        _native.store_u64(bytes(8), 0, 1)
    with pytest.raises(TypeError):
        _native.load_u64(bytearray(8))  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match="a time must be"):
        _native.futex_wait(bytearray(8), 0, 0, -1.0)


def test_a_futex_wakes_a_thread_that_sleeps() -> None:
    memory = mmap.mmap(-1, 4096)
    result: list[bool] = []
    thread = threading.Thread(target=lambda: result.append(_native.futex_wait(memory, 4, 0, 60.0)))
    thread.start()
    while not _native.futex_wake(memory, 4):
        time.sleep(0.001)
    thread.join()
    assert result == [True]
    assert not _native.futex_wait(memory, 4, 0, 0.01)
    assert _native.futex_wait(memory, 4, 7, 60.0)
    memory.close()


def test_a_signal_ends_a_wait_for_a_futex(interrupt: Callable[[Callable[[], object]], None]) -> None:
    with pytest.raises(Interrupted):
        interrupt(lambda: True)
        _native.futex_wait(bytearray(8), 0, 0, None)


# Files


def test_files_that_are_not_those_of_a_channel_are_refused(worlds: list[World]) -> None:
    channel = world(worlds).channel
    seat = channel.prepare(0, producer=True)
    cases = [
        (memfd("short", 4096), "must have 73728 bytes, it has 4096"),
        (memfd("loose", service.ROSTER, sealed=False), "is not sealed"),
        (memfd("empty", service.ROSTER), "does not begin with PBROST01"),
        (os.open("/dev/null", os.O_RDWR), "is no memfd"),
    ]
    for fd, message in cases:
        with pytest.raises(ProtocolError, match=message):
            Producer(fd, seat.sequencer, seat.file, 0, 1)
        os.close(fd)
    for slot, member in ((63, 1), (2**32, 1), (0, 0)):
        with pytest.raises(InvalidArgumentError, match="seat below 63"):
            Producer(seat.roster, seat.sequencer, seat.file, slot, member)
    with pytest.raises(InvalidArgumentError, match="seat below 1024"):
        Consumer(seat.roster, seat.sequencer, seat.file, 1024, 1)
    with pytest.raises(ProtocolError, match="is no memfd"):
        Producer(-1, seat.sequencer, seat.file, 0, 1)


@pytest.mark.parametrize(("offset", "value"), [(32, 2), (40, 0), (40, 2000), (40, 33), (48, 63), (48, 100), (56, 4)])
def test_a_roster_with_impossible_numbers_is_refused(worlds: list[World], offset: int, value: int) -> None:
    channel = world(worlds).channel
    seat = channel.prepare(0, producer=True)
    _native.store_u64(channel.roster, offset, value)
    with pytest.raises(ProtocolError, match="the roster has a value out of range"):
        Producer(seat.roster, seat.sequencer, seat.file, 0, 1)


def test_a_sealed_file_cannot_be_mapped_to_be_written(worlds: list[World]) -> None:
    w = world(worlds)
    w.produce()
    seat = w.channel
    with pytest.raises(ProtocolError, match="cannot be mapped"):
        Producer(seat.roster_fd, seat.sequencer_fd, seat.files[True, 0], 0, 1)


def test_what_a_producer_wrote_before_its_records_does_not_matter(worlds: list[World]) -> None:
    w = world(worlds)
    seat = w.channel.prepare(0, producer=True)
    producer = Producer(seat.roster, seat.sequencer, seat.file, 0, seat.member)
    os.pwrite(seat.file, bytes(range(1, 65)) * 64, 0)
    consumer = w.consume()
    producer.add_cursor(0, w.ids[False, 0], w.channel.files[False, 0])
    consumer.add_track(0, seat.member, seat.file)
    w.channel.join(0, producer=True)
    w.publish(producer)
    assert take(consumer).number == 1
    producer.close()


def test_a_track_that_cannot_be_mapped_costs_the_frames_of_its_producer(worlds: list[World]) -> None:
    w = world(worlds)
    seat = w.channel.prepare(0, producer=True)
    bad = Producer(seat.roster, seat.sequencer, seat.file, 0, seat.member)
    consumer, good = w.consume(), w.produce(1)
    bad.add_cursor(0, w.ids[False, 0], w.channel.files[False, 0])
    with pytest.raises(ProtocolError, match="the memfd of a track must have"):
        consumer.add_track(0, seat.member, w.channel.sequencer_fd)
    w.channel.join(0, producer=True)
    assert [w.publish(bad), w.publish(good), w.publish(bad)] == [1, 2, 3]
    assert consumer.take(0.0) is Condition.FAILED
    assert consumer.failed == 1
    assert take(consumer).number == 2
    assert consumer.take(0.0) is Condition.FAILED
    bad.close()


# In the tests below, a garbage collection runs while Python makes an object.


class Garbage:
    """A reference cycle with a finaliser."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.circle = self
        self.work = work

    def __del__(self) -> None:
        self.work()


@pytest.fixture
def collecting() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Give a function ``begin(work)``: after the call, a finaliser runs `work` when Python makes the next object.

    In Python 3.12, the finaliser runs shortly after Python has made this object.
    """
    before = gc.get_threshold()
    gc.disable()

    def begin(work: Callable[[], object]) -> None:
        gc.collect()
        Garbage(work)
        gc.set_threshold(1)
        gc.enable()

    yield begin
    gc.set_threshold(*before)
    gc.enable()


@pytest.mark.parametrize("end", ["close", "reclaim"])
def test_blocks_come_back_whole_though_a_finaliser_uses_the_producer_meanwhile(
    worlds: list[World], collecting: Callable[[Callable[[], object]], None], end: str
) -> None:
    w = world(worlds, capacity=1)
    producer = w.produce()
    for block in range(1, 4):
        w.publish(producer, block)
    reclaim, work = producer.reclaim, getattr(producer, end)
    collecting(work)
    came = reclaim()
    assert came == [(1, ()), (2, ())]


def test_frames_in_flight_are_told_whole_though_a_finaliser_closes_the_producer(
    worlds: list[World], collecting: Callable[[Callable[[], object]], None]
) -> None:
    w = world(worlds)
    producer = w.produce()
    for block in range(1, 4):
        w.publish(producer, block)
    collecting(producer.close)
    flights = producer.in_flight
    assert flights == [(1, 1), (2, 2), (3, 3)]


def test_a_frame_is_the_one_that_was_taken_though_a_finaliser_takes_the_next(
    worlds: list[World], collecting: Callable[[Callable[[], object]], None]
) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    for block in range(1, 3):
        w.publish(producer, block, name=str(block))
    take_one = consumer.take
    collecting(lambda: take_one(0.0))
    frame = take_one(0.0)
    assert isinstance(frame, Frame)
    assert (frame.number, frame.block, unpack_meta(frame.meta)) == (1, 1, {"name": "1"})


def test_frames_in_hand_are_told_whole_though_a_finaliser_closes_the_consumer(
    worlds: list[World], collecting: Callable[[Callable[[], object]], None]
) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    for block in range(1, 4):
        w.publish(producer, block)
        take(consumer)
    collecting(consumer.close)
    held = consumer.in_hand
    assert held == [1, 2, 3]


# Forks


def test_a_forked_child_has_no_part_in_it(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    w.publish(producer)
    child = os.fork()
    if not child:
        calls = (consumer.take, lambda: w.publish(producer), producer.reclaim, consumer.begin)
        refused = 0
        for call in calls:
            try:
                call()
            except ForkError:
                refused += 1
        consumer.close()
        del consumer, producer
        os._exit(refused != len(calls))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert numbers(consumer) == [1]

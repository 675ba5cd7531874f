"""The native module: producers and consumers that share memory; see ``docs/streams.md``."""

from __future__ import annotations

import gc
import mmap
import os
import random
import signal
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import streamservice as service
from streamservice import BLOCK, DROP_OLDEST, FAIL, LATEST, Channel, description, memfd, meta

from poolbridge import _native
from poolbridge._native import Condition, Consumer, Frame, Producer
from poolbridge.errors import (
    ClosedError,
    ForkError,
    InvalidArgumentError,
    LeaseReleasedError,
    ProtocolError,
)

MISSED, DROPS = 24, 384  # words of a cursor and of the sequencer

MATRIX = description("float32", (2, 3), (3, 1), 64)
LINE = description("uint8", (16,))


class World:
    """A channel whose members are all in this process."""

    def __init__(self, *, queue: bool = False, capacity: int = 4, policy: int = BLOCK) -> None:
        self.channel = Channel(queue=queue, capacity=capacity, policy=policy)
        self.policy = policy
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.ids: dict[tuple[bool, int], int] = {}
        self._count = 0

    def produce(self, slot: int = 0, *, timeline: int = 0) -> Producer:
        seat = self.channel.prepare(slot, producer=True, timeline=timeline)
        member = Producer(seat.roster, seat.sequencer, seat.file, slot, seat.member)
        self.channel.seal(slot, producer=True)
        self.ids[True, slot] = seat.member
        self.producers[slot] = member
        for other, consumer in self.consumers.items():
            consumer.add_track(slot, seat.member, seat.file)
            member.add_cursor(other, self.ids[False, other], self.channel.files[False, other])
        self.channel.join(slot, producer=True)
        return member

    def consume(self, slot: int = 0, *, policy: int | None = None, oldest: bool = False, timeline: int = 0) -> Consumer:
        policy = self.policy if policy is None else policy
        seat = self.channel.prepare(slot, producer=False, policy=policy, timeline=timeline)
        member = Consumer(seat.roster, seat.sequencer, seat.file, slot, seat.member)
        self.channel.seal(slot, producer=False)
        self.ids[False, slot] = seat.member
        self.consumers[slot] = member
        for other, producer in self.producers.items():
            producer.add_cursor(slot, seat.member, seat.file)
            member.add_track(other, self.ids[True, other], self.channel.files[True, other])
        self.channel.join(slot, producer=False, oldest=oldest)
        assert isinstance(member.begin(), int)
        return member

    def publish(self, producer: Producer, block: int = 0, **meta_entries: str) -> int | Condition:
        self._count += 1
        return producer.publish(block, self._count, 64, 1, LINE, meta(meta_entries), 0, 0, None, 0.0)

    def close(self) -> None:
        for producer in self.producers.values():
            producer.close()
        for consumer in self.consumers.values():
            consumer.close()
        self.channel.unmap()


@pytest.fixture
def worlds() -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for world in made:
        world.close()


def world(worlds: list[World], **options: int) -> World:
    made = World(queue=bool(options.pop("queue", False)), **options)
    worlds.append(made)
    return made


def take(consumer: Consumer) -> Frame:
    frame = consumer.take(0.0)
    assert isinstance(frame, Frame), frame
    return frame


def numbers(consumer: Consumer) -> list[int]:
    """Take and release all that is there."""
    found = []
    while isinstance(frame := consumer.take(0.0), Frame):
        consumer.release(frame.number)
        found.append(frame.number)
    assert frame in {Condition.TIMEOUT, Condition.END}
    return found


def back(producer: Producer) -> list[int]:
    """Return the blocks that came back."""
    blocks = producer.reclaim()
    assert isinstance(blocks, list), blocks
    return [block for block, _ in blocks]


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


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupt() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Returns a function that makes a signal raise in this thread as soon as a condition is true."""
    ready = threading.Event()  # the thread sends no signal once the test has ended
    threads: list[threading.Thread] = []

    def handler(number: int, frame: object) -> None:
        raise Interrupted

    def when(condition: Callable[[], object]) -> None:
        def send() -> None:
            while not condition():
                if ready.wait(0.001):
                    return
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        threads.append(threading.Thread(target=send))
        threads[0].start()

    before = signal.signal(signal.SIGUSR1, handler)
    yield when
    ready.set()
    for thread in threads:
        thread.join()
    signal.signal(signal.SIGUSR1, before)


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
        with pytest.raises(InvalidArgumentError, match="slot below 63"):
            Producer(seat.roster, seat.sequencer, seat.file, slot, member)
    with pytest.raises(InvalidArgumentError, match="slot below 1024"):
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


def test_a_track_of_another_member_is_refused(worlds: list[World]) -> None:
    w = world(worlds)
    w.produce()
    with pytest.raises(ProtocolError, match="is not that of member 77"):
        w.consume().add_track(0, 77, w.channel.files[True, 0])


# Frames


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
    assert frame.meta == told
    assert repr(frame) == "<poolbridge._native.Frame 1, block 5>"
    producer.publish(1, 2, 3, 4, description("uint8", ()))
    assert take(consumer).description == ("uint8", (), None, 0)
    assert frame.meta == told
    assert consumer.in_hand == [1, 2]


def test_what_a_frame_cannot_say_is_refused(worlds: list[World]) -> None:
    producer = world(worlds).produce()
    for bad in (b"\1", meta({"k": "v"}) * 2, struct.pack("<HH", 1, 0) + b"\xff", meta({str(i): "" for i in range(17)})):
        with pytest.raises(InvalidArgumentError, match="not in the form"):
            producer.publish(1, 1, 1, 1, LINE, bad)
    for bad in (LINE[:-1], LINE + b"\0"):
        with pytest.raises(InvalidArgumentError, match="a description must have 576"):
            producer.publish(1, 1, 1, 1, bad)
    for bad in (bytes(576), description("a b", ()), description("x" * 16, ()), description("u1", (2**63,))):
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
    for block in range(100):
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
    assert take(consumer).object is None  # another description
    for block in range(100):
        assert consumer.forget(block) == (block != 3)
    assert consumer.take(0.0) is Condition.TIMEOUT
    assert consumer.in_hand == [1, 2, 3, 4, 5]


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


# Garbage that is collected while an object is made


class Garbage:
    """A reference cycle with a finaliser."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.circle = self
        self.work = work

    def __del__(self) -> None:
        self.work()


@pytest.fixture
def collecting() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Make the next new object run a finaliser; later versions of Python do so only between instructions."""
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
    for block in range(3):
        w.publish(producer, block)
    reclaim, work = producer.reclaim, getattr(producer, end)
    collecting(work)
    came = reclaim()
    assert came == [(0, ()), (1, ())]


def test_frames_in_flight_are_told_whole_though_a_finaliser_closes_the_producer(
    worlds: list[World], collecting: Callable[[Callable[[], object]], None]
) -> None:
    w = world(worlds)
    producer = w.produce()
    for block in range(3):
        w.publish(producer, block)
    collecting(producer.close)
    flights = producer.in_flight
    assert flights == [(1, 0), (2, 1), (3, 2)]


def test_a_frame_is_the_one_that_was_taken_though_a_finaliser_takes_the_next(
    worlds: list[World], collecting: Callable[[Callable[[], object]], None]
) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    for block in range(2):
        w.publish(producer, block, name=str(block))
    take_one = consumer.take
    collecting(lambda: take_one(0.0))
    frame = take_one(0.0)
    assert isinstance(frame, Frame)
    assert (frame.number, frame.block, frame.meta) == (1, 0, {"name": "0"})


def test_frames_in_hand_are_told_whole_though_a_finaliser_closes_the_consumer(
    worlds: list[World], collecting: Callable[[Callable[[], object]], None]
) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    for block in range(3):
        w.publish(producer, block)
        take(consumer)
    collecting(consumer.close)
    held = consumer.in_hand
    assert held == [1, 2, 3]


# Broadcasts


@pytest.mark.parametrize(("policy", "full"), [(BLOCK, Condition.TIMEOUT), (FAIL, Condition.NO_ROOM)])
def test_a_consumer_that_is_behind_holds_the_producer_up(worlds: list[World], policy: int, full: Condition) -> None:
    w = world(worlds, policy=policy)
    consumer, producer = w.consume(), w.produce()
    assert [w.publish(producer, block) for block in range(5)] == [1, 2, 3, 4, full]
    assert take(consumer).number == 1
    assert w.publish(producer) is full
    assert consumer.release(1) is True
    assert w.publish(producer, 4) == 5
    assert w.publish(producer) is full
    assert back(producer) == [0]
    assert numbers(consumer) == [2, 3, 4, 5]
    assert back(producer) == []  # the channel keeps its last four
    assert producer.in_flight == [(2, 1), (3, 2), (4, 3), (5, 4)]


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
    assert w.publish(producer) is Condition.TIMEOUT  # it is promised number 3
    assert numbers(oldest) == [3, 4, 5, 6]
    assert w.publish(producer) == 7
    assert numbers(newest) == [6, 7]
    assert numbers(oldest) == [7]


def test_frames_are_released_in_any_order(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    for block in range(4):
        w.publish(producer, block)
    for _ in range(4):
        take(consumer)
    for number in (3, 2, 4):
        consumer.release(number)
    assert w.publish(producer) is Condition.TIMEOUT
    consumer.release(1)
    assert [w.publish(producer, 4 + i) for i in range(4)] == [5, 6, 7, 8]
    assert back(producer) == [0, 1, 2, 3]
    with pytest.raises(LeaseReleasedError, match="not in hand"):
        consumer.release(1)
    with pytest.raises(InvalidArgumentError, match="this channel is a broadcast"):
        consumer.requeue(1)


def test_a_frame_of_a_broadcast_that_is_acknowledged_stays_in_hand_and_holds_no_producer_up(
    worlds: list[World],
) -> None:
    here = world(worlds, capacity=2)
    producer, consumer = here.produce(), here.consume()
    for block in range(2):
        here.publish(producer, block)
    first, second = take(consumer), take(consumer)
    assert producer.behind == (here.ids[False, 0], 0)
    assert consumer.ack(second.number), "the first still holds the producer up"
    assert here.publish(producer, 2) is Condition.TIMEOUT
    assert consumer.ack(first.number)
    assert [here.publish(producer, block) for block in (2, 3)] == [3, 4]
    assert producer.reclaim() == [], "both blocks are in hand"
    assert consumer.release(first.number)
    assert producer.reclaim() == [(0, ())]
    third = take(consumer)
    assert here.publish(producer, 4) is Condition.TIMEOUT, "a frame that is not acknowledged"
    assert consumer.release(third.number)
    assert consumer.in_hand == [second.number]
    assert consumer.release(second.number)
    assert here.publish(producer, 4) == 5
    blocks = producer.reclaim()
    assert isinstance(blocks, list)
    assert sorted(block for block, _ in blocks) == [1, 2]


def test_a_frame_of_a_queue_that_is_given_back_stays_in_hand_and_can_be_taken_again(worlds: list[World]) -> None:
    here = world(worlds, queue=True)
    producer, consumer = here.produce(), here.consume()
    here.publish(producer, 7)
    frame = take(consumer)
    assert consumer.give_back(frame.number)
    again = take(consumer)
    assert again.number == frame.number
    assert consumer.in_hand == [1, 1]
    assert consumer.ack(again.number), "it is acknowledged the second time, not given back once more"
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
    consumer.give_back(take(consumer).number)
    take(consumer)
    assert consumer.release(1)
    assert other.take(0.0) is Condition.TIMEOUT, "its claim stands"
    assert consumer.requeue(1)
    assert take(other).number == 1


def asleep(here: World) -> Callable[[], bool]:
    """Pretend that a member sleeps on `freed`; the returned function says whether it was woken."""
    word = _native.load_u64(here.channel.sequencer, 128)
    _native.store_u64(here.channel.sequencer, 128, word | 1)
    return lambda: not _native.load_u64(here.channel.sequencer, 128) & 1


@pytest.mark.parametrize("queue", [False, True])
def test_a_hold_that_is_cleared_without_a_frame_wakes_producers(worlds: list[World], queue: bool) -> None:
    here = world(worlds, policy=DROP_OLDEST, queue=queue)
    producer, consumer = here.produce(), here.consume()
    here.publish(producer)
    here.channel.part(0, producer=True, state=service.FREE)  # the frame's producer: its record has no producer any more
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
    assert second.release(1, 5, 50) is True  # it has no timeline, so its fence is ignored
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
        elif number == 65:  # in the same slot of the ring
            assert consumer.release(65, 6, 1) is Condition.FENCE_PENDING
            assert consumer.release(65, 5, 39) is Condition.FENCE_PENDING
            assert consumer.in_hand == [65]
            assert consumer.release(65, 5, 41) is True
        elif number == 129:
            assert consumer.release(129, 6, 1) is Condition.FENCE_PENDING
            assert consumer.release(129, 6, 1, True) is True
        else:
            consumer.release(number)
    blocks = producer.reclaim()
    assert isinstance(blocks, list)
    # The entry of a later frame also counts for those before it.
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
    assert [w.publish(producer, block) for block in range(5)] == [1, 2, 3, 4, Condition.TIMEOUT]
    assert [take(one).number, take(other).number, take(one).number] == [1, 2, 3]
    assert w.publish(producer, 4) == 5  # a frame in hand takes no room
    assert one.ack(1) is True
    assert back(producer) == []  # and still uses its block
    assert one.release(1) is True
    assert one.release(3) is True
    assert back(producer) == [0, 2]
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
    assert seen == [n for n in range(2, 205) if n not in {65, 129, 193}]  # its slot is in use
    slow.requeue(1)
    again = take(fast)
    assert (again.number, again.block, again.meta) == (1, 1, {"who": "first"})
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
    assert w.publish(producer) == 128  # the frame that waited was dropped: its slot is free
    assert take(consumer).missed == 1
    assert w.publish(producer) is Condition.TIMEOUT
    consumer.release(40)
    assert isinstance(w.publish(producer), int)


def test_the_claims_of_a_consumer_that_died_go_to_another(worlds: list[World]) -> None:
    w = world(worlds, queue=True)
    one, other, producer = w.consume(0), w.consume(1), w.produce()
    for block in range(3):
        w.publish(producer, block)
    assert [take(one).number, take(one).number] == [1, 2]
    w.channel.part(0, producer=False)
    w.channel.give_claims_back(0)
    assert one.take(0.0) is Condition.EVICTED
    assert one.ack(1) is False
    assert numbers(other) == [1, 2, 3]
    assert back(producer) == [2]  # the process may still use the others
    assert one.release(2) is False
    assert back(producer) == [1]
    w.channel.part(0, producer=False, state=service.FREE)
    assert back(producer) == [0]


# The end, and unknown members


def test_a_closed_broadcast_ends_after_its_last_frame_and_all_blocks_come_back(worlds: list[World]) -> None:
    w = world(worlds)
    one, other, producer = w.consume(0), w.consume(1, policy=LATEST), w.produce()
    for block in range(3):
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
    assert back(producer) == [0, 1, 2]


def test_a_closed_queue_ends_when_everything_is_acknowledged(worlds: list[World]) -> None:
    w = world(worlds, queue=True)
    one, other, producer = w.consume(0), w.consume(1), w.produce()
    w.publish(producer)
    take(one)
    w.channel.close()
    assert other.take(0.0) is Condition.TIMEOUT  # it may be given back
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
    for block in range(3):
        w.publish(producer, block)
    take(consumer)
    w.channel.close(service.DESTROYED)
    assert consumer.take(0.0) is Condition.DESTROYED
    assert w.publish(producer) is Condition.DESTROYED
    assert back(producer) == [1, 2]
    consumer.release(1)
    assert back(producer) == [0]


def test_members_that_are_not_known_are_asked_for(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    hidden = w.channel.prepare(5, producer=False)
    stranger = Consumer(hidden.roster, hidden.sequencer, hidden.file, 5, hidden.member)
    w.channel.join(5, producer=False)
    assert w.publish(producer) is Condition.UNKNOWN_MEMBER
    assert producer.reclaim() == []  # nothing is in flight
    assert producer.unknown == (5, hidden.member)
    producer.add_cursor(5, hidden.member, hidden.file)
    assert w.publish(producer) == 1
    assert stranger.take(0.0) is Condition.EVICTED  # it has not begun
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
    # It dies after it has written the record of number 2. Here that is a copy of its track.
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


# Waiting


def test_a_consumer_sleeps_until_a_frame_comes(worlds: list[World]) -> None:
    w = world(worlds)
    consumer, producer = w.consume(), w.produce()
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(consumer.take(None)))
    thread.start()
    while not _native.load_u64(w.channel.sequencer, 64) & 1:
        time.sleep(0.001)
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


def test_no_wait_polls_adaptively_while_that_is_switched_off(worlds: list[World]) -> None:
    w = world(worlds)
    consumer = w.consume()
    _native.switch_spinning(False)
    try:
        assert consumer.take(0.001) is Condition.TIMEOUT
        assert consumer.take(0.001, 0.0005) is Condition.TIMEOUT
    finally:
        _native.switch_spinning(True)
    assert consumer.waits_asleep == 0


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
    while not _native.load_u64(w.channel.sequencer, 64) & 1:
        time.sleep(0.001)
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
    assert not _native.load_u64(w.channel.sequencer, 512)  # it does not wait any more


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
    while not _native.load_u64(w.channel.sequencer, 64) & 1:
        time.sleep(0.001)
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
        producer.patience = 3600  # a member must not lose its turn on a slow machine
        thread = threading.Thread(target=publish, args=(slot, producer))
        thread.start()
        while not _native.load_u64(w.channel.sequencer, 512 + 8 * slot):
            time.sleep(0.001)
        threads.append(thread)
    blocks = []
    for _ in range(4):
        frame = consumer.take(60.0)
        assert isinstance(frame, Frame)
        blocks.append(frame.block)
        consumer.release(frame.number)
    for thread in threads:
        thread.join()
    assert blocks == [0, 4, 2, 9]


def test_a_producer_that_waits_and_does_not_come_is_passed_over(worlds: list[World]) -> None:
    w = world(worlds)
    stopped, producer = w.produce(0), w.produce(1)
    _native.store_u64(w.channel.sequencer, 192, 1)
    _native.store_u64(w.channel.sequencer, 512, 1)  # it has the first fence
    assert w.publish(producer) is Condition.TIMEOUT
    assert producer.publish(1, 1, 1, 1, LINE, b"", 0, 0, None, 60.0) == 1
    assert w.publish(producer) == 2
    assert w.publish(stopped) == 3


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


# Lies


def record(w: World, slot: int) -> mmap.mmap:
    return mmap.mmap(w.channel.files[True, slot], w.channel.track_size)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (4096 + 64, 2),  # seq
        (4096 + 64 + 40, 2**62),  # value of a fence
        (4096 + 64 + 48, 512),  # word
        (4096 + 64 + 48, 2 << 16),  # flags
        (4096 + 64 + 48, 8321 << 32),  # bytes of meta
        (4096 + 64 + 48, 3 << 32),  # meta that ends in the middle
        (4096 + 64 * 64 + 576 + 8, 33),  # dimensions
        (4096 + 64 * 64 + 576 + 16, 0x20),  # element type
        (4096 + 64 * 64 + 576 + 32, 2**63),  # shape
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


INPUTS = int(os.environ.get("POOLBRIDGE_TEST_FUZZ", "4000"))
"""How many changes the hostile member makes; more finds more."""


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
            assert len(frame.meta) <= 16
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

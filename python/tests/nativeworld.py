"""Make channels whose members are all in this process, for tests of the native module."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

from streamservice import BLOCK, Channel, description, meta

from poolbridge._native import Condition, Consumer, Frame, Producer

MISSED, DROPS = 24, 384  # byte offsets of a word in a cursor, and of a word in the sequencer

MATRIX = description("float32", (2, 3), (3, 1), 64)
LINE = description("uint8", (16,))


class World:
    """A channel whose members are all in this process."""

    def __init__(self, *, queue: bool = False, capacity: int = 4, policy: int = BLOCK, deliveries: int = 0) -> None:
        self.channel = Channel(queue=queue, capacity=capacity, policy=policy, deliveries=deliveries)
        self.policy = policy
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.ids: dict[tuple[bool, int], int] = {}

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

    def publish(self, producer: Producer, block: int = 1, **meta_entries: str) -> int | Condition:
        return producer.publish(block, block, 64, 1, LINE, meta(meta_entries), 0, 0, None, 0.0)

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
    """Take and release all frames that the consumer can take now; return their numbers."""
    found = []
    while isinstance(frame := consumer.take(0.0), Frame):
        consumer.release(frame.number)
        found.append(frame.number)
    assert frame in {Condition.TIMEOUT, Condition.END}
    return found


def back(producer: Producer) -> list[int]:
    """Return the blocks that the producer gets back from the channel."""
    blocks = producer.reclaim()
    assert isinstance(blocks, list), blocks
    return [block for block, _ in blocks]


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupt() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Give a function that takes a condition; when the condition is true, a signal raises `Interrupted` in the test."""
    ready = threading.Event()  # is set at the end of the test: then the thread sends no signal
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

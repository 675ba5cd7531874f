"""Tests whole sessions in a channel in which one member writes whatever it likes into the memory that it may write.

What that member writes may fail its own frames. Every honest session lives, with its leases and its other pools.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import numpy as np
from realservice import RealService, publish
from streamservice import description, meta

import poolbridge
from poolbridge import _native
from poolbridge._session.flow import Ask, Flow
from poolbridge._session.grants import know_timeline
from poolbridge._wire import packet
from poolbridge._wire.limits import MAX_FENCE_VALUE, TIMELINE_WORDS
from poolbridge._wire.messages import Enter, Join, JoinReply, Layout, NamedTensor, Reply, Tensor

SEED = int(os.environ.get("POOLBRIDGE_TEST_SEED") or random.SystemRandom().getrandbits(32))
"""The seed of all random words. The output of a failed test has it."""
LIES = int(os.environ.get("POOLBRIDGE_TEST_FUZZ", "4000")) // 10
"""How many arbitrary words the hostile member writes in each test."""


def nothing(member: Hostile, number: int = 0) -> None:
    """Tell no lie."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealService]:
    path: Path = tmp_path_factory.mktemp("hostile")
    running = RealService(
        str(path / "r.sock"), "--pool", "name=p,kind=host,max=64MiB", "--pool", "name=q,kind=host,max=1MiB"
    )
    yield running
    running.close()


class Hostile:
    """A member of a channel that maps its files as the protocol says, and then writes what it likes."""

    def __init__(self, path: str, channel: str, role: str, before: Callable[[Hostile], object] = nothing) -> None:
        self.client = poolbridge.connect(path, timeout=60)
        self.pool = self.client.open_pool("p")
        self.lease = self.client.allocate(16, "uint8", pool="p")
        self.channel = self.client.open_channel(channel)
        self.slots = max(64, 1 << (2 * self.channel.capacity - 1).bit_length())
        self.client._run(self._join(role, before))

    def _join(self, role: str, before: Callable[[Hostile], object]) -> Flow[None]:
        session = self.client._session
        while session.timelines.own is None:
            yield from know_timeline(session, 0)
        self.words = session.timelines.own.page.words
        reply = yield Ask(Join(channel=self.channel.id, role=role), JoinReply)
        _, files = session.core.seats.pop(reply.number)
        _, sequencer, own = files.peek()
        self.seat = reply.seat
        self.sequencer, self.own = mmap.mmap(sequencer, 0), mmap.mmap(own, 0)
        files.close()
        before(self)
        yield Ask(Enter(channel=self.channel.id, member=reply.member), Reply)

    def at(self, number: int, part: str) -> int:
        """Return where the record, the description or the meta of a frame begins."""
        ring, n = number % self.slots, self.slots
        return {
            "record": 4096 + 64 * ring,
            "description": 4096 + 64 * n + 576 * ring,
            "meta": 4096 + 640 * n + 8448 * ring,
            "layout": 4096 + 9088 * n + 65536 * ring,
        }[part]

    def publish(self, lie: Callable[[Hostile, int], object]) -> int:
        """Publish a frame that would be right, if `lie` did not change it."""
        grant = self.lease._lease_state.grant
        while True:
            tail = _native.load_u64(self.sequencer, 0)
            number = (tail >> 16) + 1 & 2**48 - 1
            at = self.at(number, "record")
            said = meta({"by": "me"})
            self.own[at : at + 64] = struct.pack(
                "<6QHHIQ", number, grant.block, grant.buffer, 16, 1, 0, 0, 0, len(said), 1000 + number
            )
            at = self.at(number, "description")
            self.own[at : at + 576] = description("uint8", (16,))
            at = self.at(number, "meta")
            self.own[at : at + len(said)] = said
            lie(self, number)
            last = number - 1
            entry = 8192 + 8 * (last % self.slots)
            if last and tail >> 10 & 63 != 63 and _native.load_u64(self.sequencer, entry) >> 6 < last:
                _native.store_u64(self.sequencer, entry, last << 6 | tail >> 10 & 63)
            if _native.compare_exchange_u64(self.sequencer, 0, tail, number << 16 | self.seat << 10 | tail & 1023):
                _native.store_u64(self.sequencer, 8192 + 8 * (number % self.slots), number << 6 | self.seat)
                self.wake()
                return number

    def wake(self) -> None:
        for at in (64, 128):
            seen = _native.load_u64(self.sequencer, at)
            _native.store_u64(self.sequencer, at, (seen | 1) + 1 & 0xFFFFFFFF)
            _native.futex_wake(self.sequencer, at)

    def close(self) -> None:
        self.client.close()
        self.sequencer.close()
        self.own.close()


class Victim:
    """An honest consumer, with a blocking or an asyncio client, and with a lease that must stay as it is."""

    def __init__(self, path: str, channel: str, kind: str, ack: str = "auto") -> None:
        self.runner = asyncio.Runner() if kind == "asyncio" else None
        self.client: Any = (
            poolbridge.connect(path, timeout=60)
            if self.runner is None
            else self.runner.run(poolbridge.connect_async(path, timeout=60))
        )
        self.lease = self.do(lambda: self.client.allocate(5, "int64", pool="q"))
        np.asarray(self.lease)[:] = np.arange(5)
        self.frames = self.do(lambda: self._subscribe(channel, ack))
        self.ack = ack

    def do(self, call: Callable[[], Any]) -> Any:
        """Call a method of the client, and wait for its result if it is a coroutine."""
        if self.runner is None:
            return call()

        async def wait() -> Any:
            result = call()
            return await result if asyncio.iscoroutine(result) else result

        return self.runner.run(wait())

    def _subscribe(self, channel: str, ack: str) -> Any:
        frames = self.client.subscribe(channel, ack=ack)
        return frames if self.runner is None else _entered(frames)

    def take(self, timeout: float) -> tuple[int, dict[str, str]]:
        """Take a frame, read it, settle it, and return its number and its meta."""
        frame = self.do(lambda: self.frames.receive(timeout))
        if timeout:  # else the content may never be complete, and reading would wait for the client's time limit
            assert len(np.asarray(frame).tobytes()) == frame.nbytes
        if self.ack == "manual":
            self.do(frame.ack)
        found = frame.seq, frame.meta
        self.do(frame.release)
        return found

    def check(self) -> None:
        """Check that the session lives, and that its leases and its other pools work."""
        self.do(self.client.stats)
        assert np.asarray(self.lease).tolist() == [0, 1, 2, 3, 4]
        self.do(self.do(lambda: self.client.allocate(3, "uint8", pool="q")).release)

    def close(self) -> None:
        if self.runner is None:
            self.client.close()
        else:
            self.runner.run(self.client.close())
            self.runner.close()


async def _entered(frames: Any) -> Any:
    return await frames.__aenter__()


KINDS = ["blocking", "asyncio"]
EVIL = [0, 1, 2**16, 2**31, 2**32 - 1, 2**48, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def store(part: str, offset: int, value: int) -> Callable[[Hostile, int], None]:
    return lambda member, number: _native.store_u64(member.own, member.at(number, part) + offset, value)


def texts(data: bytes) -> Callable[[Hostile, int], None]:
    def lie(member: Hostile, number: int) -> None:
        at = member.at(number, "meta")
        member.own[at : at + len(data)] = data
        _native.store_u64(member.own, member.at(number, "record") + 48, len(data) << 32)

    return lie


def layout(data: bytes) -> Callable[[Hostile, int], None]:
    """Let a frame have several arrays, which `data` describes."""

    def lie(member: Hostile, number: int) -> None:
        at = member.at(number, "layout")
        member.own[at : at + len(data)] = data
        _native.store_u64(member.own, member.at(number, "description") + 552, len(data))

    return lie


def encoded(*arrays: tuple[str, Tensor]) -> bytes:
    return packet.encode(Layout(arrays=tuple(NamedTensor(name, tensor) for name, tensor in arrays)))


GOOD = "a", Tensor(dtype="uint8", shape=(4,))
LAYOUTS = [  # of 16 bytes
    b"\xff",
    b"\x80",
    encoded(),
    encoded(GOOD)[:-1],
    encoded(GOOD) + b"\0",
    encoded(GOOD, GOOD),
    encoded(("", GOOD[1])),
    encoded(("a\x07", GOOD[1])),
    encoded(("a" * 256, GOOD[1])),
    encoded(("a", Tensor(dtype="uint9", shape=(4,)))),
    encoded(("a", Tensor(dtype="uint8", shape=(17,)))),
    encoded(("a", Tensor(dtype="uint8", shape=(4,), offset=13))),
    encoded(("a", Tensor(dtype="int32", shape=(1,), offset=2))),
    encoded(("a", Tensor(dtype="uint8", shape=(2**62, 2**62)))),
    encoded(("a", Tensor(dtype="uint8", shape=(2,), strides=(2**62,)))),
    encoded(("a", Tensor(dtype="uint8", shape=(2,), strides=(-1,)))),
    encoded(("a", Tensor(dtype="uint8", shape=(1,) * 33))),
    b"\x81\xa2ar\xdd\xff\xff\xff\xff",
    b"\x81\xa2ar\x91\x82\xa2nm\xa1\xff\xa1t\x81\xa2dt\xa5uint8",
]


# A fence that may still be reached is no lie: at 40, leave those out.
RECORDS = [("record", at, value) for at in range(0, 64, 8) for value in EVIL if at != 40 or not 0 < value < 2**62]
DESCRIPTIONS = [("description", offset, value) for offset in (0, 8, 16, 24, 32, 40, 288, 544, 552) for value in EVIL]
WORDS: list[tuple[str, Callable[[Hostile, int], None]]] = [
    *((f"{part} {offset}: {value:#x}", store(part, offset, value)) for part, offset, value in RECORDS + DESCRIPTIONS),
    *((f"layout {number}", layout(data)) for number, data in enumerate(LAYOUTS)),
    ("meta that is not UTF-8", texts(b"\x81\xa1k\xa1\xff")),
    ("a surrogate", texts(b"\x81\xa1k\xa3\xed\xa0\x80")),
    ("a key twice", texts(b"\x82\xa1k\xa1v\xa1k\xa1v")),
    ("a length beyond the end", texts(b"\x81\xa1k\xd9\xc8v")),
    ("too deep", texts(b"\x81\xa1k" + b"\x91" * 8 + b"\xc0")),
    ("an extension", texts(b"\x81\xa1k\xd4\x01\x00")),
    ("a list of 2**32 elements", texts(b"\x81\xa1k\xdd\xff\xff\xff\xff\xc0")),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["broadcast", "queue"])
@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_a_wrong_word_of_a_record_costs_that_frame_and_nothing_else(
    service: RealService, kind: str, mode: Any, ack: str
) -> None:
    name = f"words-{kind}-{mode}-{ack}"
    with poolbridge.connect(service.path, timeout=60) as honest:
        channel = honest.create_channel(name, pool="p", mode=mode, capacity=8)
        victim = Victim(service.path, name, kind, ack)
        hostile = Hostile(service.path, name, "producer")
        for what, lie in WORDS:
            bad = hostile.publish(lie)
            good = publish(honest, channel, 1)
            found: list[int] = []
            failed: list[poolbridge.FrameCorruptError] = []
            while not found or found[-1] < good:
                try:
                    found.append(victim.take(60.0)[0])
                except poolbridge.FrameCorruptError as error:
                    failed.append(error)
                assert len(found) + len(failed) <= 2, f"{what}: a frame comes again: {found}, {failed}"
            assert found == ([good] if failed else [bad, good]), what
        victim.check()
        if mode == "queue":
            victim.do(victim.frames.close)
            assert next(c for c in honest.channels() if c.name == name).waiting == 0
        hostile.close()
        victim.close()


def test_a_frame_that_is_corrupt_is_a_frame_whose_content_has_failed(service: RealService) -> None:
    with poolbridge.connect(service.path, timeout=60) as honest:
        channel = honest.create_channel("loop", pool="p")
        victim = Victim(service.path, "loop", "blocking")
        hostile = Hostile(service.path, "loop", "producer")
        bad = hostile.publish(texts(b"\x81\xa1k\xa1\xff"))
        good = publish(honest, channel, 1)
        arrays = victim.frames.arrays()
        with pytest.raises(poolbridge.ContentFailedError, match=f"frame {bad} of channel 'loop'"):
            next(arrays)
        next(arrays)
        assert arrays.seq == good
        hostile.close()
        victim.close()


def slot(index: int, size: int = 16) -> Callable[[Hostile, int], None]:
    """Let a frame be a slot of an arena: a part of the block, with a description of its own."""

    def lie(member: Hostile, number: int) -> None:
        _native.store_u64(member.own, member.at(number, "record") + 56, 1 << 40 | index)
        _native.store_u64(member.own, member.at(number, "record") + 24, size)
        _native.store_u64(member.own, member.at(number, "description") + 544, 512 * index)

    return lie


@pytest.mark.parametrize("kind", KINDS)
def test_a_slot_that_ends_outside_of_its_block_costs_its_frame_and_no_other_slot(
    service: RealService, kind: str
) -> None:
    name = f"slots-{kind}"
    with poolbridge.connect(service.path, timeout=60) as honest:
        honest.create_channel(name, pool="p", capacity=8)
        victim = Victim(service.path, name, kind)
        hostile = Hostile(service.path, name, "producer")
        size = hostile.client._session.core.blocks[hostile.lease._lease_state.grant.block].size
        last = size // 512 - 1
        for index, bytes_, right in [
            (0, 16, True),
            (last, 512, True),
            (last, 513, False),
            (last + 1, 16, False),
            (last, 512, True),
            (2**54, 512, False),
            (1, 15, False),  # the array has 16 bytes
            (1, 16, True),
        ]:
            number = hostile.publish(slot(index, bytes_))
            if right:
                assert victim.take(60.0)[0] == number
            else:
                with pytest.raises(poolbridge.FrameCorruptError):
                    victim.take(60.0)
        victim.check()
        hostile.close()
        victim.close()


@pytest.mark.parametrize("wrap", [None, lambda lease: np.asarray(lease)[::2]])
def test_slots_of_one_block_are_arrays_of_their_own_that_are_made_once(service: RealService, wrap: Any) -> None:
    name = f"arrays of slots {wrap is None}"
    with poolbridge.connect(service.path, timeout=60) as honest:
        honest.create_channel(name, pool="p", capacity=4)
        hostile = Hostile(service.path, name, "producer")
        memory = hostile.lease._lease_state.memory
        frames = honest.subscribe(name)
        made: dict[int, Any] = {}
        arrays = frames.arrays(wrap)
        for number in range(1, 61):
            index = number % 8
            ctypes.memset(memory.address(write=True) + 512 * index, number, 16)
            hostile.publish(slot(index))
            array = next(arrays)
            assert (array == number).all()
            assert made.setdefault(index, array) is array
        assert len({array.ctypes.data for array in made.values()}) == 8
        hostile.publish(slot(3))
        frame = frames.receive(60)
        assert frame is not None
        assert frame.nbytes == 16
        assert np.asarray(frame).ctypes.data == made[3].ctypes.data
        hostile.close()


HEADS: list[Callable[[Hostile], object]] = [
    lambda member: _native.store_u64(member.own, 0, 0),
    lambda member: _native.store_u64(member.own, 8, 2**64 - 1),
    lambda member: member.own.write(bytes(range(256)) * 32),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ["producer", "consumer"])
@pytest.mark.parametrize("before", HEADS, ids=["the first word", "the second word", "the first pages"])
def test_what_a_member_wrote_before_it_joined_ends_no_session(
    service: RealService, kind: str, role: str, before: Callable[[Hostile], object]
) -> None:
    name = f"joining-{kind}-{role}-{HEADS.index(before)}"
    with poolbridge.connect(service.path, timeout=60) as honest:
        channel = honest.create_channel(name, pool="p", full="drop-oldest")
        publish(honest, channel, 0)
        victim = Victim(service.path, name, kind)
        hostile = Hostile(service.path, name, role, before)
        late = Victim(service.path, name, kind)  # it gets the file of the hostile member when it joins
        for value in range(3):
            number = publish(honest, channel, value)
            for one in (victim, late):
                while one.take(60.0)[0] < number:
                    pass
        if role == "producer":
            number = hostile.publish(nothing)
            for one in (victim, late):
                assert one.take(60.0) == (number, {"by": "me"})
        for one in (victim, late):
            one.check()
            one.close()
        honest.stats()
        hostile.close()


# Words of a timeline with which every fence is reached. The next writer of a block waits for the fences of the block's
# consumers until the process of these consumers ends, and the process of these tests goes on.
REACHED = memoryview(bytearray(struct.pack(f"<{TIMELINE_WORDS}Q", *[MAX_FENCE_VALUE] * TIMELINE_WORDS))).cast("Q")
ALLOWED = (
    poolbridge.ContentFailedError,
    poolbridge.ProtocolError,
    poolbridge.WaitTimeoutError,
    poolbridge.PoolLimitError,
    poolbridge.ClosedError,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["broadcast", "queue"])
@pytest.mark.parametrize("full", ["block", "drop-oldest"])
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_arbitrary_words_end_no_session(service: RealService, kind: str, mode: Any, full: Any, role: str) -> None:
    print("POOLBRIDGE_TEST_SEED =", SEED)
    chance = random.Random(f"{SEED} {kind} {mode} {full} {role}")
    name = f"arbitrary-{kind}-{mode}-{full}-{role}"
    with poolbridge.connect(service.path, timeout=60) as honest:
        channel = honest.create_channel(name, pool="p", mode=mode, full=full, capacity=4)
        victim = Victim(service.path, name, kind, chance.choice(["auto", "manual"]))

        def lie(member: Hostile) -> None:
            memory = chance.choice([member.sequencer, member.own, member.own])
            near = _native.load_u64(member.sequencer, 0) >> 16
            value = chance.choice(
                [
                    *EVIL,
                    near,
                    near + 1,
                    near << 16,
                    near << 6,
                    near << 12 | 2,
                    chance.getrandbits(64),
                    1 << chance.randrange(64),
                ]
            )
            size = chance.choice([64, 512, 16384, len(memory)])
            _native.store_u64(memory, 8 * chance.randrange(min(len(memory), size) // 8), value)
            member.words[chance.randrange(len(member.words))] = value
            member.wake()

        def lies(member: Hostile, count: int) -> None:
            for _ in range(count):
                lie(member)

        def tries(call: Callable[[], object]) -> None:
            try:
                call()
            except ALLOWED:
                pass

        hostile = Hostile(service.path, name, role, lambda member: lies(member, 10))
        for _ in range(LIES):
            lie(hostile)
            if role == "consumer":
                hostile.words[:] = REACHED
            if role == "producer" and chance.random() < 0.3:
                hostile.publish(lambda member, number: lie(member))
            if chance.random() < 0.3:
                tries(lambda: publish(honest, channel, 1, timeout=0))
            tries(lambda: victim.take(0.0))
        hostile.close()
        victim.check()
        honest.stats()
        fresh = honest.create_channel(name + "-after", pool="p", mode=mode)
        second = victim.do(lambda: victim._subscribe(name + "-after", "auto"))
        victim.frames, victim.ack = second, "auto"
        assert publish(honest, fresh, 5) == 1
        assert victim.take(60.0) == (1, {"value": "5"})
        victim.close()

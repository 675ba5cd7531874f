"""Runs producers and consumers for tests, as members of a channel in separate processes."""

from __future__ import annotations

import mmap
import os
import struct
import time
from typing import Final

from streamservice import LATEST, Seat, description, memfd, opened

from poolbridge._native import Condition, Consumer, Frame, Producer

BLOCK: Final = 4096
BLOCKS: Final = 8
"""How many blocks each producer has."""
_LINE: Final = description("uint8", (BLOCK,))
_AGAIN: Final = {Condition.TIMEOUT, Condition.NO_ROOM}


class Board:
    """Memory that the processes of a test share in addition to the channel: blocks, and the progress of the members.

    Parameters
    ----------
    pid, fd
        The process that made the board, and the descriptor of the board's file in that process. By default, make a new
        board.
    """

    SIZE: Final = BLOCK * (BLOCKS * 4 + 1)
    NUMBERS: Final = 1 << 24

    def __init__(self, pid: int = 0, fd: int = -1) -> None:
        self.pid = pid or os.getpid()
        self.fd = opened(pid, fd) if pid else memfd("board", self.SIZE + self.NUMBERS + (1 << 16))
        self.memory = mmap.mmap(self.fd, 0)
        self.acknowledged = memoryview(self.memory)[self.SIZE : self.SIZE + self.NUMBERS]
        """For each frame number: how often consumers have released the frame, plus 64 if a consumer has requeued it."""
        self.ready = memoryview(self.memory)[self.SIZE + self.NUMBERS :]
        """For each member id: 1 after the member has mapped its files, 2 after the member has joined."""
        self.files = self.ready[1024:].cast("q")
        """The files' descriptors in the process that made the board: first consumers' cursors, then tracks."""

    def __reduce__(self) -> tuple[type[Board], tuple[int, int]]:
        return Board, (self.pid, self.fd)

    def file(self, seat: int, *, producer: bool) -> int:
        return opened(self.pid, self.files[64 * producer + seat])

    def enter(self, member: int) -> None:
        self.ready[member] = 1
        while self.ready[member] != 2:
            time.sleep(0.001)

    def close(self) -> None:
        for view in (self.files, self.ready, self.acknowledged):
            view.release()
        self.memory.close()
        os.close(self.fd)


def content(buffer: int) -> bytes:
    return struct.pack("<Q", buffer) * (BLOCK // 8)


def _meet(member: Producer | Consumer, board: Board) -> None:
    seat, identity = member.unknown
    fd = board.file(seat, producer=isinstance(member, Consumer))
    if isinstance(member, Producer):
        member.add_cursor(seat, identity, fd)
    else:
        member.add_track(seat, identity, fd)
    os.close(fd)


def produce(seat: Seat, board: Board, frames: int) -> None:
    """Publish `frames` frames, or publish without end if `frames` is 0."""
    files = seat.opened()
    producer = Producer(files.roster, files.sequencer, files.file, seat.seat, seat.member)
    memory = board.memory
    board.enter(seat.member)
    unused = [BLOCKS * seat.seat + i for i in range(1, BLOCKS + 1)]
    count = 0
    sent: dict[int, int] = {}  # the block of each buffer that has not come back
    while not frames or count < frames:
        while not unused:
            buffers = producer.reclaim(10.0, 0.0001)
            if isinstance(buffers, list):
                unused += [sent.pop(buffer) for buffer, _ in buffers]
            else:
                assert buffers is Condition.UNKNOWN_MEMBER, buffers
                _meet(producer, board)
        block = unused.pop()
        count += 1
        buffer = seat.member << 32 | count
        sent[buffer] = block
        memory[BLOCK * block : BLOCK * (block + 1)] = content(buffer)
        while not isinstance(number := producer.publish(block, buffer, BLOCK, 1, _LINE, b"", 0, 0, None, 0.05), int):
            if number is Condition.UNKNOWN_MEMBER:
                _meet(producer, board)
            else:
                assert number in _AGAIN, number


def consume(seat: Seat, board: Board, policy: int | None) -> None:
    """Take and check frames until the channel ends. If `policy` is None, the channel is a queue."""
    files = seat.opened()
    consumer = Consumer(files.roster, files.sequencer, files.file, seat.seat, seat.member)
    memory = board.memory
    board.enter(seat.member)
    first = consumer.begin()
    assert isinstance(first, int), first
    before = first - 1
    counts: dict[int, int] = {}
    hand: list[Frame] = []
    while (frame := consumer.take(0.0 if hand else 10.0, 0.0001)) is not Condition.END:
        if isinstance(frame, Frame):
            assert policy is None or frame.number == before + 1 + frame.missed, (before, frame, frame.missed)
            assert policy is None or policy > 1 or not frame.missed
            member, count = frame.buffer >> 32, frame.buffer & 0xFFFFFFFF
            assert member == frame.producer
            assert policy is None or count > counts.get(member, 0)
            counts[member] = count
            before = frame.number
            hand.append(frame)
        elif frame is Condition.UNKNOWN_MEMBER:
            _meet(consumer, board)
        else:
            assert frame is Condition.TIMEOUT, frame
        while len(hand) > (not policy and isinstance(frame, Frame)):
            done = hand.pop(0)
            found = memory[BLOCK * done.block : BLOCK * (done.block + 1)]
            assert found == content(done.buffer), (done, found[:16], done.buffer)
            noted = done.number % board.NUMBERS
            if policy is None and not done.number % 7 and not board.acknowledged[noted]:
                assert consumer.requeue(done.number)
                board.acknowledged[noted] = 64
            else:
                if policy is None:
                    board.acknowledged[noted] = board.acknowledged[noted] + 1 & 127
                assert consumer.release(done.number)
        if policy == LATEST:
            time.sleep(0.0005)

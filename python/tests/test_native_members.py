"""Tests members of a channel in separate processes that may die at any moment; see also ``test_native_frames``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip(
    "poolbridge._native", reason="poolbridge is installed without its native module", exc_type=ImportError
)

import streamservice as service
from streammembers import Board, consume, produce
from streamservice import DROP_OLDEST, FAIL, LATEST, Channel

# The fork server starts each member. The server has imported `streammembers`, and has mapped no memory of the test.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["streammembers"])


class Crowd:
    """A channel, and the processes of its members."""

    def __init__(self, *, queue: bool, policy: int) -> None:
        self.channel = Channel(queue=queue, capacity=4, policy=policy)
        self.board = Board()
        self.processes: dict[tuple[bool, int], Any] = {}
        self.last = 0

    def start(self, entry: Callable[..., None], slot: int, argument: int | None, *, oldest: bool = False) -> None:
        producer = entry is produce
        policy = argument if not producer and argument is not None else service.BLOCK
        seat = self.channel.prepare(slot, producer=producer, policy=policy)
        self.board.files[64 * producer + slot] = seat.file
        process = CONTEXT.Process(target=entry, args=(seat, self.board, argument), daemon=True)
        process.start()
        self.processes[producer, slot] = process
        while not self.board.ready[seat.member]:
            assert process.is_alive() or process.exitcode == 0
            time.sleep(0.001)
        self.channel.seal(slot, producer=producer)
        self.channel.join(slot, producer=producer, oldest=oldest)
        self.board.ready[seat.member] = 2

    def kill(self, slot: int, *, producer: bool) -> None:
        process = self.processes.pop((producer, slot))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        process.close()
        self.channel.part(slot, producer=producer)
        if not producer:
            self.channel.give_claims_back(slot)
            self.channel.part(slot, producer=False, state=service.FREE)

    def move_on(self, frames: int) -> None:
        """Wait until the producers have published `frames` more frames."""
        end = self.channel.tail + frames
        while self.channel.tail < end:
            time.sleep(0.001)

    def finish(self) -> None:
        for producers in (True, False):
            for (producer, _), process in self.processes.items():
                if producer == producers:
                    process.join(120)
                    assert process.exitcode == 0
                    process.close()
            if producers:
                self.channel.close()
        self.last = self.channel.tail
        assert self.last < Board.NUMBERS
        self.channel.unmap()


@pytest.fixture(scope="module", autouse=True)
def server() -> None:
    """Start the fork server, which forks all members and runs until the tests end."""
    process = CONTEXT.Process(target=os.getpid)
    process.start()
    process.join()
    process.close()


@pytest.mark.parametrize(
    ("queue", "policies"),
    [
        (False, (service.BLOCK, FAIL, DROP_OLDEST, LATEST)),
        (True, (service.BLOCK,)),
        (True, (FAIL,)),
        (True, (DROP_OLDEST,)),
        (True, (LATEST,)),
    ],
)
def test_members_die_and_others_come_and_no_frame_is_lost_doubled_or_torn(
    queue: bool, policies: tuple[int, ...]
) -> None:
    crowd = Crowd(queue=queue, policy=policies[0])
    consumers: list[int | None] = [None, None] if queue else [*policies]
    for slot, policy in enumerate(consumers):
        crowd.start(consume, slot, policy)
    crowd.start(produce, 0, 0)
    crowd.start(produce, 1, 200)
    crowd.move_on(100)
    crowd.kill(0, producer=False)
    crowd.move_on(50)
    crowd.start(consume, 0, consumers[0], oldest=True)
    crowd.move_on(50)
    crowd.kill(0, producer=True)
    crowd.start(produce, 2, 200)
    crowd.move_on(50)
    crowd.kill(1, producer=False)
    crowd.finish()
    if queue and policies[0] in {service.BLOCK, FAIL}:
        counts = [count % 64 for count in crowd.board.acknowledged[: crowd.last + 1]]
        # Two consumers count the same frame if the first one dies after it has counted the frame and before it has
        # acknowledged the frame.
        assert sum(count > 1 for count in counts) <= 2
        assert sum(count > 0 for count in counts) > 400
    crowd.board.close()

"""Ways to hand arrays from one Python process to another that users have without poolbridge.

A link has two ends. It is made by the producer and goes to the consumer, which is spawned, when that process starts;
each end then opens what it needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from multiprocessing.context import SpawnContext
from typing import Any, ClassVar

import numpy as np

HEAD = np.dtype("<u8")
"""The first bytes of an array on the CPU hold its number, which the consumer checks."""


class Link(ABC):
    """One way of handing arrays over.

    Parameters
    ----------
    context
        Starts processes and makes queues.
    nbytes
        Bytes of an array.
    depth
        How many arrays may be under way.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    copies: ClassVar[bool] = True
    """Whether the bytes themselves travel."""

    def __init__(self, context: SpawnContext, nbytes: int, depth: int) -> None:
        del context
        self.nbytes = nbytes
        self.depth = depth

    @classmethod
    def missing(cls) -> str:
        """Say what is missing to use it here; empty if nothing is."""
        return ""

    # The producer's end

    @abstractmethod
    def open_to_send(self) -> None:
        """Make what sending needs, the data itself included. Called once, before the consumer is started."""

    @abstractmethod
    def send(self, number: int) -> None:
        """Hand over a new array whose number is `number`."""

    @abstractmethod
    def finish(self) -> None:
        """Say that no more will come."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Called once, when the consumer has ended."""

    # The consumer's end

    def open_to_receive(self) -> None:  # noqa: B027 - most need nothing
        """Make what receiving needs."""

    @abstractmethod
    def receive(self) -> tuple[int, Any] | None:
        """Wait for an array; give its number and itself, or None at the end."""

    def received(self) -> None:  # noqa: B027 - most keep nothing
        """Give back what the last array took: nobody looks at it any more. Not a part of a transfer."""

    def leave(self) -> None:  # noqa: B027 - most keep nothing
        """Give back what receiving took."""


class InTurn(Link):
    """A link whose memory is made once and used in turn, which is what all documentations recommend."""

    def __init__(self, context: SpawnContext, nbytes: int, depth: int) -> None:
        super().__init__(context, nbytes, depth)
        # One more than are under way: the consumer looks at one while the queue is full.
        self.places = depth + 1
        self._spare = context.Semaphore(self.places)

    def free_place(self, number: int) -> int:
        """Wait until the place of an array is free, and give its index."""
        self._spare.acquire()
        return number % self.places

    def received(self) -> None:
        """Let the producer have the place."""
        self._spare.release()


def number_of(array: Any) -> int:
    """Read the number of an array on the CPU out of its first bytes."""
    return int(array[: HEAD.itemsize].view(HEAD)[0])


def numbered(nbytes: int) -> np.ndarray[Any, Any]:
    """Make the producer's data: an array on the CPU, in which every page is there."""
    return np.ones(max(nbytes, HEAD.itemsize), np.uint8)

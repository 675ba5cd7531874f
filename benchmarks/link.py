"""Defines links. A link is a way to send arrays from one Python process to another without poolbridge.

A link has two ends. The producer makes the link and passes it to the consumer, a spawned process, when that process
starts. Each end then opens the resources that it needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from multiprocessing.context import SpawnContext
from typing import Any, ClassVar

import numpy as np

from poolbridge._bench.arrays import HEAD


class Link(ABC):
    """One way of sending arrays to another process.

    Parameters
    ----------
    context
        The multiprocessing context, which starts processes and makes queues.
    nbytes
        Bytes of an array.
    depth
        The greatest number of arrays that may be under way.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    copies: ClassVar[bool] = True
    """Whether the link copies the bytes of each array that it sends."""

    def __init__(self, context: SpawnContext, nbytes: int, depth: int) -> None:
        del context
        self.nbytes = nbytes
        self.depth = depth

    @classmethod
    def missing(cls) -> str:
        """Return what this machine lacks to use the link; empty if nothing is missing."""
        return ""

    # The producer's end

    @abstractmethod
    def open_to_send(self) -> None:
        """Make the data and resources of the producer's end. The caller starts the consumer after this call."""

    @abstractmethod
    def send(self, number: int) -> None:
        """Send a new array with the number `number`."""

    @abstractmethod
    def finish(self) -> None:
        """Tell the consumer that no more arrays will come."""

    @abstractmethod
    def close(self) -> None:
        """Free all resources of the link. The producer calls this method once, when the consumer has ended."""

    # The consumer's end

    def open_to_receive(self) -> None:  # noqa: B027 - most need nothing
        """Make the resources of the consumer's end."""

    @abstractmethod
    def receive(self) -> tuple[int, Any] | None:
        """Wait for an array; return its number and the array. After the last array, return None."""

    def received(self) -> None:  # noqa: B027 - most keep nothing
        """Free the resources of the last array, after its use. The time of a transfer does not include this call."""

    def leave(self) -> None:  # noqa: B027 - most keep nothing
        """Free the resources of the consumer's end."""


class InTurn(Link):
    """A link that makes places for arrays once, and then reuses them, as the documentation of its system recommends."""

    def __init__(self, context: SpawnContext, nbytes: int, depth: int) -> None:
        super().__init__(context, nbytes, depth)
        # One place more than `depth`: while `depth` arrays are in the queue, the consumer uses one more array.
        self.places = depth + 1
        self._spare = context.Semaphore(self.places)

    def free_place(self, number: int) -> int:
        """Wait until the place for the array `number` is free, and return the place's index."""
        self._spare.acquire()
        return number % self.places

    def received(self) -> None:
        """Free the place for the producer."""
        self._spare.release()


def numbered(nbytes: int) -> np.ndarray[Any, Any]:
    """Make an array on the CPU for the producer, and fill it, so that the kernel allocates its pages now."""
    return np.ones(max(nbytes, HEAD.itemsize), np.uint8)

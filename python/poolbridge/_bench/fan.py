"""Ways to give each frame of one Python process to several others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from poolbridge._bench.link import HEAD


class Fan(ABC):
    """One way. It is made by the producer, and goes to each consumer when that process starts.

    Parameters
    ----------
    nbytes
        Bytes of a frame.
    depth
        How many frames may be under way.
    consumers
        How many consumers there are.
    name
        A name that nothing else uses on this machine.
    spin
        A consumer that waits does not sleep.
    """

    name: ClassVar[str]

    def __init__(self, nbytes: int, depth: int, consumers: int, name: str, *, spin: bool) -> None:
        self.nbytes = nbytes
        self.depth = depth
        self.consumers = consumers
        self.channel = name
        self.spin = spin

    @classmethod
    def missing(cls) -> str:
        """Say what is missing to use it here; empty if nothing is."""
        return ""

    # The producer's end

    @abstractmethod
    def open_to_send(self) -> Callable[[int], None]:
        """Open the producer's end. Give what sends a frame with a number in its first bytes."""

    def service(self) -> int | None:
        """Give the process that takes part besides the producer and the consumers; None: there is none."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Called once, when the consumers have ended."""

    # A consumer's end

    @abstractmethod
    def open_to_receive(self) -> Iterator[np.ndarray[Any, Any]]:
        """Open a consumer's end. Give the arrays of the frames; each is used only until the next is asked for."""

    @abstractmethod
    def leave(self) -> None:
        """Give back what receiving took."""


def put_number(array: np.ndarray[Any, Any], number: int) -> None:
    """Write a frame's number into its first bytes."""
    array[: HEAD.itemsize].view(HEAD)[0] = number

"""Defines fans. A fan is a way to send frames from one Python process to several other processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from poolbridge._cuda import cuda as _cuda
from poolbridge._sys.literals import Kind
from poolbridge.errors import UnavailableError

Waiting: TypeAlias = Literal["python", "spinning"]
"""How a consumer waits: in the default way of its system, or only by polling."""


class Fan(ABC):
    """One way of sending frames. The producer makes the fan, and then starts each consumer process with the fan.

    Parameters
    ----------
    nbytes
        Bytes of a frame.
    depth
        The greatest number of frames that may be under way.
    consumers
        The number of consumers.
    name
        The name of the channel or service that carries the frames. The name is unique on this machine.
    waiting
        How a consumer waits for the next frame.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind] = "host"
    form: ClassVar[str] = ""
    """What differs from other fans of the system, in the name of the workload."""
    shared: ClassVar[bool] = False
    """Whether each frame goes to only one of the consumers, and not to all consumers."""

    def __init__(self, nbytes: int, depth: int, consumers: int, name: str, *, waiting: Waiting) -> None:
        self.nbytes = nbytes
        self.depth = depth
        self.consumers = consumers
        self.channel = name
        self.waiting = waiting

    @classmethod
    def missing(cls) -> str:
        """Return what this machine lacks to use the fan; empty if nothing is missing."""
        return ""

    # The producer's end

    @abstractmethod
    def open_to_send(self) -> Callable[[int], None]:
        """Open the producer's end. Return a function that takes a number and sends a frame that holds this number."""

    def service(self) -> int | None:
        """Return the id of the service's process; None if the system has no service."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Free all resources of the fan. The producer calls this method once, when the consumers have ended."""

    # A consumer's end

    @abstractmethod
    def open_to_receive(self) -> Iterator[np.ndarray[Any, Any]]:
        """Open a consumer's end. Return an iterator of arrays. Use each array only before the iterator's next step."""

    @abstractmethod
    def leave(self) -> None:
        """Free the resources of the consumer's end."""


def missing_gpu() -> str:
    """Return why this process can use no GPU; empty if this process can use a GPU."""
    try:
        return "" if _cuda.devices() else "this process sees no GPU"
    except UnavailableError as error:
        return str(error)

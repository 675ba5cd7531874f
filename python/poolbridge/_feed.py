"""What a subscription has been sent and nobody has taken yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from poolbridge import _errors

if TYPE_CHECKING:
    from poolbridge._channel_messages import End, Frame
    from poolbridge._errors import PoolbridgeError
    from poolbridge._sharedconsumer import SharedConsumer


_MOST_TOGETHER = 16


class Feed:
    """The frames of one subscription, in order. The session's lock guards it.

    Attributes
    ----------
    id
        The subscription's id.
    frames
        What came and was not taken.
    few
        How many frames are released together, where they follow each other closely.
    auto
        Whether asking for the next frame acknowledges those before it.
    open
        The leases, in order, whose frames are neither acknowledged nor given back, with the frames' numbers.
    taken
        Number of the frame that was taken last.
    lag
        How far the frames of a broadcast that are not acknowledged may reach back, this one included.
    queue
        Whether each frame goes to one subscriber only.
    ended
        Whether no frame will come any more; `error` says why, if the channel was not shut.
    closed
        Whether nobody wants frames any more: those that come are given back.
    on_done
        Called when there is something to take, if anybody waits.
    shared
        The consumer whose frames come through shared memory; None: the service sends them.
    """

    __slots__ = (
        "auto", "closed", "ended", "error", "few", "frames", "id", "lag", "on_done", "open", "queue", "shared", "taken",
    )  # fmt: skip

    def __init__(self, id_: int) -> None:
        self.id = id_
        self.frames: deque[Frame] = deque()
        self.few = 0
        self.auto = True
        self.open: dict[int, int] = {}
        self.taken = 0
        self.lag = 1
        self.queue = False
        self.ended = False
        self.closed = False
        self.error: PoolbridgeError | None = None
        self.on_done: Callable[[], object] | None = None
        self.shared: SharedConsumer | None = None

    @property
    def done(self) -> bool:
        """Whether there is something to take: a frame, or the end."""
        return bool(self.frames) or self.ended

    def put(self, frame: Frame) -> None:
        """Add what came."""
        self.frames.append(frame)
        on_done = self.on_done  # once: the waiter may give up at any moment
        if on_done is not None:
            on_done()

    def end(self, notice: End) -> None:
        """Note that no frame will come any more."""
        from msgspec import UnsetType

        error = notice.e
        self.lose(None if isinstance(error, UnsetType) else _errors.from_wire(error.c, error.m))

    def lose(self, error: PoolbridgeError | None) -> None:
        """Note that no frame will come any more, and why."""
        if not self.ended:
            self.ended = True
            self.error = error
        on_done = self.on_done  # once: the waiter may give up at any moment
        if on_done is not None:
            on_done()

    def start(self, credit: int, capacity: int, *, queue: bool, auto: bool) -> None:
        """Say what was asked for; frames may have come already."""
        self.queue = queue
        self.auto = auto
        # The sender must not lack what is held back here.
        self.few = min(credit // 8, _MOST_TOGETHER)
        # Most arrays are gone by then, and their frames acknowledged by the release.
        self.lag = max(min(credit, capacity) // 2, 1)

    @property
    def holds_up(self) -> bool:
        """Whether what was taken before has to be acknowledged now that the next frame is asked for.

        In a queue it has: this process may end. In a broadcast it has once a producer, or the credit, could lack it.
        """
        for first in self.open.values():
            return self.queue or (not self.frames and self.taken - first >= self.lag - 1)
        return False

    def back(self, lease: int) -> bool:
        """Whether the frame of a lease that ends by itself goes back to its queue."""
        return self.queue and lease in self.open

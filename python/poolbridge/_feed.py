"""What a subscription has been sent and nobody has taken yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from poolbridge import _errors
from poolbridge._channel_messages import Credit

if TYPE_CHECKING:
    from poolbridge._channel_messages import End, Frame
    from poolbridge._errors import PoolbridgeError


_MOST_TOGETHER = 16


class Feed:
    """The frames of one subscription, in order. The session's lock guards it.

    Attributes
    ----------
    id
        The subscription's id.
    frames
        What came and was not taken.
    left
        How many frames more the service may send.
    few
        How many frames are released together, where they follow each other closely.
    owed, batch
        How much credit was used and not given back, and how much is given back at a time.
    queue
        Whether each frame goes to one subscriber only.
    ended
        Whether no frame will come any more; `error` says why, if the channel was not shut.
    closed
        Whether nobody wants frames any more: those that come are given back.
    on_done
        Called when there is something to take, if anybody waits.
    """

    __slots__ = ("batch", "closed", "ended", "error", "few", "frames", "id", "left", "on_done", "owed", "queue")

    def __init__(self, id_: int) -> None:
        self.id = id_
        self.frames: deque[Frame] = deque()
        self.batch = 1
        self.few = 0
        self.left = 0
        self.owed = 0
        self.queue = False
        self.ended = False
        self.closed = False
        self.error: PoolbridgeError | None = None
        self.on_done: Callable[[], object] | None = None

    @property
    def done(self) -> bool:
        """Whether there is something to take: a frame, or the end."""
        return bool(self.frames) or self.ended

    def put(self, frame: Frame) -> None:
        """Add what came."""
        self.left -= 1
        self.frames.append(frame)
        on_done = self.on_done  # once: whoever waits may give up at any moment
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
        on_done = self.on_done  # once: whoever waits may give up at any moment
        if on_done is not None:
            on_done()

    @property
    def starving(self) -> bool:
        """Whether the service can send nothing before it is given credit that is owed."""
        return bool(self.owed) and self.left <= 0

    def start(self, credit: int, *, queue: bool) -> None:
        """Say what was asked for; frames may have come already."""
        self.queue = queue
        self.left += credit
        # Small packets cost as much as large ones: half of the credit goes back at a time.
        self.batch = max(credit // 2, 1)
        # Whoever sends must not lack what is held back here.
        self.few = min(credit // 8, _MOST_TOGETHER)

    def pay(self, count: int, *, now: bool = False) -> Credit | None:
        """Owe so much more; give all that is owed if it is worth a packet, none is left, or it has to be `now`."""
        self.owed += count
        if self.ended or self.closed or not self.owed or (self.owed < self.batch and self.left > 0 and not now):
            return None
        count, self.owed = self.owed, 0
        self.left += count
        return Credit(sb=self.id, n=count)

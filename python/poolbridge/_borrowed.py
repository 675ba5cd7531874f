"""Arrays that are made once for each block and used again for every frame in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from poolbridge import _dlpack, _order
from poolbridge._errors import InvalidArgumentError
from poolbridge._lease import Lease

if TYPE_CHECKING:
    from poolbridge._channel_messages import Frame as Notice
    from poolbridge._hold import Hold
    from poolbridge._messages import Grant
    from poolbridge._subscription import Subscription

# A block that serves ever other shapes does not keep an array for each.
_MOST_KEPT = 8


class BorrowedArrays(Iterator[Any]):
    """Yields a channel's frames as arrays, each good until the next is asked for. Made by `Subscription.arrays`.

    Attributes
    ----------
    seq, time_ns, meta, dropped
        Of the frame whose array was yielded last; see `Frame`.
    """

    def __init__(self, subscription: Subscription, wrap: Callable[[Any], Any] | None, stream: Any) -> None:
        self._subscription = subscription
        self._session = subscription._intake.session  # noqa: SLF001 - of one family
        self._feed = subscription._feed  # noqa: SLF001
        self._wrap = np.asarray if wrap is None else wrap
        self._stream = stream
        self._notice: Notice | None = None
        self._hold: Hold | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self.release()
        subscription = self._subscription
        notice = subscription._next(None)  # noqa: SLF001
        grant: Any = notice.l
        block = self._session.core.blocks.get(grant.bl)
        array = None
        if block is not None:
            for tensor, wrap, kept in block.arrays:
                if wrap is self._wrap and tensor == grant.t:
                    array = kept
                    break
        if array is None or grant.wt or grant.eo or self._stream is not None or self._session.lost:
            array = self._prepare(grant, array)
        self._notice = notice
        return array

    def _prepare(self, grant: Grant, array: Any) -> Any:
        """Put the use of a frame's memory into order, and make its array if there is none."""
        hold = self._subscription._claim(grant)  # noqa: SLF001
        if hold.memory.pool.device[0] == _dlpack.CPU:
            _order.before_cpu(hold)
        elif self._stream is None:
            raise InvalidArgumentError(f"arrays of {hold.memory.pool.device_name} need the stream= that uses them")
        else:
            _order.name_stream(hold, self._stream)
        if array is None:
            array = self._make(hold)
        self._hold = hold
        return array

    def _make(self, hold: Hold) -> Any:
        twin = hold.lender()
        try:
            array = self._wrap(Lease(self._subscription._client, twin))  # noqa: SLF001
        except BaseException:
            twin.released = True
            raise
        self._session.lend(twin, (hold.grant.t, self._wrap, array), _MOST_KEPT)
        return array

    def release(self) -> None:
        """Let go of the frame whose array was yielded last. Idempotent."""
        notice, self._notice = self._notice, None
        if notice is None:
            return
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.end()
        else:
            self._session.release_frame(notice, self._feed)

    @property
    def _current(self) -> Notice:
        if self._notice is None:
            raise InvalidArgumentError("there is no frame: none was asked for yet, or it was let go of")
        return self._notice

    @property
    def seq(self) -> int:
        """The frame's number in its channel, counted from 1."""
        return self._current.sq

    @property
    def time_ns(self) -> int:
        """When it was sent, in nanoseconds since 1970."""
        return self._current.ts

    @property
    def meta(self) -> dict[str, str]:
        """What the sender said about it."""
        return self._current.mt

    @property
    def dropped(self) -> int:
        """How many frames this subscriber has missed since the last one that it got."""
        return self._current.dr

    def __del__(self) -> None:
        self.release()

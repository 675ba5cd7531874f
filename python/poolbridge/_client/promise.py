"""Defines promises: with a promise, the CPU completes the content of a buffer after the buffer was published."""

from __future__ import annotations

import warnings
from threading import RLock
from typing import TYPE_CHECKING

from poolbridge._sys import process as _process
from poolbridge._sys.error_texts import from_signal, shown
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.uncopied import Uncopied
from poolbridge.errors import ClosedError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from poolbridge._order.timeline import Timeline
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._wire.messages import Fence


class Promise(Uncopied):
    """A promise to complete the content of a buffer after the buffer was published. `Lease.promise` returns it.

    Readers of the buffer wait until the promise is completed: streams of a GPU wait by themselves, and a thread that
    waits on the CPU has a time limit. If the program cannot complete the content, it calls `fail` with the reason, and
    readers get `ContentFailedError`. If this process ends before it has completed or failed the promise, readers get
    `ProducerDiedError`.

    The end of a ``with`` block completes the promise. If an exception leaves the block, the exception fails the
    promise.
    """

    def __init__(self, state: LeaseState, timeline: Timeline) -> None:
        self._fence: Fence = timeline.promise()
        self._timeline = timeline
        self._lease_state: LeaseState | None = state
        self._failed = False
        # A thread holds this lock while it completes or fails the promise. The lock is an RLock, because a signal
        # handler may interrupt this thread at that time, and may also complete or fail the promise.
        self._deciding = RLock()
        state.promise = self._fence

    @property
    def completed(self) -> bool:
        """Whether the promise was completed."""
        return self._lease_state is None and not self._failed

    @property
    def failed(self) -> bool:
        """Whether the promise has failed."""
        return self._failed

    def complete(self) -> None:
        """Say that the content is complete. Readers that wait for the content continue. Idempotent.

        If the buffer was published, NumPy arrays that were made to write the buffer become read-only.

        Raises
        ------
        InvalidArgumentError
            The promise has failed.
        ClosedError
            The client was closed, or its connection was lost, before the promise was completed or failed. The content
            has failed.
        """
        self._decide(self._complete)
        if self._failed:
            raise InvalidArgumentError(
                "the promise has failed and cannot be completed any more: publish the content in another buffer"
            )

    def _decide(self, decision: Callable[[LeaseState], None]) -> None:
        """Call `decision`, which completes or fails the promise, unless the promise is completed or failed already."""
        state = self._lease_state
        if state is None:
            return
        state.session.check_usable()
        with self._deciding:
            if self._lease_state is None:
                return
            try:
                decision(state)
            except ValueError:
                state.session.check_usable()  # another thread has just closed the client and unmapped the timeline
                raise

    def _complete(self, state: LeaseState) -> None:
        published = not state.write or state.sent
        state.promise = None
        if published:
            state.seal()
        if not self._timeline.page.store(self._fence.word, self._fence.value):
            state.session.check_usable()  # another thread has just closed the client
        if not self._failed:
            self._lease_state = None
        elif not published:  # a signal handler has failed the promise
            state.promise = self._fence

    def fail(self, error: BaseException | str) -> None:
        """Say that the content will never be complete, and why. Idempotent: a second call does not change the error.

        Readers get `ContentFailedError` with the text of `error`. A reader that waits on the CPU gets the error at
        once. If a stream of a reader waits, the stream continues without an error, and the reader gets the error from
        `BaseLease.check`. If the program publishes the buffer after `fail`, the buffer's readers also get the error.

        Parameters
        ----------
        error
            The exception that prevented the program from completing the content, or a text that says why. Readers get
            one line of the text, at most 256 bytes of UTF-8. If the exception's ``__str__`` raises an error, readers
            get the name of the exception's type.

        Raises
        ------
        InvalidArgumentError
            The promise is already completed, or `error` is neither an exception nor a text.
        ClosedError
            The client was closed, or its connection was lost, before the promise was completed or failed. The content
            has failed.
        """
        if isinstance(error, BaseException):
            reason = _text_of(error)
        elif isinstance(error, str):
            reason = error
        else:
            raise InvalidArgumentError(f"error must be an exception or a text, not {shown(error)}")
        self._decide(lambda state: self._fail(state, reason))
        if not self._failed:
            raise InvalidArgumentError("the promise is completed: its content cannot fail any more")

    def _fail(self, state: LeaseState, reason: str) -> None:
        if not self._timeline.fail(self._fence, reason, state.grant.buffer, state.grant.generation):
            state.session.check_usable()  # another thread has just closed the client
            return  # a signal handler has completed or failed the promise
        self._failed, self._lease_state = True, None
        if not state.write or state.sent:
            state.promise = None
            state.seal()
        # If the buffer was not published yet, the lease keeps the fence of the promise. If the program publishes the
        # buffer later, the client sends this fence with the buffer.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lease_state is None:
            return
        if error is None:
            self.complete()
        else:
            self.fail(error)

    def __repr__(self) -> str:
        what = "failed" if self._failed else "completed" if self.completed else "not completed yet"
        return f"<poolbridge.Promise {what}>"

    @while_running
    def __del__(self) -> None:
        state = getattr(self, "_lease_state", None)
        if state is None or state.session.closed:
            return
        if _process.pid != state.session.pid:  # this process is a forked child: the promise belongs to the parent
            return
        try:
            self._fail(state, "the promise was dropped before it was completed")
        except (ValueError, ClosedError):
            return  # another thread has just closed the client, which has failed the promise
        warnings.warn(
            f"the promise of buffer {state.grant.buffer} was dropped before it was completed: its content has failed",
            ResourceWarning,
            stacklevel=1,
        )


def _text_of(error: BaseException) -> str:
    kind = type(error).__name__
    try:
        return f"{kind}: {text}" if (text := str(error)) else kind
    except Exception as other:
        if from_signal(other):
            raise
        return kind

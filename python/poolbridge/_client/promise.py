"""Promises: content that a buffer is given after it was published, by work that no stream does."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poolbridge._order.timeline import Timeline
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._wire.messages import Fence


class Promise:
    """The word of this process that it will complete the content of a buffer, after it has published it.

    A reader of the buffer waits until the promise is completed: a stream of a GPU by itself, the CPU for as long as its
    time limit says. If this process ends before, the content has failed. Made by ``lease.promise()``.
    """

    def __init__(self, state: LeaseState, timeline: Timeline) -> None:
        self._fence: Fence = timeline.promise()
        self._timeline = timeline
        self._lease_state: LeaseState | None = state
        state.promise = self._fence

    @property
    def completed(self) -> bool:
        """Whether it was completed."""
        return self._lease_state is None

    def complete(self) -> None:
        """Say that the content is complete; readers that wait for it go on. Idempotent.

        NumPy arrays that were made to write the buffer become read-only.

        Raises
        ------
        ClientClosedError
            The client was closed before: the content has failed when this process ends.
        """
        state = self._lease_state
        if state is None:
            return
        state.session.check_usable()
        state.promise = None
        if not state.write or state.sent:
            state.seal()
        self._timeline.page.store(self._fence.wd, self._fence.v)
        self._lease_state = None

    def __repr__(self) -> str:
        return f"<poolbridge.Promise {'completed' if self.completed else 'not completed yet'}>"

    def __del__(self) -> None:
        state = getattr(self, "_lease_state", None)
        if state is None or sys.is_finalizing() or state.session.ended is not None:
            return
        warnings.warn(
            f"the promise of buffer {state.grant.bf} was dropped before it was completed: a reader of the buffer "
            "waits for it until this process ends",
            ResourceWarning,
            stacklevel=1,
        )

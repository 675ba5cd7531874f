"""Promises: the CPU completes the content of a buffer after the buffer was published."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poolbridge._order.timeline import Timeline
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._wire.messages import Fence


class Promise:
    """A promise to complete the content of a buffer after it was published. `Lease.promise` makes it.

    Readers of the buffer wait until the promise is completed: streams of a GPU wait by themselves, the CPU waits up to
    its time limit. If this process ends before, the content has failed, and readers get `ProducerDiedError`.
    """

    def __init__(self, state: LeaseState, timeline: Timeline) -> None:
        self._fence: Fence = timeline.promise()
        self._timeline = timeline
        self._lease_state: LeaseState | None = state
        state.promise = self._fence

    @property
    def completed(self) -> bool:
        """Whether the promise was completed."""
        return self._lease_state is None

    def complete(self) -> None:
        """Say that the content is complete. Readers that wait for it go on. Idempotent.

        If the buffer was published, NumPy arrays that were made to write it become read-only.

        Raises
        ------
        ClosedError
            The client was closed or its connection was lost before. The content fails when this process ends.
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

"""Keeps the timelines of a session: its own timeline, and the timelines of the fences that the session received."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolbridge._cuda import stream as _cuda_stream
from poolbridge._order.page import PAGES, Page
from poolbridge._order.timeline import StreamKey, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolbridge._wire.messages import Fence

FEATURE = "timelines"


class Timelines:
    """The timelines of one session.

    Attributes
    ----------
    own
        The session's own timeline; None until the service has sent this timeline, and after `close`.
    closed
        What `own` was before `close`. When its page is unmapped, the GPU has done its work, and all fences are reached.
    pages
        The pages by timeline id; the value is None for a timeline that the service has forgotten.
    """

    def __init__(self) -> None:
        self.own: Timeline | None = None
        self.closed: Timeline | None = None
        self._epoch = b""
        self.pages: dict[int, Page | None] = {}
        self._forgotten: set[int] = set()
        self._waits: dict[int, dict[int, int]] = {}
        self._pins: dict[int, int] = {}  # by timeline: how many `pin` calls have no `unpin` yet

    def add(self, epoch: bytes, timeline: int, fd: int, *, own: bool) -> bool:
        """Map a timeline's page; return False if this session has it already. The caller closes the descriptor."""
        self._epoch = epoch
        if timeline in self.pages:
            return False
        page = self.pages[timeline] = PAGES.map_page(epoch, timeline, fd, write=own)
        if own:
            self.own = Timeline(timeline, page)
        return True

    def add_gone(self, timeline: int) -> None:
        """Note that the service has forgotten a timeline. From now on, all fences of the timeline count as reached.

        A fence of a frame's content is different: `poolbridge._order.fences` then says that the content has failed.
        """
        self.pages.setdefault(timeline, None)

    def unknown(self, epoch: bytes, fences: Iterable[Fence]) -> list[int]:
        """Return the ids of those timelines of `fences` whose pages this session must request from the service."""
        found = []
        for fence in fences:
            if fence.timeline in self.pages or fence.timeline in found:
                continue
            page = PAGES.find(epoch, fence.timeline)
            if page is None:
                found.append(fence.timeline)
            else:
                self._epoch = epoch
                self.pages[fence.timeline] = page
        return found

    def page(self, timeline: int) -> Page | None:
        """Return a timeline's page; None if the service has forgotten the timeline."""
        return self.pages.get(timeline)

    def streams_of(self, ordinal: int) -> Timeline | None:
        """Return the session's own timeline if streams of the GPU `ordinal` can use its words; else None."""
        own = self.own
        if own is None or not _cuda_stream.supported(ordinal) or not own.page.on_device(ordinal):
            return None
        return own

    def waits(self, own: Timeline, key: StreamKey, timelines: Iterable[int]) -> None:
        """Note that a stream will wait for words of `timelines`, whose pages stay mapped until these waits end."""
        word, value = own.upcoming(key)
        for timeline in timelines:
            self._waits.setdefault(timeline, {})[word] = value

    def pin(self, fences: Iterable[Fence]) -> None:
        """Keep the pages of `fences` mapped until `unpin` is called for them. The caller holds the session's lock."""
        for fence in fences:
            self._pins[fence.timeline] = self._pins.get(fence.timeline, 0) + 1

    def unpin(self, fences: Iterable[Fence]) -> None:
        """Undo `pin` for the same fences. The caller holds the session's lock."""
        for fence in fences:
            left = self._pins.get(fence.timeline, 0) - 1
            if left > 0:
                self._pins[fence.timeline] = left
            else:
                self._pins.pop(fence.timeline, None)
        if self._forgotten:
            self.tidy()

    def forget(self, timelines: Iterable[int]) -> None:
        """Note that the service has forgotten timelines; `tidy` unmaps their pages."""
        own = self.own.id if self.own is not None else 0
        self._forgotten.update(id_ for id_ in timelines if id_ in self.pages and id_ != own)

    def tidy(self) -> None:
        """Unmap pages of forgotten timelines that no stream or lease needs. Never waits.

        A stream that reaches a fence calls nobody. So the session calls `tidy` after each packet from the service.
        """
        own = self.own
        for id_ in list(self._forgotten):
            if id_ in self._pins:
                continue
            waits = self._waits.get(id_)
            if own is not None and waits is not None:
                if not all(own.reached(word, value) for word, value in waits.items()):
                    continue
                del self._waits[id_]
            self._drop(id_, idle=id_ not in self._waits)

    def _drop(self, timeline: int, *, idle: bool) -> None:
        known = self.pages.get(timeline) is not None
        work = PAGES.giving_up(self._epoch, timeline, idle=idle) if known else list
        self._forgotten -= {timeline}
        del self.pages[timeline]
        work()  # no signal handler runs between these steps

    def fail_promises(self, reason: str) -> None:
        """Mark the open promises of this session as failed, because the program cannot complete them any more."""
        if self.own is not None:
            self.own.fail_promises(reason)

    def close(self) -> None:
        """Give up all pages. If a GPU may still use a page, the page is unmapped after the GPU has done its work."""
        self._forgotten.clear()
        self._pins.clear()
        own, self.own = self.own, None
        if own is not None:
            self.closed = own
            own.close()
        for id_ in list(self.pages):
            self._drop(id_, idle=False)

"""Maps the pages of timelines. A page is a memfd of 64-bit words; in each word, one stream counts its finished work."""

from __future__ import annotations

import os
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from functools import partial
from typing import Final

from poolbridge._cuda import stream as _cuda_stream
from poolbridge._order.captures import CAPTURES
from poolbridge._sys import futex as _futex
from poolbridge._sys.deferred import DeferringLock, OwnedLock
from poolbridge._sys.filemap import FileMapping, check_sealed
from poolbridge._wire.limits import MAX_FENCE_VALUE, MAX_REASON_BYTES, TIMELINE_WORDS
from poolbridge.errors import (
    DriverError,
    ProtocolError,
    StreamCaptureError,
    UnavailableError,
)

BYTES: Final = 8 * TIMELINE_WORDS
"""The size of all words in bytes. After the words, the memfd has one text for each word: why the word has failed."""
FILE_BYTES: Final = BYTES + TIMELINE_WORDS * MAX_REASON_BYTES
TOMBSTONE: Final = MAX_FENCE_VALUE + 1

# A GPU subtracts the fence's value from the word, and takes the difference as a signed 64-bit integer. If this
# difference is negative, the word has not reached the value. As an unsigned integer, a negative difference is
# `_BEHIND` or more.
_BEHIND: Final = 1 << 63

# A waiting thread polls the word for `_SPIN_SECONDS`, because a CPU may write the word soon. Then the thread sleeps.
_SPIN_SECONDS: Final = 20e-6
# A GPU's write wakes no thread. So a sleeping thread reads the word again after `_SHORTEST_SLEEP` seconds, and then at
# growing intervals of at most `_LONGEST_SLEEP` seconds.
_SHORTEST_SLEEP: Final = 50e-6
_LONGEST_SLEEP: Final = 1e-3


def one_line(text: str) -> str:
    """Return `text`, but replace each character that is not printable by a space."""
    return "".join(c if c.isprintable() else " " for c in text)


class Page:
    """A page of 64-bit words in a memfd. For each failed word, the page also has a text: why the word's promise failed.

    Parameters
    ----------
    fd
        The memfd's descriptor. The caller closes the descriptor.
    write
        Whether this process writes the words.

    Attributes
    ----------
    telling
        A lock. A thread takes this lock before it sends a fence to other processes. The thread releases the lock after
        it has queued the write of the fence's value on a stream.
    """

    def __init__(self, fd: int, *, write: bool) -> None:
        check_sealed(fd, FILE_BYTES, "a timeline")
        self._mapping = FileMapping(fd, FILE_BYTES, write=write)
        self.write = write
        self.count = 1
        self.idle = True  # whether each holder that gave up the page passed True as `idle`
        self.address = self._mapping.address
        memory = memoryview(self._mapping.memory)
        self.words = memory[:BYTES].cast("Q")
        self._reasons = memory[BYTES:]
        memory.release()
        self.telling = OwnedLock()
        self._lock = threading.Lock()
        self._on_device: int | None = None
        self._ordinal = -1

    # The CPU

    def now(self, word: int) -> int:
        """Return a word's value. If the page is unmapped, return the highest value, so that all fences are reached."""
        try:
            return self.words[word]
        except ValueError:
            return MAX_FENCE_VALUE

    def reached(self, word: int, value: int) -> bool:
        """Whether a word is at least `value`. Also true if the word has failed, and will never reach `value`."""
        return 0 <= self.now(word) - value < _BEHIND

    def died(self, word: int, value: int) -> bool:
        """Whether a word will never reach `value`: the process that writes the word died first, or called `fail`."""
        now = self.now(word)
        return 0 <= now - value < _BEHIND and now % TOMBSTONE < value

    def poll(self, word: int, value: int, until: float) -> bool:
        """Poll a word until it is at least `value`; return False after `until`, a time of `time.monotonic`."""
        while not self.reached(word, value):
            if time.monotonic() > until:
                return False
        return True

    def wait(self, word: int, value: int, seconds: float) -> bool:
        """Wait until a word is at least `value`; return False if `seconds` pass first."""
        begin = time.monotonic()
        if self.poll(word, value, begin + _SPIN_SECONDS):
            return True
        # A futex has 32 bits. `_futex.wait` uses the lower half of the word, which is at `address` (little-endian).
        address, pause = self.address + 8 * word, _SHORTEST_SLEEP
        while not 0 <= (now := self.now(word)) - value < _BEHIND:
            left = begin + seconds - time.monotonic()
            if left <= 0:
                return False
            _futex.wait(address, now & 0xFFFFFFFF, min(pause, left))
            pause = min(pause * 2, _LONGEST_SLEEP)
        return True

    def store(self, word: int, value: int) -> bool:
        """Let the CPU write `value` to a word, and wake the threads that wait for the word.

        If the word has failed, do not write, and return False.
        """
        # Python lets a signal handler or another thread run only at a call or in a loop. There is no call and no loop
        # between the test and the assignment, so nothing changes the word between them.
        if alive := self.words[word] < TOMBSTONE:
            self.words[word] = value
        _futex.wake(self.address + 8 * word)
        return alive

    def fail(self, word: int, value: int, reason: str) -> bool:
        """Mark a word as failed, store the reason, and end all waits for `value`.

        If the word has reached `value` or has failed already, do nothing and return False.
        """
        text = one_line(reason[:MAX_REASON_BYTES]).encode() or b"no reason given"
        text = text[:MAX_REASON_BYTES].decode(errors="ignore").encode()  # cut no character in half
        start = word * MAX_REASON_BYTES
        end, words, reasons = start + len(text), self.words, self._reasons
        # There is no call and no loop from here to the last assignment; see `store` for the reason.
        now = words[word]
        if now >= value:
            return False
        reasons[start:end] = text
        words[word] = TOMBSTONE + now
        _futex.wake(self.address + 8 * word)
        return True

    def renew(self, word: int, value: int) -> None:
        """Make a failed word usable again: it has the value `value` and no reason. Nobody may need the failure."""
        self._reasons[word * MAX_REASON_BYTES] = 0
        self.words[word] = value

    def reason(self, word: int) -> str:
        """Return the reason that `fail` stored for a word; "" if there is none."""
        start = word * MAX_REASON_BYTES
        try:
            text = bytes(self._reasons[start : start + MAX_REASON_BYTES])
        except ValueError:  # the page is unmapped
            return ""
        return one_line(text.partition(b"\0")[0].decode(errors="replace"))

    # The GPU

    def await_writers(self) -> None:
        """Wait until this process has queued the write of each fence that it has sent to other processes.

        The caller then makes a stream wait for such a fence. Without `await_writers`, the wait could be queued before
        the write. Such a wait never ends if the same stream waits and writes. Such a wait also never ends if the stream
        that writes must first wait for the stream that waits. For example, the legacy default stream does its work only
        after the earlier work of other streams.
        """
        if self.write:
            with self.telling:
                pass

    def on_device(self, ordinal: int) -> int:
        """Return the page's address for streams; 0 if no GPU can reach the page. The first call registers the page.

        The call that registers the page with CUDA may wait. While the program captures the work of a stream into a
        graph, CUDA may refuse to register the page. Then the result is also 0, but a later call tries again.
        """
        address = self._on_device
        if address is None:
            with self._lock:
                if self._on_device is None:
                    try:
                        self._on_device = _cuda_stream.register(ordinal, self.address, BYTES, write=self.write)
                        self._ordinal = ordinal
                    except StreamCaptureError:
                        return 0
                    except (DriverError, UnavailableError):
                        self._on_device = 0
                address = self._on_device
        return address

    @property
    def registered(self) -> bool:
        """Whether the page is registered, so that a GPU can reach the page."""
        return bool(self._on_device)

    def close(self) -> None:
        """Unmap the page. Waits for the GPUs if streams may still use the page. No thread may use the page any more."""
        with self._lock:
            if self._on_device:
                _cuda_stream.unregister(self._ordinal, self.address, wait=not self.idle)
                self._on_device = 0
        self.words.release()
        self._reasons.release()
        self._mapping.close()


class Pages:
    """The pages of this process. Each page is mapped once, and counts its holders in all sessions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = DeferringLock()
        self._pages: dict[tuple[bytes, int], Page] = {}
        self._inherited: tuple[object, ...] = ()

    def start_anew(self) -> None:
        """Forget the parent's pages in a forked child, where these pages are not mapped."""
        self._inherited = self._inherited, self._pages  # keep the objects, so that the child does not unmap addresses
        self._lock = DeferringLock()
        self._pages = {}

    def __len__(self) -> int:
        return len(self._pages)

    def map_page(self, epoch: bytes, timeline: int, fd: int, *, write: bool = False) -> Page:
        """Map a page, or count one more holder of a mapped page. The caller closes the descriptor."""
        key = (epoch, timeline)
        with self._lock:
            page = self._pages.get(key)
            if page is None:
                page = self._pages[key] = Page(fd, write=write)
            elif write:
                raise ProtocolError(f"timeline {timeline} is this session's own, and another session has it already")
            else:
                page.count += 1
        return page

    def find(self, epoch: bytes, timeline: int) -> Page | None:
        """Count one more holder of a mapped page and return the page; return None if the page is not mapped."""
        with self._lock:
            page = self._pages.get((epoch, timeline))
            if page is not None:
                page.count += 1
        return page

    def give_up(self, epoch: bytes, timeline: int, *, idle: bool) -> None:
        """Count one holder less, and unmap a page without holders. Never waits: finalisers may call `give_up`.

        Parameters
        ----------
        idle
            Whether no stream of the holder uses the page any more.
        """
        self.giving_up(epoch, timeline, idle=idle)()

    def giving_up(self, epoch: bytes, timeline: int, *, idle: bool) -> Callable[[], object]:
        """Return a function that does `give_up`. It is written in C, so no signal handler runs as it begins."""
        key = epoch, timeline
        return partial(self._lock.later, partial(self._give_up, key, [self._pages[key]], idle))

    def _give_up(self, key: tuple[bytes, int], left: list[Page], idle: bool) -> None:
        """Subtract a holder of the page in `left`. A signal handler may end this call; then it is called again."""
        for page in left:
            page.idle = page.idle and idle
            if page.count > 1:
                page.count -= 1
                del left[0]  # no signal handler runs between these two steps
                return
            self._pages.pop(key, None)
            if page.registered:
                # `page.close` may wait for all work of the GPUs, but this method must not wait. So a new thread calls
                # `page.close`.
                start_new_thread(CAPTURES.run, (page.close,))
            else:
                page.close()
            left.clear()


PAGES = Pages()
"""The pages of this process."""
os.register_at_fork(after_in_child=PAGES.start_anew)

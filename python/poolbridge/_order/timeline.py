"""Assigns the words of a session's own timeline to streams and promises, and makes the streams write fences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from poolbridge._cuda import stream as _cuda_stream
from poolbridge._order.captures import CAPTURES
from poolbridge._order.page import Page
from poolbridge._sys.process import this_thread
from poolbridge._wire.limits import TIMELINE_WORDS
from poolbridge._wire.messages import Fence
from poolbridge.errors import (
    DeviceMemoryError,
    DriverError,
    PoolLimitError,
    StreamCaptureError,
)

# The ordinal in the `StreamKey` of a promise. Like a stream, a promise has a word of the timeline and a key.
_NO_DEVICE: Final = -1

# If a promise has failed, no other promise or stream gets its word before the promise's buffer is gone: until then, a
# reader may check the word to see whether the promise failed. At most `_MOST_FAILED` such words may exist, so that
# streams and other promises have words left.
_MOST_FAILED: Final = TIMELINE_WORDS // 2


class StreamKey(NamedTuple):
    """Identifies a stream.

    Attributes
    ----------
    ordinal
        The GPU's ordinal in this process; `_NO_DEVICE` for a promise.
    handle
        1 for the legacy default stream, 2 for the per-thread default stream, else the driver's handle of the stream.
        For a promise, the promise's number.
    thread
        For a per-thread default stream: the number of the stream's thread, from `this_thread`. 0 for any other stream.
    """

    ordinal: int
    handle: int
    thread: int = 0

    @property
    def reachable(self) -> bool:
        """Whether this thread can queue work on the stream."""
        return not self.thread or self.thread == this_thread()


class Failed(NamedTuple):
    """A promise that has failed: the value of its fence, and the id and the generation of its buffer."""

    value: int
    buffer: int
    generation: int


class Word:
    """A word of a timeline and the stream that writes it; `value` is the last value that the stream has to write."""

    __slots__ = ("index", "key", "value")

    def __init__(self, index: int, key: StreamKey) -> None:
        self.index = index
        self.key = key
        self.value = 0


class Timeline:
    """The timeline of one session, with a word for each stream. Thread-safe.

    Parameters
    ----------
    id_
        The timeline's id.
    page
        The timeline's page, mapped writeable.

    Attributes
    ----------
    lock
        A thread holds this lock while it writes values of words, so that all values are written in order.
    words
        The word of each stream and promise. A thread changes this dict only while it holds `lock`.
    failed
        The failed promises by word. No other promise or stream uses these words until `free` is called for them.
    closed
        Whether the timeline was closed, so that no stream may write values any more.
    """

    def __init__(self, id_: int, page: Page) -> None:
        self.id = id_
        self.page = page
        self.lock = page.telling
        self.words: dict[StreamKey, Word] = {}
        self._promises = 0
        self.failed: dict[int, Failed] = {}
        self.closed = False

    def word(self, key: StreamKey) -> Word | None:
        """Return the word of a stream; None if the stream has no word."""
        return self.words.get(key)

    def reached(self, word: int, value: int) -> bool:
        """Whether the word has at least this value, because its stream has written the value or a greater one."""
        return self.page.reached(word, value)

    def write(self, key: StreamKey, *, wait: bool = True) -> Fence | None:
        """Make a stream write the next value of its word.

        Parameters
        ----------
        key
            The stream.
        wait
            Whether to wait for another thread that holds the lock. A finaliser must not wait.

        Returns
        -------
        Fence or None
            The fence that is reached when the stream has done all work that was queued before this call. None if the
            timeline is closed, if this thread holds the lock already, or if `wait` is False and another thread holds
            the lock.

        Raises
        ------
        DriverError
            The driver refuses to queue work on the stream.
        StreamCaptureError
            The program is capturing the stream's work into a graph.
        PoolLimitError
            Every word of the timeline has a stream that still works, or a promise that is open or has failed.
        """
        if not self.lock.take(-1 if wait else 0):
            return None
        try:
            if self.closed:
                return None
            word = self.words.get(key) or self._assign_word(key)
            # It counts before it is written: if a handler of a signal raises after the write, no later fence has it.
            word.value += 1
            try:
                self._write(key, word, word.value)
            except (DriverError, DeviceMemoryError, StreamCaptureError):
                word.value -= 1
                raise
            return Fence(self.id, word.index, word.value)
        finally:
            self.lock.release()

    def tell(self, key: StreamKey, end_lease: Callable[[tuple[Fence, ...]], None], finish: Callable[[], None]) -> bool:
        """Call `end_lease` with a stream's next fence, and then make the stream write the fence's value.

        `tell` calls `end_lease` first. So the receiver of the fence need not wait for the driver call that queues the
        write.

        Parameters
        ----------
        key
            The stream.
        end_lease
            A function that gets the fence. It must neither wait nor raise, because `tell` holds the timeline's lock.
        finish
            A function that waits until the stream has done its work. `tell` calls `finish` if the driver refuses to
            queue the write. The CPU then writes the word, because other processes may wait for the fence.

        Returns
        -------
        bool
            False if the timeline is closed, or if `tell` runs in a finaliser whose thread holds the lock. In both cases
            `end_lease` was not called.

        Raises
        ------
        PoolLimitError
            Every word of the timeline has a stream that still works, or a promise that is open or has failed.
            `end_lease` was not called.
        StreamCaptureError
            The program is capturing the stream's work into a graph. `end_lease` was not called.
        DriverError
            `finish` raised this error. The word is written nevertheless.
        """
        if not self.lock.take():
            return False
        try:
            if self.closed:
                return False
            _cuda_stream.refuse_capture(key.ordinal, key.handle)
            word = self.words.get(key) or self._assign_word(key)
            word.value += 1
            try:
                end_lease((Fence(self.id, word.index, word.value),))
            finally:
                self._write_told(key, word, finish)
        finally:
            self.lock.release()
        return True

    def _write_told(self, key: StreamKey, word: Word, finish: Callable[[], None]) -> None:
        try:
            self._write_or_store(key, word, finish)
        except StreamCaptureError:  # the capture began after `tell` checked
            CAPTURES.add(partial(self._write_late, key, word, word.value, finish))
        except DriverError:
            raise
        except BaseException:
            # A signal handler raised an error, maybe before the driver call that queues the write, maybe after it. So
            # queue the write again: a second write of the same value does no harm.
            try:
                self._write(key, word, word.value)
            except (DriverError, StreamCaptureError):
                CAPTURES.add(partial(self._write_late, key, word, word.value, finish))
            raise

    def _write_late(self, key: StreamKey, word: Word, value: int, finish: Callable[[], None]) -> None:
        """After a capture, write the value of a fence that `end_lease` got, unless the word has reached this value."""
        with self.lock:
            if not self.closed and not self.page.reached(word.index, value):
                self._write_or_store(key, word, finish)

    def _write_or_store(self, key: StreamKey, word: Word, finish: Callable[[], None]) -> None:
        """Make a stream write the last value of its word, or let the CPU write the value if the driver refuses."""
        try:
            self._write(key, word, word.value)
        except (DriverError, DeviceMemoryError):
            captured = False
            try:
                finish()
            except StreamCaptureError:
                captured = True
                raise
            finally:
                if not captured:
                    self.page.store(word.index, word.value)

    def _write(self, key: StreamKey, word: Word, value: int) -> None:
        _cuda_stream.write(key.ordinal, key.handle, self.page.on_device(key.ordinal) + 8 * word.index, value)

    def close(self) -> None:
        """Stop writing values, so that the page can be unmapped. Waits for a thread that is writing."""
        with self.lock:
            self.closed = True

    def promise(self) -> Fence:
        """Make a promise and return its fence. The CPU, not a stream, writes the word of this fence.

        Raises
        ------
        PoolLimitError
            Every word of the timeline has a stream that still works, or a promise that is open or has failed. Or too
            many words have failed promises.
        """
        with self.lock:
            if len(self.failed) >= _MOST_FAILED:
                raise PoolLimitError(
                    f"{len(self.failed)} buffers whose promises failed are still leased, published or in a channel, "
                    "and each takes a word of this client's timeline: release and unpublish some of them"
                )
            self._promises += 1
            word = self._assign_word(StreamKey(_NO_DEVICE, self._promises))
            word.value += 1
            return Fence(self.id, word.index, word.value)

    def fail(self, fence: Fence, reason: str, buffer: int, generation: int) -> bool:
        """Mark the fence of a buffer's promise as failed. Return False if it is reached, or has failed already."""
        failed = self.page.fail(fence.word, fence.value, reason)
        if failed:
            self.failed[fence.word] = Failed(fence.value, buffer, generation)
        return failed

    def free(self, word: int, failed: Failed) -> None:
        """Let other promises and streams use the word of a failed promise, whose buffer is gone.

        Do nothing if another thread has freed the word since: a later promise may have failed on the same word.
        """
        with self.lock:
            if self.failed.get(word) is failed and not self.closed:
                self.page.renew(word, failed.value)
                del self.failed[word]

    def fail_promises(self, reason: str) -> None:
        """Mark the fences of all open promises as failed."""
        for word in list(self.words.values()):
            if word.key.ordinal == _NO_DEVICE:
                self.page.fail(word.index, word.value, reason)

    def upcoming(self, key: StreamKey) -> tuple[int, int]:
        """Return the index of a stream's word and the value that the stream will write next."""
        with self.lock:
            word = self.words.get(key) or self._assign_word(key)
            return word.index, word.value + 1

    def _assign_word(self, key: StreamKey) -> Word:
        """Assign a word to a stream or a promise: an unused word, or a word whose last stream or promise is done."""
        if len(self.words) < TIMELINE_WORDS:
            word = self.words[key] = Word(len(self.words), key)
            return word
        for old in self.words.values():
            if self.page.reached(old.index, old.value) and not self.page.died(old.index, old.value):
                del self.words[old.key]
                old.key = key
                self.words[key] = old
                return old
        raise PoolLimitError(
            f"{TIMELINE_WORDS} streams and promises are at work, and a timeline has no more words: complete promises, "
            "or wait for streams"
        )

"""A session's own timeline: which stream writes which word, and what it has promised to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from poolbridge._cuda import stream as _cuda_stream
from poolbridge._order.page import WORDS, Page
from poolbridge._sys.errors import DriverError, PoolLimitError
from poolbridge._sys.process import this_thread
from poolbridge._wire.messages import Fence

# Of a promise, which is no stream but has a word like one.
_NO_DEVICE: Final = -1


class StreamKey(NamedTuple):
    """A stream, as far as its handle can tell.

    Attributes
    ----------
    ordinal
        The GPU, as this process counts.
    handle
        1: the legacy default stream, 2: the per-thread default stream, else a handle of the driver.
    thread
        Whose per-thread default stream it is, as `this_thread` counts; 0 for any other stream.
    """

    ordinal: int
    handle: int
    thread: int = 0

    @property
    def reachable(self) -> bool:
        """Whether this thread can give the stream work."""
        return not self.thread or self.thread == this_thread()


class Word:
    """A word that one stream writes; `value` is the last that it was told to."""

    __slots__ = ("index", "key", "value")

    def __init__(self, index: int, key: StreamKey) -> None:
        self.index = index
        self.key = key
        self.value = 0


class Timeline:
    """The words of one session, one for each stream. Thread-safe.

    Parameters
    ----------
    id_
        The timeline's id.
    page
        Its page, mapped to be written.
    """

    def __init__(self, id_: int, page: Page) -> None:
        self.id = id_
        self.page = page
        self._lock = page.telling
        self._words: dict[StreamKey, Word] = {}
        self._promises = 0
        self._closed = False

    def word(self, key: StreamKey) -> Word | None:
        """Give the word of a stream, if it has one."""
        return self._words.get(key)

    def reached(self, word: int, value: int) -> bool:
        """Whether this process's stream behind a word has come to a value."""
        return self.page.reached(word, value)

    def write(self, key: StreamKey, *, wait: bool = True) -> Fence | None:
        """Have a stream write the next value of its word.

        Parameters
        ----------
        wait
            Whether to wait for other threads that do the same; a finaliser of ours must not.

        Returns
        -------
        Fence or None
            What is reached when the stream has done the work that it has so far; None if others were at it, or the
            timeline is closed.

        Raises
        ------
        DriverError
            The stream takes no work.
        PoolLimitError
            More streams are at work than a timeline has words.
        """
        if not self._lock.take(-1 if wait else 0):
            return None
        try:
            if self._closed:
                return None
            word = self._words.get(key) or self._take(key)
            # Under the lock, for the values of a word must come in order.
            self._write(key, word, word.value + 1)
            word.value += 1
            return Fence(self.id, word.index, word.value)
        finally:
            self._lock.release()

    def tell(self, key: StreamKey, say: Callable[[tuple[Fence, ...]], None], finish: Callable[[], None]) -> bool:
        """Say what a stream will write next, and then have it do so: who is told need not wait for the driver's call.

        Parameters
        ----------
        say
            Called with the fence. It must neither wait nor raise: the timeline's lock is held.
        finish
            Waits until the stream has done its work, where it takes no more. The CPU writes the word then: others that
            were told may wait for it.

        Returns
        -------
        bool
            False if the timeline is closed, or this is a finaliser in the midst of this very thing: nothing was said.

        Raises
        ------
        PoolLimitError
            More streams are at work than a timeline has words; nothing was said.
        DriverError
            From `finish`; the word is written all the same.
        """
        if not self._lock.take():
            return False
        try:
            if self._closed:
                return False
            word = self._words.get(key) or self._take(key)
            word.value += 1
            try:
                say((Fence(self.id, word.index, word.value),))
            finally:
                self._write_told(key, word, finish)
        finally:
            self._lock.release()
        return True

    def _write_told(self, key: StreamKey, word: Word, finish: Callable[[], None]) -> None:
        try:
            self._write(key, word, word.value)
        except DriverError:
            try:
                finish()
            finally:
                self.page.store(word.index, word.value)
        except BaseException:
            # A signal handler's, before or after the driver's call: to write the value twice does no harm.
            self._write(key, word, word.value)
            raise

    def _write(self, key: StreamKey, word: Word, value: int) -> None:
        _cuda_stream.write(key.ordinal, key.handle, self.page.on_device(key.ordinal) + 8 * word.index, value)

    def close(self) -> None:
        """Write no more: the page may go. Waits for who is writing."""
        with self._lock:
            self._closed = True

    def promise(self) -> Fence:
        """Give the next fence of a word that no stream writes.

        Raises
        ------
        PoolLimitError
            More streams and promises are at work than a timeline has words.
        """
        with self._lock:
            self._promises += 1
            word = self._take(StreamKey(_NO_DEVICE, self._promises))
            word.value += 1
            return Fence(self.id, word.index, word.value)

    def upcoming(self, key: StreamKey) -> tuple[int, int]:
        """Give the word and the value that a stream will write next."""
        with self._lock:
            word = self._words.get(key) or self._take(key)
            return word.index, word.value + 1

    def _take(self, key: StreamKey) -> Word:
        """Give a stream or a promise a word: a new one, or that of another which has come to its value."""
        if len(self._words) < WORDS:
            word = self._words[key] = Word(len(self._words), key)
            return word
        for old in self._words.values():
            if self.page.reached(old.index, old.value):
                del self._words[old.key]
                old.key = key
                self._words[key] = old
                return old
        raise PoolLimitError(f"{WORDS} streams and promises are at work at a time; a timeline has no more words")

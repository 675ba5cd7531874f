"""The native module: producers and consumers of channels in shared memory (``docs/streams.md``), and a lock.

Any thread may call any function at any time. The interpreter's lock protects the objects. Functions that wait
(`Consumer.take`, `Producer.publish`, `Producer.reclaim` and `futex_wait`) release that lock while they wait, and hold
it for each attempt. A free-threaded build of CPython enables the interpreter's lock when it imports this module. A
waiting function handles signals and keeps its time limit. In a forked child every method but `close` raises
`ForkError`.

Numbers are from 0 to 2**64 - 1 unless stated otherwise. Times are in seconds. ``spin`` is the time for which a wait
polls before it sleeps; None: adaptively, 100 µs if that was worth it lately. All arguments are positional.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Self, final

from _typeshed import ReadableBuffer, WriteableBuffer

class Condition(Enum):
    """A result that a function returns instead of a frame or a number. None of them is an error of the caller."""

    TIMEOUT = ...
    """The time limit passed."""
    NO_ROOM = ...
    """The channel is full, and its policy or that of a consumer is ``fail``."""
    END = ...
    """The channel is closed: a consumer has taken every frame, or a producer may not publish any more."""
    DESTROYED = ...
    """The channel was destroyed. No frame comes any more, not even those that were published."""
    EVICTED = ...
    """The roster does not list this member as active: it has left, or its session has ended."""
    UNKNOWN_MEMBER = ...
    """The file of another member is missing. Get the file that the service sent for `unknown`, and try again."""
    FAILED = ...
    """A producer's description of a frame is inconsistent; see `Consumer.failed`. The next frame can be taken."""
    HANDS_FULL = ...
    """256 frames are in hand. Release some."""
    FENCE_PENDING = ...
    """An earlier frame's fence, on another word, is not reached. Wait for it, and call again with `settled`."""

@final
class Frame:
    """A frame. A consumer has it in hand until it releases the frame's number; the attributes stay valid after that."""

    @property
    def number(self) -> int:
        """Number of the frame in its channel, counted from 1."""
    @property
    def block(self) -> int:
        """Id of the block."""
    @property
    def buffer(self) -> int:
        """Id of the buffer."""
    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
    @property
    def time(self) -> int:
        """When the frame was published, in nanoseconds since 1970."""
    @property
    def word(self) -> int:
        """Word of the fence that is reached when the content is complete."""
    @property
    def value(self) -> int:
        """Value of that fence; 0: the content is complete."""
    @property
    def timeline(self) -> int:
        """Id of the producer's timeline, which has that fence; 0: the producer has none."""
    @property
    def producer(self) -> int:
        """Member id of the producer."""
    @property
    def description_id(self) -> int:
        """Number that the producer gave the description of the content."""
    @property
    def missed(self) -> int:
        """Frames that were missed since the frame before: by this consumer, or in a queue by all consumers together."""
    @property
    def object(self) -> Any:
        """The object that `Consumer.keep` got for the frame's producer, block and description; else None."""
    @property
    def description(self) -> tuple[str, tuple[int, ...], tuple[int, ...] | None, int] | None:
        """Element type, shape, strides in elements, and offset in bytes; None if there is an `object`."""
    @property
    def meta(self) -> dict[str, str]:
        """Texts of the producer, by key."""
    @property
    def event(self) -> bytes | None:
        """The 64 bytes of an interprocess event that was recorded after the work on the content; None: no event."""

@final
class Producer:
    """A producer of a channel that it has joined or is joining. The caller keeps the file descriptors and closes them.

    Raises
    ------
    ProtocolError
        A file is malformed.
    DeviceMemoryError
        A file cannot be mapped.
    InvalidArgumentError
        There is no such slot.
    """

    patience: float
    """Seconds for which this producer leaves free room to a producer that has waited longer; 0.002 by default."""

    def __new__(cls, roster: int, sequencer: int, track: int, slot: int, member: int) -> Producer: ...
    def add_cursor(self, slot: int, member: int, fd: int, /) -> None:
        """Map the cursor of a consumer. It replaces that of the consumer that had the slot before."""
    def publish(
        self,
        block: int,
        buffer: int,
        nbytes: int,
        description_id: int,
        description: bytes,
        meta: bytes = b"",
        word: int = 0,
        value: int = 0,
        event: bytes | None = None,
        timeout: float | None = None,
        spin: float | None = None,
        /,
    ) -> int | Condition:
        """Publish a block as the next frame and return the frame's number.

        `description` and `meta` have the format of the track. A `description_id`, which is not 0, always stands for the
        same description. With a `timeout` of 0 the producer does not wait, and does not join the waiting producers.

        If nothing was published, the result is `TIMEOUT`, `NO_ROOM`, `END`, `DESTROYED`, `EVICTED` or `UNKNOWN_MEMBER`.

        Raises
        ------
        InvalidArgumentError
            A number, the description or the meta is not in the format of the track.
        ProtocolError
            The memory of the channel was inconsistent for 100 ms.
        """
    def reclaim(
        self, timeout: float | None = 0.0, spin: float | None = None, /
    ) -> list[tuple[int, tuple[tuple[int, int, int], ...]]] | Condition:
        """Return the blocks that came back, each with the fences (timeline, word, value) for its next writer.

        With a timeout it waits until a block comes back, unless no block is in flight. The result can also be `EVICTED`
        or `UNKNOWN_MEMBER`.
        """
    @property
    def in_flight(self) -> list[tuple[int, int]]:
        """Frame number and block id of each frame whose block has not come back."""
    @property
    def behind(self) -> tuple[int, int] | None:
        """Member and process id of the consumer that is furthest behind and blocks a broadcast; None: no consumer."""
    @property
    def waits_asleep(self) -> int:
        """How many of the next waits do not poll adaptively, because earlier ones polled in vain."""
    @property
    def counts(self) -> tuple[int, int]:
        """Frames that this producer published, and the bytes of their buffers."""
    @property
    def waits(self) -> tuple[int, float]:
        """Waits for room that were not in vain, and the seconds of all waits for room."""
    @property
    def unknown(self) -> tuple[int, int]:
        """Slot and member id of the consumer whose cursor was missing last."""
    def close(self) -> None:
        """Unmap everything. A thread that waits gets `ClosedError`. Idempotent."""

@final
class Consumer:
    """A consumer of a channel that it is joining. The constructor raises the errors of `Producer`."""

    def __new__(cls, roster: int, sequencer: int, cursor: int, slot: int, member: int) -> Consumer: ...
    def begin(self, again: bool = False, /) -> int | Condition:
        """Begin to take frames, when the service has said that it has joined. Return the first number; 0 in a queue.

        With `again`, `take` and `swap` return the frame that is `offered` until it is accepted.
        """
    @property
    def offered(self) -> Frame | None:
        """The frame that was taken last and is not accepted yet, if `begin` was called with `again`.

        Accept it by setting None. CPython runs no signal handler before the step after that, so the caller can accept a
        frame and keep it in one step. A signal handler that raises before loses nothing: the next call takes the frame.
        """
    @offered.setter
    def offered(self, none: None, /) -> None: ...
    def add_track(self, slot: int, member: int, fd: int, /) -> None:
        """Map the track of a producer. It replaces that of the producer that had the slot before."""
    def swap(self, number: int, timeout: float | None = None, spin: float | None = None, /) -> Frame | Condition:
        """Release a frame without a fence, and then take the next one: `release` and `take` in one step."""
    def take(self, timeout: float | None = None, spin: float | None = None, /) -> Frame | Condition:
        """Take the next frame. It is in hand until it is released.

        Without a frame, the result is `TIMEOUT`, `END`, `DESTROYED`, `EVICTED`, `UNKNOWN_MEMBER`, `FAILED` or
        `HANDS_FULL`.

        Raises
        ------
        ProtocolError
            The memory of the channel was inconsistent for 100 ms.
        """
    def release(self, number: int, word: int = 0, value: int = 0, settled: bool = False, /) -> bool | Condition:
        """Let go of a frame; frames can be released in any order. In a queue this acknowledges the frame.

        A `value` says that work on the frame goes on until `word` of this member's timeline has that value. If that
        would overwrite an earlier frame's fence on another word, the result is `FENCE_PENDING`, and the frame stays in
        hand. `settled` says that the earlier fence is reached. The result is False if the frame was given to another
        consumer of the queue meanwhile.

        Raises
        ------
        LeaseReleasedError
            The frame is not in hand.
        """
    def requeue(self, number: int, word: int = 0, value: int = 0, settled: bool = False, /) -> bool | Condition:
        """Let go of a frame of a queue and requeue it, so that another consumer takes it; see `release`."""
    def ack(self, number: int, /) -> bool:
        """Acknowledge a frame, which stays in hand. In a broadcast it then holds no producer back.

        The result is False if the frame was given to another consumer of the queue meanwhile.
        """
    def unclaim(self, number: int, /) -> bool:
        """Requeue a frame of a queue, whose memory stays in hand; see `ack`. This consumer may take it a second time.

        A frame that was taken a second time is in hand twice. Then `ack` and `unclaim` settle the one that is not
        settled, and `release` lets go of the settled one first.
        """
    def keep(self, producer: int, block: int, description_id: int, kept: Any, /) -> None:
        """Keep an object for the frames of a producer in a block with a description. A block keeps one object."""
    def forget(self, block: int, /) -> bool:
        """Drop the object that is kept for a block; return whether there was one."""
    def leave(self) -> None:
        """Take no more frames. Frames in hand stay usable and hold no producer back. The caller tells the service."""
    @property
    def failed(self) -> int:
        """Number of the frame that failed last."""
    @property
    def in_hand(self) -> list[int]:
        """Numbers of the frames in hand, in their order."""
    @property
    def waits_asleep(self) -> int:
        """How many of the next waits do not poll adaptively, because earlier ones polled in vain."""
    @property
    def counts(self) -> tuple[int, int, int]:
        """Frames that this consumer took, the bytes of their buffers, and how many frames were missed."""
    @property
    def waits(self) -> tuple[int, float]:
        """Waits for a frame that were not in vain, and the seconds of all waits for a frame."""
    @property
    def unknown(self) -> tuple[int, int]:
        """Slot and member id of the producer whose track was missing last."""
    def close(self) -> None:
        """Unmap everything and drop the objects that are kept. A thread that waits gets `ClosedError`. Idempotent."""

class Lent:
    """A write lease that a channel has, or that came back from it; see `poolbridge._session.spares.Spare`."""

    array: Any
    fences: Any
    shelf: Any
    follower: Any
    after: Any
    owned: bool
    block: int
    buffer: int
    nbytes: int

class Shelf:
    """The leases of a publisher; see `poolbridge._session.spares.Shelf`.

    The methods do the common case of a publisher's work for a frame, each in one step: no signal handler and no other
    thread runs in between. In any other case they return None and change nothing.
    """

    free: list[Any]
    loan: list[Any]
    strays: list[tuple[int, tuple[tuple[int, int, int], ...]]]
    """Blocks that came back and are not of this publisher, in the form of `Producer.reclaim`."""
    owner: Any
    """The `Producer`."""
    loans: Any
    """The leases that the channel has: a dictionary by block id."""
    described: bytes
    description_id: int
    stream: Any
    """The stream that wrote a loan last."""
    follower: Any
    """The `Follower` of that stream."""
    most: int
    extra: int
    wanting: bool
    closed: bool
    busy: bool
    aside: bool
    on_streams: bool
    used: float

    def __new__(cls, *ignored: Any) -> Self: ...
    def take(self) -> Any:
        """Return the array that is on loan; if none is, put a lease that came back on loan and return its array."""
    def send(self, meta: bytes = b"", word: int = 0, value: int = 0, /) -> int | None:
        """Publish the loan if there is room, clear its `follower`, and return the frame's number.

        The content is complete when `word` of this session's timeline has the value; 0: it is complete.
        """
    def follow(self, stream: Any, /) -> bool:
        """Whether `stream` may write the loan at once: it wrote the one before, and the loan's fences are reached.

        Sets the loan's `follower` then. Never waits.
        """
    def send_after(self, meta: bytes, stream: Any, /) -> int | tuple[int, int] | None:
        """Make the loan's stream write the fence of its work, which the loan keeps, and do `send`.

        Returns the frame's number; word and value of the fence if the loan was not published; None if there is no fence
        either, also if `stream` is neither None nor that stream. Other threads may run while the driver is called.
        """
    def look(self) -> None:
        """Note that the session's other leases were checked; `take` and `send` rely on that for a quarter second."""

class Follower:
    """A stream that uses frames one after the other; `poolbridge._order.order.Follower` sets the attributes."""

    timelines: Any
    """The session's timelines, with the attributes `own` and `pages`."""
    own: Any
    """The timeline that the stream writes, with the attribute `closed`."""
    key: Any
    words: Any
    """The timeline's words by key, with `index` and `value`. They are written under a lock."""
    is_owned: Callable[[], bool]
    """Whether this thread has that lock."""
    acquire: Callable[[], object]
    release: Callable[[], object]
    fence: Callable[[int, int, int], Any]
    """Makes a fence from a timeline's id, a word and a value."""
    id: int
    """The id of `own`."""
    function: int
    """The address of ``cuStreamWriteValue64``; 0: only Python can call it."""
    stream: int
    address: int
    """Where the stream finds the words of `own`."""
    patience: float
    """The next poll takes at most so many seconds: `shortest`, and up to `longest` after polls in vain."""
    shortest: float
    longest: float
    anywhere: bool
    """Whether every thread can queue work on the stream."""

    def poll(self, fences: Sequence[tuple[int, int, int]] | Frame, write: bool, /) -> list[tuple[int, int, int]] | None:
        """Poll fences, or that of a frame, and return those that were not reached; None: a lease state is needed.

        Fences on the stream's own word are reached. If `write`, fences of processes that died are, too.
        """
    def queue(self) -> Any:
        """Make the stream write its next fence, and return the fence; None if Python has to do it.

        Other threads may run while the driver is called.
        """

@final
class DeferringLock:
    """A lock whose holder also does work that was deferred: see `poolbridge._sys.deferred`, which has a substitute."""

    def __enter__(self) -> None:
        """Take the lock and do the deferred work. If that raises, as a signal handler may, unlock again."""
    def __exit__(self, *error: object) -> None:
        """Unlock, and do the work that was deferred meanwhile."""
    def later(self, work: Callable[[], object], /) -> None:
        """Do `work` under the lock: in this thread if the lock is free, else in the thread that has it. Never waits."""
    def rest(self, seconds: float, /) -> None:
        """Wait until no other thread holds the lock, for `seconds` at most."""

class NoBuffer:
    """A base of leases. ``memoryview(lease)`` raises a `TypeError` that names ``lease.memoryview()``.

    NumPy would use a buffer protocol instead of ``__array__``, which knows every dtype and makes arrays read-only when
    the lease is published. Where a buffer is refused NumPy goes on to ``__array__``.
    """

def load_u64(buffer: ReadableBuffer, offset: int, /) -> int:
    """Load a 64-bit word, with acquire order."""

def store_u64(buffer: WriteableBuffer, offset: int, value: int, /) -> None:
    """Store a 64-bit word, with release order."""

def compare_exchange_u64(buffer: WriteableBuffer, offset: int, expected: int, value: int, /) -> bool:
    """Store a 64-bit word atomically if it has the expected value; return whether it had. A full barrier."""

def barrier() -> None:
    """Order all stores before this call before all loads after it."""

def futex_wait(buffer: ReadableBuffer, offset: int, seen: int, timeout: float | None, /) -> bool:
    """Sleep while the 32 bits at an offset are `seen`. False if the time limit passed; else read the word again."""

def futex_wake(buffer: ReadableBuffer, offset: int, count: int = ..., /) -> int:
    """Wake at most `count` sleepers on the 32 bits at an offset, in all processes; return how many."""

def stream_words(function: int, capturing: int, stream: int, flags: int, /, *words: int) -> int:
    """Call ``cuStreamWriteValue64`` or ``cuStreamWaitValue64``, at the address `function`, for each of some words.

    `words` are the address and the value of each, 64 words at most. `capturing` is the address of
    ``cuStreamIsCapturing``. Returns the first result that is not 0, else 0; -1, without a call, if the stream's work is
    being captured. It releases the interpreter's lock meanwhile: the call waits while the stream's queue is full.
    """

def switch_spinning(on: bool, /) -> None:
    """Let waits of this process poll adaptively, or not. Only benchmarks use it, to measure what that is worth."""

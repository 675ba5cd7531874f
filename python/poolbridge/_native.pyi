"""The native module: producers and consumers of channels in shared memory (``docs/streams.md``), and a lock.

Any thread may call any function at any time. The interpreter's lock protects the objects. Functions that wait
(`Consumer.take`, `Consumer.swap`, `Producer.publish`, `Producer.reclaim` and `futex_wait`) release the interpreter's
lock while they wait, and hold it for each attempt. A free-threaded build of CPython enables the interpreter's lock when
it imports this module. A waiting function handles signals and keeps its time limit. In a forked child every method
except `close` raises `ForkError`.

Numbers are from 0 to 2**64 - 1 unless stated otherwise. Times are in seconds. ``spin`` is the time for which a wait
polls before it sleeps; None: the wait polls for 100 µs if recent polls were not in vain. All arguments are positional.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Self, final

from _typeshed import ReadableBuffer, WriteableBuffer
from typing_extensions import CapsuleType

class Condition(Enum):
    """A result that a function returns instead of a frame or a number. No condition is an error of the caller."""

    TIMEOUT = ...
    """The time limit passed."""
    NO_ROOM = ...
    """The channel is full, and its policy or that of a consumer is ``fail``."""
    END = ...
    """The channel is closed: a consumer has taken every frame, or a producer may not publish any more."""
    ABANDONED = ...
    """No producer is left, and a consumer that `needs_producers` has taken every frame."""
    DESTROYED = ...
    """The channel was destroyed. No frame comes any more, not even those that were published."""
    EVICTED = ...
    """The roster does not list this member as active: it has left, or its session has ended."""
    UNKNOWN_MEMBER = ...
    """The file of another member is missing. Get the file that the service sent for `unknown`, and try again."""
    FAILED = ...
    """A producer's description of a frame is inconsistent; see `Consumer.failed`. The next frame can be taken."""
    UNDELIVERABLE = ...
    """A frame was delivered too often; see `Consumer.failed` and `spent`. The next frame can be taken."""
    HANDS_FULL = ...
    """256 frames are in hand. Release some."""
    FENCE_PENDING = ...
    """The slot has the fence of another frame, see `Consumer.stored`. If it is reached, call again with this fence."""

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
    def base(self) -> int:
        """Where the frame's memory begins in its block, in bytes."""
    @property
    def nbytes(self) -> int:
        """Bytes of the frame's memory."""
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
    def delivery(self) -> int:
        """How often consumers have got this frame, with this time."""
    @property
    def object(self) -> Any:
        """The object that `Consumer.keep` got for the frame's producer, block and description; else None."""
    @property
    def description(self) -> tuple[str, tuple[int, ...], tuple[int, ...] | None, int] | None:
        """Element type, shape, strides in elements, and offset in bytes from `base`; None if there is an `object`."""
    @property
    def layout(self) -> bytes:
        """The layout of a frame of several arrays; empty: the frame has one array, or there is an `object`."""
    @property
    def meta(self) -> bytes:
        """The producer's map, in MessagePack; empty: none."""
    @property
    def event(self) -> bytes | None:
        """The 64 bytes of an interprocess event that was recorded after the work on the content; None: no event."""

@final
class Producer:
    """A producer that has joined, or is joining, a channel. The caller keeps and closes the file descriptors.

    Raises
    ------
    ProtocolError
        A file is malformed.
    DeviceMemoryError
        A file cannot be mapped.
    InvalidArgumentError
        There is no such seat.
    """

    patience: float
    """Seconds for which this producer leaves free room to a producer that has waited longer; 0.002 by default."""

    def __new__(cls, roster: int, sequencer: int, track: int, seat: int, member: int) -> Producer: ...
    def add_cursor(self, seat: int, member: int, fd: int, /) -> None:
        """Map the cursor of a consumer. The new cursor replaces the cursor of the seat's previous consumer."""
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

        `description`, with the layout behind it, and `meta` have the format of the track. A `description_id`, which is
        not 0, always stands for the same description. With a `timeout` of 0 the producer does not wait, and does not
        join the waiting producers.

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
        """Return the buffers that came back, each with the fences (timeline, word, value) for its next writer.

        With a timeout, `reclaim` waits until a buffer or a chunk comes back, also if another thread takes it back. The
        result can also be `EVICTED` or `UNKNOWN_MEMBER`.
        """
    def await_back(self, timeout: float | None, roused: int, /) -> Condition | None:
        """Wait until a chunk came back, which `await_back` takes, or a block, which `reclaim` then returns.

        The wait also ends when `roused` of the producer is not the given number. The result can be `EVICTED` or
        `UNKNOWN_MEMBER`.
        """
    def rouse(self) -> None:
        """End the waits of `await_back`. This method never waits."""
    @property
    def roused(self) -> int:
        """How often `rouse` was called."""
    @property
    def in_flight(self) -> list[tuple[int, int]]:
        """Frame number and buffer id of each frame whose memory has not come back."""
    @property
    def behind(self) -> tuple[int, int] | None:
        """Member id and process id of the consumer that is furthest behind and blocks a broadcast; None: none does."""
    @property
    def consumers(self) -> int:
        """How many consumers take part in the channel."""
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
        """Seat and member id of the consumer whose cursor was missing last."""
    def close(self) -> None:
        """Unmap everything. A thread that waits gets `ClosedError`. Idempotent."""

@final
class Consumer:
    """A consumer that is joining a channel. The constructor raises the same errors as that of `Producer`."""

    def __new__(cls, roster: int, sequencer: int, cursor: int, seat: int, member: int) -> Consumer: ...
    def begin(self, again: bool = False, /) -> int | Condition:
        """Begin to take frames. Return the number of the first frame; 0 in a queue.

        Call `begin` after the service has said that the consumer has joined. With `again`, `take` and `swap` return the
        frame in `offered` again until the caller accepts the frame.
        """
    @property
    def offered(self) -> Frame | None:
        """The frame that this consumer took last and the caller has not accepted; None unless `begin` got `again`.

        The caller accepts the frame by ``offered = None``. CPython runs no signal handler between that assignment and
        the next step, so the caller can accept a frame and keep it in one step. If a signal handler raises before the
        assignment, the frame is not lost: the next call of `take` returns it.
        """
    @offered.setter
    def offered(self, none: None, /) -> None: ...
    needs_producers: bool
    """Whether `take` and `swap` return ``ABANDONED``; False after `Consumer` was made."""
    @property
    def producers(self) -> tuple[int, list[tuple[int, int]], int]:
        """When the last producer left (0: one is there, or none came), the producers, and when the last frame was sent.

        Each producer is its process id and how it left; 0: it takes part. The times are in nanoseconds since 1970. The
        last frame is that which this consumer took last; 0: none.
        """
    any_thread: bool
    """Whether one thread may take a frame and another thread may accept it; False after `Consumer` was made."""
    def check_turn(self) -> None:
        """Do nothing if this thread may call `take` and `swap`, which also make this check.

        Raises
        ------
        InvalidArgumentError
            `begin` got `again`, `any_thread` is False, and another thread takes a frame at this moment, or has taken
            the frame in `offered`.
        """
    def add_track(self, seat: int, member: int, fd: int, /) -> None:
        """Map the track of a producer. The new track replaces the track of the seat's previous producer."""
    def swap(self, number: int, timeout: float | None = None, spin: float | None = None, /) -> Frame | Condition:
        """Release a frame without a fence, and then take the next frame: `release` and `take` in one step."""
    def take(self, timeout: float | None = None, spin: float | None = None, /) -> Frame | Condition:
        """Take the next frame. The frame is in hand until the caller releases it.

        Without a frame, the result is `TIMEOUT`, `END`, `DESTROYED`, `EVICTED`, `UNKNOWN_MEMBER`, `FAILED`,
        `UNDELIVERABLE` or `HANDS_FULL`.

        Raises
        ------
        ProtocolError
            The memory of the channel was inconsistent for 100 ms.
        """
    def release(
        self, number: int, word: int = 0, value: int = 0, reached_word: int = 0, reached_value: int = 0, /
    ) -> bool | Condition:
        """Release a frame, in any order of the frames. In a queue this call also acknowledges the frame.

        A `value` says that work on the frame continues until `word` of this member's timeline has that value. If this
        fence would overwrite the fence of another frame of its slot, on another word or with a greater value, the
        result is `FENCE_PENDING`, and the frame stays in hand, unless the other fence is the one of `reached_word` and
        `reached_value`, which the caller knows to be reached. The result is False if the queue has given the frame to
        another consumer meanwhile.

        Raises
        ------
        LeaseReleasedError
            The frame is not in hand.
        """
    def stored(self, number: int, /) -> tuple[int, int]:
        """Return the word and the value of the fence in the slot of a frame's number; a value of 0: there is none."""
    def requeue(
        self, number: int, word: int = 0, value: int = 0, reached_word: int = 0, reached_value: int = 0, /
    ) -> bool | Condition:
        """Release a frame of a queue and requeue it, so that another consumer takes the frame; see `release`."""
    def ack(self, number: int, /) -> bool:
        """Acknowledge a frame, which stays in hand. In a broadcast the frame then holds no producer back.

        The result is False if the queue has given the frame to another consumer meanwhile.
        """
    def unclaim(self, number: int, /) -> bool:
        """Requeue a frame of a queue, but keep its memory in hand; see `ack`. This consumer may take the frame again.

        A frame that this consumer took a second time is in hand twice. Then `ack` and `unclaim` settle the entry that
        is not settled, and `release` releases the settled entry first.
        """
    def keep(self, producer: int, block: int, description_id: int, kept: Any, base: int = 0, /) -> None:
        """Keep the object `kept` for a producer's frames in a block with a description, whose memory begins at `base`.

        There is one such object for each producer, block and description. If 16,384 objects are kept, they are dropped.
        """
    def forget(self, block: int = 0, /) -> bool:
        """Drop the objects that are kept for a block (0: for all blocks); return whether there was one."""
    def leave(self) -> None:
        """Take no more frames. Frames in hand stay usable and hold no producer back. The caller tells the service."""
    @property
    def failed(self) -> int:
        """Number of the frame that failed, or was delivered too often, last."""
    @property
    def spent(self) -> int:
        """How often consumers had got the frame that was delivered too often last."""
    @property
    def in_hand(self) -> list[int]:
        """Numbers of the frames in hand, in their order."""
    @property
    def waits_asleep(self) -> int:
        """How many of the next waits do not poll adaptively, because earlier ones polled in vain."""
    @property
    def counts(self) -> tuple[int, int, int]:
        """Frames that this consumer took, the bytes of their buffers, and the number of frames that it missed."""
    @property
    def waits(self) -> tuple[int, float]:
        """Waits for a frame that were not in vain, and the seconds of all waits for a frame."""
    @property
    def unknown(self) -> tuple[int, int]:
        """Seat and member id of the producer whose track was missing last."""
    def close(self) -> None:
        """Unmap everything and drop the objects that are kept. A thread that waits gets `ClosedError`. Idempotent."""

class Arena:
    """A buffer that is divided into chunks; see `poolbridge._session.returns.Arena`."""

    def __new__(cls, *ignored: Any) -> Self: ...
    @property
    def chunks(self) -> int:
        """Number of chunks."""
    @property
    def sent(self) -> int:
        """How many chunks have a frame that has not come back. Never changes if the producer has left meanwhile."""
    def divide(
        self, block: int, buffer: int, chunks: int, stride: int, fences: Sequence[tuple[int, int, int]], /
    ) -> None:
        """Make the chunks. `fences` must be reached before a chunk is written."""
    def take_fences(self) -> list[tuple[int, int, int]]:
        """Return timeline, word and value of the fences of all chunks, and remove them from the chunks."""

class Chunks:
    """The chunks of a publisher; see `poolbridge._session.returns.Chunks`.

    Each method except `send_after` and `publish` is one step: no signal handler and no other thread runs during the
    method. `take`, `send`, `follow` and `send_after` do the common case of a publisher's work for a frame. In any other
    case they return None or False, and Python code can continue from the state of the chunks.
    """

    stream: Any
    """The stream that wrote an array last."""
    follower: Any
    """The `Follower` of that stream."""
    following: Any
    """The `Follower` of the stream that writes the array on loan; else None."""
    closed: bool
    busy: bool
    """Whether a call of the publisher waits."""
    on_streams: bool
    """Whether streams write the arrays. These streams wait for the fences of chunks that came back."""
    used: float
    """The monotonic time of the last loan or publication."""

    def __new__(cls, *ignored: Any) -> Self: ...
    @property
    def arenas(self) -> list[Any]:
        """The arenas."""
    @property
    def owner(self) -> Any:
        """The `Producer`."""
    @property
    def loan(self) -> tuple[Any, int, Any, Any] | None:
        """The chunk on loan: its arena, its position there, and what `fit` has set: keeper and array, or None."""
    fences: Sequence[tuple[int, int, int]]
    """The fences of the chunk on loan."""
    @property
    def pending(self) -> list[tuple[int, int, int]]:
        """The fences of the free chunk that came back first."""
    @property
    def counts(self) -> tuple[int, int]:
        """How many chunks there are, and how many of them are free."""
    def publish_with(
        self, producer: Producer, timelines: Any, timeline: int, description_id: int, description: bytes, nbytes: int, /
    ) -> None:
        """Say what the frames have in common.

        `timelines` are the session's timelines, and `timeline` is the id of its own timeline. `description_id` is the
        id of the description of an arena's first chunk; the next chunks have the next ids.
        """
    def add(self, arena: Arena, /) -> None:
        """Add an arena, whose chunks are free."""
    def let_go(self, free: bool, /) -> list[Any]:
        """Take all arenas out and return them. With `free`, leave those of which a chunk is not free.

        While a call waits for a chunk, `free` leaves all of them.
        """
    def take(self) -> Any:
        """Return the array on loan. If no array is on loan, put a free chunk on loan and return its array."""
    def put_on_loan(self) -> bool:
        """Put a free chunk on loan if none is; return whether one is. For a call that waits."""
    def fit(self, array: Any, keeper: Any, /) -> None:
        """Set the array of the chunk on loan, and the `LeaseState` that keeps its memory mapped."""
    def put_back(self) -> None:
        """End the loan without a publication."""
    def send(self, meta: bytes = b"", word: int = 0, value: int = 0, /) -> Any:
        """Publish the loan if there is room, clear `following`, and return the frame's number.

        The content is complete when `word` of this session's timeline has `value`. A `value` of 0 says that the content
        is complete now.
        """
    def publish(self, meta: bytes, word: int, value: int, timeout: float | None, /) -> Any:
        """Publish the loan as `send` does, but wait for room. Return the frame's number, or a `Condition`."""
    def follow(self, stream: Any, /) -> bool:
        """Whether `stream` may write the loan at once: it wrote the loan before, and this loan's fences are reached.

        If the result is True, `follow` has set `following`. Never waits.
        """
    def send_after(self, meta: bytes, stream: Any, /) -> int | tuple[int, int] | None:
        """Make the loan's stream write the fence of its work, store the fence in the loan, and publish the loan.

        Returns the frame's number. If the loan was not published, returns the word and value of the new fence. Returns
        None if there is no new fence, and also if `stream` is neither None nor the loan's stream. Other threads may run
        during the call of the driver.
        """

class Follower:
    """A stream that uses frames one after the other; `poolbridge._order.fences.Follower` sets the attributes."""

    timelines: Any
    """The session's timelines, with the attributes `own` and `pages`."""
    own: Any
    """The timeline that the stream writes, with the attribute `closed`."""
    key: Any
    words: Any
    """The words of `own` by key, each with `index` and `value`. A thread writes words only while it has the lock."""
    is_owned: Callable[[], bool]
    """Whether this thread has the lock."""
    acquire: Callable[[], object]
    release: Callable[[], object]
    fence: Callable[[int, int, int], Any]
    """Makes a fence from a timeline's id, a word and a value."""
    id: int
    """The id of `own`."""
    function: int
    """The address of ``cuStreamWriteValue64``; 0: only Python can call this function."""
    stream: int
    address: int
    """The address at which the stream finds the words of `own`."""
    patience: float
    """Most seconds that the next poll takes: `shortest`, and up to `longest` after polls in vain."""
    shortest: float
    longest: float
    anywhere: bool
    """Whether every thread can queue work on the stream."""

    def poll(self, fences: Sequence[tuple[int, int, int]] | Frame, write: bool, /) -> list[tuple[int, int, int]] | None:
        """Poll fences, or a frame's fence, and return those that are not reached; None: the caller needs a lease state.

        Fences on the stream's own word count as reached. If `write`, fences of processes that died count as reached,
        too.
        """
    def queue(self) -> Any:
        """Make the stream write its next fence, and return the fence; None: Python must make the stream write it.

        Other threads may run during the call of the driver.
        """

@final
class DeferringLock:
    """A lock whose holder also does work that was deferred: see `poolbridge._sys.deferred`, which has a substitute."""

    def __enter__(self) -> None:
        """Take the lock and do the deferred work. If the work or a signal handler raises, unlock again."""
    def __exit__(self, *error: object) -> None:
        """Unlock, and do the work that was deferred meanwhile."""
    def later(self, work: Callable[[], object], /) -> None:
        """Do `work` under the lock, now if the lock is free; if not, the lock's holder does `work`. Never waits."""
    def rest(self, seconds: float, /) -> None:
        """Wait until no other thread holds the lock, for `seconds` at most."""

class NoBuffer:
    """A base of leases. ``memoryview(lease)`` raises a `TypeError` that names ``lease.memoryview()``.

    NumPy would use a buffer protocol instead of ``__array__``. Only ``__array__`` knows every dtype and makes arrays
    read-only when the lease is published. When a lease refuses a buffer, NumPy uses ``__array__``.
    """

def load_u64(buffer: ReadableBuffer, offset: int, /) -> int:
    """Load a 64-bit word, with acquire order."""

def store_u64(buffer: WriteableBuffer, offset: int, value: int, /) -> None:
    """Store a 64-bit word, with release order."""

def compare_exchange_u64(buffer: WriteableBuffer, offset: int, expected: int, value: int, /) -> bool:
    """Store `value` in a 64-bit word atomically if the word is `expected`; return whether it was. A full barrier."""

def barrier() -> None:
    """Order all stores before this call before all loads after it."""

def futex_wait(buffer: ReadableBuffer, offset: int, seen: int, timeout: float | None, /) -> bool:
    """Sleep while the 32 bits at an offset are `seen`. False: the time limit passed. True: read the word again."""

def futex_wake(buffer: ReadableBuffer, offset: int, count: int = ..., /) -> int:
    """Wake at most `count` sleepers on the 32 bits at an offset, in all processes; return the number of woken ones."""

def call_again(ending: Callable[[], bool], function: Callable[[Any], object], argument: object, /) -> object:
    """Call `function` with one argument, unless `ending` returns true.

    If `function` raises an error, call it once more, and raise the first error.
    """

def read_layout(layout: bytes, /) -> tuple[dict[str, int], dict[bytes, int], bytearray] | None:
    """Read the layout of a buffer, but check neither the forms nor the places of its arrays.

    Returns the number of each array by its name, the number of each form, and for each array two 64-bit words: the
    number of its form, and its offset. A form is the encoded `Tensor` without the offset. None: the layout is wrong,
    or is not plain, such as one with names that are not ASCII. No two arrays have one name.
    """

def arrow_capsule(kind: int, address: int, structure: object, keeper: object, /) -> CapsuleType:
    """Make a capsule of a structure of Arrow's C data interface, and set the structure's ``release``.

    `kind` is 0 for an ``ArrowSchema``, 1 for an ``ArrowArray``, 2 for an ``ArrowDeviceArray``. `structure` owns the
    memory at `address`. `keeper` lives until a library releases the structure, in any thread.
    """

def stream_words(function: int, capturing: int, stream: int, flags: int, /, *words: int) -> int:
    """Call ``cuStreamWriteValue64`` or ``cuStreamWaitValue64``, at the address `function`, for each word.

    `words` are the address and the value of each word, for 64 words at most. `capturing` is the address of
    ``cuStreamIsCapturing``. Returns the first result that is not 0, else 0. Returns -1, without a call of `function`,
    if the stream's work is being captured. The interpreter's lock is free during the calls of the driver, which wait
    while the stream's queue is full.
    """

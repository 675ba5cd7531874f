"""The members of a channel that hand frames on through shared memory, ``docs/streams.md``, and a lock.

Any thread may call anything at any time: the interpreter's lock protects what is not being waited for, and waiting, in
`Consumer.take`, `Producer.publish`, `Producer.reclaim` and `futex_wait`, releases it and takes it
for each try. A build without that lock takes it back when this module is imported. Signals are handled and time limits
kept while waiting. In a forked child everything but `close` raises `ForkError`.

Numbers are from 0 to 2**64 - 1 where nothing else is said. Times are seconds; ``spin`` is for how long a wait does not
sleep. All arguments are positional.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Self, final

from _typeshed import ReadableBuffer, WriteableBuffer

class Condition(Enum):
    """What may come instead of a frame or a number; none is an error of the caller."""

    TIMEOUT = ...
    """The time limit passed."""
    NO_ROOM = ...
    """The channel is full, and its policy, or that of a consumer, is to fail."""
    END = ...
    """The channel is closed: everything was taken, or nothing may be published any more."""
    DESTROYED = ...
    """The channel was destroyed: no frame comes at once."""
    EVICTED = ...
    """The roster does not have this member as active: it has left, or its session has ended."""
    UNKNOWN_MEMBER = ...
    """The file of a member is needed, which the service has sent: see `unknown`. Then try again."""
    FAILED = ...
    """What a producer says of a frame is a lie: see `Consumer.failed`. The next frame can be taken."""
    HANDS_FULL = ...
    """256 frames are in hand: release some."""
    FENCE_PENDING = ...
    """Another word's fence of an earlier frame has to be reached first: wait for it, and call again with `settled`."""

@final
class Frame:
    """A frame that a consumer has in hand until it releases its number; what is known of it stays."""

    @property
    def number(self) -> int:
        """Its number in its channel, counted from 1."""
    @property
    def block(self) -> int: ...
    @property
    def buffer(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
    @property
    def time(self) -> int:
        """When it was published, in nanoseconds since 1970."""
    @property
    def word(self) -> int:
        """Word of the fence after which the content is complete."""
    @property
    def value(self) -> int:
        """Value of that fence; 0: the content is complete."""
    @property
    def timeline(self) -> int:
        """The producer's timeline, which that fence is on; 0: it has none."""
    @property
    def producer(self) -> int:
        """Member id of the producer."""
    @property
    def description_id(self) -> int: ...
    @property
    def missed(self) -> int:
        """Frames that this consumer (in a queue: all of them) did not get since the one before."""
    @property
    def object(self) -> Any:
        """What `Consumer.keep` was given for its block and description, else None."""
    @property
    def description(self) -> tuple[str, tuple[int, ...], tuple[int, ...] | None, int] | None:
        """Element type, shape, strides in elements, and offset in bytes; None if there is an `object`."""
    @property
    def meta(self) -> dict[str, str]: ...
    @property
    def event(self) -> bytes | None:
        """An interprocess event of 64 bytes, recorded when the content is complete."""

@final
class Producer:
    """A producer of a channel, which has joined it, or is about to. Descriptors stay the caller's.

    Raises
    ------
    ProtocolError
        A file is not what it should be.
    DeviceMemoryError
        It cannot be mapped.
    InvalidArgumentError
        There is no such slot.
    """

    patience: float
    """How long it leaves the room to a producer that has waited longer, in seconds: 0.002 unless it is set."""

    def __new__(cls, roster: int, sequencer: int, track: int, slot: int, member: int) -> Producer: ...
    def add_cursor(self, slot: int, member: int, fd: int, /) -> None:
        """Map the cursor of a consumer, in the place of the one that had its slot."""
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
        spin: float = 0.0,
        /,
    ) -> int | Condition:
        """Publish a block as the next frame and give its number.

        Instead there may be `TIMEOUT`, `NO_ROOM`, `END`, `DESTROYED`, `EVICTED` or `UNKNOWN_MEMBER`: nothing was
        published. The description and the meta are in the form of the track. The same id, which is not 0, always stands
        for the same description. With a `timeout` of 0 it does not wait, nor take a place among those that do.

        Raises
        ------
        InvalidArgumentError
            A number, the description or the meta is not in the form of the track.
        ProtocolError
            The memory of the channel has contradicted itself for 100 ms.
        """
    def reclaim(
        self, timeout: float | None = 0.0, spin: float = 0.0, /
    ) -> list[tuple[int, tuple[tuple[int, int, int], ...]]] | Condition:
        """Give the blocks that came back, each with the fences (timeline, word, value) that its next writer waits for.

        With a timeout it waits until there is one, unless none is in flight. Instead there may be `EVICTED` or
        `UNKNOWN_MEMBER`.
        """
    @property
    def in_flight(self) -> list[tuple[int, int]]:
        """Numbers and blocks of the frames whose blocks have not come back."""
    @property
    def behind(self) -> tuple[int, int] | None:
        """Member and process id of the consumer that is furthest behind, of those which hold up a broadcast."""
    @property
    def unknown(self) -> tuple[int, int]:
        """Slot and member id of the consumer whose cursor was needed last."""
    def close(self) -> None:
        """Unmap everything; a thread that waits gets `ClosedError`. Idempotent."""

@final
class Consumer:
    """A consumer of a channel, which is about to join it. It raises what `Producer` does."""

    def __new__(cls, roster: int, sequencer: int, cursor: int, slot: int, member: int) -> Consumer: ...
    def begin(self) -> int | Condition:
        """Begin to take frames, once the service says that it has joined; gives the first number (0 in a queue)."""
    def add_track(self, slot: int, member: int, fd: int, /) -> None:
        """Map the track of a producer, in the place of the one that had its slot."""
    def take(self, timeout: float | None = None, spin: float = 0.0, /) -> Frame | Condition:
        """Take the next frame; it is in hand until it is released.

        Instead there may be `TIMEOUT`, `END`, `DESTROYED`, `EVICTED`, `UNKNOWN_MEMBER`, `FAILED` or `HANDS_FULL`.

        Raises
        ------
        ProtocolError
            The memory of the channel has contradicted itself for 100 ms.
        """
    def release(self, number: int, word: int = 0, value: int = 0, settled: bool = False, /) -> bool | Condition:
        """Let go of a frame, in any order; in a queue that acknowledges it. False: its claim was given to another.

        A `value` says that work on the frame goes on until `word` of this member's timeline has that value. Where an
        earlier frame's fence of another word would be lost for it, the result is `FENCE_PENDING` and nothing is done.

        Raises
        ------
        LeaseReleasedError
            The frame is not in hand.
        """
    def requeue(self, number: int, word: int = 0, value: int = 0, settled: bool = False, /) -> bool | Condition:
        """Let go of a frame of a queue, which another consumer takes then; see `release`."""
    def ack(self, number: int, /) -> bool:
        """Acknowledge a frame that stays in hand. In a broadcast it then holds no producer back.

        False: its claim in a queue was given to another.
        """
    def give_back(self, number: int, /) -> bool:
        """Give back a frame of a queue that stays in hand; see `ack`. This consumer may take it a second time.

        Of such a frame, which is in hand twice, `ack` and `give_back` settle what is not settled, and `release` lets go
        first of what is.
        """
    def keep(self, producer: int, block: int, description_id: int, kept: Any, /) -> None:
        """Keep an object for the frames of a producer in a block with a description; one for each block."""
    def forget(self, block: int, /) -> bool:
        """Keep nothing for a block any more; gives whether something was."""
    def leave(self) -> None:
        """Take no more: what is in hand stays so, and holds back nobody. The service then has to be told."""
    @property
    def failed(self) -> int:
        """Number of the frame that failed last."""
    @property
    def in_hand(self) -> list[int]:
        """Numbers of the frames in hand, in their order."""
    @property
    def unknown(self) -> tuple[int, int]:
        """Slot and member id of the producer whose track was needed last."""
    def close(self) -> None:
        """Unmap everything and drop what is kept; a thread that waits gets `ClosedError`. Idempotent."""

class Lent:
    """A write lease that a channel has or that came back; see `poolbridge._session.spares.Spare`."""

    array: Any
    fences: Any
    shelf: Any
    owned: bool
    block: int
    buffer: int
    nbytes: int

class Shelf:
    """The leases of a publisher; see `poolbridge._session.spares.Shelf`.

    Its methods do what a publisher does for each frame where nothing is out of the ordinary, each in one step: no
    signal handler and no other thread comes between. Else they give None and leave all as it is.
    """

    free: list[Any]
    loan: list[Any]
    strays: list[tuple[int, tuple[tuple[int, int, int], ...]]]
    """What came back and does not belong here, as `Producer.reclaim` gives it."""
    owner: Any
    """The `Producer`."""
    loans: Any
    """What the channel has, by the block: a dictionary."""
    described: bytes
    description_id: int
    most: int
    extra: int
    wanting: bool
    closed: bool
    busy: bool
    aside: bool
    used: float

    def __new__(cls, *ignored: Any) -> Self: ...
    def take(self) -> Any:
        """Give the array of the loan, or put one on loan that came back and give its array."""
    def send(self, meta: bytes = b"", /) -> int | None:
        """Publish the loan if there is room; give the frame's number."""
    def look(self) -> None:
        """Note that the rest of the session was looked at: for a quarter of a second `take` and `send` do without."""

@final
class DeferringLock:
    """A lock whose holder also does what others left for it: see `poolbridge._sys.deferred`, which has a substitute."""

    def __enter__(self) -> None:
        """Take the lock, and do what was left. If that raises, as a signal handler may, the lock is given up again."""
    def __exit__(self, *error: object) -> None:
        """Give the lock up, and do what was left meanwhile."""
    def later(self, work: Callable[[], object], /) -> None:
        """Have `work` done under the lock, by this thread or by the one that holds it; never waits."""
    def rest(self, seconds: float, /) -> None:
        """Wait until nobody holds the lock, for so long at most."""

def load_u64(buffer: ReadableBuffer, offset: int, /) -> int:
    """Load a word; what is loaded after it is as new (acquire)."""

def store_u64(buffer: WriteableBuffer, offset: int, value: int, /) -> None:
    """Store a word; a load that gets it also sees what was stored before (release)."""

def compare_exchange_u64(buffer: WriteableBuffer, offset: int, expected: int, value: int, /) -> bool:
    """Store a word if it has the expected value, in one step; gives whether it had. A full barrier."""

def barrier() -> None:
    """Have everything that was stored be seen before what is loaded next."""

def futex_wait(buffer: ReadableBuffer, offset: int, seen: int, timeout: float | None, /) -> bool:
    """Sleep while the 32 bits at an offset are `seen`. False: the time limit passed; else look at the word again."""

def futex_wake(buffer: ReadableBuffer, offset: int, count: int = ..., /) -> int:
    """Wake the sleepers on the 32 bits at an offset in every process, at most `count`; gives how many."""

"""A ring of shared memory: packets from and to the service without a system call.

Each direction has a file with one writer and one reader; see "Rings" in ``docs/protocol.md``. Nothing here sleeps or
wakes anybody: a reader says that it is about to sleep, and its writer is told to wake it.
"""

from __future__ import annotations

import platform
import threading
from typing import Final

from poolbridge._errors import ProtocolError
from poolbridge._filemap import FileMapping, check_sealed

SIZE: Final = 1 << 16
"""Bytes of packets that a ring holds, their heads included."""

MAX_PACKET: Final = SIZE // 4
"""Bytes of the longest packet that goes through a ring."""

USABLE: Final = platform.machine() in {"x86_64", "AMD64"}
"""Whether stores are seen in their order here, which nothing in Python could ask for."""

MARKED: Final = b""
"""Taken instead of a packet: the next ones come over the socket."""

_DATA: Final = 4096
_FILE: Final = _DATA + SIZE
# The words of a file by their index, and its data.
_HEAD: Final = 0
_TAIL: Final = 8
_ASLEEP: Final = 16
_FIRST: Final = _DATA // 8
_MARK: Final = 0
_SKIP: Final = 1 << 32
_WRAP: Final = 1 << 64


class Ring:
    """One end: it writes into its own file and reads from the service's.

    One thread at a time may write, and one may read.

    Parameters
    ----------
    reads, writes
        Descriptors of the two files; they stay the caller's.

    Raises
    ------
    ProtocolError
        They are not the files of a ring.
    DeviceMemoryError
        They cannot be mapped.
    """

    def __init__(self, reads: int, writes: int) -> None:
        for fd in (reads, writes):
            check_sealed(fd, _FILE, "a ring")
        self._mappings = FileMapping(reads, _FILE, write=False), FileMapping(writes, _FILE, write=True)
        self._peer_file, self._own_file = (mapping.memory for mapping in self._mappings)
        self._peer = memoryview(self._peer_file).cast("Q")
        self._own = memoryview(self._own_file).cast("Q")
        self._head = 0
        self._published = 0
        self._tail = 0
        self._fence = threading.Lock()

    # Writing

    def put(self, packet: bytes) -> bool:
        """Write a packet, which the reader sees after `publish`; False if there is no room: nothing was written.

        Raises
        ------
        ProtocolError
            The reader's word contradicts what was written.
        """
        head, length = self._head, len(packet)
        # An empty ring, as nearly all are, needs no sums.
        free = SIZE if self._peer[_TAIL] == head else self._free()
        at = head % SIZE
        need = 8 + (length + 7 & ~7)
        rest = SIZE - at
        skips = need > rest
        # There is always room for a mark.
        if (need + rest if skips else need) + 8 > free or length > MAX_PACKET:
            return False
        own = self._own
        if skips:
            own[_FIRST + (at >> 3)] = _SKIP
            head = (head + rest) % _WRAP
            at = 0
        own[_FIRST + (at >> 3)] = length
        start = _DATA + 8 + at
        self._own_file[start : start + length] = packet
        self._head = (head + need) % _WRAP
        return True

    def mark(self) -> None:
        """Tell the reader, after `publish`, that the next packets come over the socket."""
        self._own[_FIRST + (self._head % SIZE >> 3)] = _MARK
        self._head = (self._head + 8) % _WRAP

    @property
    def drained(self) -> bool:
        """Whether the reader has read everything."""
        return self._free() == SIZE

    def _free(self) -> int:
        tail = self._peer[_TAIL]
        used = (self._head - tail) % _WRAP
        if used > SIZE or tail & 7:
            raise ProtocolError(f"the service says that it has read {tail} bytes of a ring with {self._head}")
        return SIZE - used

    def publish(self) -> bool:
        """Let the reader see what was written; give whether it sleeps and has to be woken."""
        before, self._published = self._published, self._head
        self._own[_HEAD] = self._head
        # What was stored has to be seen before what is loaded next: both take a locked instruction.
        with self._fence:
            pass
        return self._peer[_ASLEEP] == (before + 1) % _WRAP

    # Reading

    def some(self) -> bool:
        """Whether there is something to take."""
        return self._peer[_HEAD] != self._tail

    def take(self, most: int) -> list[bytes]:
        """Take the packets that are there, in order: none, or up to `most`, of which only the last can be `MARKED`.

        Raises
        ------
        ProtocolError
            The ring is corrupt.
        """
        peer, tail, memory = self._peer, self._tail, self._peer_file
        there = (peer[_HEAD] - tail) % _WRAP
        taken: list[bytes] = []
        while there and len(taken) < most:
            at = tail % SIZE
            length = peer[_FIRST + (at >> 3)]
            if length == _SKIP and at:
                tail += SIZE - at
                there -= SIZE - at
                at = 0
                length = peer[_FIRST]
            need = 8 + (length + 7 & ~7)
            if length > MAX_PACKET or not need <= there <= SIZE or at + need > SIZE or there & 7:
                if taken:
                    break  # they come before the error
                raise ProtocolError(f"a packet of {length} bytes in a ring with {there}")
            start = _DATA + 8 + at
            taken.append(memory[start : start + length])
            tail += need
            there -= need
            if not length:
                break
        if taken:
            self._tail = self._own[_TAIL] = tail % _WRAP
        return taken

    def sleep(self) -> bool:
        """Say that the reader is about to sleep; False if there is something to take."""
        self._own[_ASLEEP] = (self._tail + 1) % _WRAP
        with self._fence:  # see `publish`
            pass
        if self._peer[_HEAD] == self._tail:
            return True
        self.wake()
        return False

    def wake(self) -> None:
        """Say that the reader does not sleep any more."""
        self._own[_ASLEEP] = 0

    def close(self) -> None:
        """Unmap it. Idempotent; nobody may use it any more."""
        for words, mapping in zip((self._peer, self._own), self._mappings, strict=True):
            words.release()
            mapping.close()

"""Replaces the service for a channel in tests: this module makes the files of members and changes the roster.

See ``docs/streams.md``. Other processes open the files through `/proc/PID/fd`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Final, NamedTuple

import msgspec

from poolbridge import _native

BLOCK: Final = 0
FAIL: Final = 1
DROP_OLDEST: Final = 2
LATEST: Final = 3
OPEN: Final = 0
CLOSING: Final = 1
CLOSED: Final = 2
DESTROYED: Final = 3
FREE: Final = 0
ACTIVE: Final = 1
LEFT: Final = 2

ROSTER: Final = 73_728
_F_ADD_SEALS: Final = 1033
_SIZE_SEALS: Final = 0x2 | 0x4
_FUTURE_WRITE: Final = 0x10
_TAIL_BITS: Final = 16


def opened(pid: int, fd: int) -> int:
    """Open a file that another process has open."""
    return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


class Seat(NamedTuple):
    """What a member needs to join: its seat and id, and, in the process `pid`, the descriptors of the files to open."""

    pid: int
    roster: int
    sequencer: int
    file: int
    seat: int
    member: int

    def opened(self) -> Seat:
        """Open the files in the calling process, and return a seat with the new descriptors."""
        roster, sequencer, file = (opened(self.pid, fd) for fd in self[1:4])
        return Seat(os.getpid(), roster, sequencer, file, self.seat, self.member)

    def close(self) -> None:
        for fd in self[1:4]:
            os.close(fd)


def memfd(name: str, size: int, *, sealed: bool = True) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if sealed:
        fcntl.fcntl(fd, _F_ADD_SEALS, _SIZE_SEALS)
    return fd


def description(
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    offset: int = 0,
    base: int = 0,
    layout: bytes = b"",
) -> bytes:
    head = struct.pack("<QHHI16s", offset, len(shape), strides is not None, 0, dtype.encode())
    sizes = struct.pack(f"<{len(shape)}Q", *shape).ljust(256, b"\0")
    steps = struct.pack(f"<{len(shape)}q", *strides) if strides is not None else b""
    return ((head + sizes + steps).ljust(544, b"\0") + struct.pack("<QQ", base, len(layout))).ljust(576, b"\0") + layout


def meta(entries: dict[str, str]) -> bytes:
    return msgspec.msgpack.encode(entries, order="deterministic") if entries else b""


class Channel:
    """One channel; only this process may change its roster."""

    def __init__(self, *, queue: bool = False, capacity: int = 4, policy: int = BLOCK, deliveries: int = 0) -> None:
        self.capacity = capacity
        self.queue = queue
        self.slots = max(64, 1 << (2 * capacity - 1).bit_length())
        self.roster_fd = memfd("roster", ROSTER)
        self.sequencer_fd = memfd("sequencer", 8192 + 24 * self.slots)
        self.roster = mmap.mmap(self.roster_fd, ROSTER)
        self.sequencer = mmap.mmap(self.sequencer_fd, 8192 + 24 * self.slots)
        fixed = struct.pack("<8Q", 0, OPEN, 0, queue, capacity, self.slots, policy, deliveries)
        self.roster[:72] = b"PBROST01" + fixed
        self._fds = [self.roster_fd, self.sequencer_fd]
        self._cursors: dict[int, mmap.mmap] = {}
        self.files: dict[tuple[bool, int], int] = {}
        self._members = 0

    @property
    def track_size(self) -> int:
        return 4096 + (self.slots * (64 + 576 + 8448 + 65536) + 4095) // 4096 * 4096

    @property
    def cursor_size(self) -> int:
        return 8192 + 32 * self.slots

    @property
    def tail(self) -> int:
        """The number of the newest frame."""
        return _native.load_u64(self.sequencer, 0) >> _TAIL_BITS

    def cursor(self, seat: int) -> mmap.mmap:
        return self._cursors[seat]

    def prepare(self, seat: int, *, producer: bool, policy: int = BLOCK, timeline: int = 0) -> Seat:
        """Make the file of a new member. The member becomes active in `join`."""
        self._members += 1
        size = self.track_size if producer else self.cursor_size
        fd = memfd("track" if producer else "cursor", size)
        self._fds.append(fd)
        self.files[producer, seat] = fd
        if not producer:
            self._cursors[seat] = mmap.mmap(fd, size)
        at = self._at(seat, producer=producer)
        self.roster[at : at + 40] = struct.pack("<2I4Q", FREE, policy, self._members, timeline, 0, 0)
        return Seat(os.getpid(), self.roster_fd, self.sequencer_fd, fd, seat, self._members)

    @staticmethod
    def _at(seat: int, *, producer: bool) -> int:
        return (4096 if producer else 8192) + 64 * seat

    def _store_u32(self, at: int, value: int) -> None:
        word = _native.load_u64(self.roster, at)
        _native.store_u64(self.roster, at, word >> 32 << 32 | value)

    def seal(self, seat: int, *, producer: bool) -> None:
        """Seal a member's file, so that no other process can map it for writing."""
        fcntl.fcntl(self.files[producer, seat], _F_ADD_SEALS, _FUTURE_WRITE)

    def join(self, seat: int, *, producer: bool, oldest: bool = False) -> None:
        """Make a member active. The member has mapped its file before."""
        first = True
        while True:
            tail = _native.load_u64(self.sequencer, 0)
            last = tail >> _TAIL_BITS
            if not producer and not self.queue:
                start = max(1, last - self.capacity + 1 if oldest else last)
                _native.store_u64(self.roster, self._at(seat, producer=False) + 24, start)
                self._cursors[seat][:16] = struct.pack("<2Q", start, start)
            if first:
                self._store_u32(self._at(seat, producer=producer), ACTIVE)
                self._bump()
            if self._new_version(tail):
                break
            first = False
        self.wake()

    def part(self, seat: int, *, producer: bool, state: int = LEFT) -> None:
        """Set the state of a member that leaves or died. LEFT keeps the seat in use; FREE makes it free."""
        at = self._at(seat, producer=producer)
        if state == FREE:
            _native.store_u64(self.roster, at + 8, 0)
        self._store_u32(at, state)
        self._bump()
        while not self._new_version(_native.load_u64(self.sequencer, 0)):
            pass
        self.wake()

    def give_claims_back(self, seat: int) -> None:
        """Requeue the frames that a consumer of a queue had when its process ended."""
        for at in range(8192 + 8 * self.slots, 8192 + 16 * self.slots, 8):
            claim = _native.load_u64(self.sequencer, at)
            if claim & 4095 == 2 + seat:
                _native.compare_exchange_u64(self.sequencer, at, claim, claim & ~4095)

    def _bump(self) -> None:
        _native.store_u64(self.roster, 8, _native.load_u64(self.roster, 8) + 1)

    def _new_version(self, tail: int) -> bool:
        version = _native.load_u64(self.roster, 8)
        return _native.compare_exchange_u64(self.sequencer, 0, tail, tail & ~1023 | version & 1023)

    def wake(self) -> None:
        """Change both futex words of the channel, and wake all members that sleep on these words."""
        for at in (64, 128):
            while True:
                seen = _native.load_u64(self.sequencer, at)
                if _native.compare_exchange_u64(self.sequencer, at, seen, (seen | 1) + 1 & 0xFFFFFFFF):
                    break
            _native.futex_wake(self.sequencer, at)

    def close(self, state: int = CLOSED) -> None:
        """Close the channel: consumers can still take the published frames, and then see the end of the channel."""
        _native.store_u64(self.roster, 16, CLOSING)
        self._bump()
        while not self._new_version(_native.load_u64(self.sequencer, 0)):
            pass
        _native.store_u64(self.roster, 24, self.tail)
        _native.store_u64(self.roster, 16, state)
        self._bump()
        self.wake()

    def unmap(self) -> None:
        """Unmap and close all files of the channel."""
        for memory in (self.roster, self.sequencer, *self._cursors.values()):
            memory.close()
        for fd in self._fds:
            os.close(fd)

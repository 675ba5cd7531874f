"""Scenario ``handle``: handles and descriptors that programs send without poolbridge."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import numpy as np

from poolbridge._cuda import cuda as _cuda
from poolbridge._cuda.imports import VirtualBlock
from poolbridge._libraries.patterns import Pattern
from poolbridge._memory.legacyhandle import LegacyHandle
from poolbridge._verify.transfer import Fields, compare

if TYPE_CHECKING:
    from poolbridge._verify.worker import Worker


def open_file(worker: Worker, path: str, device: str, expect: Fields, then: Fields | None) -> None:
    """Open a legacy handle from a file, without the service, and compare the memory; then write `then`, if given."""
    handle, pattern = LegacyHandle.load(path), Pattern(**expect)
    with handle.open(handle.device or device, shape=(pattern.elements,), dtype=pattern.dtype) as memory:
        compare(worker, memory, expect, then)


def descriptor(worker: Worker, path: str, device: str, expect: Fields, then: Fields) -> None:  # noqa: ARG001
    """Map memory by a file descriptor from a socket, compare it, write `then`, and answer through the socket.

    When the owner has given its memory back and closed the socket, compare the memory once more.
    """
    ordinal, written = _cuda.find_device(device), Pattern(**then)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(path)
        size, descriptors, _, _ = socket.recv_fds(peer, 8, 1)
        try:
            block = VirtualBlock(ordinal, descriptors[0], int.from_bytes(size, "little"))
        finally:
            for one in descriptors:
                os.close(one)
        try:
            address = block.address(write=True)
            _compare(ordinal, address, Pattern(**expect))
            _cuda.copy_from_host(ordinal, address, written.values())
            peer.send(size)
            peer.recv(1)  # returns when the socket is closed
            _compare(ordinal, address, written)
        finally:
            block.close()


def _compare(ordinal: int, address: int, pattern: Pattern) -> None:
    seen = np.empty(pattern.elements, pattern.dtype)
    _cuda.copy_to_host(ordinal, seen, address)
    pattern.compare(seen)

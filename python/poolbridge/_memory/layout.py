"""Describes the arrays of a frame of several arrays: its layout, which is sent as a `Layout` message."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from poolbridge._memory.tensor import Description, describe, from_wire
from poolbridge._wire import packet as _packet
from poolbridge._wire.limits import LAYOUT_BYTES, MAX_ELEMENTS, MAX_NAME_BYTES, MAX_UINT
from poolbridge._wire.messages import Layout, NamedTensor
from poolbridge.errors import (
    InvalidArgumentError,
    ProtocolError,
)

# Each array begins at a multiple of this number of bytes. JAX and CUDA use such arrays in place.
_ALIGNMENT: Final = 256
_NAME: Final = re.compile("[^\\x00-\\x1f\\x7f-\\x9f]+")


def pack(arrays: Iterable[tuple[str, Description]]) -> Description:
    """Describe all bytes of a frame of several arrays, which lie one after the other. The names were checked.

    Parameters
    ----------
    arrays
        The name and the description of each array, which is C-contiguous.

    Raises
    ------
    InvalidArgumentError
        There is no array, there are more than a frame can have, or they are larger than 2**63 - 1 bytes.
    """
    placed, end = [], 0
    for name, description in arrays:
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        placed.append((name, replace(description, offset=offset)))
        end = offset + description.nbytes
    if not placed:
        raise InvalidArgumentError("a frame of several arrays has at least one: the dict is empty")
    if end > MAX_UINT:
        raise InvalidArgumentError(f"the {len(placed)} arrays of a frame have more than 2**63 - 1 bytes")
    whole = replace(describe(end, "uint8"), arrays=tuple(placed), named=dict(placed))
    try:
        fits = len(placed) <= MAX_ELEMENTS and len(encode(whole)) <= LAYOUT_BYTES
    except ProtocolError:
        fits = False
    if not fits:
        raise InvalidArgumentError(
            f"{len(placed)} arrays in one frame: at most {MAX_ELEMENTS} are possible, whose names and shapes have at "
            f"most {LAYOUT_BYTES} bytes; join arrays of one dtype, or publish several frames"
        )
    return whole


def encode(whole: Description) -> bytes:
    """Return the layout of a frame, as it stands in the producer's track; of a frame of one array, nothing."""
    if not whole.arrays:
        return b""
    return _packet.encode(Layout(arrays=tuple([NamedTensor(name, one.to_wire()) for name, one in whole.arrays])))


@lru_cache(maxsize=16)
def decode(layout: bytes, whole: Description) -> Description:
    """Check the layout of a frame whose bytes are described by `whole`, and return the description with the arrays.

    Raises
    ------
    ProtocolError
        The layout is malformed, or an array lies outside of the frame.
    """
    if whole.element.name != "uint8" or len(whole.shape) != 1 or not whole.contiguous or whole.offset:
        raise ProtocolError("a frame of several arrays is not described as all its bytes")
    sent = _packet.decode(layout, Layout).arrays
    arrays = {one.name: from_wire(one.tensor, whole.nbytes) for one in sent}
    if not arrays or len(arrays) != len(sent):
        raise ProtocolError("a layout has no array, or two arrays of one name")
    for name in arrays:
        if not _NAME.fullmatch(name) or len(name.encode()) > MAX_NAME_BYTES:
            raise ProtocolError("the name of an array is empty, too long, or has a control character")
    return replace(whole, arrays=tuple(arrays.items()), named=arrays)

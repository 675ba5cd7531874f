"""Describes several arrays in one frame or in one buffer: their layout, which is made of `Layout` messages.

The layout of a frame stands beside the frame's description in the producer's track. The layout of a buffer stands in
the buffer itself, behind the arrays.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._memory.tensor import Description, describe, form_of, from_wire
from poolbridge._sys.native import NATIVE
from poolbridge._wire import packet as _packet
from poolbridge._wire.limits import LAYOUT_BYTES, MAX_ELEMENTS, MAX_LAYOUT_BYTES, MAX_NAME_BYTES, MAX_STRING, MAX_UINT
from poolbridge._wire.messages import Layout, MetadataEntry, NamedTensor, Tensor
from poolbridge.errors import (
    InvalidArgumentError,
    ProtocolError,
)

if TYPE_CHECKING:
    from poolbridge._memory.kinds import BlockMemory

# Each array begins at a multiple of this number of bytes. JAX and CUDA use such arrays in place.
_ALIGNMENT: Final = 256
# The number of arrays, or of entries of metadata, in a part of a buffer's layout.
_PART: Final = 64
_METADATA_PART: Final = 7
# The number of characters of an entry of metadata, which have at most MAX_STRING bytes.
_MOST_CHARACTERS: Final = MAX_STRING // 4
_NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})
_CONTROL: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f]")


def pack(arrays: Iterable[tuple[str, Description]], tied: Mapping[str, str] = MappingProxyType({})) -> Description:
    """Describe all bytes of several arrays, which lie one after the other. The names were checked.

    Parameters
    ----------
    arrays
        The name and the description of each array, which is C-contiguous.
    tied
        For the name of an array, the name of an earlier one that is the same memory.

    Raises
    ------
    InvalidArgumentError
        There is no array, two have one name, or they are larger than 2**63 - 1 bytes.
    """
    placed: dict[str, Description] = {}
    end = 0
    for name, description in arrays:
        if name in placed:
            raise InvalidArgumentError(f"two arrays have the name {name!r}")
        if name in tied:
            placed[name] = placed[tied[name]]
            continue
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        placed[name] = description.at(offset)
        end = offset + description.nbytes
    if not placed:
        raise InvalidArgumentError("several arrays are at least one: the dict is empty")
    if end > MAX_UINT:
        raise InvalidArgumentError(f"{len(placed)} arrays have more than 2**63 - 1 bytes")
    return replace(describe(end, "uint8"), named=placed)


def for_buffer(whole: Description, metadata: Mapping[str, str] = _NO_METADATA) -> Description:
    """Return the description of a buffer. If it has several arrays, it has their layout behind the arrays.

    Raises
    ------
    InvalidArgumentError
        A buffer cannot have so many arrays or so much metadata, or there is metadata of one array.
    """
    if not whole.named:
        if metadata:
            raise InvalidArgumentError(
                'one array has no metadata and no digests: pass a dict of arrays, such as {"x": array}'
            )
        return whole
    size = len(_encode_parts(whole.named, metadata))
    if size > MAX_LAYOUT_BYTES:
        raise InvalidArgumentError(
            f"{len(whole.named)} arrays in one buffer: their names, shapes and metadata have {size} bytes, and at "
            f"most {MAX_LAYOUT_BYTES} are possible; use several buffers, or shorter metadata"
        )
    described = describe(whole.nbytes + size, "uint8")
    return replace(described, named=whole.named, layout_bytes=size, metadata=metadata)


def encode(whole: Description) -> bytes:
    """Return the layout of a frame, as it stands in the producer's track; of a frame of one array, nothing.

    Raises
    ------
    InvalidArgumentError
        A frame cannot have so many arrays.
    """
    if not whole.named:
        return b""
    try:
        layout = _encode(whole.named.items()) if len(whole.named) <= MAX_ELEMENTS else b""
    except ProtocolError:
        layout = b""
    if not 0 < len(layout) <= LAYOUT_BYTES:
        raise InvalidArgumentError(
            f"{len(whole.named)} arrays in one frame: at most {MAX_ELEMENTS} are possible, whose names and shapes "
            f"have at most {LAYOUT_BYTES} bytes; join arrays of one dtype, or publish several frames"
        )
    return layout


def _encode(arrays: Iterable[tuple[str, Description]]) -> bytes:
    return _packet.encode(Layout(arrays=tuple([NamedTensor(name, one.to_wire()) for name, one in arrays])))


def _encode_parts(named: Mapping[str, Description], metadata: Mapping[str, str]) -> bytes:
    """Return the layout of a buffer: parts, each behind the number of its bytes."""
    entries = [
        MetadataEntry(key, value[first : first + _MOST_CHARACTERS])
        for key, value in metadata.items()
        for first in range(0, len(value) or 1, _MOST_CHARACTERS)
    ]
    parts = [
        _packet.encode(Layout(metadata=tuple(entries[first : first + _METADATA_PART]), arrays=()))
        for first in range(0, len(entries), _METADATA_PART)
    ]
    arrays = iter(named.items())
    while some := list(islice(arrays, _PART)):
        parts.append(_encode(some))
    return b"".join([struct.pack("<I", len(part)) + part for part in parts])


@lru_cache(maxsize=16)
def decode(layout: bytes, whole: Description) -> Description:
    """Check the layout of a frame whose bytes are described by `whole`, and return the description with the arrays.

    Raises
    ------
    ProtocolError
        The layout is malformed, or an array lies outside of the frame.
    """
    if not whole.is_all_bytes:
        raise ProtocolError("several arrays are not described as all their bytes")
    return _described(whole, _decode(layout).arrays)


def _decode(layout: bytes) -> Layout:
    sent = _packet.decode(layout, Layout, checked=True)
    long = (sent.metadata and len(layout) > MAX_STRING) or len(sent.arrays) > MAX_ELEMENTS
    if long or _packet.encode(sent) != layout:  # the check of each value takes ten times as long
        _packet.check(layout)
    return sent


def _described(whole: Description, sent: Sequence[NamedTensor]) -> Description:
    """Check the arrays of a layout, and return the description of all their bytes with them."""
    arrays = {one.name: from_wire(one.tensor, whole.nbytes) for one in sent}
    if len(arrays) < len(sent):
        raise ProtocolError("a layout has two arrays of one name")
    if not arrays:
        raise ProtocolError("a layout has no array")
    text = "".join(arrays)
    sizes = map(len, arrays) if text.isascii() else (len(name.encode()) for name in arrays)
    if "" in arrays or max(sizes) > MAX_NAME_BYTES or (not text.isprintable() and _CONTROL.search(text)):
        raise ProtocolError("the name of an array is empty, too long, or has a control character")
    return replace(whole, named=arrays)


def write(memory: BlockMemory, whole: Description) -> None:
    """Write the layout of a buffer into its memory, which the caller may write now. Return when it is written."""
    address = memory.address(write=True) + whole.nbytes - whole.layout_bytes
    data = np.frombuffer(_encode_parts(whole.named, whole.metadata), np.uint8)
    _copy(memory, address, int(data.ctypes.data), data.nbytes)


def read(memory: BlockMemory, whole: Description) -> Description:
    """Read the layout of a buffer from its memory, without waiting for its content. Return it with the arrays.

    Raises
    ------
    ProtocolError
        The layout is malformed, or an array lies outside of the buffer.
    """
    out = np.empty(whole.layout_bytes, np.uint8)
    address = memory.address(write=False) + whole.nbytes - whole.layout_bytes
    _copy(memory, int(out.ctypes.data), address, out.nbytes)
    return decode_buffer(out.tobytes(), whole)


def decode_buffer(layout: bytes, whole: Description) -> Description:
    """Check the layout of a buffer, and return the description of the buffer with the arrays and the metadata."""
    metadata, begin = _decode_metadata(layout)
    content = _decode_arrays(layout[begin:], whole.content)
    return replace(whole, named=content.named, metadata=metadata)


def _copy(memory: BlockMemory, destination: int, source: int, nbytes: int) -> None:
    """Copy between a buffer and the CPU. `read` and `write` of the pool wait for all work of the GPU; this does not."""
    if memory.pool.on_cpu:
        ctypes.memmove(destination, source, nbytes)
        return
    ordinal = memory.pool.device[1]
    stream = _cuda.own_stream(ordinal, alone=True)
    _cuda_stream.copy(ordinal, stream, destination, source, nbytes)
    _cuda_stream.synchronize_stream(ordinal, stream)


class _Arrays(Mapping[str, Description]):
    """The arrays of a buffer. Each is described when a program asks for it: a model has thousands.

    Parameters
    ----------
    names
        The number of each array.
    forms
        The description of each form, at the beginning of the buffer.
    places
        The form and the offset of each array.
    """

    def __init__(self, names: dict[str, int], forms: list[Description], places: memoryview) -> None:
        self._names, self._forms, self._places = names, forms, places

    def __getitem__(self, name: str) -> Description:
        at = 2 * self._names[name]
        return self._forms[self._places[at]].at(self._places[at + 1])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _plain(layout: bytes, content: Description) -> _Arrays | None:
    """Read and check the arrays of a plain layout in a fifth of the time. None: it is not plain, or it is wrong."""
    found = None if NATIVE is None else NATIVE.read_layout(layout)
    if found is None:
        return None
    names, forms, places = found
    described, bounds = [], []
    for form in forms:
        try:
            tensor = _packet.decode(form, Tensor, checked=True)
            one, first, last = form_of(tensor.dtype, tensor.shape, tensor.strides)
        except ProtocolError:
            return None
        lowest, highest = -first, content.nbytes - last
        if _packet.encode(tensor) != form or highest < lowest:
            return None
        described.append(one)
        bounds.append((lowest, highest, one.element.itemsize))
    place = np.frombuffer(places, np.int64).reshape(-1, 2)
    lowest, highest, itemsize = np.array(bounds, np.int64)[place[:, 0]].T
    offset = place[:, 1]
    if (offset < lowest).any() or (offset > highest).any() or (offset % itemsize).any():
        return None
    return _Arrays(names, described, memoryview(places).cast("Q"))


def _parts(layout: bytes) -> Iterator[tuple[int, Layout]]:
    """Yield each part of the layout of a buffer behind its place."""
    at = 0
    while at < len(layout):
        size = int.from_bytes(layout[at : at + 4], "little")
        part = layout[at + 4 : at + 4 + size]
        if len(part) != size or at + 4 > len(layout):
            raise ProtocolError(f"a layout of {len(layout)} bytes ends in the middle of a part")
        yield at, _decode(part)
        at += 4 + size


def _decode_metadata(layout: bytes) -> tuple[dict[str, str], int]:
    """Return the metadata of a buffer, and where the parts with arrays begin."""
    metadata: dict[str, list[str]] = {}
    begin = len(layout)
    for at, part in _parts(layout):
        if part.arrays:
            begin = at
            break
        for entry in part.metadata:
            metadata.setdefault(entry.key, []).append(entry.value)
    return {key: "".join(values) for key, values in metadata.items()}, begin


@lru_cache(maxsize=2)  # the next version of a model has the same arrays; the layout of one may have 32 MiB
def _decode_arrays(layout: bytes, content: Description) -> Description:
    plain = _plain(layout, content)
    if plain is not None:
        return replace(content, named=plain)
    return _described(content, [one for _, part in _parts(layout) for one in part.arrays])

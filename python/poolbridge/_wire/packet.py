"""Encodes and decodes packets, which are MessagePack maps, and checks them against the limits of the protocol.

If a decoded message encodes to the same bytes again, the packet is canonical: the packet has no duplicate or unknown
keys and no extension types, and is not nested deeper than the message type. Nearly all packets are small and canonical.
For such a packet, `decode` only encodes the message again and compares the bytes. In any other packet, `decode` checks
each value.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

from poolbridge._wire.limits import MAX_BINARY, MAX_DEPTH, MAX_ELEMENTS, MAX_ENTRIES, MAX_PACKET, MAX_STRING
from poolbridge.errors import (
    ProtocolError,
)

# In a packet of at most `_SMALL` bytes, no array, string or binary can exceed its limit.
_SMALL = MAX_ELEMENTS

_T = TypeVar("_T", bound=msgspec.Struct)

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[object, msgspec.msgpack.Decoder[Any]] = {}
_making = threading.Lock()


def encode(message: msgspec.Struct) -> bytes:
    """Encode one message as one packet.

    Raises
    ------
    ProtocolError
        The packet would be larger than 65,536 bytes.
    """
    data = _encoder.encode(message)
    if len(data) > MAX_PACKET:
        raise ProtocolError(f"the packet would have {len(data)} bytes; the protocol allows {MAX_PACKET}")
    return data


def decode(data: bytes, kind: type[_T], *, checked: bool = False) -> _T:
    """Decode one packet as a message of type `kind`.

    Parameters
    ----------
    data
        The whole packet.
    kind
        The message type. Keys that this type does not have are ignored.
    checked
        True: `decode` does not call `check`. The caller has called `check` already, or decodes the same packet once
        more without `checked`.

    Raises
    ------
    ProtocolError
        The packet is no message of type `kind`.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _make_decoder(kind)
    try:
        message: _T = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a packet of {len(data)} bytes is not a {kind.__name__}: {error}") from error
    if not checked and (len(data) > _SMALL or _encoder.encode(message) != data):
        check(data)
    return message


def _make_decoder(kind: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[Any]:
    # While msgspec makes a decoder, it collects facts about each type in the message type. If two threads make decoders
    # of message types that contain the same type, one thread may use facts that the other thread has not completed.
    # Then the process crashes. So only one thread at a time makes a decoder.
    with _making:
        decoder = _decoders.get(kind)
        if decoder is None:
            decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return decoder


def check(data: bytes) -> None:
    """Check that a packet is one MessagePack map within the limits of the protocol.

    Raises
    ------
    ProtocolError
        The packet is malformed; the message says what is wrong, and at which byte.
    """
    if len(data) > MAX_PACKET:
        raise ProtocolError(f"the packet has {len(data)} bytes; the protocol allows {MAX_PACKET}")
    if not data or not (data[0] & 0xF0 == 0x80 or data[0] in (0xDE, 0xDF)):
        raise ProtocolError("the packet is not a MessagePack map")
    try:
        end = _value(data, 0, 1)
    except IndexError:
        raise ProtocolError(f"the packet ends in the middle of a value, after {len(data)} bytes") from None
    if end != len(data):
        raise ProtocolError(f"{len(data) - end} bytes follow the packet's map at byte {end}")


# Maps the first byte of a nil, boolean or number to the number of bytes of this value, including the first byte.
_FIXED = {
    0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9,
    0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9,
}  # fmt: skip
# These map the first byte of a string, binary, array or map to the number of bytes after it that hold the length.
_STRING = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BINARY = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_ARRAY = {0xDC: 2, 0xDD: 4}
_MAP = {0xDE: 2, 0xDF: 4}


def _length(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise IndexError
    return int.from_bytes(data[at : at + size], "big")


def _value(data: bytes, at: int, depth: int) -> int:
    """Check the value that begins at byte `at`, and return the position after the value."""
    first = data[at]
    if first < 0x80 or first >= 0xE0:
        return at + 1
    if first & 0xE0 == 0xA0 or first in _STRING:
        return _string(data, at)[1]
    if first & 0xF0 == 0x80:
        return _map(data, at + 1, first & 0x0F, depth)
    if first & 0xF0 == 0x90:
        return _array(data, at + 1, first & 0x0F, depth)
    if first in _FIXED:
        end = at + _FIXED[first]
    elif first in _BINARY:
        size = _BINARY[first]
        length = _length(data, at + 1, size)
        if length > MAX_BINARY:
            raise ProtocolError(f"a binary of {length} bytes at byte {at}; the protocol allows {MAX_BINARY}")
        end = at + 1 + size + length
    elif first in _ARRAY:
        size = _ARRAY[first]
        return _array(data, at + 1 + size, _length(data, at + 1, size), depth)
    elif first in _MAP:
        size = _MAP[first]
        return _map(data, at + 1 + size, _length(data, at + 1, size), depth)
    else:
        raise ProtocolError(f"byte {at} is 0x{first:02x}: an extension type, or no MessagePack at all")
    if end > len(data):
        raise IndexError
    return end


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    first = data[at]
    if first & 0xE0 == 0xA0:
        start, length = at + 1, first & 0x1F
    elif first in _STRING:
        size = _STRING[first]
        start, length = at + 1 + size, _length(data, at + 1, size)
    else:
        raise ProtocolError(f"the key at byte {at} is not a string")
    if length > MAX_STRING:
        raise ProtocolError(f"a string of {length} bytes at byte {at}; the protocol allows {MAX_STRING}")
    end = start + length
    if end > len(data):
        raise IndexError
    text = data[start:end]
    try:
        text.decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"the string at byte {at} is not valid UTF-8") from None
    return text, end


def _map(data: bytes, at: int, entries: int, depth: int) -> int:
    if depth > MAX_DEPTH:
        raise ProtocolError(f"the packet is nested deeper than {MAX_DEPTH} at byte {at}")
    if entries > MAX_ENTRIES:
        raise ProtocolError(f"a map of {entries} entries at byte {at}; the protocol allows {MAX_ENTRIES}")
    keys = set()
    for _ in range(entries):
        key, value_at = _string(data, at)
        if key in keys:
            raise ProtocolError(f"the key {key.decode()!r} at byte {at} stands twice in its map")
        keys.add(key)
        at = _value(data, value_at, depth + 1)
    return at


def _array(data: bytes, at: int, elements: int, depth: int) -> int:
    if depth > MAX_DEPTH:
        raise ProtocolError(f"the packet is nested deeper than {MAX_DEPTH} at byte {at}")
    if elements > MAX_ELEMENTS:
        raise ProtocolError(f"an array of {elements} elements at byte {at}; the protocol allows {MAX_ELEMENTS}")
    for _ in range(elements):
        at = _value(data, at, depth + 1)
    return at

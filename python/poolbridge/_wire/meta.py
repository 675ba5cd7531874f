"""The meta of a frame: a map of texts, numbers, booleans, bytes, lists and maps, which is sent as MessagePack."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from poolbridge._sys.error_texts import shown
from poolbridge._wire.limits import MAX_META_BYTES, MAX_META_DEPTH
from poolbridge.errors import InvalidArgumentError

MetaValue: TypeAlias = "str | int | float | bool | bytes | Sequence[MetaValue] | Mapping[str, MetaValue] | None"
"""A value in a frame's meta. Lists come as lists, maps as dicts."""

_KEYS: Final = frozenset({str})
_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})
_ENCODE: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_DECODE: Final = msgspec.msgpack.Decoder().decode
_WHAT: Final = "expected str, int, float, bool, bytes, None, or lists and dicts of these"
_TOO_LARGE: Final = f"a frame's meta has at most {MAX_META_BYTES} bytes as MessagePack: send more as the frame's array"


def pack_meta(meta: Mapping[str, MetaValue] | None) -> bytes:
    """Return the meta of a frame as bytes.

    Raises
    ------
    InvalidArgumentError
        `meta` cannot be sent. The error names the key, the type and what to do.
    """
    if meta is None:
        return b""
    # the usual case: a dict without lists and maps
    plain = meta if type(meta) is dict and _is_plain(meta) else _Copy().mapping(meta, "meta", 1)
    if not plain:
        return b""
    try:
        packed = _ENCODE(plain)
    except (OverflowError, UnicodeEncodeError):
        _Copy().mapping(meta, "meta", 1)  # raises an error that names the key
        raise
    if len(packed) > MAX_META_BYTES:
        raise InvalidArgumentError(f"meta has {len(packed)} bytes; {_TOO_LARGE}")
    return packed


def unpack_meta(packed: bytes) -> dict[str, MetaValue]:
    """Return the meta of a frame. The native module has checked the bytes."""
    meta: dict[str, MetaValue] = _DECODE(packed) if packed else {}
    return meta


def _is_plain(meta: dict[Any, Any]) -> bool:
    return _KEYS.issuperset(map(type, meta)) and _PLAIN.issuperset(map(type, meta.values()))


class _Copy:
    """Copies meta with the types that can be sent, or raises an error that names the key."""

    def __init__(self) -> None:
        self._left = MAX_META_BYTES  # every value has at least one byte, so this ends with every input

    def mapping(self, given: Any, path: str, depth: int) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            hint = (
                ": publish arrays by channel.publish(array), or write them into publisher.loan()"
                if hasattr(given, "dtype")
                else ""
            )
            raise InvalidArgumentError(
                f'{path} {shown(given)} has no keys: expected values by key, such as {{"camera": "left"}}{hint}'
            )
        self._check_depth(path, depth)
        copy = {}
        for key, value in given.items():
            if not isinstance(key, str):
                raise InvalidArgumentError(f"{path} has the key {shown(key)}, of type {_name(key)}: send str(key)")
            here = f"{path}[{shown(key)}]"
            copy[self._text(key, here)] = self._value(value, here, depth)
        return copy

    def _value(self, given: Any, path: str, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise InvalidArgumentError(f"{path} is behind {MAX_META_BYTES} others; {_TOO_LARGE}")
        value = given.item() if isinstance(given, np.generic) else given  # NumPy's scalars are sent as Python's
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            if not -(2**63) <= value < 2**64:
                raise InvalidArgumentError(f"{path} is {shown(value)}, and meta has integers of 64 bits: send str(…)")
            return int(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, bytes):
            return bytes(value)
        if isinstance(value, list | tuple):
            self._check_depth(path, depth + 1)
            return [self._value(part, f"{path}[{i}]", depth + 1) for i, part in enumerate(value)]
        if isinstance(value, Mapping):
            return self.mapping(value, path, depth + 1)
        raise InvalidArgumentError(f"{path} has the type {_name(given)}: {_WHAT}; send {_cure(value)}")

    def _text(self, text: str, path: str) -> str:
        try:
            return text.encode().decode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(f"{path} has surrogates, which are no UTF-8: send bytes") from None

    def _check_depth(self, path: str, depth: int) -> None:
        if depth > MAX_META_DEPTH:
            raise InvalidArgumentError(f"{path} is deeper than {MAX_META_DEPTH} maps and lists: send flatter meta")


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _cure(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return "its .value"
    if hasattr(value, "isoformat"):
        return "its .isoformat()"
    if hasattr(value, "tolist") and not isinstance(value, np.generic):
        return "its .tolist()"
    for kind in (bytearray, memoryview):
        if isinstance(value, kind):
            return "bytes(…)"
    if isinstance(value, set | frozenset):
        return "list(…)"
    return "float(…)" if hasattr(value, "__float__") else "str(…)"

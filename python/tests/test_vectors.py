"""The packets of docs/vectors/v1.json, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from poolbridge._memory import layout as _layout
from poolbridge._memory.tensor import describe
from poolbridge._wire import messages as _messages, packet as _packet, received_errors as _received_errors
from poolbridge.errors import (
    ProtocolError,
)

VECTORS = json.loads((Path(__file__).parents[2] / "docs/vectors/v1.json").read_text(encoding="utf-8"))

REQUESTS: dict[str, type[msgspec.Struct]] = {
    str(kind.__struct_config__.tag): kind for kind in _messages.Request.__subclasses__()
}
REPLIES: dict[str, type[msgspec.Struct]] = {
    str(asked.__struct_config__.tag): answer for asked, answer in _messages.ANSWERS.items()
}
NOTICES: dict[str, type[msgspec.Struct]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(_messages.AnyNotice)
}


def message_type(vector: dict[str, Any]) -> type[msgspec.Struct]:
    match vector["direction"]:
        case "request":
            return REQUESTS[vector["type"]]
        case "reply":
            return REPLIES.get(vector["type"], _messages.Reply)
        case _:
            return NOTICES[vector["type"]]


def from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$bin"}:
            return bytes.fromhex(value["$bin"])
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return value


def named(entries: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(entry, id=f"{entry['direction']}: {entry['name']}") for entry in entries]


@pytest.mark.parametrize("vector", named(VECTORS["valid"]))
def test_valid_packets_decode_and_encode_to_the_same_bytes(vector):
    packet = bytes.fromhex(vector["packet"])
    _packet.check(packet)
    message = _packet.decode(packet, message_type(vector))
    assert msgspec.msgpack.decode(packet) == from_json(vector["message"])
    assert _packet.encode(message) == packet


@pytest.mark.parametrize("vector", named(VECTORS["accepted"]))
def test_accepted_packets_decode_to_the_canonical_message(vector):
    packet = bytes.fromhex(vector["packet"])
    message = _packet.decode(packet, message_type(vector))
    assert msgspec.msgpack.decode(_packet.encode(message)) == from_json(vector["message"])


@pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["name"]) for vector in VECTORS["layouts"]])
def test_layouts_of_buffers_have_their_bytes(vector):
    sent = bytes.fromhex(vector["layout"])
    whole = replace(describe(268 + len(sent), "uint8"), layout_bytes=len(sent))
    found = _layout.decode_buffer(sent, whole)
    assert found.metadata == vector["metadata"]
    arrays = [msgspec.to_builtins(_messages.NamedTensor(name, one.to_wire())) for name, one in found.named.items()]
    assert arrays == [{**one, "t": {**one["t"], "sh": tuple(one["t"]["sh"])}} for one in vector["arrays"]]
    assert _layout._encode_parts(found.named, found.metadata) == sent


_requests = msgspec.msgpack.Decoder(_messages.AnyRequest)


def take(direction: str, kind: str, packet: bytes) -> None:
    """Decode a packet like a receiver that knows which reply it waits for."""
    if direction == "request":
        _packet.check(packet)
        try:
            _requests.decode(packet)
        except msgspec.MsgspecError as error:
            raise ProtocolError(str(error)) from error
        return
    if not _packet.decode(packet, _messages.Envelope).number:
        name = _packet.decode(packet, _messages.Notice).name
        if name not in NOTICES:
            raise ProtocolError("neither a reply nor a notice")
        _packet.decode(packet, NOTICES[name])
    elif direction == "notice":
        raise ProtocolError("a reply where a notice was expected")
    else:
        _packet.decode(packet, REPLIES.get(kind, _messages.Reply))


@pytest.mark.parametrize("vector", named(VECTORS["invalid"]))
def test_invalid_packets_are_refused(vector):
    with pytest.raises(ProtocolError):
        take(vector["direction"], vector.get("type", ""), bytes.fromhex(vector["packet"]))


@pytest.mark.parametrize("code", _received_errors._BY_CODE)
def test_every_code_of_the_wire_has_an_exception(code):
    error = _received_errors.exception(code, "what happened")
    assert error.code == code
    assert str(error).startswith("what happened")

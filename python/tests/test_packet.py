"""Tests the packet checker and the decoder: compares them with each other, and gives them random bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

import poolbridge
from poolbridge._wire import messages as m, packet as _packet
from poolbridge._wire.limits import MAX_DEPTH
from poolbridge.errors import (
    ProtocolError,
)

VECTORS = json.loads((Path(__file__).parents[2] / "docs/vectors/v1.json").read_text(encoding="utf-8"))
PACKETS = [bytes.fromhex(vector["packet"]) for vector in VECTORS["valid"] + VECTORS["accepted"]]
KINDS: list[type[msgspec.Struct]] = [
    m.Envelope,
    m.Notice,
    m.Reply,
    m.HelloReply,
    m.PoolReply,
    m.GrantReply,
    m.StatsReply,
    m.Recall,
    m.Goodbye,
    m.Working,
]

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def depth(value):
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@settings(max_examples=300)
@given(st.dictionaries(st.text(), values, max_size=8))
def test_every_map_within_the_limits_passes(value):
    packet = msgspec.msgpack.encode(value)
    if depth(value) <= MAX_DEPTH:
        _packet.check(packet)
    else:
        with pytest.raises(ProtocolError, match="nested"):
            _packet.check(packet)


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_nothing_but_a_protocol_error_comes_of_any_bytes(packet):
    for kind in KINDS:
        try:
            _packet.decode(packet, kind)
        except ProtocolError:
            continue


@settings(max_examples=500)
@given(st.sampled_from(PACKETS), st.data())
def test_nor_of_a_damaged_packet(packet, data):
    damaged = bytearray(packet)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                damaged[at] = data.draw(st.integers(0, 255))
            case 1:
                del damaged[at:]
                damaged.append(0)
            case _:
                damaged.insert(at, data.draw(st.integers(0, 255)))
    for kind in KINDS:
        try:
            message = _packet.decode(bytes(damaged), kind)
        except ProtocolError:
            continue
        # The decoder accepts the packet. So the checker must accept it too, and the message must stay equal when it is
        # encoded and decoded again.
        _packet.check(bytes(damaged))
        assert _packet.decode(_packet.encode(message), kind) == message


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (b"", "not a MessagePack map"),
        (b"\x90", "not a MessagePack map"),
        (b"\x80\x00", "follow"),
        (b"\x81\x01\x01", "not a string"),
        (b"\x82\xa1a\x01\xa1a\x01", "twice"),
        (b"\x81\xa1a\xc1", "extension"),
        (b"\x81\xa1a\xd4\x01\x01", "extension"),
        (b"\x81\xa1a\xa2\xff\xff", "UTF-8"),
        (b"\x81\xa1a\xce\x01", "middle"),
        (b"\x81\xa1a\xd9", "middle"),
        (b"\x81\xa1a\xda\x10\x01" + bytes(4097), "string of 4097"),
        (b"\x81\xa1a\xc5\x10\x01" + bytes(4097), "binary of 4097"),
        (b"\x81\xa1a\xdc\x04\x01" + bytes(1025), "array of 1025"),
        (b"\xde\x00\x41", "map of 65"),
        (b"\x81\xa1a" + b"\x91" * 8 + b"\x00", "nested"),
        (bytes(65537), "65537 bytes"),
    ],
)
def test_what_is_wrong_is_said(packet, why):
    with pytest.raises(ProtocolError, match=why):
        _packet.check(packet)


def test_a_packet_that_would_be_too_large_is_not_sent():
    with pytest.raises(ProtocolError, match="65536"):
        _packet.encode(m.Dropped(blocks=tuple([2**40] * 10_000)))


# This program makes new types again and again. For each set of types, several threads decode packets at the same time.
TOGETHER = """
import sys, threading, types
from poolbridge._wire.packet import decode, encode

TYPES = '''
from __future__ import annotations
from typing import Annotated
from msgspec import UNSET, Meta, Struct, UnsetType
U = Annotated[int, Meta(ge=0)]
class Inner(Struct):
    number: U
    numbers: tuple[U, ...]
    names: dict[str, int] | UnsetType = UNSET
class First(Struct):
    inner: Inner
class Second(Struct):
    inner: Inner
class Third(Struct):
    inner: Inner
class Fourth(Struct):
    inner: Inner
'''

def take(kind, packet):
    start.wait()
    decode(packet, kind)

sys.setswitchinterval(1e-6)
for turn in range(400):
    module = sys.modules[f"types{turn}"] = types.ModuleType(f"types{turn}")
    exec(TYPES, vars(module))
    kinds = module.First, module.Second, module.Third, module.Fourth
    start = threading.Barrier(len(kinds))
    threads = [threading.Thread(target=take, args=(kind, encode(kind(module.Inner(1, (2, 3)))))) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_decode_their_first_packets_at_the_same_time_do_not_crash() -> None:
    source = str(Path(poolbridge.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER],
        env={"PYTHONPATH": source},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")

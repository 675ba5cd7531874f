"""Tests legacy handles as bytes and in files; these tests need no driver."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

import poolbridge
from poolbridge import LegacyHandle


def saved(**changes: Any) -> bytes:
    whole = {
        "poolbridge": 1, "kind": "legacy", "device": "GPU-1", "bytes": 400, "dtype": "float32", "shape": [10, 10],
        "handle": base64.b64encode(bytes(72)).decode(), "socket": "/run/s", "name": "n",
    }  # fmt: skip
    return json.dumps({**whole, **changes}).encode()


def test_a_handle_survives_its_bytes():
    handle = LegacyHandle(bytes(range(64)), 0x0123456789ABCDEF)
    assert len(bytes(handle)) == 72
    assert LegacyHandle.from_bytes(bytes(handle)) == handle
    assert LegacyHandle.from_bytes(bytearray(range(64))) == LegacyHandle(bytes(range(64)))
    assert bytes(handle)[64:] == bytes.fromhex("efcdab8967452301")


@pytest.mark.parametrize("length", [0, 1, 63, 65, 71, 73, 144])
def test_bytes_of_another_length_are_no_handle(length):
    with pytest.raises(poolbridge.InvalidArgumentError, match=f"got {length}"):
        LegacyHandle.from_bytes(bytes(length))


def test_files_are_loaded(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(saved())
    handle = LegacyHandle.load(path)
    assert (handle.device, handle.nbytes, handle.dtype, handle.shape) == ("GPU-1", 400, "float32", (10, 10))
    path.write_bytes(bytes(64))
    assert LegacyHandle.load(path) == LegacyHandle(bytes(64))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"hello", saved()[:-1], saved()[:100], bytes(63), bytes(65), b"[]", b"{}", saved(poolbridge=2),
        saved(handle="!"), saved(handle=base64.b64encode(bytes(63)).decode()), saved(handle=None),
        saved(bytes="many"), saved(shape=3),
    ],
)  # fmt: skip
def test_files_that_are_no_saved_buffers_are_refused(tmp_path, content):
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(poolbridge.InvalidArgumentError):
        LegacyHandle.load(path)


def test_a_file_of_another_kind_says_whom_to_ask(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(saved(kind="vmm", handle=None))
    with pytest.raises(poolbridge.InvalidArgumentError, match="'n' from the service on /run/s"):
        LegacyHandle.load(path)

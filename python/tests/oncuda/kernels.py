"""Run the kernels of the Go package ``pattern``, which write and compare memory, on any GPU."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from gates import ask

from poolbridge._cuda import cuda as _cuda
from poolbridge._cuda.cuda import call, current
from poolbridge._libraries.patterns import Pattern
from poolbridge._verify.order import Reading

PTX = Path(__file__).parents[3] / "cuda" / "pattern" / "kernels.ptx"


def masked(words: int) -> Pattern:
    """Return a pattern of so many words."""
    return Pattern("masked", words, 7, 3, mask=0x5A5A)


def write(ordinal: int, address: int, words: int) -> None:
    """Write words with a kernel of a GPU, and wait for the kernel."""
    pattern = masked(words)
    stream = _cuda.own_stream(ordinal)
    values = (address, 0, words, int(pattern.scale), int(pattern.offset), pattern.mask)
    u32, u64 = ctypes.c_uint32, ctypes.c_uint64
    with current(ordinal):
        parameters = (values, (ctypes.c_void_p, u64, u64, u32, u32, u32))
        ask("cuLaunchKernel", _fill(ordinal), 64, 1, 1, 256, 1, 1, 0, stream, parameters, 0)
        call("cuStreamSynchronize", stream)


def differ(ordinal: int, address: int, words: int) -> int:
    """Make a kernel of a GPU compare words with the pattern; return how many words differ from the pattern."""
    reading = Reading(ordinal, str(PTX), _cuda.own_stream(ordinal))
    reading.compare(address, masked(words))
    return reading.finish()


@cache
def _fill(ordinal: int) -> Any:
    with current(ordinal):
        module = ask("cuModuleLoadData", PTX.read_bytes() + b"\0")
        return ask("cuModuleGetFunction", module, b"poolbridge_fill_masked_u32")

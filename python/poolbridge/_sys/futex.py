"""Lets threads sleep on a word of shared memory until a thread of any process wakes them (futexes of Linux)."""

from __future__ import annotations

import ctypes
import platform
import time
from typing import Final

_NUMBER: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}.get(platform.machine())
_WAIT: Final = 0
_WAKE: Final = 1
_ALL: Final = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_syscall = ctypes.CDLL(None).syscall
_syscall.restype = ctypes.c_long


def wait(address: int, seen: int, seconds: float) -> None:
    """Sleep until `wake` is called, for at most `seconds`. Return at once if the 32 bits at `address` are not `seen`.

    `wait` may return early without a reason. So the caller reads the 32 bits again after each `wait`.
    """
    if _NUMBER is None:
        time.sleep(min(seconds, 0.0005))
        return
    whole = int(seconds)
    limit = _Timespec(whole, int((seconds - whole) * 1e9))
    # `wait` ignores the result and any error of this call: the caller of `wait` reads the 32 bits again in any case.
    _syscall(
        ctypes.c_long(_NUMBER),
        ctypes.c_void_p(address),
        ctypes.c_int(_WAIT),
        ctypes.c_uint32(seen),
        ctypes.byref(limit),
        ctypes.c_void_p(None),
        ctypes.c_uint32(0),
    )


def wake(address: int) -> None:
    """Wake all threads, in all processes, that sleep on the 32 bits at `address`."""
    if _NUMBER is None:
        return
    _syscall(
        ctypes.c_long(_NUMBER),
        ctypes.c_void_p(address),
        ctypes.c_int(_WAKE),
        ctypes.c_int(_ALL),
        ctypes.c_void_p(None),
        ctypes.c_void_p(None),
        ctypes.c_uint32(0),
    )

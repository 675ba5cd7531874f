"""Calls functions of the CUDA driver's library. ``cuda.bindings`` can do so, too, but its import takes 20 to 100 ms.

Parameters of these functions are whole numbers, what `ctypes` passes as a pointer, or a `Handle`. All but a `Handle`
are passed as pointers: the calling conventions of x86-64 and aarch64 allow 64 bits for numbers of fewer bits.
"""

from __future__ import annotations

import ctypes
from ctypes import byref
from enum import IntEnum
from functools import cache
from typing import Any, Final

from poolbridge.errors import DriverError, UnavailableError

# This module calls functions in the form of this CUDA version. The number is 1000 * major + 10 * minor.
_VERSION: Final = 12000

RELAXED: Final = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
ON_DEVICE: Final = 1  # CU_MEM_LOCATION_TYPE_DEVICE
READ: Final = 1  # CU_MEM_ACCESS_FLAGS_PROT_READ
READ_WRITE: Final = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
FD: Final = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
LAZY_PEER_ACCESS: Final = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
HAS_64_BIT_WORDS: Final = 122  # CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
POINTER_TYPE: Final = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
POINTER_ORDINAL: Final = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
POINTER_TYPES: Final = {1: "CU_MEMORYTYPE_HOST", 2: "CU_MEMORYTYPE_DEVICE", 4: "CU_MEMORYTYPE_UNIFIED"}


class Result(IntEnum):
    """The results that poolbridge tells apart: the driver's ``CUresult`` has more."""

    SUCCESS = 0
    OUT_OF_MEMORY = 2
    NO_DEVICE = 100
    INVALID_CONTEXT = 201
    MAP_FAILED = 205
    ALREADY_MAPPED = 208
    INVALID_HANDLE = 400
    NOT_READY = 600
    CONTEXT_IS_DESTROYED = 709
    NOT_SUPPORTED = 801
    STREAM_CAPTURE_IMPLICIT = 906


class Handle(ctypes.Structure):
    """The 64 bytes of ``CUipcMemHandle``, ``CUipcEventHandle`` and ``CUmemPoolPtrExportData``."""

    _fields_ = (("bytes", ctypes.c_uint8 * 64),)


class Access(ctypes.Structure):
    """``CUmemAccessDesc``: which access a GPU has."""

    _fields_ = (("place", ctypes.c_int), ("ordinal", ctypes.c_int), ("flags", ctypes.c_int))


_INT, _WORD = _NUMBERS = ctypes.c_int, ctypes.c_uint64
# The types of what a function stores where its first parameters say.
_STORED: Final[dict[str, tuple[Any, ...]]] = {
    "cuCtxGetCurrent": (_WORD,),
    "cuCtxGetDevice": (_INT,),
    "cuCtxPopCurrent": (_WORD,),
    "cuDeviceCanAccessPeer": (_INT,),
    "cuDeviceGet": (_INT,),
    "cuDeviceGetAttribute": (_INT,),
    "cuDeviceGetCount": (_INT,),
    "cuDeviceGetUuid": (ctypes.c_uint8 * 16,),
    "cuDevicePrimaryCtxRetain": (_WORD,),
    "cuEventCreate": (_WORD,),
    "cuIpcGetEventHandle": (Handle,),
    "cuIpcOpenEventHandle": (_WORD,),
    "cuIpcOpenMemHandle": (_WORD,),
    "cuMemAddressReserve": (_WORD,),
    "cuMemAlloc": (_WORD,),
    "cuMemGetAddressRange": (_WORD, _WORD),
    "cuMemHostGetDevicePointer": (_WORD,),
    "cuMemImportFromShareableHandle": (_WORD,),
    "cuMemPoolImportFromShareableHandle": (_WORD,),
    "cuMemPoolImportPointer": (_WORD,),
    "cuModuleGetFunction": (_WORD,),
    "cuModuleLoadData": (_WORD,),
    "cuPointerGetAttribute": (_INT,),
    "cuStreamCreate": (_WORD,),
}


@cache
def start() -> Any:
    """Load the driver's library and initialise the driver. Return the library.

    Raises
    ------
    UnavailableError
        The driver or a GPU is missing, or the driver does not start. The message says what is wrong.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
        initialise, _ = library.cuInit, library.cuGetProcAddress_v2
    except (OSError, AttributeError) as error:
        raise UnavailableError(f"device memory needs an NVIDIA driver (libcuda.so.1) of CUDA 12: {error}") from error
    result = initialise(0)
    if result == Result.NO_DEVICE:
        raise UnavailableError("device memory needs an NVIDIA GPU: the driver sees none")
    if result:
        raise UnavailableError(f"the NVIDIA driver does not start: {_name(library, result)}")
    return library


@cache
def address(name: str) -> int:
    """Return the address of a driver function.

    Raises
    ------
    DriverError
        The driver does not have the function.
    """
    found, status = ctypes.c_void_p(), ctypes.c_int()
    get = start().cuGetProcAddress_v2
    code = get(name.encode(), byref(found), _VERSION, ctypes.c_uint64(0), byref(status))
    if code or not found.value:
        raise DriverError(f"{name}: the NVIDIA driver does not have this function: install a newer driver")
    return found.value


_functions: dict[str, tuple[Any, tuple[Any, ...]]] = {}


def _find(name: str, arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    stored = _STORED.get(name, ())
    kinds = [Handle if isinstance(one, Handle) else ctypes.c_void_p for one in (*stored, *arguments)]
    found = _functions[name] = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(address(name)), stored
    return found


def attempt(name: str, *arguments: Any) -> tuple[int, Any]:
    """Call a driver function. Return its result, a `Result` or another number, and what it has stored.

    That is None, a number, bytes, or a tuple of numbers.

    Raises
    ------
    UnavailableError, DriverError
        See `start` and `address`.
    """
    function, kinds = _functions.get(name) or _find(name, arguments)
    if not kinds:
        return function(*arguments), None
    if len(kinds) == 1:
        one = kinds[0]()
        result = function(byref(one), *arguments)
        return result, one.value if kinds[0] in _NUMBERS else bytes(one)
    stored = [kind() for kind in kinds]
    result = function(*map(byref, stored), *arguments)
    return result, tuple([one.value for one in stored])


def name_of(result: int) -> str:
    """Return the driver's name of a result, such as ``CUDA_ERROR_OUT_OF_MEMORY``."""
    return _name(start(), result)


def _name(library: Any, result: int) -> str:
    name = ctypes.c_char_p()
    library.cuGetErrorName(result, byref(name))
    return name.value.decode() if name.value else f"error {result}"

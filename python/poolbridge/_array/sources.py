"""Inspects what a program publishes: a lease, an array that lives in a lease, or any other array."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np

from poolbridge._array.arrays import ArrayExports, check_one, description_of, state_of, widen
from poolbridge._cuda import cuda as _cuda
from poolbridge._memory import arrow as _arrow, dlpack as _dlpack, tensor as _tensor
from poolbridge._memory.tensor import Description, ElementType
from poolbridge._order import fences as _fences
from poolbridge._wire.limits import MAX_UINT
from poolbridge.errors import (
    InvalidArgumentError,
    LeaseReleasedError,
    PoolbridgeError,
)

if TYPE_CHECKING:
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session

LEGACY_STREAM: Final = 1
# Where the arrays come from whose DLPack makes no stream wait.
_IGNORE_STREAM: Final = ("cuda.core", "poolbridge._memory.legacyhandle")
_ON_CPU: Final = (_dlpack.CPU, _dlpack.CUDA_HOST)
_ON_GPU: Final = (_dlpack.CUDA, _dlpack.CUDA_MANAGED)
_DIMENSIONS: Final = 64  # the most that NumPy has
_LONG_GAP: Final = 64 << 10  # bytes whose copy from a GPU takes about as long as another copy takes to begin
_UNMASK: Final = "fill the masked elements first, for example by numpy.ma.filled"
_T = TypeVar("_T")


@dataclass(slots=True)
class Source:
    """The layout of an array. The array's data need not be complete yet.

    Attributes
    ----------
    array
        The array, which keeps the memory alive.
    address
        Address of element [0, …, 0].
    shape
        Elements along each axis.
    strides
        Bytes between neighbouring elements along each axis.
    element
        Element type.
    ordinal
        The number in this process of the GPU that has the memory; None: the memory is on the CPU.
    stream
        The stream on which the data will be complete; None if the array names no stream.
    by_dlpack
        Whether the array has been read by DLPack, which can make a stream wait for the data.
    unordered
        Whether nothing says which streams write the array: a copy must wait for the whole GPU.
    capsule
        The capsule that the array has been read from, if it was read by DLPack. It may own the memory: some arrays make
        their elements only for the capsule.
    """

    array: Any
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: ElementType
    ordinal: int | None = None
    stream: int | None = None
    by_dlpack: bool = False
    unordered: bool = False
    capsule: object = None

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Let NumPy make an array of elements on the CPU, or of their bits, without a copy. It keeps this source."""
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.element.typestr,
            "strides": self.strides,
            "data": (self.address, True),
        }

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie without gaps in C order."""
        return _tensor.is_contiguous(self.shape, self.strides, self.element.itemsize)

    def on_host(self) -> np.ndarray[Any, Any]:
        """Wait until the elements are complete, and return them as an array on the CPU.

        The array has the memory of this source if that is on the CPU. A type that NumPy lacks appears as its bits.
        """
        if self.ordinal is None:
            return np.asarray(self)
        if 0 in self.shape:
            return np.empty(self.shape, self.element.typestr)
        order(self, LEGACY_STREAM)
        return self._read(self.ordinal, self.shape, self.address)

    def _read(self, ordinal: int, shape: tuple[int, ...], address: int) -> np.ndarray[Any, Any]:
        """Copy elements from a GPU: in one piece with the gaps between them, or in several pieces without long gaps."""
        first, last = _tensor.span_of(shape, self.strides, 0, self.element.itemsize)
        reaches = [(extent - 1) * abs(stride) for extent, stride in zip(shape, self.strides, strict=True)]
        longest = max(reaches, default=0)
        axis = reaches.index(longest) if longest else 0
        if longest and abs(self.strides[axis]) - (last - first - longest) >= _LONG_GAP:
            part, stride = (*shape[:axis], 1, *shape[axis + 1 :]), self.strides[axis]
            return np.concatenate([self._read(ordinal, part, address + i * stride) for i in range(shape[axis])], axis)
        data = np.empty(last - first, np.uint8)
        _cuda.copy_to_host(ordinal, data, address + first)
        return np.ndarray(shape, self.element.typestr, data, -first, self.strides)

    def to_host(self) -> np.ndarray[Any, Any]:
        """Copy the elements to the CPU when they are complete. A type that NumPy lacks becomes float32."""
        found = self.on_host()
        if not self.element.in_numpy:
            return widen(found, self.element)
        return found if self.ordinal is not None else found.copy()


def on_device(array: Any) -> bool:
    """Whether an array is on a GPU. Memory of kind ``pinned`` is, if a lease or a view of this memory is given.

    Raises
    ------
    InvalidArgumentError
        The array is neither on the CPU nor on a CUDA GPU.
    """
    if isinstance(array, ArrayExports):
        return state_of(array).memory.pool.device[0] == _dlpack.CUDA
    if hasattr(array, "__dlpack_device__"):
        return _device(array) is not None
    return _cuda_array_interface(array) is not None


def check_meaning(array: Any, inside: tuple[int, ...] = ()) -> None:
    """Check that the memory of an array alone says what its elements are.

    Parameters
    ----------
    array
        The array, or nested lists or tuples of arrays.
    inside
        The ids of the lists and tuples that the array is in.

    Raises
    ------
    InvalidArgumentError
        Elements are masked, or PyTorch negates or conjugates the elements when it reads them. Or this process has
        promised the elements of a lease and not completed them. Or a list contains itself, or is in more lists than an
        array can have dimensions.
    ContentFailedError
        This process has promised the elements of a lease, and the promise has failed.
    """
    if isinstance(array, (list, tuple)):
        if id(array) in inside or len(inside) == _DIMENSIONS:
            raise InvalidArgumentError(
                f"a {type(array).__name__} contains itself, or is in {_DIMENSIONS} lists: expected lists of numbers, "
                f"with at most {_DIMENSIONS} dimensions"
            )
        for part in array:
            check_meaning(part, (*inside, id(array)))
    elif isinstance(array, ArrayExports):
        _fences.check_promise(state_of(array))
    elif isinstance(array, np.ndarray):
        if type(array) is not np.ndarray and np.ma.is_masked(array):
            raise InvalidArgumentError(f"the array has masked elements, whose mask would be lost: {_UNMASK}")
    elif (torch := sys.modules.get("torch")) is not None and isinstance(array, torch.Tensor):
        for bit, lacks, resolve in (
            ("negative", array.is_neg(), "resolve_neg"),
            ("conjugate", array.is_conj(), "resolve_conj"),
        ):
            if lacks:
                raise InvalidArgumentError(
                    f"the tensor is a view with the {bit} bit, which its memory does not have: pass tensor.{resolve}()"
                )
    elif (hasattr(array, "__arrow_c_array__") or hasattr(array, "__arrow_c_stream__")) and _has_nulls(array):
        raise InvalidArgumentError(
            f"this {type(array).__name__} has nulls, which would be lost: fill or drop them first, as by fill_null or "
            "drop_nulls"
        )


def _has_nulls(array: Any) -> bool:
    """Whether an array, a series or a table of PyArrow or Polars has nulls, of which NumPy would make NaN."""
    counts = (getattr(one, "null_count", 0) for one in getattr(array, "itercolumns", lambda: [array])())
    return any(np.any(count() if callable(count) else count) for count in counts)


def source_of(array: Any) -> Source:
    """Read the layout of an array of any library, without waiting for its data.

    Raises
    ------
    InvalidArgumentError
        The object is no array, its elements cannot be shared, or `check_meaning` refuses it.
    """
    check_meaning(array)
    if isinstance(array, ArrayExports):
        return _leased(array)
    if isinstance(array, np.ndarray):
        return _interface(array, array.__array_interface__, _tensor.element_type(array.dtype))
    if hasattr(array, "__dlpack_device__"):
        return _exported(array)
    interface = _cuda_array_interface(array)
    if interface is not None:
        _check_mask(interface)
        source = _interface(array, interface, _element(array, interface))
        source.ordinal = int(_cuda.pointer_facts(source.address)["ordinal"]) if source.address else 0
        source.stream = interface.get("stream")
        return source
    if lacks_array(array):
        return _from_arrow(array)
    host = _numpy_array(array)
    return _interface(host, host.__array_interface__, _tensor.element_type(host.dtype))


def _leased(lease: ArrayExports) -> Source:
    """Read the layout of a lease or a view. The source's array is a view, so the lease counts it as an array."""
    state = state_of(lease)
    state.check_usable()
    pool, description = state.memory.pool, description_of(lease)
    check_one(description)
    view = cast("Any", lease).view(device=pool.device_name)
    on_gpu = pool.device[0] == _dlpack.CUDA
    if not on_gpu:
        _fences.before_cpu(state)
    address = state.memory.address(write=state.write) + description.offset
    ordinal = pool.device[1] if on_gpu else None
    source = Source(view, address, description.shape, description.strides, description.element, ordinal, by_dlpack=True)
    if on_gpu and state.write:
        # DLPack makes a stream wait for other processes, but not for the streams of this process, which may be gone.
        own = _cuda.own_stream(pool.device[1])
        source.unordered = state.unordered or any(key.handle != own for key in state.streams or ())
    return source


def _exported(array: Any) -> Source:
    """Read the layout of an array by DLPack, which knows more element types than ``__cuda_array_interface__``."""
    ordinal = _device(array)
    if ordinal is None and hasattr(array, "__arrow_c_array__"):  # it says more about nulls and other types
        return _from_arrow(array)
    # JAX passes -1 to CUDA as a handle of a stream. Without a stream, JAX waits on the CPU until the data is complete.
    module = str(getattr(type(array), "__module__", ""))
    waits = ordinal is not None and module.partition(".")[0] not in {"jax", "jaxlib"}
    try:
        capsule = _ask(array, lambda: _capsule(array, -1 if waits else None))
    except InvalidArgumentError:  # such as of CuPy, which has bfloat16 in its other interface only
        interface = None if ordinal is None else _cuda_array_interface(array)
        if interface is None:
            raise
        source = _interface(array, interface, _element(array, interface))
        source.ordinal, source.stream = ordinal, interface.get("stream")
        return source
    seen = _dlpack.read_tensor(capsule, getattr(array, "dtype", None))
    source = Source(array, seen.address, seen.shape, seen.strides, _tensor.element_type(seen.name), ordinal)
    source.by_dlpack, source.capsule = True, capsule
    source.unordered = module.startswith(_IGNORE_STREAM)
    if waits and (interface := _cuda_array_interface(array)) is not None:
        source.stream = interface.get("stream")
    if waits and source.stream is None:
        source.stream = _stream_of_torch(array)
    return source


def lacks_array(array: Any) -> bool:
    """Whether an array is to be read by Arrow's C data interface, because it has no interface that NumPy reads."""
    return hasattr(array, "__arrow_c_array__") and not hasattr(array, "__array__")


def _from_arrow(array: Any) -> Source:
    """Read the layout of an array on the CPU by Arrow's C data interface. Bools are copied: Arrow has them as bits."""
    capsules = _ask(array, array.__arrow_c_array__)
    seen = _ask(array, lambda: _arrow.read_array(capsules))
    if isinstance(seen, np.ndarray):
        return _interface(seen, seen.__array_interface__, _tensor.element_type(seen.dtype))
    return Source(array, seen.address, seen.shape, seen.strides, _tensor.element_type(seen.name), capsule=capsules)


def _stream_of_torch(array: Any) -> int | None:
    """Return PyTorch's current stream if the array is a tensor; the tensor itself names no stream."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return None
    return torch.cuda.current_stream(array.device).cuda_stream or LEGACY_STREAM


def _element(array: Any, interface: dict[str, Any]) -> ElementType:
    """Return the element type. For a type that NumPy lacks, the interface says ``V``; the array's dtype names it."""
    typestr = interface["typestr"]
    return _tensor.element_type(getattr(array, "dtype", typestr) if "V" in typestr else typestr)


def _device(array: Any) -> int | None:
    """Return the number of the GPU that has an array; None: the array is on the CPU."""
    kind, ordinal = _ask(array, array.__dlpack_device__)
    if kind in _ON_CPU:
        return None
    if kind not in _ON_GPU:
        raise InvalidArgumentError(
            f"the array is on a device of DLPack's type {int(kind)}: expected memory of the CPU or of a CUDA GPU; copy "
            "the array there first"
        )
    return int(ordinal)


def _ask(array: Any, ask: Callable[[], _T]) -> _T:
    """Call `ask`, which asks an array for its device or a capsule. Libraries refuse with many types of errors."""
    try:
        return ask()
    except PoolbridgeError:
        raise
    except (BufferError, LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"this {type(array).__name__} cannot be shared: {error}") from error


def _check_mask(interface: dict[str, Any]) -> None:
    if interface.get("mask") is not None:
        raise InvalidArgumentError(f"the array's interface has a mask, which would be lost: {_UNMASK}")


def plain(given: Any) -> np.ndarray[Any, Any]:
    """Make a NumPy array of anything of which NumPy makes one, unless that is a masked array or has a mask."""
    interface = getattr(given, "__array_interface__", None)
    if interface is not None:
        _check_mask(interface)
    made = np.asanyarray(given)
    check_meaning(made)
    return np.asarray(made)


def _numpy_array(given: Any) -> np.ndarray[Any, Any]:
    """Make a NumPy array of an object that has an array or buffer protocol.

    ``numpy.asarray`` alone would also accept sequences and scalars. A program that publishes them has usually made a
    mistake.
    """
    if hasattr(given, "__array__") or hasattr(given, "__array_interface__"):
        return _ask(given, lambda: plain(given))
    try:
        return np.asarray(memoryview(given))
    except TypeError:
        raise InvalidArgumentError(
            f"a {type(given).__name__} is no array: expected a lease, or an array of NumPy or of a library that has "
            "DLPack; numpy.asarray makes an array of numbers; join arrays, for example by numpy.stack, or "
            "give `put` or `publish` a dict of them"
        ) from None


def order(source: Source, stream: int) -> None:
    """Let the array's ``__dlpack__`` make `stream` wait for the data. Do nothing if DLPack has not read the array."""
    if source.by_dlpack:
        _capsule(source.array, stream)


def find(session: Session, pool: int, given: Any) -> tuple[LeaseState, Description] | None:
    """Find a write lease in the pool with the id `pool`: `given` is this lease, or an array in this lease's memory.

    Returns
    -------
    tuple or None
        The lease's state, and the description of `given` in the lease's buffer; None if there is no such lease. The
        caller must then copy `given`. If the lease is of an arena, the caller takes a range of it; see `share`.

    Raises
    ------
    LeaseReleasedError
        See `check_not_sent`.
    """
    if isinstance(given, ArrayExports):
        state = state_of(given)
        if state.session is session and state.write and state.grant.pool == pool:
            state.check_usable()
            return state, description_of(given)
        return None
    # The block of an arena first: a range of it is another frame's, which a thread may be about to publish.
    writing = sorted(session.write_states(pool), key=lambda state: state.division is None)
    if not writing and not session.sent_states:
        return None
    source = source_of(given)
    for state in writing:
        first = state.memory.address(write=True)
        if not first <= source.address < first + state.grant.nbytes:
            continue
        was = state.description
        offset = source.address - first
        if state.division and not (source.contiguous and offset % source.element.itemsize == 0):
            return None
        element = element_at(was, source, offset)
        if (source.shape, source.strides, offset, element) == (was.shape, was.strides, was.offset, was.element):
            return state, was
        return state, describe(state, source, element, offset)
    check_not_sent(session, source)
    return None


def element_at(was: Description, source: Source, offset: int) -> ElementType:
    """Return the element type of an array that begins `offset` bytes after the beginning of a lease's buffer.

    If NumPy lacks the type of the lease's array there, a NumPy array has the bits, and the lease knows the type.
    """
    if source.element.in_numpy:
        for part in was.named.values() or (was,):
            inside = not was.named or part.offset <= offset < part.offset + part.nbytes
            if inside and part.element.typestr == source.element.typestr:
                return part.element
    return source.element


def check_not_sent(session: Session, source: Source) -> None:
    """Check that an array is not in memory that this session has published as a frame.

    Raises
    ------
    LeaseReleasedError
        The array is in such memory.
    """
    if session.was_sent(source.address):
        raise LeaseReleasedError(
            "this array is in memory that was published before, as a frame: its consumers may be reading it, and what "
            "is written now is in their frame. Write each frame into another array: make it from a new lease, or take "
            "it from loan() of channel.publisher(), once for each frame. To publish the same content again, keep a copy"
        )


def describe(state: LeaseState, source: Source, element: ElementType, offset: int) -> Description:
    """Describe an array in a lease's buffer. The array begins `offset` bytes after the beginning of the buffer.

    Raises
    ------
    InvalidArgumentError
        The array reaches beyond the lease, its elements are not aligned, or it has more than 2**63 - 1 elements.
    """
    if math.prod(source.shape) > MAX_UINT:
        raise InvalidArgumentError(f"the array of shape {source.shape} has more than 2**63 - 1 elements")
    low, high = _tensor.span_of(source.shape, source.strides, offset, element.itemsize)
    aligned = not any(step % element.itemsize for step in (offset, *source.strides))
    if low < 0 or high > state.grant.nbytes or not aligned:
        raise InvalidArgumentError("the array reaches beyond the lease that it lives in: publish less of it, or a copy")
    return Description(element, source.shape, source.strides, offset, contiguous=source.contiguous)


def _interface(array: Any, interface: dict[str, Any], element: ElementType) -> Source:
    shape = tuple(map(int, interface["shape"]))
    strides = interface.get("strides")
    strides = tuple(map(int, strides)) if strides is not None else _tensor.c_strides(shape, element.itemsize)
    return Source(array, int(interface["data"][0]), shape, strides, element)


def _cuda_array_interface(array: Any) -> dict[str, Any] | None:
    try:
        interface: dict[str, Any] | None = array.__cuda_array_interface__
    except (AttributeError, LookupError, RuntimeError, TypeError):
        return None  # the array is on the CPU, or only DLPack can describe the array
    return interface


def _capsule(array: Any, stream: int | None) -> object:
    try:
        return array.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:
        return array.__dlpack__(stream=stream)  # the library is older than the array API standard of 2023

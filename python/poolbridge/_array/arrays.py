"""Exports leases to array libraries: through DLPack, through NumPy's array protocol, or as copies.

`poolbridge._client.makers` makes the arrays of a library that the program chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Never
from weakref import ref

import numpy as np

from poolbridge._array import readonly_warning as _readonly
from poolbridge._memory import arrow as _arrow, dlpack as _dlpack
from poolbridge._memory.tensor import Description, ElementType
from poolbridge._order import fences as _fences
from poolbridge._order.streams import stream_key
from poolbridge._session.lease_state import LeaseState, Token
from poolbridge.errors import (
    InvalidArgumentError,
    UnavailableError,
)

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

    from poolbridge._sys.literals import Kind

try:
    from poolbridge._native import NoBuffer
except ImportError:
    NoBuffer = object  # type: ignore[assignment, misc] # memoryview(lease) raises Python's own TypeError


class ArrayExports(NoBuffer):
    """The base class of leases and views: a tensor in memory that array libraries can use without a copy.

    Attributes
    ----------
    _lease_state
        The state of the lease.
    """

    _lease_state: LeaseState
    _part: Description | None = None  # one of several arrays
    _legacy = False
    _on_gpu = False  # whether memory that the CPU and a GPU use is presented as memory of the GPU

    @property
    def _described(self) -> Description:
        return self._part or self._lease_state.description

    # The tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._described.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._described.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbouring elements along each axis, as in NumPy."""
        return self._described.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type, as a NumPy dtype.

        Raises
        ------
        TypeError
            NumPy lacks the element type (``bfloat16``, ``float8_e4m3fn``); see `dtype_name`.
        """
        element = self._described.element
        if not element.in_numpy:
            raise TypeError(element.lacking)
        return np.dtype(element.typestr)

    @property
    def dtype_name(self) -> str:
        """Name of the element type, such as ``"float32"`` or ``"bfloat16"``."""
        return self._described.element.name

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._described.element.itemsize

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._described.size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements: ``size * itemsize``."""
        return self._described.nbytes

    @property
    def device(self) -> str:
        """The device that libraries see: ``"cpu"``, or a GPU with its number in this process, such as ``"cuda:0"``.

        Memory of kind ``pinned`` is the CPU's; a view with ``device="cuda"`` presents it as the GPU's.
        """
        device, ordinal = self.__dlpack_device__()
        return "cpu" if device == _dlpack.CPU else f"cuda:{ordinal}"

    @property
    def kind(self) -> Kind:
        """Kind of memory: ``"device"``, ``"vmm"``, ``"legacy"``, ``"pinned"`` or ``"host"``."""
        return self._lease_state.memory.pool.kind

    @property
    def readonly(self) -> bool:
        """Whether the program must not write arrays that are made from the lease."""
        return not self._lease_state.write

    # DLPack

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type (1: CPU, 2: CUDA), and the device's number in this process."""
        pool = self._lease_state.memory.pool
        return (_dlpack.CPU, 0) if pool.on_cpu and not self._on_gpu else pool.device

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | EllipsisType | None = ...,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Export the tensor as a DLPack capsule (array API standard). Libraries call this method in ``from_dlpack``.

        Parameters
        ----------
        stream
            The stream of the consumer, which is the library that gets the capsule. This stream waits until the data is
            ready. For CUDA: None or 1 means the legacy default stream, 2 means the per-thread default stream, and a
            larger number is a stream handle; -1 means that no stream waits. For the CPU: None.
        max_version
            The newest DLPack version that the consumer understands. With (1, 0) or a newer version, the consumer gets a
            versioned capsule, which says whether the data is read-only; otherwise the consumer gets a legacy capsule.
        dl_device
            DLPack's device type and id where the consumer wants the data: the lease's own device, the GPU that uses
            memory of kind ``pinned``, or the CPU, (1, 0). If the memory is on a GPU and the consumer wants it on the
            CPU, this method copies the memory. None, the default: the lease's own device. NumPy passes None here and no
            `stream`; NumPy gets the memory without a copy if the CPU can reach the memory.
        copy
            True: always copy. False: never copy. None: copy only if the memory is not on the device `dl_device`.

        Returns
        -------
        PyCapsule
            A capsule that keeps the lease alive, or a capsule of a copy.

        Raises
        ------
        BufferError
            The tensor cannot be exported this way: `dl_device` is another GPU; NumPy asks for memory of a GPU without a
            copy, or lacks the element type; a copy is needed and `copy` is False; the lease is read-only and the
            consumer asks for a legacy capsule (a view with ``legacy=True`` allows this); or a stride is negative and
            the consumer is not NumPy.
        TypeError
            There are several arrays.
        ValueError
            The array API standard does not allow this value of `stream`.
        WaitTimeoutError
            The CPU waited for the content longer than the client's ``timeout``.
        ContentFailedError
            The content will never be complete: the writer died or reported a failure.
        LeaseReleasedError
            The lease has ended.
        """
        state, description = self._lease_state, self._described
        state.check_usable()
        check_one(description)
        numpy_asks = _dlpack.by_cpu(dl_device, stream)
        if not (description.contiguous or numpy_asks):
            _dlpack.check_reversed(description.shape, description.strides)
        device, on_cpu = state.memory.pool.device, state.memory.pool.on_cpu
        own = (_dlpack.CPU, 0) if numpy_asks else self.__dlpack_device__()
        target = own if dl_device is None or dl_device is ... else (int(dl_device[0]), int(dl_device[1]))
        if numpy_asks:
            _check_numpy(description, self.device if not (copy or on_cpu) else "")
        here = target == device or (target[0] == _dlpack.CPU and on_cpu)
        if not here and target[0] != _dlpack.CPU:
            raise BufferError(f"memory of {self.device} cannot be exported to DLPack device {target}")
        if not here and copy is False:
            raise BufferError(f"memory of {self.device} cannot reach the CPU without a copy, and copy=False")
        if target == device and not copy:
            _fences.before_use(state, stream)
        else:
            # If the target is the CPU, None for `stream` does not mean the legacy default stream, so `stream_key` need
            # not check None. `before_cpu` waits until the data is complete, even if `stream` is a CUDA stream.
            if target == device or stream is not None:
                stream_key(own, stream)
            _fences.before_cpu(state)
            if here and not (copy or numpy_asks) and device[0] == _dlpack.CUDA:
                # Except for NumPy, the library may start copies between this memory and a GPU, such as PyTorch's
                # `tensor.cuda(non_blocking=True)`, on streams that nobody names.
                state.unordered = True
        versioned = max_version is not None and max_version[0] >= 1
        element = description.element
        if copy or not here:
            array = _copy(state, description) if target == device else _copy_to_host(state, description)
            return _dlpack.make_capsule(array, element, target, versioned=versioned, copied=True)
        if not state.write and not versioned and not self._legacy:
            raise BufferError(
                "the consumer asks for a legacy DLPack capsule (max_version is None or below 1.0), which cannot say "
                "that this lease is read-only. If the consumer does not write, give it lease.view(legacy=True); "
                "otherwise lease for writing, or copy"
            )
        if versioned and not (state.write or numpy_asks):
            _readonly.check_consumer(state.memory.pool)
        # A legacy capsule cannot carry NumPy's read-only mark.
        array = state.array(part=description, flagged=bool(versioned or state.write))
        return _dlpack.make_capsule(array, element, target, versioned=versioned)

    # Arrow

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[CapsuleType, CapsuleType]:
        """Export an array on the CPU by Arrow's C data interface, for PyArrow and Polars; several as a record batch.

        Arrow's arrays never change: do not write the memory any more. `requested_schema` has no effect, because the
        library converts the array itself.

        Returns
        -------
        tuple of PyCapsule
            The capsules of the schema and of the array, which keeps the lease alive until the library releases it.

        Raises
        ------
        BufferError
            The memory is memory of a GPU; Arrow has no elements of the type in place (``bool``, ``bfloat16``); there is
            not one axis, or there are gaps; or several arrays are not equally long.
        UnavailableError
            poolbridge is installed without its native module.
        WaitTimeoutError, ContentFailedError
            The content was not complete within the client's ``timeout``, or will never be complete.
        LeaseReleasedError
            The lease has ended.
        """
        if self.__dlpack_device__()[0] != _dlpack.CPU:
            raise BufferError(
                f"memory of {self.device} cannot be an Arrow array of the CPU: copy it by lease.to_numpy()"
            )
        return self._to_arrow(None)

    def __arrow_c_device_array__(
        self, requested_schema: object = None, **options: object
    ) -> tuple[CapsuleType, CapsuleType]:
        """Export an array on the CPU or a GPU by Arrow's C device data interface, as `__arrow_c_array__` does.

        The content is complete when the call returns. poolbridge does not know the streams that use the array: see
        `BaseLease.used_on`. Raises `NotImplementedError` if one of `options`, which later versions of the interface may
        have, is not None.
        """
        if any(option is not None for option in options.values()):
            raise NotImplementedError(f"options of __arrow_c_device_array__ must be None: {options}")
        device, ordinal = self.__dlpack_device__()
        return self._to_arrow((device, -1 if device == _dlpack.CPU else ordinal))

    def _to_arrow(self, device: tuple[int, int] | None) -> tuple[CapsuleType, CapsuleType]:
        state = self._lease_state
        state.check_usable()
        _fences.before_cpu(state)
        if state.memory.pool.device[0] == _dlpack.CUDA:
            if state.write and (state.streams or state.unordered):
                state.memory.synchronize()
            state.unordered = True
        address = state.memory.address(write=state.write)
        return _arrow.make_capsules(self._described, address, Token(state), device)

    # NumPy, on memory of the CPU

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Make a NumPy array of the lease's memory, for `numpy.asarray`. The CPU must be able to reach the memory.

        Parameters
        ----------
        dtype
            The dtype of the array; None: the lease's dtype. Another dtype makes a copy.
        copy
            True: always copy. False: never copy. None: copy only for another dtype.

        Returns
        -------
        numpy.ndarray
            An array that uses the lease's memory and is read-only if the lease is read-only; or a copy.

        Raises
        ------
        TypeError
            The CPU does not reach the memory, or NumPy lacks the element type; `to_numpy` makes a copy in both cases.
            Or there are several arrays.
        ValueError
            `copy` is False and `dtype` needs a copy.
        WaitTimeoutError, ContentFailedError
            The content was not complete within the client's ``timeout``, or will never be complete.
        LeaseReleasedError
            The lease has ended.
        """
        state = self._lease_state
        description = self._part or state.description
        state.check_usable()
        check_one(description)
        if not state.memory.pool.on_cpu:
            raise TypeError(f"this memory is on {self.device}: use DLPack, or copy it with to_numpy()")
        if state.fences:
            _fences.before_cpu(state)
        if dtype is None and not copy and description.element.in_numpy:
            return _given(state, description)
        wanted = self.dtype if dtype is None else np.dtype(dtype)
        if wanted == self.dtype and not copy:
            return _given(state, description)
        array = state.array(part=description)
        if copy is False:
            raise ValueError(f"elements of {array.dtype} cannot become {wanted} without a copy")
        _fences.before_copy(state)
        return array.astype(wanted)

    def memoryview(self) -> memoryview:
        """Make a memoryview of the lease's memory, without a copy.

        ``bfloat16`` appears as ``uint16``, and a type of 8-bit or 4-bit floats as ``uint8``.

        ``memoryview(lease)`` raises a `TypeError` that names this method. A lease has no buffer protocol, because NumPy
        would use the buffer protocol instead of ``__array__``. Only ``__array__`` supports every dtype, and only its
        arrays become read-only when the lease is published.

        Returns
        -------
        memoryview
            A memoryview with the lease's shape. It is read-only if the lease is read-only.

        Raises
        ------
        TypeError
            The CPU does not reach the memory, or there are several arrays.
        WaitTimeoutError, ContentFailedError
            The content was not complete within the client's ``timeout``, or will never be complete.
        LeaseReleasedError
            The lease has ended.
        """
        state = self._lease_state
        state.check_usable()
        check_one(self._described)
        if not state.memory.pool.on_cpu:
            raise TypeError(f"this memory is on {self.device}: use DLPack, or copy it with to_numpy()")
        _fences.before_cpu(state)
        array: Any = state.array(part=self._described)
        return memoryview(array)

    # Copies

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """Copy the elements into a new NumPy array, from memory of the CPU or of a GPU.

        Returns
        -------
        numpy.ndarray
            A C-contiguous, writeable array of the lease's shape and dtype. ``bfloat16`` and 8-bit floats become
            float32, which holds every value exactly.

        Raises
        ------
        UnavailableError
            The elements are 8-bit floats, and the package ml_dtypes is not installed.
        TypeError
            There are several arrays, or an element is several numbers (``float4_e2m1fn_x2``): copy
            ``view(dtype="uint8")``.
        WaitTimeoutError, ContentFailedError
            The content was not complete within the client's ``timeout``, or will never be complete.
        LeaseReleasedError
            The lease has ended.
        """
        state, description = self._lease_state, self._described
        state.check_usable()
        check_one(description)
        array = np.ascontiguousarray(_copy_to_host(state, description)).reshape(self.shape)
        if description.element.in_numpy:
            return array
        return widen(array, description.element)

    # With the methods below, the program uses a lease or a view as a sequence. Methods that read or write elements need
    # memory of the CPU: for memory of a GPU, they raise a TypeError that says what to do instead.

    def __eq__(self, other: object) -> bool:
        """Whether `other` is this lease. Arrays compare the elements; for a number or a list, say which is meant."""
        if isinstance(other, (Number, list, tuple)):
            raise TypeError(
                "a lease does not compare its elements: write numpy.asarray(lease) == …, or for memory of a GPU the "
                "same with an array of your library"
            )
        return self is other if isinstance(other, ArrayExports) else NotImplemented

    __hash__ = object.__hash__

    def __reduce__(self) -> Never:
        raise TypeError(
            "a lease cannot be copied or sent to another process: publish the buffer and send its name, for "
            "client.get(name); or send lease.buffer_id and lease.generation, for client.lease(buffer_id, generation); "
            "or publish it through a channel"
        )

    def __len__(self) -> int:
        """Return the number of elements along the first axis; of several arrays, their number."""
        if named := self._described.named:
            return len(named)
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        """Return True, even if the lease has no elements."""
        return True

    def __getitem__(self, index: Any) -> Any:
        """Return elements without a copy; only for memory of the CPU. A returned array keeps the lease alive."""
        return self.__array__()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.__array__()[index] = value

    # Without these, a library that does not know leases would iterate over a lease and copy each element.
    __iter__: ClassVar[None] = None

    def __contains__(self, element: object) -> bool:
        raise TypeError("a lease does not look for elements: write element in numpy.asarray(lease)")

    def __bytes__(self) -> bytes:
        """Return a copy of the elements' bytes, in C order; only for memory of the CPU."""
        elements = self.memoryview()
        _fences.before_copy(self._lease_state)
        return elements.tobytes()


def state_of(lease: ArrayExports) -> LeaseState:
    """Return the state of a lease or view, for modules of this package only."""
    return lease._lease_state  # noqa: SLF001


def check_one(description: Description) -> None:
    """Check that a lease or a view, which `description` describes, is one array.

    Raises
    ------
    TypeError
        There are several arrays.
    """
    if named := description.named:
        names = list(map(repr, named))
        known = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise TypeError(
            f"these are several arrays, {known}: use one of them, as in lease[{names[0]}], or client.get_dict instead "
            "of get_array"
        )


def _check_numpy(description: Description, beyond: str) -> None:
    """Check that NumPy can take the elements by DLPack; `beyond` is the device of memory that NumPy cannot reach.

    Raises
    ------
    BufferError
        NumPy lacks their type, or cannot reach the memory in place.
    """
    if not description.element.in_numpy:
        raise BufferError(description.element.lacking)
    if beyond:
        raise BufferError(
            f"NumPy cannot reach memory of {beyond} in place: copy it, by lease.to_numpy() or by "
            'numpy.from_dlpack(lease, device="cpu")'
        )


def description_of(lease: ArrayExports) -> Description:
    """Return the description of the array that a lease or view is, for modules of this package only."""
    return lease._described  # noqa: SLF001


def widen(bits: np.ndarray[Any, Any], element: ElementType) -> np.ndarray[Any, Any]:
    """Convert the bits of a type that NumPy lacks to float32, which holds every value exactly.

    Raises
    ------
    UnavailableError
        See `dtype_of`.
    """
    if element.name == "bfloat16":
        wide = bits.astype(np.uint32)
        wide <<= 16  # in place, because `<<` makes a scalar of an array without axes
        return wide.view(np.float32)
    return bits.view(dtype_of(element)).astype(np.float32)


def dtype_of(element: ElementType) -> np.dtype[Any]:
    """Return the dtype that the package ml_dtypes adds to NumPy for a type of 8-bit floats.

    Raises
    ------
    UnavailableError
        The package is not installed.
    TypeError
        An element is several numbers, and a dtype of NumPy is one number.
    """
    if element.packed:
        raise TypeError(
            f"an element of {element.name} is {element.lanes} numbers, and one of NumPy is one: copy the bytes, as in "
            'lease.view(dtype="uint8").to_numpy() and lease.view(dtype="uint8").copy_from(array)'
        )
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        raise UnavailableError(
            f"NumPy has no {element.name}, and the package ml_dtypes, which converts it, is not installed: pip install "
            "ml_dtypes; or use PyTorch or JAX by DLPack; memoryview() has the bits"
        ) from None
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, element.name))
    return found


def _given(state: LeaseState, part: Description) -> np.ndarray[Any, Any]:
    """Make a NumPy array of the lease. Store a writeable array in `state.written`: `seal` later makes it read-only."""
    array = state.array(part=part)
    if state.write:
        state.written[id(array)] = ref(array)
    return array


def _copy(state: LeaseState, description: Description) -> np.ndarray[Any, Any]:
    """Copy the tensor on its device. The returned array has the tensor's strides and owns the copy."""
    first, last = description.span
    token = Token(state)
    address, owner = state.memory.pool.duplicate(state.memory.address(write=False) + first, last - first)
    return np.asarray(_Owned(owner, _interface(description, address + description.offset - first), token))


def _copy_to_host(state: LeaseState, description: Description) -> np.ndarray[Any, Any]:
    """Copy the tensor into host memory. The array has the tensor's strides, and bits of a type that NumPy lacks."""
    first, last = description.span
    data = np.empty(max(last - first, 1), np.uint8)
    token = Token(state)
    _fences.before_cpu(state)
    if last > first:
        state.memory.pool.read(state.memory.address(write=False) + first, data[: last - first])
    del token
    return np.ndarray(
        description.shape, description.element.typestr, data, description.offset - first, description.strides
    )


def _interface(description: Description, address: int) -> dict[str, Any]:
    return {
        "version": 3,
        "shape": description.shape,
        "typestr": description.element.typestr,
        "strides": None if description.contiguous else description.strides,
        "data": (address, False),
    }


class _Owned:
    """Owns a copy of a tensor. The copy stays alive as long as an array refers to this object."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: object, interface: dict[str, Any], source: Token) -> None:
        del source  # the copy is complete: the original is not needed any more
        self.owner = owner
        self.__array_interface__ = interface


def check_shape(shape: Sequence[int], expected: Sequence[int]) -> None:
    """Check that an array of `shape` can be broadcast to the shape `expected`.

    Raises
    ------
    InvalidArgumentError
        The array cannot be broadcast.
    """
    try:
        fits = np.broadcast_shapes(tuple(shape), tuple(expected)) == tuple(expected)
    except ValueError:
        fits = False
    if not fits:
        raise InvalidArgumentError(f"an array of shape {tuple(shape)} does not fit into {tuple(expected)}")

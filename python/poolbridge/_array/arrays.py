"""Arrays from leases, by every protocol that array libraries speak."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from poolbridge._array import readonly as _readonly
from poolbridge._memory import dlpack as _dlpack
from poolbridge._order import order as _order
from poolbridge._order.streams import stream_key
from poolbridge._session.lease_state import LeaseState, Token
from poolbridge._sys.errors import InvalidArgumentError

if TYPE_CHECKING:
    from poolbridge._sys.literals import Kind


class ArrayExports:
    """What a lease and a view have in common: a tensor in memory, given out without a copy.

    Attributes
    ----------
    _lease_state
        The lease state behind it.
    """

    _lease_state: LeaseState
    _legacy = False

    # The tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._lease_state.description.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._lease_state.description.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each axis, as NumPy counts."""
        return self._lease_state.description.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type, where NumPy has it.

        Raises
        ------
        TypeError
            The elements are ``bfloat16``; see `dtype_name`.
        """
        element = self._lease_state.description.element
        if not element.in_numpy:
            raise TypeError(
                f"NumPy has no {element.name} (see dtype_name): to_numpy() copies it as float32, and libraries that "
                "have it take it by DLPack"
            )
        return np.dtype(element.typestr)

    @property
    def dtype_name(self) -> str:
        """Name of the element type, as the protocol has it: ``"float32"`` or ``"bfloat16"``, for example."""
        return self._lease_state.description.element.name

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._lease_state.description.element.itemsize

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._lease_state.description.size

    @property
    def nbytes(self) -> int:
        """Bytes of the elements: ``size * itemsize``."""
        return self._lease_state.description.nbytes

    @property
    def device(self) -> str:
        """Where the memory is, as this process counts: ``"cpu"`` or ``"cuda:0"``."""
        return self._lease_state.memory.pool.device_name

    @property
    def kind(self) -> Kind:
        """Kind of memory: ``"device"``, ``"vmm"``, ``"legacy"``, ``"pinned"`` or ``"host"``."""
        return self._lease_state.memory.pool.kind

    @property
    def readonly(self) -> bool:
        """Whether arrays made from it must not be written."""
        return not self._lease_state.write

    # DLPack

    def __dlpack_device__(self) -> tuple[int, int]:
        """Give DLPack's device type (1: CPU, 2: CUDA) and id, the id as this process counts."""
        return self._lease_state.memory.pool.device

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | EllipsisType | None = ...,
        copy: bool | None = None,
    ) -> object:
        """Export the tensor as a DLPack capsule, as the array API standard says.

        Parameters
        ----------
        stream
            The consumer's stream, on which the data must be ready. On CUDA: None or 1 is the legacy default stream,
            2 the per-thread default stream, a larger number a handle, -1 asks for no ordering. On the CPU: None.
        max_version
            The newest DLPack that the consumer understands; from (1, 0) on it gets a versioned capsule, which says
            whether the data is read-only.
        dl_device
            Where the consumer wants the data: here, or on the CPU, (1, 0), which copies from a device. NumPy, which has
            no other place, passes None and no stream: it gets memory that the CPU reaches as the CPU's. Left out: here.
        copy
            True always copies, False never, None only where `dl_device` asks for it.

        Raises
        ------
        BufferError
            It cannot be exported this way: another device, memory of a GPU for NumPy without a copy, a copy that was
            forbidden, read-only data for a consumer of legacy capsules, negative strides for PyTorch, or GPU memory
            that is not aligned for JAX.
        ValueError
            A stream that the standard does not allow.
        LeaseReleasedError
            The lease has ended.
        """
        state = self._lease_state
        state.check_usable()
        if not state.description.contiguous:
            _dlpack.check_reversed(state.description.shape, state.description.strides)
        device = state.memory.pool.device
        own = self.__dlpack_device__()
        target = own if dl_device is None or dl_device is ... else (int(dl_device[0]), int(dl_device[1]))
        if _dlpack.by_cpu(dl_device, stream):
            target = (_dlpack.CPU, 0)
            if not copy and not state.memory.pool.on_cpu:
                raise BufferError(
                    f"NumPy cannot reach memory of {self.device} in place: copy it, by lease.to_numpy() or by "
                    'numpy.from_dlpack(lease, device="cpu")'
                )
        here = target == device or (target[0] == _dlpack.CPU and state.memory.pool.on_cpu)
        if not here and target[0] != _dlpack.CPU:
            raise BufferError(f"memory of {self.device} cannot be exported to DLPack device {target}")
        if not here and copy is False:
            raise BufferError(f"memory of {self.device} cannot reach the CPU without a copy, and copy=False")
        if target == device and not copy:
            _order.before_use(state, stream)
        else:
            # With the CPU as target None cannot mean a CUDA stream: the data is complete on return anyway.
            if target == device or stream is not None:
                stream_key(own, stream)
            _order.before_cpu(state)
        versioned = max_version is not None and max_version[0] >= 1
        element = state.description.element
        if copy or not here:
            array = _copy(state) if target == device else _copy_to_host(state)
            return _dlpack.make_capsule(array, element, target, versioned=versioned, copied=True)
        if not state.write and not versioned and not self._legacy:
            raise BufferError(
                "the consumer asks for a legacy DLPack capsule (max_version is None or below 1.0), which cannot say "
                "that this lease is read-only. If the consumer does not write, give it lease.view(legacy=True); "
                "otherwise lease for writing, or copy"
            )
        if versioned and not state.write:
            _readonly.check_consumer(state.memory.pool)
        array = state.array() if versioned or state.write else _pretend_writeable(state)
        if device[0] != _dlpack.CPU and array.size:
            _dlpack.check_aligned(state.address(write=state.write))
        return _dlpack.make_capsule(array, element, target, versioned=versioned)

    # NumPy, on memory of the CPU

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Make a NumPy array of the same memory; only for memory of the CPU.

        Raises
        ------
        TypeError
            The memory is on a device, or NumPy lacks the element type; see `to_numpy`.
        ValueError
            ``copy=False``, and another dtype was asked for.
        """
        state = self._lease_state
        state.check_usable()
        if not state.memory.pool.on_cpu:
            raise TypeError(f"this memory is on {self.device}: use DLPack, or copy it with to_numpy()")
        if state.fences or state.alone:
            _order.before_cpu(state)
        if dtype is None and not copy and state.description.element.in_numpy:
            return _given(state)
        wanted = self.dtype if dtype is None else np.dtype(dtype)
        if wanted == self.dtype and not copy:
            return _given(state)
        array = state.array()
        if copy is False:
            raise ValueError(f"elements of {array.dtype} cannot become {wanted} without a copy")
        return array.astype(wanted)

    def memoryview(self) -> memoryview:
        """Make a memoryview of the elements; only for memory of the CPU. ``bfloat16`` shows its bits as ``uint16``.

        Raises
        ------
        TypeError
            The memory is on a device.
        """
        state = self._lease_state
        state.check_usable()
        if not state.memory.pool.on_cpu:
            raise TypeError(f"this memory is on {self.device}: use DLPack, or copy it with to_numpy()")
        _order.before_cpu(state)
        array: Any = state.array()
        return memoryview(array)

    # Copies

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """Copy the elements into a new NumPy array, from wherever they are.

        Returns
        -------
        numpy.ndarray
            Of this shape and dtype, C-contiguous, writeable. ``bfloat16`` comes as float32, which holds it exactly.
        """
        state = self._lease_state
        state.check_usable()
        array = np.ascontiguousarray(_copy_to_host(state)).reshape(self.shape)
        if state.description.element.in_numpy:
            return array
        return widen(array)


def widen(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Turn the bits of ``bfloat16`` into float32, which holds it exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _given(state: LeaseState) -> np.ndarray[Any, Any]:
    """Make an array that goes to the user as it is; one to be written is remembered until it must not be any more."""
    array = state.array()
    if state.write:
        state.written[id(array)] = ref(array)
    return array


def _pretend_writeable(state: LeaseState) -> np.ndarray[Any, Any]:
    """Point at read-only memory without saying so: for a legacy consumer whose user vouches for it."""
    return state.array(write=False, flagged=False)


def _copy(state: LeaseState) -> np.ndarray[Any, Any]:
    """Copy the tensor within its device; the array owns the copy. Strides stay as they are."""
    description = state.description
    first, last = description.span
    token = Token(state)
    address, owner = state.memory.pool.duplicate(state.memory.address(write=False) + first, last - first)
    return np.asarray(_Owned(owner, _interface(state, address + description.offset - first), token))


def _copy_to_host(state: LeaseState) -> np.ndarray[Any, Any]:
    """Copy the tensor into host memory, with its strides; ``bfloat16`` as its bits."""
    description = state.description
    first, last = description.span
    data = np.empty(max(last - first, 1), np.uint8)
    token = Token(state)
    _order.before_cpu(state)
    if last > first:
        state.memory.pool.read(state.memory.address(write=False) + first, data[: last - first])
    del token
    return np.ndarray(
        description.shape, description.element.typestr, data, description.offset - first, description.strides
    )


def _interface(state: LeaseState, address: int) -> dict[str, Any]:
    description = state.description
    return {
        "version": 3,
        "shape": description.shape,
        "typestr": description.element.typestr,
        "strides": None if description.contiguous else description.strides,
        "data": (address, False),
    }


class _Owned:
    """Keeps a copy alive for the array that points at it."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: object, interface: dict[str, Any], source: Token) -> None:
        del source  # the copy is complete: the original may go
        self.owner = owner
        self.__array_interface__ = interface


def check_shape(shape: Sequence[int], expected: Sequence[int]) -> None:
    """Raise unless an array of `shape` can be broadcast into `expected`.

    Raises
    ------
    InvalidArgumentError
        It cannot.
    """
    try:
        fits = np.broadcast_shapes(tuple(shape), tuple(expected)) == tuple(expected)
    except ValueError:
        fits = False
    if not fits:
        raise InvalidArgumentError(f"an array of shape {tuple(shape)} does not fit into {tuple(expected)}")

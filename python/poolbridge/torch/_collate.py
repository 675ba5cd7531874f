"""Sends the batches of a DataLoader's workers to the trainer in a pool's memory."""

from __future__ import annotations

import io
import math
import os
import pickle
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from poolbridge._client import operations as _operations
from poolbridge._client.entries import PoolInfo
from poolbridge._client.paths import check_path
from poolbridge._memory.kinds import ON_CPU
from poolbridge._memory.tensor import ELEMENT_TYPES
from poolbridge._wire.messages import Unpublish
from poolbridge.errors import DeviceMemoryError, InvalidArgumentError, PoolLimitError, UnsupportedError
from poolbridge.torch._clients import client_at, own_pool

if TYPE_CHECKING:
    from poolbridge._client.client import Client

# Where an array is in its batch's buffer: its first byte, its shape, and the name of its dtype.
_Place: TypeAlias = tuple[int, tuple[int, ...], str]
_ALIGNED: Final = 64  # bytes to which the beginning of each array is aligned

# The errors of pickle for what cannot be pickled.
_CANNOT: Final = (pickle.PicklingError, TypeError, AttributeError, NotImplementedError)


class Collate:
    """A ``collate_fn`` for PyTorch's ``DataLoader``, whose workers write each batch into a pool's memory.

    The trainer gets the batch without a copy: what ``collate_fn`` returned, whose tensors and NumPy arrays use the
    pool's memory. They are C-contiguous, each with memory of its own. The trainer may write them. The memory is free
    when the last of them is gone. Nothing goes through ``/dev/shm``, and no file descriptor is open for a batch. Order,
    seeds, errors and ``state_dict`` are those of the loader. Without workers, the batch is what ``collate_fn`` returns.

    The object can be pickled. Each worker connects to the service by itself, also if it was forked.

    Parameters
    ----------
    collate_fn
        A function that makes a batch of a list of samples; None: ``default_collate``, whose tensors the workers stack
        in the pool. What another function returns is copied there. A loader with ``batch_size=None`` needs a function,
        such as ``default_convert``.
    pool
        A pool of memory of the CPU, or its name; None: a pool of kind ``host`` that only this user may use, for at most
        three quarters of the machine's memory.
    path
        Path of the service's socket; None: the path that `default_path` returns, where the first worker starts a
        service if none runs.
    timeout
        Seconds that a worker waits for free memory in the pool; None: no limit.

    Raises
    ------
    InvalidArgumentError
        An argument is not as described above.

    Notes
    -----
    In a worker, the object raises the following errors, which PyTorch raises again in the trainer.

    PoolLimitError, DeviceMemoryError
        The pool or the machine had not enough free memory within `timeout`. The loader's workers need memory for
        ``num_workers * prefetch_factor + 1`` batches, besides those that the trainer keeps.
    InvalidArgumentError
        What ``collate_fn`` returned cannot be pickled, or the pool has no memory of the CPU.
    UnsupportedError
        The pool is of kind ``pinned``, and the worker was forked by a process that uses CUDA.
    PoolbridgeError
        See `connect` and `Client.allocate`.

    Taking a batch raises `StaleError` in the trainer if the batch's worker has ended before, and
    `ServiceNotRunningError` if the service has.
    """

    def __init__(
        self,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        pool: PoolInfo | str | None = None,
        path: str | os.PathLike[str] | None = None,
        timeout: float | None = 60.0,
    ) -> None:
        if collate_fn is not None and not callable(collate_fn):
            raise InvalidArgumentError(
                f"collate_fn is {collate_fn!r}: expected a function, or None for default_collate"
            )
        self._collate_fn = collate_fn
        name = pool.name if isinstance(pool, PoolInfo) else pool
        self._pool = None if name is None else _operations.check_name(name, "pool")
        self._path = None if path is None else check_path(path)
        self._timeout = _operations.check_timeout(timeout)

    def __call__(self, samples: list[Any]) -> Any:
        """Make a batch of `samples`. In a loader's worker, return an object that the trainer unpickles as the batch."""
        if get_worker_info() is None:
            return (self._collate_fn or torch.utils.data.default_collate)(samples)
        if self._collate_fn is None:
            made = collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: _stack})
        else:
            made = self._collate_fn(samples)
        pickled = io.BytesIO()
        pickler = _Pickler(pickled)
        try:
            pickler.dump(made)
        except _CANNOT as error:
            raise InvalidArgumentError(
                f"the batch, a {type(made).__name__}, cannot be sent to the trainer: {error}. Have collate_fn return "
                "tensors, arrays and what pickle takes"
            ) from error
        return _Sent(pickled.getvalue(), *(self._send(pickler.parts) if pickler.parts else ()))

    def _send(self, parts: list[Any]) -> tuple[list[_Place], str, int, int]:
        """Write arrays into a buffer. Return their places, the service's path, and the buffer's id and generation."""
        client = client_at(self._path)
        pool = client._run(client._pool(self._pool)) if self._pool else _default_pool(client)  # noqa: SLF001
        if pool.kind not in ON_CPU:
            raise InvalidArgumentError(
                f"pool {pool.name!r} is of kind {pool.kind!r}: a loader needs memory of the CPU, {' or '.join(ON_CPU)}"
            )
        if pool.kind != "host" and torch.cuda._is_in_bad_fork():  # noqa: SLF001 - as PyTorch's own functions do
            raise UnsupportedError(
                f"a forked worker cannot use pool {pool.name!r} of kind {pool.kind!r}, because its parent uses CUDA: "
                'give the DataLoader multiprocessing_context="forkserver" or "spawn"'
            )
        places, end = [], 0
        for part in parts:
            places.append((end, tuple(part.shape), str(part.dtype).removeprefix("torch.")))
            end += -(-math.prod(part.shape) * part.dtype.itemsize // _ALIGNED) * _ALIGNED
        try:
            lease = client.allocate((max(end, 1),), "uint8", pool=pool, timeout=self._timeout)
        except (PoolLimitError, DeviceMemoryError) as error:
            error.add_note(
                "poolbridge: a loader needs memory for num_workers * prefetch_factor + 1 batches, and for those whose "
                "tensors the trainer keeps: make the pool larger, or keep copies (tensor.clone())"
            )
            raise
        memory = np.asarray(lease)
        for part, place in zip(parts, places, strict=True):
            _write(memory, place, part)
        del memory
        lease.publish(_name(lease.buffer_id, lease.generation))
        lease.release()
        return places, client.path, lease.buffer_id, lease.generation


class _Stack:
    """Tensors that the worker stacks when it has the memory."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.shape = len(tensors), *tensors[0].shape
        self.dtype = tensors[0].dtype


class _Sent:
    """A batch on its way to the trainer."""

    def __init__(self, *of: Any) -> None:
        self._of = of

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, self._of


class _Pickler(pickle.Pickler):
    """Pickles a batch without its arrays, which are in `parts`."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.parts: list[Any] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        """Return the place of an array in `parts`, or its complement for an array of NumPy; None for other objects."""
        kind = type(obj)
        if (
            kind is not _Stack
            and not (kind is torch.Tensor and _simple(obj))
            and not (kind is np.ndarray and _plain(obj))
        ):
            return None
        place = self._places.setdefault(id(obj), len(self.parts))
        if place == len(self.parts):
            self.parts.append(obj)
        return ~place if kind is np.ndarray else place


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: np.ndarray[Any, Any] | None, places: Sequence[_Place]) -> None:
        super().__init__(file)
        self._memory = memory
        self._places = places
        self._made: dict[int, Any] = {}

    def persistent_load(self, pid: int) -> Any:
        """Make the array of a place in the buffer, once."""
        if pid not in self._made:
            if self._memory is None:
                raise pickle.UnpicklingError("a batch without a buffer refers to an array of one")
            self._made[pid] = (_array if pid < 0 else _tensor)(self._memory, self._places[max(pid, ~pid)])
        return self._made[pid]


def _stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
    """Do what ``default_collate`` does with tensors, but later, in the pool's memory."""
    if type(batch[0]) is torch.Tensor and _simple(batch[0]):
        return _Stack(batch)
    return default_collate_fn_map[torch.Tensor](batch, collate_fn_map=collate_fn_map)


def _simple(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its elements, in memory of the CPU, and nothing else is to be known of it."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    )


def _plain(array: np.ndarray[Any, Any]) -> bool:
    element = ELEMENT_TYPES.get(array.dtype.name)
    return element is not None and element.in_numpy and array.dtype.isnative


def _bytes_of(memory: np.ndarray[Any, Any], place: _Place, itemsize: int) -> np.ndarray[Any, Any]:
    start, shape, _ = place
    return memory[start : start + math.prod(shape) * itemsize]


def _array(memory: np.ndarray[Any, Any], place: _Place) -> np.ndarray[Any, Any]:
    dtype = np.dtype(place[2])
    return _bytes_of(memory, place, dtype.itemsize).view(dtype).reshape(place[1])


def _tensor(memory: np.ndarray[Any, Any], place: _Place) -> torch.Tensor:
    """Make a tensor, which has a storage of its own."""
    dtype = getattr(torch, place[2])
    return torch.from_numpy(_bytes_of(memory, place, dtype.itemsize)).view(dtype).view(place[1])


def _write(memory: np.ndarray[Any, Any], place: _Place, part: Any) -> None:
    if isinstance(part, np.ndarray):
        np.copyto(_array(memory, place), part)
    elif isinstance(part, _Stack):
        torch.stack(part.tensors, out=_tensor(memory, place))
    else:
        _tensor(memory, place).copy_(part)


@lru_cache(maxsize=8)
def _default_pool(client: Client) -> PoolInfo:
    return own_pool(client, f"loader {os.geteuid()}")


def _name(buffer: int, generation: int) -> str:
    """Return the name that keeps a batch from when the worker has sent it until the trainer has it."""
    return f"batch {buffer}.{generation}"


def _receive(
    pickled: bytes, places: Sequence[_Place] = (), path: str = "", buffer: int = 0, generation: int = 0
) -> Any:
    """Return a batch, in the trainer."""
    memory = None
    if path:
        client = client_at(path)
        lease = client.lease(buffer, generation, write=True, timeout=client.timeout)
        # Without a reply: if the worker has ended, the name is gone.
        client._session.tell(Unpublish(name=_name(buffer, generation)))  # noqa: SLF001
        # By DLPack, so that memory that a GPU may read is free only after the GPU's work.
        memory = torch.from_dlpack(lease).numpy()
    return _Unpickler(io.BytesIO(pickled), memory, places).load()

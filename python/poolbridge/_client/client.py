"""The blocking client."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, overload

from poolbridge._client import makers as _makers, operations as _operations
from poolbridge._client.arena import Arena
from poolbridge._client.base_client import BaseClient
from poolbridge._client.channel import Channel
from poolbridge._client.entries import PoolInfo, ServiceStats
from poolbridge._client.lease import BaseLease, Lease
from poolbridge._client.listing import Lists
from poolbridge._client.subscription import Subscription, join
from poolbridge._client.tracing import Traced, span
from poolbridge._session.flow import Ask, Flow, Hear, Sleep
from poolbridge._session.session import Session
from poolbridge._session.socket_reader import SocketReader
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.literals import AckMode, ChannelMode, FullPolicy, Kind, Library, NoProducers

if TYPE_CHECKING:  # a library that is not installed has the type Any
    import cupy
    import jax
    import numpy as np
    import torch

_T = TypeVar("_T")


class Client(Lists, BaseClient):
    """A thread-safe connection to the service. `connect` makes a client.

    A client is a context manager: the end of the ``with`` block closes the client. A client can be pickled, for example
    for a spawned process: the process that unpickles the client connects to the same service, with the same default
    pool. A forked child cannot use its parent's client.

    Every method that sends a request to the service can also raise `ClosedError` (`ClientClosedError` if the client was
    closed, `ConnectionLostError` if the service went away), `ServiceStalledError` if the service does not answer within
    the client's ``timeout``, and `ForkError` in a forked child.
    """

    _channel_type: ClassVar = Channel
    _arena_type: ClassVar = Arena

    def __init__(self, session: Session, reader: SocketReader, path: str, timeout: float) -> None:
        super().__init__(session, path, timeout)
        self._reader = reader

    # Pools

    def create_pool(
        self,
        name: str,
        *,
        kind: Kind = "host",
        device: int | str | None = None,
        max_bytes: int | str,
        session_bytes: int | str = 0,
        user_bytes: int | str = 0,
        uids: Sequence[int] = (),
        gids: Sequence[int] = (),
        exist_ok: bool = False,
    ) -> PoolInfo:
        """Create a pool.

        The first pool that a client creates or opens becomes the client's default pool.

        Parameters
        ----------
        name
            The pool's name: 1 to 255 bytes of UTF-8 without control characters.
        kind
            Where the memory comes from: ``"device"``, ``"vmm"``, ``"legacy"``, ``"pinned"``, or ``"host"``, which needs
            no GPU.
        device
            A GPU's ordinal in the service's numbering, or the GPU's UUID; None: the first GPU.
        max_bytes
            Most bytes that the pool's blocks may take together: a number, or a size such as ``"64MiB"``.
        session_bytes, user_bytes
            Most bytes that may count for one session, and for all sessions of one user: numbers, or sizes such as
            ``"64MiB"``; 0: no limit besides `max_bytes`. A block with a buffer counts for the session that allocated
            the buffer. A free block counts for the sessions of a process in three cases, because other processes cannot
            use the block yet: the process's GPU work on the block is under way; the service has recalled the block, and
            the process has not unmapped the block; or a session of the process ended without having released the block,
            and the process still runs.
        uids, gids
            Ids of the users and groups that may use the pool. If both are empty, only this user may use the pool.
        exist_ok
            If a pool of that name with the same settings exists, or if another client is making such a pool now, open
            that pool.

        Returns
        -------
        PoolInfo
            The new pool, or with `exist_ok` the existing pool.

        Raises
        ------
        AlreadyExistsError
            There is a pool of that name. With `exist_ok`, only a pool with other settings raises this error; the
            message names the differences.
        AccessDeniedError
            This user may not create pools, or may not use the existing pool.
        UnavailableError
            The service's machine cannot make a pool of this kind; the message says what is missing.
        PoolLimitError, DeviceMemoryError
            This user has too many pools, or the machine has not enough memory.
        InvalidArgumentError
            An argument is not as described above.
        """
        flow = _operations.create_pool(
            name,
            kind=kind,
            device=device,
            max_bytes=max_bytes,
            session_bytes=session_bytes,
            user_bytes=user_bytes,
            uids=uids,
            gids=gids,
            exist_ok=exist_ok,
        )
        return self._remember(self._run(flow))

    def open_pool(self, name: str, timeout: float | None = 0.0) -> PoolInfo:
        """Open a pool by its name.

        The first pool that a client creates or opens becomes the client's default pool.

        Parameters
        ----------
        name
            The pool's name.
        timeout
            Seconds to wait for the pool to appear; 0: do not wait; None: no limit. If another client is making the pool
            now, the call always waits until the pool is made.

        Returns
        -------
        PoolInfo
            The pool.

        Raises
        ------
        NotFoundError
            There is no such pool, and `timeout` is 0.
        WaitTimeoutError
            The pool did not appear within `timeout`.
        AccessDeniedError
            This user may not use the pool.
        """
        return self._run(self._open_pool(name, timeout))

    def destroy_pool(self, pool: PoolInfo | str) -> None:
        """Destroy a pool and its channels. Memory that leases still use is freed when these leases end.

        Parameters
        ----------
        pool
            The pool or its name. The user who made the pool, and the user that runs the service, may destroy the pool,
            even if they may not open the pool.

        Raises
        ------
        NotFoundError
            There is no such pool, or this user may neither use nor destroy the pool.
        AccessDeniedError
            This user may not destroy the pool.
        """
        self._forget(self._run(_operations.destroy_pool(pool)))

    def trim(self, pool: PoolInfo | str | None = None, *, keep_bytes: int | str = 0) -> int:
        """Free unused blocks of a pool.

        Parameters
        ----------
        pool
            The pool or its name; None: the default pool, see `allocate`.
        keep_bytes
            Bytes of unused blocks to keep: a number, or a size such as ``"64MiB"``.

        Returns
        -------
        int
            Bytes that the service freed during the call. Blocks that clients still have mapped are freed later. This
            client unmaps those without leases, arrays and work during the call.

        Raises
        ------
        NotFoundError, AccessDeniedError
            There is no such pool, or this user may not use the pool.
        InvalidArgumentError
            `pool` is None and there is no default pool, or `keep_bytes` is no size.
        """
        return self._run(self._trim(pool, keep_bytes))

    def stats(self) -> ServiceStats:
        """Ask for the counts of the service, and of every pool that this user may use or destroy.

        Returns
        -------
        ServiceStats
            The counts at the time of the call.
        """
        return self._run(_operations.stats())

    def pools(self) -> list[PoolInfo]:
        """List the pools that this user may use or destroy. `stats` also says how much of each pool is in use.

        Returns
        -------
        list of PoolInfo
            The pools.
        """
        return [of.pool for of in self.stats().pools]

    # Buffers

    def allocate(
        self,
        shape: int | Iterable[int] | Mapping[str, tuple[int | Iterable[int], Any]],
        dtype: Any = "float32",
        *,
        pool: PoolInfo | str | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = 0.0,
    ) -> Lease:
        """Allocate a buffer and lease it for writing.

        Parameters
        ----------
        shape
            The number of elements along each axis, for at most 32 axes. A single number makes one axis; ``()`` makes a
            scalar. For several arrays in one buffer, a dict with a shape and a dtype for each, such as
            ``{"w": ((480, 640), "float16"), "b": (640, "float32")}``; then ``lease[name]`` is one of them.
        dtype
            A dtype of NumPy or PyTorch, or a name such as ``"float32"`` or ``"bfloat16"``.
        pool
            The pool or its name; None: the default pool, which is the first pool that this client created or opened,
            or else the only pool that this user may use.
        metadata
            Texts about several arrays, see `put`.
        timeout
            Seconds to wait for free memory in the pool; 0: do not wait; None: no limit.

        Returns
        -------
        Lease
            A write lease of a C-contiguous buffer. The content is undefined.

        Raises
        ------
        PoolLimitError, DeviceMemoryError
            The pool or the device has not enough free memory, and no memory became free within `timeout`.
        NotFoundError, AccessDeniedError
            There is no such pool, or this user may not use the pool.
        InvalidArgumentError
            The shape, the dtype or the metadata is not possible, or `pool` is None and there is no default pool.
        """
        flow = self._allocate(shape, dtype, pool=pool, metadata=metadata, timeout=timeout)
        return Lease(self._run, self._run(flow))

    def arena(self, nbytes: int | str, *, pool: PoolInfo | str | None = None, timeout: float | None = 0.0) -> Arena:
        """Make an arena: memory of a pool that the program divides by itself, without a request for each array.

        Parameters
        ----------
        nbytes
            Bytes of its first block, and of further blocks: a number, or a size such as ``"64MiB"``.
        pool
            The pool or its name; None: the default pool, see `allocate`. In memory of a GPU (``device``, ``vmm``,
            ``legacy``), only `Arena.memory_resource`, `Arena.cupy_allocator` and `Arena.torch_pool` allocate.
        timeout
            Seconds to wait for free memory in the pool; 0: do not wait; None: no limit.

        Returns
        -------
        Arena
            The arena. What it makes, `put` and `Channel.publish` share without a copy.

        Raises
        ------
        PoolLimitError, DeviceMemoryError, NotFoundError, AccessDeniedError
            See `allocate`.
        UnsupportedError
            The service is too old.
        InvalidArgumentError
            `nbytes` is no size, or `pool` is None and there is no default pool.
        """
        made: Arena = self._run(self._arena(nbytes, pool, timeout))
        return made

    def empty(
        self,
        shape: int | Iterable[int],
        dtype: Any = "float32",
        *,
        pool: PoolInfo | str | None = None,
        timeout: float | None = 0.0,
    ) -> np.ndarray[Any, Any]:
        """Make a NumPy array in an arena of this client, whose content is undefined.

        `put` and `Channel.publish` share the array, or a contiguous part of it, without a copy; then the program must
        not write it any more. See `BaseArena`. The arena has blocks of up to 64 MiB, at most an eighth of the pool.
        `trim` gives the last one back if it is empty.

        Parameters
        ----------
        shape, dtype, timeout
            See `Arena.empty`, also for the errors.
        pool
            See `arena`, also for the errors.

        Returns
        -------
        numpy.ndarray
            A C-contiguous array.
        """
        return self._run(self._array(shape, dtype, pool, timeout))

    def zeros(
        self,
        shape: int | Iterable[int],
        dtype: Any = "float32",
        *,
        pool: PoolInfo | str | None = None,
        timeout: float | None = 0.0,
    ) -> np.ndarray[Any, Any]:
        """Make an array of zeros; see `empty`."""
        return self._run(self._array(shape, dtype, pool, timeout, 0))

    def full(
        self,
        shape: int | Iterable[int],
        fill_value: Any,
        dtype: Any = "float32",
        *,
        pool: PoolInfo | str | None = None,
        timeout: float | None = 0.0,
    ) -> np.ndarray[Any, Any]:
        """Make an array that is filled with a value; see `empty`, and `Arena.full`."""
        return self._run(self._array(shape, dtype, pool, timeout, fill_value))

    def get(
        self,
        name: str,
        *,
        write: bool = False,
        other_than: BaseLease | None = None,
        expect: Mapping[str, str] | None = None,
        timeout: float | None = 0.0,
    ) -> Lease:
        """Lease the buffer that was published under a name. If necessary, the client opens the buffer's pool.

        Parameters
        ----------
        name
            The name that was given to `Lease.publish` or `put`.
        write
            Lease the buffer for writing. A write lease excludes every other lease on the buffer.
        other_than
            A lease that got or published the name, and may have ended: get only what was published after it, and wait
            on if that has failed. None: get what the name refers to. See `watch`.
        expect
            Metadata that the content must have, such as ``{"model": "llama"}``; see `put`. It may have more. None: any.
        timeout
            Seconds to wait for the name to appear or to refer to something else than `other_than`, and for the end of
            other leases that exclude this lease; 0: do not wait; None: no limit.

        Returns
        -------
        Lease
            A read lease, or with `write` a write lease.

        Raises
        ------
        NotFoundError
            Nothing is published under the name, or nothing else than `other_than`, and `timeout` is 0.
        WaitTimeoutError
            The name did not appear, or refer to something else than `other_than`, within `timeout`.
        MetadataMismatchError
            The content has other metadata than `expect` says; the message names a key. The call does not wait for other
            content.
        InvalidArgumentError
            `other_than` is no lease that got or published a name, or `expect` is no dict of texts.
        BusyError
            Another lease excludes this lease, and did not end within `timeout`.
        AccessDeniedError
            This user may not use the buffer's pool.
        ContentFailedError
            The content will never be complete: the writer died or reported a failure. With `other_than`, nothing else
            came within `timeout`.
        UnavailableError
            This process cannot map the memory; the message says why.
        """
        known = _operations.known_by(self._session, other_than)
        flow = self._get(name, write=write, known=known, expect=expect, timeout=timeout)
        return Lease(self._run, self._run(flow))

    def watch(self, name: str, *, timeout: float | None = None) -> Iterator[Lease]:
        """Get each newest content of a name in turn: what the name refers to, then each time what replaced it.

        A program that is slower than the publications gets only the newest, and no content that has failed. The program
        releases the leases: the memory of an old version is free when its last reader has released it.

        Parameters
        ----------
        name
            The name that was given to `Lease.publish` or `put`. It need not exist yet, or may vanish for a while.
        timeout
            Seconds to wait for each lease; None: no limit.

        Returns
        -------
        iterator of Lease
            Read leases. `Lease.version` says which version it is.

        Raises
        ------
        WaitTimeoutError
            Nothing new was published within `timeout`. The iterator's ``next`` raises it and the other errors, and can
            be called again.
        ContentFailedError
            What is new has failed, and nothing else was published within `timeout`; or it failed when it was leased.
        UnsupportedError
            The service is too old to know versions.
        NotFoundError, AccessDeniedError, UnavailableError
            See `get`.
        """
        known = _operations.ANY

        def newest() -> Lease:
            nonlocal known
            lease = Lease(self._run, self._run(self._get(name, write=False, known=known, timeout=timeout)))
            known = _operations.known_by(self._session, lease)
            return lease

        return iter(newest, None)  # a generator would end with the first error

    def get_copy(
        self, name: str, *, pool: PoolInfo | str | None = None, stream: Any = None, timeout: float | None = 0.0
    ) -> Lease:
        """Copy what a name refers to into a new buffer, whose addresses stay when `Lease.refresh` copies newer content.

        Programs that have captured CUDA graphs, or keep arrays for other reasons, use newer versions of a model so.

        Parameters
        ----------
        name
            The name that was given to `Lease.publish` or `put`.
        pool
            The pool of the copy, or the pool's name; None: the pool of the name's buffer.
        stream, timeout
            See `Lease.refresh`. The call also waits so long for the name to appear, and for free memory.

        Returns
        -------
        Lease
            A write lease of a buffer with the same arrays, which has no name. `Lease.version` is that of the content.

        Raises
        ------
        PoolLimitError, DeviceMemoryError
            See `allocate`.
        ValueError, StreamCaptureError
            See `Lease.refresh`.
        NotFoundError, WaitTimeoutError, BusyError, AccessDeniedError, ContentFailedError, UnavailableError
            See `get`.
        """
        flow = self._get_copy(name, pool=pool, stream=stream, timeout=timeout)
        return Lease(self._run, self._run(flow))

    def lease(self, buffer_id: int, generation: int, *, write: bool = False, timeout: float | None = 0.0) -> Lease:
        """Lease a buffer by its id and generation, which another process sent.

        Parameters
        ----------
        buffer_id, generation
            `BaseLease.buffer_id` and `BaseLease.generation` of the other process's lease.
        write
            Lease the buffer for writing. A write lease excludes every other lease on the buffer.
        timeout
            Seconds to wait for the end of other leases that exclude this lease; 0: do not wait; None: no limit.

        Returns
        -------
        Lease
            A read lease, or with `write` a write lease.

        Raises
        ------
        StaleError
            The buffer is gone or hidden from this user, or of another service, or has another generation than
            `generation`.
        BusyError
            Another lease excludes this lease, and did not end within `timeout`. A buffer that a channel carries counts
            as leased for writing.
        AccessDeniedError, ContentFailedError, UnavailableError
            See `get`.
        """
        return Lease(self._run, self._run(self._lease(buffer_id, generation, write=write, timeout=timeout)))

    def put(
        self,
        array: Any,
        name: str,
        *,
        pool: PoolInfo | str | None = None,
        keep: bool | Literal["used"] = False,
        replace: bool = False,
        version: int | None = None,
        metadata: Mapping[str, str] | None = None,
        digests: bool = False,
        timeout: float | None = 0.0,
    ) -> Lease:
        """Copy an array into a new buffer and publish it. The copy is complete when the call returns.

        An array of an arena of `pool` is published without a copy: see `arena`.

        Parameters
        ----------
        array
            A NumPy array, or an array of any library that has DLPack or ``__cuda_array_interface__``. Or a dict of such
            arrays, by their names: they are copied into one buffer, one after the other, and `get_dict` returns them
            all. The names of nested dicts and of tuples are joined by ``.``. Arrays that are the same memory, such as
            tied weights, are stored once. A lease of `allocate` of several arrays is published without a copy.
        name
            The name under which the copy is published: 1 to 255 bytes of UTF-8 without control characters.
        pool
            The pool or its name; None: the default pool, which is the first pool that this client created or opened,
            or else the only pool that this user may use.
        keep
            Keep the name after this client is closed. By default the service removes the name when the client is closed
            or the client's process ends. With ``"used"`` the name ends with the last lease of the buffer, so keep
            this lease until another program has one. A name that is replaced stays as the newest publication says.
        replace
            If this user has published another buffer under the name, let the name refer to the new buffer from now on.
        version
            The version of the content, 1 to 2**63 - 1, such as a training step. It must be more than that of the
            content that is replaced. None: one more than that, or 1 if nothing is replaced.
        metadata
            Texts about a dict of arrays, such as ``{"model": "llama", "revision": "5f0b02c7"}``, which readers get with
            them: see `BaseLease.metadata`. Keys have at most 4,096 bytes in UTF-8, and the metadata, the names and the
            shapes have at most 32 MiB. None: no metadata.
        digests
            Add the SHA-256 digest of each array of a dict to the metadata, under ``"sha256:"`` and its name, for
            `Lease.verify`. The call reads the copies of all arrays.
        timeout
            Seconds to wait for free memory in the pool; 0: do not wait; None: no limit.

        Returns
        -------
        Lease
            A read lease. The buffer stays published when this lease ends.

        Raises
        ------
        InvalidArgumentError
            `array` is no array, the array's element type cannot be shared, `pool` is None and there is no default pool,
            `version` is not newer than what is replaced, or `metadata` is too much, or is of one array.
        LeaseReleasedError
            `array` is in memory that this client has published as a frame.
        AlreadyExistsError
            The name is taken, and `replace` is false.
        AccessDeniedError
            The name belongs to another user, or this user may not use the pool.
        PoolLimitError, DeviceMemoryError
            The pool or the device has not enough free memory, and no memory became free within `timeout`.
        """
        said = {"version": version, "metadata": metadata, "digests": digests}
        flow = self._put(array, name, pool=pool, keep=keep, replace=replace, **said, timeout=timeout)
        return Lease(self._run, self._run(flow))

    @overload
    def get_array(
        self, name: str, library: Literal["numpy"] = ..., *, write: bool = ..., timeout: float | None = ...
    ) -> np.ndarray[Any, Any]: ...
    @overload
    def get_array(
        self, name: str, library: Literal["cupy"], *, write: bool = ..., timeout: float | None = ...
    ) -> cupy.ndarray: ...
    @overload
    def get_array(
        self, name: str, library: Literal["torch"], *, write: bool = ..., timeout: float | None = ...
    ) -> torch.Tensor: ...
    @overload
    def get_array(
        self, name: str, library: Literal["jax"], *, write: bool = ..., timeout: float | None = ...
    ) -> jax.Array: ...
    def get_array(
        self, name: str, library: Library = "numpy", *, write: bool = False, timeout: float | None = 0.0
    ) -> Any:
        """Lease the buffer that was published under a name, and return it as an array of a library.

        Parameters
        ----------
        name
            The name that was given to `Lease.publish` or `put`.
        library
            The library of the array: ``"numpy"``, ``"cupy"``, ``"torch"`` or ``"jax"``. With ``"numpy"``, the call
            copies memory that only a GPU reaches. The call also copies elements of type ``bfloat16``, which NumPy
            lacks, as float32, and with ``"jax"`` those of ``float4_e2m1fn_x2``, as ``float4_e2m1fn``. All other arrays
            use the lease's memory without a copy.
        write
            Lease the buffer for writing. A write lease excludes every other lease on the buffer. By default the buffer
            is leased for reading, and the program must not write the array.
        timeout
            Seconds to wait for the name to appear, and for the end of other leases that exclude this lease; 0: do not
            wait; None: no limit.

        Returns
        -------
        array
            An array of the library. The lease ends when the array is gone, and all arrays that were made from it
            without a copy are gone.

        Raises
        ------
        InvalidArgumentError
            `library` is not one of the four names above.
        UnavailableError
            The library is not installed, or this process cannot map the memory.
        TypeError
            An element is several numbers (``float4_e2m1fn_x2``), and `library` is ``"numpy"``; see `Lease.view`.
        NotFoundError, WaitTimeoutError, BusyError, AccessDeniedError, ContentFailedError
            See `get`.
        """
        maker = _makers.check_library(library)
        return _makers.array_of(self.get(name, write=write, timeout=timeout), maker)

    def get_dict(
        self,
        name: str,
        library: Library = "numpy",
        *,
        write: bool = False,
        expect: Mapping[str, str] | None = None,
        timeout: float | None = 0.0,
    ) -> dict[str, Any]:
        """Lease a buffer of several arrays that was published under a name, and return a dict of its arrays.

        The service is asked once for all arrays, which are always those of one publication.

        Parameters
        ----------
        name
            The name that was given to `put` with a dict, or to `Lease.publish`.
        library, write, timeout
            See `get_array`.
        expect
            See `get`.

        Returns
        -------
        dict
            Arrays of the library, by their names. The lease ends when all of them are gone, and all arrays that were
            made from them without a copy.

        Raises
        ------
        TypeError
            The buffer is one array.
        ContentFailedError
            See `get`. Or the program that published the buffer has overwritten what says which arrays it has.
        MetadataMismatchError
            See `get`.
        InvalidArgumentError, UnavailableError, NotFoundError, WaitTimeoutError, BusyError, AccessDeniedError
            See `get_array`.
        """
        maker = _makers.check_library(library)
        return _makers.arrays_of(self.get(name, write=write, expect=expect, timeout=timeout), maker)

    def load(
        self, path: str | os.PathLike[str], *, pool: PoolInfo | str | None = None, timeout: float | None = None
    ) -> Lease:
        """Load a model from safetensors files, or lease it if a program has loaded the same files already.

        The first program that asks for a model starts ``poolsvc load``. Programs that ask meanwhile wait for the same
        buffer. The files are the same if their paths, sizes, times of modification and of change (``ctime``), and
        headers are. The buffer stays while a program uses it: then its memory is free. All programs whose users may use
        the pool share the buffer, so they trust each other.

        Parameters
        ----------
        path
            A file, the index of a model of several files (``*.index.json``), or a folder with an index or
            ``*.safetensors``.
        pool
            The pool or its name; None: the default pool, see `put`. Each pool has its own buffer of a model.
        timeout
            Seconds until the model must be loaded; None: no limit.

        Returns
        -------
        Lease
            A read lease. `BaseLease.name` is the name of the buffer: that of the file, and a digest.

        Raises
        ------
        OSError
            The files cannot be read.
        InvalidArgumentError
            A file is no safetensors file, or `pool` is None and there is no default pool.
        PoolLimitError, DeviceMemoryError
            The pool or the device has not enough free memory.
        ServiceProgramError, ServiceStartError
            There is no program ``poolsvc``, or it cannot be started.
        StaleError, AlreadyExistsError
            The pool was made anew: open it again. Or another program has taken the buffer's name.
        WaitTimeoutError
            The model was not loaded within `timeout`. What has begun to load it goes on.
        ContentFailedError, ProducerDiedError
            ``poolsvc load`` failed or was killed.
        """
        return Lease(self._run, self._run(self._load(path, pool=pool, timeout=timeout)))

    def load_dict(
        self,
        path: str | os.PathLike[str],
        library: Library = "numpy",
        *,
        pool: PoolInfo | str | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Load a model from safetensors files, or find it in memory, and return a dict of its arrays.

        Parameters
        ----------
        path, pool, timeout
            See `load`.
        library
            See `get_array`.

        Returns
        -------
        dict
            See `get_dict`. In the kinds ``host`` and ``vmm`` the memory is read-only: copy an array before you write.

        Raises
        ------
        OSError, InvalidArgumentError, PoolLimitError, DeviceMemoryError, WaitTimeoutError
            See `load`.
        UnavailableError
            The library is not installed.
        """
        maker = _makers.check_library(library)
        return _makers.arrays_of(self.load(path, pool=pool, timeout=timeout), maker)

    def unpublish(self, name: str) -> None:
        """Remove a published name. Leases on the buffer stay valid.

        Parameters
        ----------
        name
            The name that was given to `Lease.publish` or `put`.

        Raises
        ------
        NotFoundError
            Nothing is published under the name.
        AccessDeniedError
            Another user published the name.
        """
        self._run(_operations.unpublish(name))

    # Channels

    def create_channel(
        self,
        name: str,
        *,
        pool: PoolInfo | str | None = None,
        mode: ChannelMode = "broadcast",
        capacity: int = 8,
        full: FullPolicy = "block",
        max_deliveries: int | None = None,
    ) -> Channel:
        """Create a channel, or open the existing channel that has the same name and settings.

        Frames go through memory that producers and consumers share. Publishing a frame takes microseconds and sends no
        message to the service. When consumers are done with a frame's memory, the memory goes back to the frame's
        producer. The producer keeps the memory of up to ``capacity + 2`` frames for its next frames, and releases
        memory that was not used for a second or two. While the producer's process is stopped, no other client gets the
        memory that the producer keeps. A channel has at most 63 producers. A consumer can hold at most 256 frames at
        the same time.

        Parameters
        ----------
        name
            The channel's name: 1 to 255 bytes of UTF-8 without control characters.
        pool
            The pool whose buffers the channel carries, or the pool's name; None: the default pool, which is the first
            pool that this client created or opened, or else the only pool that this user may use.
        mode
            ``"broadcast"``: every subscriber gets every frame. ``"queue"``: each frame goes to one subscriber. If that
            subscriber ends before it has acknowledged the frame, another subscriber gets the frame.
        capacity
            How many frames the channel keeps at most, 1 to 1,024. In a queue, frames that a subscriber has taken do not
            count.
        full
            What happens when the channel is full. ``"block"``: publishing waits. ``"fail"``: publishing raises
            `PoolLimitError`. ``"drop-oldest"``: a subscriber that is behind misses the oldest frames. ``"latest"``: a
            subscriber that is behind misses all frames except the newest frame.
        max_deliveries
            How often subscribers of a queue get a frame that none of them acknowledges, 1 to 65,535. Instead of one
            more delivery, the frame is dropped, and the service notes the event ``frame-undeliverable``. None: the
            frame comes again without end. `Frame.delivery` has the count.

        Returns
        -------
        Channel
            The new channel, or the existing channel.

        Raises
        ------
        AlreadyExistsError
            There is a channel of that name with other settings.
        NotFoundError, AccessDeniedError
            There is no such pool, or this user may not use the pool.
        PoolLimitError, DeviceMemoryError
            The pool or the service has too many channels, or the machine has not enough memory.
        UnavailableError
            poolbridge is installed without its native module, or the service does not support channels; the message
            says what is missing.
        InvalidArgumentError
            An argument is not as described above, or `pool` is None and there is no default pool.
        """
        made = self._create_channel(
            name, pool=pool, mode=mode, capacity=capacity, full=full, max_deliveries=max_deliveries
        )
        channel: Channel = self._run(made)
        return channel

    def open_channel(self, name: str, timeout: float | None = 0.0) -> Channel:
        """Open a channel by its name. The client also opens the channel's pool.

        Closed channels are not found; `subscribe` also finds a closed queue that still has frames.

        Parameters
        ----------
        name
            The channel's name.
        timeout
            Seconds to wait for the channel to appear; 0: do not wait; None: no limit.

        Returns
        -------
        Channel
            The channel.

        Raises
        ------
        NotFoundError
            There is no such channel, and `timeout` is 0.
        WaitTimeoutError
            The channel did not appear within `timeout`.
        AccessDeniedError
            This user may not use the channel's pool.
        UnavailableError
            poolbridge is installed without its native module, or the service does not support channels.
        """
        channel: Channel = self._run(self._open_channel(name, timeout))
        return channel

    def subscribe(
        self,
        channel: Channel | str,
        *,
        credit: int = 4,
        oldest: bool = False,
        full: FullPolicy | None = None,
        ack: AckMode = "auto",
        no_producers: NoProducers = "wait",
        timeout: float | None = 0.0,
    ) -> Subscription:
        """Subscribe to a channel. Iterate over the returned subscription to get the frames.

        A subscriber that waits for a channel to appear gets the channel's frames from the first: producers of a
        broadcast wait for it, up to ten seconds. With the policies ``"drop-oldest"`` and ``"latest"`` they do not wait,
        and it begins with the oldest frame that the channel still keeps.

        Parameters
        ----------
        channel
            A channel or its name. A name also finds a closed queue that still has frames.
        credit
            How many frames this subscriber may have taken and not yet acknowledged, 1 to 256. When the subscriber has
            reached this number, a call for the next frame waits until another thread or task acknowledges a frame.
            `credit` matters only with ``ack="manual"``.
        oldest
            In a broadcast, begin with the oldest frame that the channel keeps. By default a subscription begins with
            the newest frame.
        full
            What happens when this subscriber of a broadcast is behind: one of the values of `full` in `create_channel`;
            None: the channel's setting.
        ack
            ``"auto"``: the call for the next frame acknowledges the earlier frames. ``"manual"``: only `Frame.ack`,
            `Frame.release` and the end of a frame's ``with`` block acknowledge a frame. See `Frame`.
        no_producers
            What happens when a producer was there, none is left, the channel is not closed, and this subscriber has got
            all frames (in a queue: when all frames are acknowledged). ``"wait"``: the subscription waits for another
            producer. ``"end"``: it ends, as when the channel is closed. ``"fail"``: it ends with `NoProducersError`. A
            program is a producer from its first frame, or its first publisher, until its client is closed and the
            arrays that it made of its frames are gone, or until its process ends.
        timeout
            Seconds to wait for the channel to appear; 0: do not wait; None: no limit.

        Returns
        -------
        Subscription
            An iterator over the frames. The iterator waits for each frame without a time limit.

        Raises
        ------
        NotFoundError
            There is no such channel, and `timeout` is 0.
        WaitTimeoutError
            The channel did not appear within `timeout`.
        ClosedError
            The channel was closed.
        AccessDeniedError, UnavailableError
            See `open_channel`.
        PoolLimitError
            The channel or the session has too many producers and consumers.
        InvalidArgumentError
            An argument is not as described above.
        """
        subscription = Subscription(
            self._session,
            self._run,
            self._joined_channel,
            channel,
            credit=credit,
            oldest=oldest,
            full=full,
            ack=ack,
            no_producers=no_producers,
            timeout=timeout,
        )
        self._run(join(subscription))
        return subscription

    # Closing

    def close(self) -> None:
        """Close the connection. The client's leases and subscriptions end. Idempotent.

        Arrays that are alive stay valid, and keep their leases. The session, without its names, lasts until the last of
        these arrays is gone. If there are none, the service has ended the session when the call returns, unless the
        service did not answer, or a GPU worked on the memory, for one second.
        """
        session = self._session
        if session.ended is None and os.getpid() == session.pid:
            if not session.closed:
                session.returns.release_within(self._close_timeout)
            if (left := session.begin_close()) is not None:
                self._reader.wait(left, self._close_timeout)
            if session.lingers:
                return
        session.close()
        if os.getpid() == session.pid:
            self._reader.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @while_running
    def __del__(self) -> None:
        if self._session.ended is not None or os.getpid() != self._session.pid:
            return
        if not self._session.closed:
            self._warn_unclosed()
        self._reader.background(self._session.close_when_unused)

    # Internals

    def _perform(self, step: Any) -> Any:
        if isinstance(step, Ask):
            seconds = None if step.wait is None else step.wait + self.timeout
            return self._reader.call(step.request, step.reply_type, seconds)
        if isinstance(step, Hear):
            return self._reader.wait(step.waiter, step.seconds)
        return step.work(step.seconds) if isinstance(step, Sleep) else step.work()

    def _run(self, flow: Flow[_T]) -> _T:
        """Carry out all steps of the operation `flow` and return its result."""
        if isinstance(flow, Traced):
            with span(self._session, flow.operation):
                traced: _T = flow.finish(self._run(flow.flow()))
                return traced
        self._session.check_usable()
        try:
            step = next(flow)
            while True:
                try:
                    result = self._perform(step)
                except BaseException as error:  # noqa: BLE001 - the operation cleans up, and raises it again
                    step = flow.throw(error)
                else:
                    try:
                        step = flow.send(result)
                    except StopIteration:
                        raise
                    except BaseException:
                        self._session.release_untaken(result)
                        raise
        except StopIteration as stop:
            value: _T = stop.value
            return value
        except KeyboardInterrupt as error:
            error.__traceback__ = None  # what Ctrl-C prints ends here, and not where the client waited
            raise

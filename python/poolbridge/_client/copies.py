"""Publishes copies of arrays: under names, and as frames.

A copy for a frame is in a lease of its own, or in a chunk of a publisher that the channel keeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from weakref import ref

import numpy as np

from poolbridge._array import sources as _sources
from poolbridge._array.arrays import ArrayExports, description_of, state_of
from poolbridge._array.copies import copy_into
from poolbridge._client import digests as _digests
from poolbridge._client.arena import share
from poolbridge._client.lease import BaseLease
from poolbridge._client.operations import (
    allocate,
    check_flag,
    check_metadata,
    check_name,
    check_timeout,
    publish,
    ready,
)
from poolbridge._client.publisher import COMPLETE, BasePublisher
from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._memory import dlpack as _dlpack, layout as _layout, tensor as _tensor
from poolbridge._order import fences as _fences
from poolbridge._order.streams import PER_THREAD, stream_key
from poolbridge._session.flow import Do, Flow
from poolbridge._session.lease_state import LeaseState, Token
from poolbridge._session.producer import send
from poolbridge._sys.error_texts import shown
from poolbridge._wire.messages import Fence
from poolbridge.errors import (
    DeviceMemoryError,
    DriverError,
    InvalidArgumentError,
    PoolLimitError,
)

if TYPE_CHECKING:
    from poolbridge._array.sources import Source
    from poolbridge._memory.tensor import Description
    from poolbridge._session.producer import Producer
    from poolbridge._session.session import Session
    from poolbridge._wire.messages import ChannelIdentity

# Numbers of seconds. A channel gets a publisher if two copies with the same layout follow each other within `_SOON`
# seconds. If the pool has no room for the publisher, the publisher asks again after `_LATER` seconds.
_SOON: Final = 1.0
_LATER: Final = 1.0
# The thread of the event loop itself copies arrays of at most this number of bytes, because it takes longer to let
# another thread copy them.
_SMALL: Final = 256 << 10
# Types of usual shapes, which are no mappings: to ask an abstract base class takes longer.
_SHAPES: Final = frozenset({int, tuple, list})


class _Form(NamedTuple):
    """What the chunks of a publisher are made for: the description of a copy, and whether streams may copy."""

    description: Description
    on_gpu: bool


class _Part(NamedTuple):
    """One array that is copied. `description` is that of the copy. `source` is None for a NumPy array."""

    description: Description
    given: Any
    source: Source | None

    @property
    def on_gpu(self) -> bool:
        """Whether a stream can copy the array."""
        return self.source is not None and self.source.ordinal is not None and self.source.contiguous

    @property
    def owner(self) -> Any:
        """What has to live until a stream has copied the array. Of a lazy array, only the source has the elements."""
        return self.given if isinstance(self.given, ArrayExports) else (self.given, self.source)


@lru_cache(maxsize=256)
def _form_on_cpu(dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Form:
    """Return the form of a copy of a NumPy array. Cached, because `source_of` takes longer than a copy."""
    return _Form(_tensor.describe(shape, dtype), on_gpu=False)


def _pack(arrays: Iterable[tuple[str, Any, Any]], tied: Mapping[str, str] = MappingProxyType({})) -> Description:
    """Describe several arrays by the name, the shape and the dtype of each; see `_layout.pack`."""
    described = []
    for name, shape, dtype in arrays:
        with _naming(name):
            described.append((check_name(name, "array"), _tensor.describe(shape, dtype)))
    return _layout.pack(described, tied)


def _for_frame(whole: Description) -> Description:
    _layout.encode(whole)  # which fails if there are too many
    return whole


@lru_cache(maxsize=16)
def _packed(arrays: tuple[tuple[str, Any, Any], ...]) -> Description:
    """Describe copies of several arrays in a frame. Cached, because that takes longer than a copy."""
    return _for_frame(_pack(arrays))


@contextmanager
def _naming(name: object) -> Iterator[None]:
    """Name the array of a frame of several arrays in an error."""
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"array {shown(name)}: {error}") from None


def describe_frame(shape: Any, dtype: Any) -> Description:
    """Describe the frames of a publisher; `shape` may be a dict with a shape and a dtype for each of several arrays.

    Raises
    ------
    InvalidArgumentError
        A shape or dtype is not possible, or there are too many arrays.
    """
    return _for_frame(_describe(shape, dtype))


def describe_buffer(shape: Any, dtype: Any, metadata: Any) -> Description:
    """Describe a buffer, like `describe_frame`."""
    described = _describe(shape, dtype)
    if metadata is None and not described.named:
        return described
    return _layout.for_buffer(described, check_metadata(metadata))


def _describe(shape: Any, dtype: Any) -> Description:
    if type(shape) in _SHAPES or not isinstance(shape, Mapping):
        return _tensor.describe(shape, dtype)
    arrays = _flat(shape)
    for name, one in arrays.items():
        if not isinstance(one, tuple) or len(one) != 2:
            raise InvalidArgumentError(
                f"array {shown(name)} is described by {shown(one)}: expected a shape and a dtype, such as "
                '((480, 640), "uint8")'
            )
    return _pack((name, *one) for name, one in arrays.items())


def _flat(given: Mapping[Any, Any], within: tuple[Any, ...] = ()) -> dict[Any, Any]:
    """Return what is in a dict and in dicts in it, by names that ``.`` joins: ``{"a": {"b": x}}`` is ``{"a.b": x}``."""
    arrays: dict[Any, Any] = {}
    for key in given:
        one = given[key]  # read it once: a mapping may return another array each time
        path = (*within, *key) if isinstance(key, tuple) else (*within, key)
        name = ".".join(path) if all(isinstance(part, str) for part in path) else path if len(path) > 1 else key
        for known, array in (_flat(one, path) if isinstance(one, Mapping) else {name: one}).items():
            if known in arrays:
                raise InvalidArgumentError(f"two arrays have the name {shown(known)}")
            arrays[known] = array
    return arrays


def named_arrays(given: Any) -> dict[str, Any] | None:
    """Return the arrays of a frame of several arrays, which the program publishes; None: `given` is one array."""
    if isinstance(given, Mapping):
        return _flat(given)
    return dict(given.items()) if isinstance(given, BaseLease) and description_of(given).named else None


def _parts(session: Session, arrays: dict[str, Any]) -> tuple[_Form, list[_Part]]:
    """Describe the copies of a frame of several arrays."""
    sources, kinds = _sources_of(session, arrays)
    description = _packed(tuple(kinds))
    described = list(description.named.values())
    parts = [_Part(*part) for part in zip(described, arrays.values(), sources, strict=True)]
    return _Form(description, on_gpu=any(part.on_gpu for part in parts)), parts


def _sources_of(
    session: Session, arrays: dict[str, Any]
) -> tuple[list[Source | None], list[tuple[str, tuple[int, ...], Any]]]:
    """Return the sources of several arrays, None for one of NumPy; and the name, the shape and the dtype of each."""
    check = len(session.sent_states) > 0
    sources: list[Source | None] = []
    kinds: list[tuple[str, tuple[int, ...], Any]] = []
    for name, given in arrays.items():
        plain = type(given) is np.ndarray
        source = None
        if not plain or check:
            with _naming(name):
                source = _sources.source_of(given)
        if source is not None and check:
            _sources.check_not_sent(session, source)
        if plain or source is None:
            kinds.append((name, given.shape, given.dtype))
        else:
            kinds.append((name, source.shape, source.element.name))
        sources.append(None if plain else source)
    return sources, kinds


def _tied(arrays: dict[str, Any], sources: list[Source | None]) -> dict[str, str]:
    """Return the names of arrays that are the memory of an earlier one, in the same way, with the name of that one."""
    first: dict[Any, str] = {}
    tied = {}
    for (name, given), source in zip(arrays.items(), sources, strict=True):
        place: tuple[Any, ...]
        if source is None:
            place = (None, given.ctypes.data, given.dtype, given.shape, given.strides)
        else:
            place = (source.ordinal, source.address, source.element, source.shape, source.strides)
        if (earlier := first.setdefault(place, name)) is not name:
            tied[name] = earlier
    return tied


def put(
    session: Session,
    given: Any,
    name: str,
    pool: int,
    *,
    keep: bool | Literal["used"],
    replace: bool,
    version: int | None,
    metadata: Any,
    digests: bool,
    timeout: float | None,
) -> Flow[LeaseState]:
    """Copy an array, or a dict of arrays, into a new buffer of the pool whose id is `pool`, and publish the buffer."""
    name, timeout, metadata = check_name(name, "buffer"), check_timeout(timeout), check_metadata(metadata)
    digests, arrays = check_flag(digests, "digests"), named_arrays(given)
    if arrays is None:
        if not (metadata or digests) and (found := (yield from share(session, pool, given, frame=False))) is not None:
            yield from publish(found[0], name, keep=keep, replace=replace, version=version, stream=None)
            return found[0]
        source = _sources.source_of(given)
        _sources.check_not_sent(session, source)
        description = _tensor.describe(source.shape, source.element.name)
        copied = [(given, description)]
    else:
        sources, kinds = _sources_of(session, arrays)
        tied = _tied(arrays, sources)
        description = _pack(kinds, tied)
        placed = zip(description.named.items(), arrays.values(), strict=True)
        copied = [(one, part) for (array, part), one in placed if array not in tied]
    if digests:
        metadata |= _digests.unknown(description)
    description = _layout.for_buffer(description, metadata)
    state = yield from allocate(session, description, pool, timeout=timeout)
    try:
        for array, part in copied:
            yield Do(partial(copy_into, state, array, part))
        if digests:
            yield from _digests.write(state)
        yield from publish(state, name, keep=keep, replace=replace, version=version, stream=None)
    except BaseException:
        if not state.released and session.ended is None:
            state.release(failed=state.write, force=True)
        raise
    return state


class Copies:
    """Publishes copies of arrays in one channel, and keeps a publisher for copies of one form.

    While a call uses the publisher, it is not in `_kept`. If two threads or tasks publish at the same time, the second
    one finds no publisher, and uses a lease. If a signal handler raises an exception in between, the publisher is
    dropped, and its finaliser closes it.

    Parameters
    ----------
    session, channel
        The session, and the service's description of the channel.
    """

    def __init__(self, session: Session, channel: ChannelIdentity) -> None:
        self._session = session
        self._channel = channel
        self._kept: list[_CopyPublisher] = []  # at most one
        self._newest: ref[_CopyPublisher] | None = None
        self._last: tuple[_Form | None, float] = None, 0.0  # the form and the time of the last copy

    def publish(self, producer: Producer, given: Any, *, meta: bytes, timeout: float | None, stream: Any) -> Flow[int]:
        """Let a stream of the GPU, or the CPU, copy `given`, and publish the copy. Return the frame's number."""
        if type(given) is np.ndarray:
            form = _form_on_cpu(given.dtype, given.shape)
            parts = None
        elif type(given) is dict:
            form, parts = _parts(self._session, given)
        else:
            source = _sources.source_of(given)
            parts = [_Part(_tensor.describe(source.shape, source.element.name), given, source)]
            form = _Form(parts[0].description, parts[0].on_gpu)
        began = time.monotonic()
        publisher = self._take(form, began)
        if publisher is not None:
            try:
                number = yield from publisher.publish_copy(given, parts, meta, timeout, stream)
            finally:
                self._put_back(publisher)
            if number is not None:
                return number
            timeout = None if timeout is None else max(timeout - (time.monotonic() - began), 0.0)
        description = form.description
        parts = parts or [_Part(description, given, None)]
        state = yield from allocate(self._session, description, self._channel.pool, timeout=timeout)
        try:
            yield from _fill(state, parts, stream)
            fence = yield from ready(state, None)
            if fence is not None:
                self._session.returns.keep([part.owner for part in parts], fence)
            number = yield from send(producer, state, description, meta=meta, fence=fence, event=b"", timeout=timeout)
        except BaseException:
            if not state.released:
                state.end()
            raise
        return number

    def _take(self, form: _Form, now: float) -> _CopyPublisher | None:
        """Return the publisher for a copy, which the caller has to put back; None: the copy needs a lease."""
        (last, then), self._last = self._last, (form, now)
        again = last == form and now - then < _SOON
        try:
            publisher = self._kept.pop()
        except IndexError:  # there is none, or another call uses it
            newest = None if self._newest is None else self._newest()
            if not again or (newest is not None and newest.is_open and newest.form == form):
                return None
        else:
            if publisher.form == form and (again or publisher.has_arenas):
                return publisher
            if not again:  # copies of two forms in turn let the publisher of one of them live
                self._put_back(publisher)
                return None
        publisher = _CopyPublisher(self._session, self._channel, form)
        self._newest = ref(publisher)
        return publisher

    def _put_back(self, publisher: _CopyPublisher) -> None:
        if self._newest is not None and self._newest() is publisher and publisher.is_open:
            self._kept.append(publisher)


class _CopyPublisher(BasePublisher):
    """Publishes copies of arrays of one form. The program never gets an array of a chunk."""

    def __init__(self, session: Session, channel: ChannelIdentity, form: _Form) -> None:
        super().__init__(session, None, channel, form.description, None)
        self.form = form
        self.small = form.description.nbytes <= _SMALL

    @property
    def has_arenas(self) -> bool:
        """Whether the publisher has memory."""
        return bool(self._chunks.arenas)

    @property
    def is_open(self) -> bool:
        """Whether the publisher is not closed."""
        return not self._chunks.closed

    def publish_copy(
        self, given: Any, parts: list[_Part] | None, meta: bytes, timeout: float | None, stream: Any
    ) -> Flow[int | None]:
        """Copy arrays into a chunk, publish the chunk, and return the frame's number; None: there is no chunk.

        If `parts` is None, `given` is the NumPy array to copy.
        """
        chunks, keeper, mark = self._chunks, None, COMPLETE
        try:
            array = chunks.take()
            if array is None:
                if not (yield from self._has_chunk(timeout)):
                    return None
                array = self._array_on_loan()  # `array` keeps the chunk mapped during the copy
            if type(array) is Token or (parts is not None and any(part.source is not None for part in parts)):
                keeper = self._order_loan()
                yield from self._know_timelines(keeper)
                yield from _fill(keeper, parts or [_Part(self._description, given, None)], stream)
                if keeper.streams is not None:
                    mark = yield from self._complete(keeper)
                    keeper.streams = None
                    own = self._session.timelines.own
                    if mark is not COMPLETE and own is not None:
                        self._session.returns.keep([part.owner for part in parts or ()] or given, Fence(own.id, *mark))
            elif self.small:
                _copy(array, given, parts)
            else:
                yield Do(partial(_copy, array, given, parts))
            number: int = chunks.send(meta, *mark) or (yield from self._deliver(meta, mark, timeout))
        except BaseException:
            if keeper is None or keeper.streams is None:
                chunks.put_back()
            else:  # a stream may write the chunk, and no fence says until when
                self._close()
            raise
        return number

    def _has_chunk(self, timeout: float | None) -> Flow[bool]:
        """Put a chunk on loan, and return whether there is one. Wait for a chunk, but not for the first arena."""
        chunks = self._chunks
        if not chunks.arenas and time.monotonic() < self._refused:
            return False
        try:
            yield from self._alone(self._make_loan(timeout if chunks.arenas else 0.0, self.form.on_gpu or None))
        except (PoolLimitError, DeviceMemoryError):
            if not chunks.arenas:
                self._refused = time.monotonic() + _LATER
            return False
        return True

    def _array(self, twin: LeaseState) -> Any:
        twin.released = False
        self._session.sent_states.discard(twin)
        description = twin.description
        arrays = list(description.named.values()) or [description]
        if not twin.memory.pool.on_cpu or not all(one.element.in_numpy for one in arrays):
            return Token(twin)
        return [twin.array(part=one) for one in arrays] if description.named else twin.array()

    def _on_streams(self, state: LeaseState, stream: Any) -> bool:
        return stream is not None and state.memory.pool.device[0] == _dlpack.CUDA


def _copy(array: Any, given: Any, parts: list[_Part] | None) -> None:
    """Copy NumPy arrays into the array, or the arrays, of a chunk."""
    if parts is None:
        np.copyto(array, given)
    else:
        for one, part in zip(array, parts, strict=True):
            np.copyto(one, part.given)


def _fill(state: LeaseState, parts: list[_Part], stream: Any) -> Flow[None]:
    """Let a stream of the GPU, or the CPU, copy arrays into the memory of a lease."""
    pool = state.memory.pool
    waits: set[int] = set()
    for part in sorted(parts, key=lambda part: part.on_gpu):  # the CPU first: it would wait for streams that copy
        if part.on_gpu and part.source is not None and pool.device[0] == _dlpack.CUDA:
            own = _copy_on_device(state, part, part.source, stream)
            if callable(own):
                yield Do(own)
            elif own is not None:
                waits.add(own)
        else:
            yield Do(partial(copy_into, state, part.given, part.description))
    for waited in waits:
        yield Do(partial(_cuda_stream.synchronize_stream, pool.device[1], waited))


def _copy_on_device(state: LeaseState, part: _Part, source: Source, stream: Any) -> int | Callable[[], None] | None:
    """Queue the copy. Return the stream that the caller must wait for; None: the caller need not wait.

    If a copy must wait for the whole GPU, or the driver refuses it because the array is in a pool of another GPU,
    return a function that copies.

    The program may write the array after the publication, on a stream of its own. So the caller must wait for the copy
    unless the stream that writes the array copies it, too.
    """
    ordinal = state.memory.pool.device[1]
    own = None
    if stream is None:
        # Copy on the stream that the array names. If the array names no stream, copy on poolbridge's own stream, and
        # let the array's library make that stream wait for the array's data. Where no library does so, as with Numba's
        # arrays, copy on the legacy default stream, on which such libraries write: Numba's `to_device` returns before
        # the GPU has the last bytes.
        far = source.ordinal != ordinal and (source.stream or 0) <= PER_THREAD  # default streams are of the other GPU
        if source.unordered or far:
            return partial(copy_into, state, part.given, part.description)
        stream = source.stream
        if stream is None:
            stream = own = _cuda.own_stream(ordinal) if source.by_dlpack else _sources.LEGACY_STREAM
            _sources.order(source, stream)
    elif source.ordinal != ordinal:
        key = stream_key(state.memory.pool.device, stream)
        default = key is not None and key.handle <= PER_THREAD  # of which GPU, the caller does not say
        if default or isinstance(part.given, ArrayExports):
            return partial(copy_into, state, part.given, part.description)
    handle = _fences.stream_that_copies(state, stream)
    if isinstance(part.given, ArrayExports):  # the copy waits for the lease's content, and its release for the copy
        _fences.before_use(state_of(part.given), stream)
    nbytes = part.description.nbytes
    if nbytes:
        to = state.address(write=True, part=part.description)
        try:
            _cuda_stream.copy(ordinal, handle, to, source.address, nbytes)
        except DriverError:
            if source.ordinal == ordinal:
                raise
            return partial(_cuda.copy_on_device, ordinal, to, source.address, nbytes, source.ordinal)
    return own

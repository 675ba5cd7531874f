"""Copies what a name refers to into memory of the client's own, whose addresses stay when newer content is copied."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from poolbridge._array.copies import copy_into
from poolbridge._array.leaseview import LeaseView
from poolbridge._client.operations import allocate, check_timeout, get
from poolbridge._cuda import stream as _cuda_stream
from poolbridge._memory import dlpack as _dlpack, layout as _layout, tensor as _tensor
from poolbridge._order import fences as _fences
from poolbridge._session.flow import Do, Flow
from poolbridge._session.lease_state import Token
from poolbridge._sys.error_texts import shown
from poolbridge.errors import InvalidArgumentError, NotFoundError, WaitTimeoutError

if TYPE_CHECKING:
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session


def get_copy(session: Session, name: str, pool: int | None, *, stream: Any, timeout: float | None) -> Flow[LeaseState]:
    """Copy what a name refers to into a new buffer of the pool whose id is `pool`; None: the pool of the name's buffer.

    The new buffer has the same arrays at the same places.
    """
    timeout = check_timeout(timeout)
    source = yield from get(session, name, write=False, known=(0, 0), timeout=timeout)
    try:
        chosen = source.grant.pool if pool is None else pool
        description = _layout.for_buffer(source.description.content)
        state = yield from allocate(session, description, chosen, timeout=timeout)
        try:
            yield from _copy(state, source, stream)
        except BaseException:
            state.end()
            raise
    finally:
        source.end()
    return state


def refresh(state: LeaseState, *, stream: Any, timeout: float | None) -> Flow[bool]:
    """Copy what the name refers to now into the copy; see `Lease.refresh`."""
    timeout = check_timeout(timeout)
    _check_writeable(state)
    if state.copied is None:
        raise _no_copy(state)
    name, buffer, _ = state.copied
    session = cast("Session", state.session)
    try:
        source = yield from get(session, name, write=False, known=(buffer, state.version), timeout=timeout)
    except (NotFoundError, WaitTimeoutError):
        return False
    try:
        yield from _copy(state, source, stream)
    finally:
        source.end()
    return True


def _check_writeable(state: LeaseState) -> None:
    state.check_usable()
    if not state.write:
        raise _no_copy(state)


def _no_copy(state: LeaseState) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"lease {state.grant.id} is no copy that can be written: `refresh` is for write leases from `get_copy`"
    )


def _copy(state: LeaseState, source: LeaseState, stream: Any) -> Flow[None]:
    """Copy all bytes of one buffer into another that has the same arrays, with one copy. The layouts stay."""
    content = state.description.content
    if source.description.content != content:
        raise InvalidArgumentError(
            f"{shown(source.name)} now has {source.description.text}, and the copy has {state.description.text}, or "
            "other places: nothing was copied; get a new copy"
        )
    yield Do(partial(_fences.before_cpu, source))  # raises if the content will never be complete
    token = Token(state)  # until the copy is queued, the memory stays this lease's
    try:
        _check_writeable(state)  # during the wait, another thread may have released or published the copy
        first, last = content.span
        whole = _tensor.describe(last - first, "uint8").at(first)
        home, from_ = (one.memory.pool.device for one in (state, source))
        handle = None if stream is None or home != from_ else _fences.stream_that_copies(source, stream)
        if stream is not None:
            _fences.before_use(state, stream)
            waits = _fences.after_others(state, stream)
            if waits is not None:
                yield Do(waits)
        if handle is not None:
            to, address = state.address(write=True, part=whole), source.address(write=False, part=whole)
            if whole.nbytes:
                _cuda_stream.copy(home[1], handle, to, address, whole.nbytes)
        else:
            device = "cuda" if from_[0] == _dlpack.CUDA else None
            yield Do(partial(copy_into, state, LeaseView(source, part=whole, device=device), whole))
    finally:
        del token  # the traceback of an error would keep it
    state.copied = str(source.name), source.grant.buffer, source.description.metadata
    state.version = source.version

"""Finds the lease that an array lives in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from poolbridge._session.lease_state import LeaseState, Token

if TYPE_CHECKING:
    from poolbridge._session.session import Session


def owner(session: Session, array: Any, address: int) -> LeaseState | None:
    """Find the lease of an array whose first element is at `address`.

    The attribute ``base`` of a NumPy array may lead to the lease. If it does not, and the memory is not NumPy's own,
    this function looks up the address in the leases of `session`.

    Returns
    -------
    LeaseState or None
        The lease. The lease may belong to another session, and may have ended. None: the array lives in no lease.
    """
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, Token):
        return None if base.lease_state.division else base.lease_state  # only a range of an arena can be shared
    on_cpu = isinstance(array, np.ndarray)
    if on_cpu and base is None:
        return None  # NumPy's own memory
    for reference in list(session.lease_states.values()):
        state = reference()
        if state is None or state.released or state.division or (on_cpu and not state.memory.pool.on_cpu):
            continue
        if offset_in(state, address) is not None:
            return state
    return None


def offset_in(state: LeaseState, address: int) -> int | None:
    """Return the offset of `address` from the beginning of a lease's buffer; None: the address is not in the buffer."""
    for write in (False, True):
        offset = address - state.memory.address(write=write)
        if 0 <= offset < max(state.grant.nbytes, 1):
            return offset
    return None

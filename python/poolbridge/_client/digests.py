"""Makes and checks digests of several arrays in a buffer, which stand in its metadata."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from poolbridge._array.leaseview import LeaseView
from poolbridge._memory import layout as _layout, tensor as _tensor
from poolbridge._order import fences as _fences
from poolbridge._session.flow import Do, Flow
from poolbridge._sys.error_texts import shown
from poolbridge.errors import ContentFailedError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolbridge._memory.tensor import Description
    from poolbridge._session.lease_state import LeaseState

_PREFIX: Final = "sha256:"
_PIECE: Final = 4 << 20  # bytes that are copied to the CPU at once


def unknown(whole: Description) -> dict[str, str]:
    """Return metadata for the digests of several arrays, which has the size that it will have with the digests."""
    return {_PREFIX + name: "0" * 64 for name in whole.named or ("",)}


def _digest(state: LeaseState, part: Description) -> str:
    """Return the SHA-256 digest of the bytes of a C-contiguous array, when the content is complete."""
    seen = sha256()
    for at in range(0, part.nbytes, _PIECE):
        piece = _tensor.describe(min(_PIECE, part.nbytes - at), "uint8").at(part.offset + at)
        seen.update(LeaseView(state, part=piece).to_numpy().data)
    return seen.hexdigest()


def write(state: LeaseState) -> Flow[None]:
    """Write the digests of the arrays of a buffer that was allocated with metadata from `unknown`."""
    made: dict[Description, str] = {}  # tied arrays have one description
    metadata = dict(state.description.metadata)
    for name, part in state.description.named.items():
        if part not in made:
            made[part] = yield Do(partial(_digest, state, part))
        metadata[_PREFIX + name] = made[part]
    state.description = replace(state.description, metadata=metadata)
    yield Do(partial(_layout.write, state.memory, state.description))


def verify(state: LeaseState, metadata: Mapping[str, str]) -> Flow[None]:
    """Check the arrays of a lease; see `Lease.verify`."""
    state.check_usable()
    for name, part in (state.description.named or {"": state.description}).items():
        said = metadata.get(_PREFIX + name)
        if said is None or not part.contiguous:
            raise InvalidArgumentError(
                f"array {shown(name)} has no digest: put(…, digests=True) and `poolsvc load --digests` make digests"
            )
        found = yield Do(partial(_digest, state, part))
        if found != said:
            raise ContentFailedError(
                f"array {shown(name)} has the SHA-256 digest {found}, and its metadata says {shown(said)}: put it again"
            )
    _fences.check(state)

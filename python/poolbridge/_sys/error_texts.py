"""What errors say: those that the service sends, and texts that several errors share."""

from __future__ import annotations

from poolbridge import errors as _errors
from poolbridge._sys.release import release

_BY_CODE: dict[str, type[_errors.PoolbridgeError]] = {
    error.code: error
    for error in (
        _errors.ProtocolError,
        _errors.VersionError,
        _errors.UnsupportedError,
        _errors.InvalidArgumentError,
        _errors.NotFoundError,
        _errors.AlreadyExistsError,
        _errors.PoolLimitError,
        _errors.DeviceMemoryError,
        _errors.AccessDeniedError,
        _errors.WaitTimeoutError,
        _errors.BusyError,
        _errors.RequestCancelledError,
        _errors.LeaseReleasedError,
        _errors.FrameSettledError,
        _errors.StaleError,
        _errors.ContentFailedError,
        _errors.ProducerDiedError,
        _errors.ClosedError,
        _errors.UnavailableError,
        _errors.InternalError,
    )
}


SESSION_LOST = (
    "this client's leases and subscriptions have ended, what it was writing has failed, and names that it did not keep "
    "are gone; arrays that are alive can still be read. Connect again to go on"
)
"""The part of an error text that says what a lost connection means for the program, and what to do."""

USE_ONE_VERSION = "use one version of poolbridge on both sides, and start the service again"
"""What to do where client and service do not know the same."""

_SHOWN = 80


def shown(value: object) -> str:
    """Return the repr of an argument for an error text; a long one is cut, and one that raises is replaced."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - the error that is about to be raised says more
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters)"


def from_wire(code: str, message: str) -> _errors.PoolbridgeError:
    """Make the exception for an error that the service sent.

    Parameters
    ----------
    code
        One of the codes of ``docs/protocol.md``; an unknown one gives a plain `PoolbridgeError`.
    message
        The service's text for people.
    """
    error = _BY_CODE.get(code)
    if error is None:
        return _errors.PoolbridgeError(f"{message} (error code {code!r}, which this client does not know)")
    if error is _errors.UnsupportedError:
        message = f"{message}; this client is of poolbridge {release()}: {USE_ONE_VERSION}"
    return error(message)

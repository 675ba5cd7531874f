"""Makes exceptions from the errors that the service sends: the code of an error determines the class."""

from __future__ import annotations

from typing import Final

from poolbridge import errors as _errors
from poolbridge._sys.error_texts import USE_ONE_VERSION
from poolbridge._sys.version import version

_BY_CODE: Final[dict[str, type[_errors.PoolbridgeError]]] = {
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


def exception(code: str, message: str) -> _errors.PoolbridgeError:
    """Return the exception for an error that the service sent.

    Parameters
    ----------
    code
        A code from ``docs/protocol.md``; an unknown code gives a plain `PoolbridgeError`.
    message
        The error text that the service sent.
    """
    error = _BY_CODE.get(code)
    if error is None:
        return _errors.PoolbridgeError(f"{message} (error code {code!r}, which this client does not know)")
    if error is _errors.UnsupportedError:
        message = f"{message}; this client is of poolbridge {version()}: {USE_ONE_VERSION}"
    return error(message)

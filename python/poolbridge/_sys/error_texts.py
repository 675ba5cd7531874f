"""Texts that several errors share."""

from __future__ import annotations

import resource

SESSION_LOST = (
    "this client's leases and subscriptions have ended, what it was writing has failed, and names that it did not keep "
    "are gone; arrays that are alive can still be read. Connect again to go on"
)
"""The part of an error text that says what a lost connection means for the program, and what the user can do."""

USE_ONE_VERSION = "use one version of poolbridge on both sides, and start the service again"
"""The advice that an error text gives if client and service have different versions."""

_SHOWN = 80


def no_descriptor() -> str:
    """Return what an error text says if this process or the machine has no free file descriptor."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        "this process has no free file descriptor: close files, or raise its limit RLIMIT_NOFILE, which is "
        f"{limit} (`ulimit -n`)"
    )


def from_signal(error: BaseException) -> bool:
    """Whether the handler of a signal raised an error. Python passes the frame that it has interrupted to the handler.

    Code that calls a program's methods, such as ``__repr__``, and catches all their errors lets such an error through.
    """
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        for value in at.tb_next.tb_frame.f_locals.values():
            if any(one is at.tb_frame for one in (value if type(value) is tuple else (value,))):
                return True
        at = at.tb_next
    return False


def shown(value: object) -> str:
    """Return the repr of an argument for an error text.

    Cut a long repr. If the repr raises an error, return a text with the type of the argument and the type of the error.
    """
    try:
        text = repr(value)
    except Exception as error:
        if from_signal(error):
            raise
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters)"

"""Describes an error as the worker of ``poolsvc verify`` reports it in an answer."""

from __future__ import annotations

from typing import Any

import poolbridge


def failure(error: BaseException) -> dict[str, Any]:
    """Describe an error. ``code`` is the protocol's error code; empty for errors that are not poolbridge's."""
    code = error.code if isinstance(error, poolbridge.PoolbridgeError) else ""
    return {"type": type(error).__name__, "code": code, "message": str(error)}

"""Errors of the worker as answers."""

from __future__ import annotations

from typing import Any

import poolbridge


def failure(error: BaseException) -> dict[str, Any]:
    """Say what went wrong; ``code`` is that of the wire, empty for the errors of others."""
    code = error.code if isinstance(error, poolbridge.PoolbridgeError) else ""
    return {"type": type(error).__name__, "code": code, "message": str(error)}

"""Imports the native module, if poolbridge is installed with it."""

from __future__ import annotations

import importlib
from typing import Any


def _load() -> Any:
    try:
        return importlib.import_module("poolbridge._native")
    except ImportError:
        return None


NATIVE = _load()
"""The native module, or None."""

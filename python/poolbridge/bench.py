"""Run as ``python -m poolbridge.bench``: the parts of ``poolsvc bench`` that must start in Python."""

from __future__ import annotations

from poolbridge._bench.main import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())

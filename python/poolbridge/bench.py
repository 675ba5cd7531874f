"""Runs the parts of ``poolsvc bench`` that are written in Python: the program ``python -m poolbridge.bench``."""

from __future__ import annotations

from poolbridge._bench.main import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())

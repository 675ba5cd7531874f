"""Does tasks for ``poolsvc bench`` in Python, as the program ``python -m poolbridge.bench``."""

from __future__ import annotations

from poolbridge._bench.worker import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())

"""Does tasks for ``poolsvc verify`` in Python, as the program ``python -m poolbridge.worker``."""

from __future__ import annotations

from poolbridge._verify.worker import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())

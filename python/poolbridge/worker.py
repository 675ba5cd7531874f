"""The program ``python -m poolbridge.worker``, which does tasks for ``poolsvc verify`` in Python."""

from __future__ import annotations

from poolbridge._verify.worker import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())

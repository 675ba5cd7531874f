"""Reads tasks as lines of JSON from the standard input, and answers each with a line of JSON.

A line is ``{"task": NAME, "with": {ARGUMENT: VALUE, …}}``. The answer is ``{"answer": RESULT, "error": null}`` or
``{"error": {"type": …, "code": …, "message": …}}``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from poolbridge.errors import PoolbridgeError


def answer(line: str, do: Callable[[str, dict[str, Any]], Any]) -> dict[str, Any]:
    """Do a task. If it raises an exception, the answer describes the exception."""
    try:
        task = json.loads(line)
        return {"answer": do(task["task"], task["with"] or {}), "error": None}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        code = error.code if isinstance(error, PoolbridgeError) else ""
        return {"error": {"type": type(error).__name__, "code": code, "message": str(error)}}


def serve(do: Callable[[str, dict[str, Any]], Any]) -> None:
    """Answer tasks until the end of the input. `do` does a task, whose name and arguments it gets."""
    # Only answers may go to standard output. Array libraries may print to it, so their output goes to standard error.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            answers.write(json.dumps(answer(line, do)) + "\n")
            answers.flush()

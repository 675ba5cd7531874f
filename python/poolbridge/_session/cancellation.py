"""Defines what the cancellation of an asyncio task does to the operation that the task awaits.

A cancelled operation has no effect and raises `CancelledError`. Or the effect cannot be undone: then the operation ends
as if it had not been cancelled, and the cancellation ends the task's next wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Cancellation:
    """The cancellation of the running task during one operation.

    Attributes
    ----------
    error
        The `CancelledError` that the operation did not raise yet; None if there is none.
    """

    def __init__(self) -> None:
        task: Any = asyncio.current_task()
        self._task: asyncio.Task[Any] = task
        self._before = self._task.cancelling()
        self.error: asyncio.CancelledError | None = None

    def keep(self, error: asyncio.CancelledError) -> None:
        """Keep the error without its traceback, which would refer to this object and to the operation's result."""
        self.error = error.with_traceback(None)

    def check(self) -> None:
        """Raise the `CancelledError`, if there is one. The operation calls `check` before each step."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None

    async def outlast(self, work: asyncio.Future[Any], stop: Callable[[], None] | None = None) -> Any:
        """Wait for the result of `work`, whose effect cannot be undone. A cancellation calls `stop` and waits on."""
        try:
            while not work.done():
                try:
                    await asyncio.wait((work,))
                except asyncio.CancelledError as error:
                    self.keep(error)
                    if stop is not None:
                        stop()
            return work.result()
        finally:
            del work  # the future keeps its error, whose traceback refers to this stack frame

    def defer(self) -> None:
        """Let a `CancelledError` that the operation did not raise end the task's next wait."""
        if self.error is not None:
            self._task.get_loop().call_soon(self._cancel_again, self.error)

    def _cancel_again(self, error: asyncio.CancelledError) -> None:
        # If a time limit such as `asyncio.timeout` cancelled the task and has ended since, it has taken that back.
        if not self._task.done() and self._task.cancelling() > self._before:
            self._task.uncancel()
            self._task.cancel(*error.args)

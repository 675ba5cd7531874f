"""Does the worker's tasks that publish and take frames. Frame number n holds the Fibonacci numbers from F(n) on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import poolbridge
from poolbridge._libraries import consumers as _consumers
from poolbridge._libraries.patterns import Pattern
from poolbridge._verify.failure import failure

if TYPE_CHECKING:
    from poolbridge._client.channel import Channel
    from poolbridge._client.frame import Frame
    from poolbridge._client.subscription import Subscription
    from poolbridge._verify.worker import Worker

_TIMEOUT: Final = 60.0
_NUMBER: Final = "number"  # the key of the number in a frame's meta


@dataclass(slots=True)
class Intake:
    """A subscription that lasts for several tasks, and the frames that the worker has kept."""

    subscription: Subscription
    kept: list[Frame] = field(default_factory=list)


@dataclass(slots=True)
class _Findings:
    """The results of a task that takes frames."""

    numbers: list[int] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    missed: int = 0
    mapped: bool = True
    ended: bool = False
    mismatches: int = 0
    first: list[str] = field(default_factory=list)

    def answer(self) -> dict[str, Any]:
        """Return these results as the worker's answer to the task."""
        return {name: getattr(self, name) for name in self.__slots__}


def _intake(worker: Worker, task: dict[str, Any]) -> Intake:
    """Return the subscription to the task's channel. The first task for a channel subscribes."""
    known = worker.intakes.get(task["name"])
    if known is None:
        oldest = bool(task.get("oldest"))
        client = worker.client(task)
        subscription = client.subscribe(
            task["name"], oldest=oldest, ack="manual", timeout=task.get("timeout", _TIMEOUT)
        )
        known = worker.intakes[task["name"]] = Intake(subscription)
    return known


def _compare(frame: Frame, task: dict[str, Any], found: _Findings) -> None:
    """Compare a frame's content with the content that belongs to the frame's number. Add the result to `found`."""
    consumer = _consumers.load(task.get("consumer", "numpy"))
    number = int(frame.meta[_NUMBER])
    evidence = frame.evidence()
    array = consumer.take(frame)
    result = consumer.compare(array, Pattern(1, number, "fibonacci"))
    found.mapped = found.mapped and bool(evidence.get("mapped")) and consumer.pointer(array) == evidence["pointer"]
    found.mismatches += result.mismatches
    found.first += [f"frame {frame.seq}: {text}" for text in result.first]
    found.numbers.append(number)
    found.sequence.append(frame.seq)
    found.missed += frame.dropped


def _next(intake: Intake, task: dict[str, Any], found: _Findings) -> Frame | None:
    """Take a frame, compare it and return it; return None if the channel was closed."""
    frame = intake.subscription.receive(_TIMEOUT)
    if frame is None:
        found.ended = True
    else:
        _compare(frame, task, found)
    return frame


def _counted(task: dict[str, Any]) -> Iterable[int]:
    """Return as many numbers as the task's ``count`` says; without a ``count``, return numbers without end."""
    return range(task["count"]) if task.get("count") else itertools.count()


def take(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Take as many frames as the task says, or all frames until the channel is closed. Release or keep each frame."""
    intake, found = _intake(worker, task), _Findings()
    for _ in _counted(task):
        frame = _next(intake, task, found)
        if frame is None:
            break
        if task.get("keep"):
            intake.kept.append(frame)
        else:
            frame.release()
    worker.settle()
    return found.answer()


def release(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Compare the kept frames once more, and release them."""
    intake, found = _intake(worker, task), _Findings()
    kept, intake.kept = intake.kept, []
    for frame in kept:
        _compare(frame, task, found)
        frame.release()
    worker.settle()
    return found.answer()


def leave(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """End the worker's subscriptions."""
    for intake in worker.intakes.values():
        intake.subscription.close()
    worker.intakes.clear()
    return {}


def publish(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Publish frames, and report how many.

    If the pool or the channel is full, the answer has the error in ``stopped``.
    """
    channel = worker.client(task).open_channel(task["name"], timeout=_TIMEOUT)
    done = 0
    for number in range(task["number"], task["number"] + task["count"]):
        try:
            _publish(worker, task, channel, number)
        except (poolbridge.WaitTimeoutError, poolbridge.PoolLimitError) as error:
            return {"rounds": done, "stopped": failure(error)}
        done += 1
    return {"rounds": done}


def _publish(worker: Worker, task: dict[str, Any], channel: Channel, number: int) -> None:
    """Publish the frame with the number `number`; see the module's docstring."""
    consumer = _consumers.load(task.get("consumer", "numpy"))
    client = worker.client(task)
    with client.allocate((task["elements"],), "uint64", pool=task["pool"], timeout=_TIMEOUT) as lease:
        consumer.fill(consumer.take(lease), lease, Pattern(1, number, "fibonacci"))
        channel.publish(lease, meta={_NUMBER: str(number)}, timeout=task.get("timeout", _TIMEOUT))


def close(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Close the channel."""
    worker.client(task).open_channel(task["name"], timeout=_TIMEOUT).close()
    return {}


def relay(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Work as a stage of a pipeline: compare each frame, and publish an equal frame in the channel ``to``."""
    intake, found = _intake(worker, task), _Findings()
    to = worker.client(task).open_channel(task["to"], timeout=_TIMEOUT)
    for _ in _counted(task):
        frame = _next(intake, task, found)
        if frame is None:
            break
        _publish(worker, task, to, found.numbers[-1])
        frame.release()
    worker.settle()
    return found.answer()

"""Tasks of the worker about channels: frames whose content is the Fibonacci numbers from the frame's own number on."""

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
_NUMBER: Final = "number"  # under which a frame's map has its number


@dataclass(slots=True)
class Intake:
    """A subscription that goes from task to task, and the frames that it keeps."""

    subscription: Subscription
    kept: list[Frame] = field(default_factory=list)


@dataclass(slots=True)
class _Findings:
    """What was seen of frames."""

    numbers: list[int] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    missed: int = 0
    mapped: bool = True
    ended: bool = False
    mismatches: int = 0
    first: list[str] = field(default_factory=list)

    def answer(self) -> dict[str, Any]:
        """As an answer has them."""
        return {name: getattr(self, name) for name in self.__slots__}


def _intake(worker: Worker, task: dict[str, Any]) -> Intake:
    """Give the subscription to the task's channel, which the first task makes."""
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
    """Compare a frame with what its number says."""
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
    """Take a frame and compare it; None if the channel was closed."""
    frame = intake.subscription.receive(_TIMEOUT)
    if frame is None:
        found.ended = True
    else:
        _compare(frame, task, found)
    return frame


def _counted(task: dict[str, Any]) -> Iterable[int]:
    """Count to what the task says, or for ever."""
    return range(task["count"]) if task.get("count") else itertools.count()


def take(worker: Worker, task: dict[str, Any]) -> dict[str, Any]:
    """Take frames, as many as the task says or all until the channel is closed; release each, or keep it."""
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
    """Compare the frames that were kept once more, and release them."""
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
    """Publish frames, and say how many; if one finds no room, ``stopped`` says why."""
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
    """Publish the Fibonacci numbers from one on."""
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
    """Be a stage of a pipeline: compare each frame, publish its like in another channel, and then release it."""
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

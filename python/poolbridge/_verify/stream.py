"""Scenario ``stream``: frames. Frame number n holds the Fibonacci numbers from F(n) on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from poolbridge._libraries.patterns import Pattern
from poolbridge._verify.transfer import HALVES, in_place

if TYPE_CHECKING:
    from poolbridge._client.frame import Frame
    from poolbridge._client.subscription import Subscription
    from poolbridge._verify.worker import Worker

_TIMEOUT: Final = 60.0
_NUMBER: Final = "number"  # the key of the number in a frame's meta
_ELEMENTS: Final = 4096  # of a frame


@dataclass(slots=True)
class Intake:
    """A subscription that lasts for several tasks, and the frames that the worker has kept."""

    subscription: Subscription
    kept: list[Frame] = field(default_factory=list)


def publish(
    worker: Worker, channel: str, pool: str, *, first: int, last: int, timeout: float, arrays: bool = False
) -> None:
    """Publish the frames with the numbers from `first` to `last`; each waits for room up to `timeout`.

    With `arrays`, each frame has two arrays, which have the halves of the content.
    """
    client, consumer = worker.client(), worker.consumer
    opened = client.open_channel(channel)
    for number in range(first, last + 1):
        pattern = _content(number)
        leases = []
        for values in np.split(pattern.values(), 2 if arrays else 1):
            leases.append(client.allocate(values.shape, pattern.dtype, pool=pool, timeout=_TIMEOUT))
            consumer.fill(consumer.take(leases[-1]), leases[-1], values)
        given = dict(zip(HALVES, leases, strict=True)) if arrays else leases[0]
        opened.publish(given, meta={_NUMBER: number}, timeout=timeout)


def _content(number: int) -> Pattern:
    return Pattern("fibonacci", _ELEMENTS, 1, number)


def take(worker: Worker, channel: str, count: int, *, oldest: bool, keep: bool) -> list[dict[str, int]]:
    """Take `count` frames, or all frames until the channel is closed if `count` is 0. Keep or release each frame.

    The first task for a channel subscribes. The answer has the number and the sequence number of each frame, and how
    many frames the channel dropped before it.
    """
    if channel not in worker.intakes:
        subscription = worker.client().subscribe(channel, oldest=oldest, ack="manual", timeout=_TIMEOUT)
        worker.intakes[channel] = Intake(subscription)
    intake, taken = worker.intakes[channel], list[dict[str, int]]()
    while not count or len(taken) < count:
        frame = intake.subscription.receive(_TIMEOUT)
        if frame is None:
            break
        _compare(worker, frame)
        taken.append({"number": cast("int", frame.meta[_NUMBER]), "seq": frame.seq, "dropped": frame.dropped})
        if keep:
            intake.kept.append(frame)
        else:
            frame.release()
    worker.settle()
    return taken


def _compare(worker: Worker, frame: Frame) -> None:
    pattern, consumer = _content(cast("int", frame.meta[_NUMBER])), worker.consumer
    if len(frame) == len(HALVES):
        pattern.compare(np.concatenate([consumer.copy(consumer.take(frame[name])) for name in HALVES]))
    else:
        in_place(worker, frame)
        pattern.compare(consumer.copy(consumer.take(frame)))


def release_kept(worker: Worker, channel: str) -> None:
    """Compare the kept frames of a channel once more, and release them."""
    intake = worker.intakes[channel]
    kept, intake.kept = intake.kept, []
    for frame in kept:
        _compare(worker, frame)
        frame.release()
    worker.settle()


def leave(worker: Worker) -> None:
    """End the worker's subscriptions."""
    for intake in worker.intakes.values():
        intake.subscription.close()
    worker.intakes.clear()

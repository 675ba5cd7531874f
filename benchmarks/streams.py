"""Measures how one Python process sends frames to several other processes, with one system after the other."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from pathlib import Path
from statistics import median
from typing import Any, Final, get_args

from fan import Fan, Waiting
from fan_poolbridge import ChannelFan, DeviceFan, LeaseFan, QueueFan
from sample import Result, summarize

from poolbridge._bench.arrays import number_of

CONSUMERS: Final = (1, 2, 4, 8, 16)
"""The numbers of consumers to measure. `measure_streams` leaves out numbers above the number of CPUs."""

ROUNDS: Final = 5
"""The number of measurements of each stream. The result is the median."""

_FRAME_BYTES: Final = 64 << 10
_DEPTH: Final = 64
_WARM_UP: Final = 500
_PACED: Final = 500
_PAUSE_NS: Final = 1_000_000
_PATIENCE: Final = 60.0
# In a stream without pauses, a consumer checks the number of only one frame in `_CHECKED` frames.
_CHECKED: Final = 16


def consume(fan: Fan, pipe: Connection) -> None:
    """Run as a consumer: for each `count` from the pipe, take `count` frames.

    Answer with the time at which each frame came, and with the CPU time that this process used.

    If each frame goes to only one consumer, all consumers together take `count` frames, and then each consumer takes
    one more frame, which marks the end.
    """
    frames = fan.open_to_receive()
    pipe.send(True)
    taken = 0
    clock = time.monotonic_ns
    while count := pipe.recv():
        stamps: list[int] = []
        append = stamps.append
        used = time.process_time_ns()
        if fan.shared:
            end = taken + count
            last = taken - 1
            for array in frames:
                number = number_of(array)  # this consumer gets only some of a queue's numbers, in ascending order
                if number <= last:
                    raise AssertionError(f"frame {number} came after {last}")
                if number >= end:
                    break
                append(clock())
                last = number
                del array
            taken = end + fan.consumers
        else:
            for array in itertools.islice(frames, count):
                append(clock())
                if fan.kind == "host" and taken % _CHECKED == 0 and number_of(array) != taken:
                    raise AssertionError(f"frame {number_of(array)} came where {taken} was expected")
                taken += 1
                del array
        pipe.send((stamps, time.process_time_ns() - used))
    del frames
    fan.leave()


class _Consumers:
    """The consumer processes of a fan, in which one process sends frames to several others."""

    def __init__(self, context: SpawnContext, fan: Fan) -> None:
        self._processes, self._pipes = [], []
        for _ in range(fan.consumers):
            ours, theirs = context.Pipe()
            process = context.Process(target=consume, args=(fan, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        for pipe in self._pipes:
            _answer(pipe)

    def expect(self, count: int) -> None:
        """Tell each consumer to take `count` frames."""
        for pipe in self._pipes:
            pipe.send(count)

    def answers(self) -> list[tuple[list[int], int]]:
        """Wait until all consumers have taken their frames; return each one's times of frames and ns of CPU time."""
        return [_answer(pipe) for pipe in self._pipes]

    def end(self) -> None:
        """End the consumers and wait for them."""
        self.expect(0)
        for process in self._processes:
            process.join(_PATIENCE)


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(_PATIENCE):
        raise TimeoutError(f"a consumer has not answered for {_PATIENCE:g} s")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a consumer has ended with an error, which stands above") from None


def _cpu_of(pid: int | None) -> int:
    """Return the nanoseconds of CPU time that the threads of a process have used."""
    used = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat") if pid is not None else ():
        with contextlib.suppress(OSError):  # the thread has ended
            used += int(path.read_text(encoding="ascii").split()[0])
    return used


class _Run:
    """Measures one system in several rounds. The consumers run until the last round has ended."""

    def __init__(self, context: SpawnContext, fan: Fan) -> None:
        self.fan = fan
        self._send = fan.open_to_send()
        self._consumers = _Consumers(context, fan)
        self._sent = 0
        self.rates: list[float] = []
        self.frame_cpu: list[float] = []
        self.service_share: list[float] = []
        self.latencies: list[list[int]] = []  # one list for each round
        self._burst(_WARM_UP)

    def _burst(self, count: int) -> tuple[float, float, float]:
        """Send frames without pauses; return frames a second, µs of CPU time per frame, and the service's CPU share."""
        self._consumers.expect(count)
        service = self.fan.service()
        send, first = self._send, self._sent
        ours, theirs, begun = time.process_time_ns(), _cpu_of(service), time.monotonic_ns()
        more = self.fan.consumers if self.fan.shared else 0
        for number in range(first, first + count + more):
            send(number)
        ours = time.process_time_ns() - ours
        answers = self._consumers.answers()
        end = max(stamps[-1] for stamps, _ in answers if stamps)
        theirs = _cpu_of(service) - theirs
        self._sent += count + more
        cpu = ours + theirs + sum(used for _, used in answers)
        return count * 1e9 / (end - begun), cpu / count / 1e3, theirs / (end - begun)

    def fast(self, seconds: float) -> None:
        """Measure one round without pauses. A short round first determines how many frames to send."""
        rate, _, _ = self._burst(_WARM_UP)
        rate, cpu, share = self._burst(max(int(rate * seconds), _WARM_UP))
        self.rates.append(rate)
        self.frame_cpu.append(cpu)
        self.service_share.append(share)

    def paced(self) -> None:
        """Measure how long a frame takes when no other frame is under way."""
        if self.fan.shared:
            return
        self._consumers.expect(_PACED)
        sent: list[int] = []
        clock, many_cpus = time.monotonic_ns, (os.cpu_count() or 1) >= 4
        for number in range(self._sent, self._sent + _PACED):
            until = clock() + _PAUSE_NS
            if many_cpus:
                while clock() < until:
                    pass
            else:
                time.sleep(_PAUSE_NS / 1e9)
            sent.append(clock())
            self._send(number)
        self._sent += _PACED
        took = [came - went for stamps, _ in self._consumers.answers() for went, came in zip(sent, stamps, strict=True)]
        self.latencies.append(took)

    def result(self) -> Result:
        """Return the result of all rounds."""
        row = summarize(
            workload(self.fan),
            self.fan.kind,
            _FRAME_BYTES,
            self.fan.name,
            samples=list(itertools.chain.from_iterable(self.latencies)),
            elapsed_ns=10**9,
            count=round(median(self.rates)),
        )
        row = row.with_cpu(median(self.frame_cpu), median(self.service_share) if self.fan.service() else None)
        p50s = [median(took) / 1e3 for took in self.latencies]
        return replace(
            row,
            rounds=len(self.rates),
            p50_us_range=(min(p50s), max(p50s)) if p50s else None,
            per_second_range=(min(self.rates), max(self.rates)),
        )

    def end(self) -> None:
        """End the consumers and free all resources."""
        self._consumers.end()
        self.fan.close()


def workload(fan: Fan) -> str:
    """Return the name of a stream's workload."""
    plural = "" if fan.consumers == 1 else "s"
    return f"stream/python-{fan.form or fan.waiting}/{fan.consumers} consumer{plural}"


def _here(
    kind: str, path: str, skip: Callable[[str, str, str], None], others: Sequence[type[Fan]]
) -> list[tuple[type[Fan], Callable[..., Fan]]]:
    """Return the systems that can send frames in a kind of memory on this machine."""
    here: list[tuple[type[Fan], Callable[..., Fan]]] = []
    systems: list[tuple[type[Fan], Callable[..., Fan]]] = []
    systems.extend((own, partial(own, path=path)) for own in (ChannelFan, QueueFan, LeaseFan, DeviceFan))
    systems.extend((other, other) for other in others)
    for system, make in systems:
        if system.kind != kind:
            continue
        if why := system.missing():
            skip(kind, system.name, why)
        else:
            here.append((system, make))
    return here


def measure_streams(
    path: str,
    skip: Callable[[str, str, str], None],
    *,
    seconds: float,
    consumers: Sequence[int] = CONSUMERS,
    waitings: Sequence[Waiting] = get_args(Waiting),
    queues: bool = True,
    kind: str = "host",
    others: Sequence[type[Fan]] = (),
    rounds: int = 0,
) -> Generator[Result]:
    """Measure streams between Python processes. Each round measures all installed systems, one after the other.

    Parameters
    ----------
    path
        Path of the socket of a poolbridge service.
    skip
        Called with the kind of memory, the system that cannot run, and the reason.
    seconds
        The approximate time of each round, in seconds.
    consumers
        The numbers of consumers.
    waitings
        How the consumers wait.
    queues
        Whether to measure queues, too, and not only broadcasts.
    kind
        The kind of memory.
    others
        Other systems to measure beside poolbridge.
    rounds
        The number of measurements of each stream; 0: `ROUNDS`.
    """
    context: Any = multiprocessing.get_context("spawn")
    cpus = len(os.sched_getaffinity(0))
    systems = _here(kind, path, skip, others)
    names = itertools.count()
    for count, waiting, shared in itertools.product(consumers, waitings, (False, True)):
        if count > cpus or (waiting == "spinning" and count >= cpus):  # a consumer that spins uses a whole CPU
            continue
        if shared and (waiting != "python" or count == 1 or not queues):
            continue
        runs: list[_Run] = []
        try:
            for system, make in systems:
                if system.shared == shared and (waiting == "python" or not system.form):
                    name = f"{system.name}-{os.getpid()}-{next(names)}"
                    runs.append(_Run(context, make(_FRAME_BYTES, _DEPTH, count, name, waiting=waiting)))
            for _ in range(rounds or ROUNDS):
                for run in runs:
                    run.fast(seconds)
                for run in runs:
                    run.paced()
            yield from (run.result() for run in runs)
        finally:
            for run in runs:
                run.end()

"""Traces the operations of a client by OpenTelemetry or NVTX, or by a tracer that the program defines."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, cast

from poolbridge._sys.error_texts import shown
from poolbridge._sys.version import version
from poolbridge._wire.meta import pack_meta
from poolbridge.errors import InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from poolbridge._session.flow import Flow
    from poolbridge._session.session import Session
    from poolbridge._wire.meta import MetaValue

_F = TypeVar("_F", bound="Callable[..., Flow[Any]]")
_SYSTEM: Final = "poolbridge"
# The names that OpenTelemetry's conventions for messaging give to the operations on channels.
_TYPES: Final = {"publish": "send", "receive": "receive", "release": "settle"}
# An `NvtxTracer` keeps the NVTX attributes of at most this number of operation titles in its cache.
_MOST_TITLES: Final = 256


@dataclass(slots=True)
class Operation:
    """One operation of a client. The client fills in the results before the operation ends.

    Attributes
    ----------
    name
        ``"allocate"``: the client allocates a buffer, also by `Publisher.loan`. ``"publish"``: the client publishes in
        a channel or under a name, also by `Client.put`. ``"receive"``: the client takes a frame. ``"get"``: the client
        leases a buffer by the buffer's name. ``"lease"``: the client leases a buffer by the buffer's id. ``"release"``:
        the client releases a lease or a frame, by a call or at the end of a ``with`` block.
    channel
        Name of the channel; None: the operation has no channel.
    pool
        Name of the buffer's pool; None: not known yet.
    buffer
        The name under which the buffer is published; None: the buffer has no name.
    nbytes
        Number of bytes of the array in the buffer; None: not known yet, or the program's array has no ``nbytes``.
    seq
        The frame's number in its channel; None: not known yet, or the operation has no frame.
    dropped
        If the client received a frame: how many frames the client missed directly before this frame; see
        `Frame.dropped`.
    meta
        The frame's meta; None: the operation has no frame. A tracer may add values to a frame that is about to be
        published, within the limits of `Channel.publish`.
    concurrent
        Whether the thread may do other work before the operation ends. This is True for operations of an `AsyncClient`.
    """

    name: Literal["allocate", "publish", "receive", "get", "lease", "release"]
    channel: str | None = None
    pool: str | None = None
    buffer: str | None = None
    nbytes: int | None = None
    seq: int | None = None
    dropped: int = 0
    meta: dict[str, MetaValue] | None = None
    concurrent: bool = False

    @property
    def title(self) -> str:
        """The operation's name with the name of its channel or pool, such as ``"publish camera"``."""
        where = self.channel or self.pool
        return f"{self.name} {where}" if where else self.name


class Tracer(Protocol):
    """The object that a client calls for each operation, if the client was connected with ``tracer=``."""

    def trace(self, operation: Operation, /) -> AbstractContextManager[object]:
        """Return a context manager. The client executes the operation in a ``with`` block of this context manager.

        The context manager sees the errors of the operation, also `KeyboardInterrupt` and `asyncio.CancelledError`, and
        must not suppress them. Several threads may call `trace` at the same time. The method `trace` can be a generator
        function with the decorator `contextlib.contextmanager`::

            class Timer:
                @contextlib.contextmanager
                def trace(self, operation):
                    start = time.perf_counter()
                    try:
                        yield
                    finally:
                        print(operation.title, operation.nbytes, time.perf_counter() - start)
        """


def check_tracer(tracer: Any) -> Any:
    """Check that an object is a tracer, and return it.

    Raises
    ------
    InvalidArgumentError
        The object has no method `trace`.
    """
    if isinstance(tracer, type) or not callable(getattr(tracer, "trace", None)):
        raise InvalidArgumentError(
            f"tracer {shown(tracer)} is no tracer: expected an object with a method trace(operation), such as "
            "poolbridge.OpenTelemetryTracer()"
        )
    return tracer


def traced(begin: Callable[..., Operation], end: Callable[..., None] | None = None) -> Callable[[_F], _F]:
    """Make the decorator of a method that returns a flow. The runner of a client with a tracer traces the flow.

    Parameters
    ----------
    begin
        A function that makes the `Operation` from the arguments of the method.
    end
        A function that writes the results into the `Operation`. The other arguments are the object whose method was
        called, and the result of the flow. None: the operation has no results.
    """

    def decorate(method: _F) -> _F:
        @wraps(method)
        def flow(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            if owner._session.tracer is None:  # noqa: SLF001 - every object of a client has the session
                return method(owner, *args, **kwargs)
            return Traced(
                begin(owner, *args, **kwargs),
                partial(method, owner, *args, **kwargs),
                end and partial(end, owner=owner),
            )

        return cast("_F", flow)

    return decorate


class Traced:
    """A flow that the runner of a client runs in a ``with`` block of the tracer."""

    def __init__(self, operation: Operation, make: Callable[..., Flow[Any]], end: Callable[..., None] | None) -> None:
        self.operation = operation
        self._make = make
        self._end = end

    def flow(self) -> Flow[Any]:
        """Make the flow, after the tracer may have added to the meta of the frame that the flow publishes."""
        meta = self.operation.meta
        return self._make() if self.operation.name != "publish" or meta is None else self._make(meta=meta)

    def finish(self, result: Any) -> Any:
        """Write the result of the flow into the operation, and return the result."""
        if self._end is not None:
            self._end(self.operation, result=result)
        return result


def span(session: Session, operation: Operation) -> AbstractContextManager[object]:
    """Return the context manager in which a client with a tracer carries out an operation."""
    operation.concurrent = session.concurrent
    made: AbstractContextManager[object] = session.tracer.trace(operation)
    return made


def meta_of(meta: Any) -> dict[str, MetaValue] | None:
    """Return the meta to which the tracer may add; None if `meta` is no mapping, which the operation then refuses."""
    return {} if meta is None else dict(meta) if isinstance(meta, Mapping) else None


def published(operation: Operation, result: int, **_owner: Any) -> None:
    """Write the result of a publication in a channel into the operation."""
    operation.seq = result


def bytes_of(array: Any) -> int | None:
    """Return the size of a program's array, or of a dict of arrays; None if an array does not say its size."""
    if isinstance(array, dict):
        sizes = [bytes_of(one) for one in array.values()]
        return None if None in sizes else sum(size or 0 for size in sizes)
    nbytes = getattr(array, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else None


class OpenTelemetryTracer:
    """Makes an OpenTelemetry span for each operation. This class needs ``pip install 'poolbridge[otel]'``.

    Spans follow OpenTelemetry's semantic conventions for messaging. The span of an operation on channel ``camera`` has
    a name such as ``publish camera``, and the attributes ``messaging.destination.name``, ``messaging.operation.type``,
    ``messaging.message.id`` (the frame's number) and ``messaging.message.body.size`` (bytes). The span of an operation
    without a channel has the attributes ``poolbridge.buffer.name`` and ``poolbridge.buffer.size`` instead. Every span
    has the attribute ``poolbridge.pool.name`` if the pool is known. A span is a child of the current span. If the
    operation raises an exception, the span records the exception, and the attribute ``error.type`` names the
    exception's class.

    Parameters
    ----------
    tracer_provider
        The provider that makes the spans; None: the program's global provider.
    propagate
        True: send the identity of each ``publish`` span with the frame. The frame's meta gets the text ``traceparent``
        and, if the span has a trace state, the text ``tracestate``, if there is room. All subscribers see these texts.
        The span of a ``receive`` has a link to the ``publish`` span of the received frame.

    Raises
    ------
    UnavailableError
        ``opentelemetry-api`` is not installed.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, *, propagate: bool = False) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation import tracecontext
        except ImportError as error:
            raise UnavailableError(
                "OpenTelemetryTracer needs the package opentelemetry-api: pip install 'poolbridge[otel]'"
            ) from error
        self._arguments = tracer_provider, propagate
        self._api = trace
        self._context = tracecontext.TraceContextTextMapPropagator()
        self._propagate = propagate
        self._tracer = trace.get_tracer("poolbridge", version(), tracer_provider)

    @contextmanager
    def trace(self, operation: Operation, /) -> Generator[None]:
        """Make the span of an operation; see `Tracer.trace`."""
        kinds = self._api.SpanKind
        sends = self._propagate and operation.name == "publish" and operation.meta is not None
        kind = kinds.PRODUCER if sends else kinds.CLIENT
        span = self._tracer.start_span(operation.title, kind=kind, attributes=_attributes(operation))
        with self._api.use_span(span, end_on_exit=True):
            if sends:
                self._inject(operation.meta)
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", _class_of(error))
                raise
            finally:
                if span.is_recording():
                    span.set_attributes(_attributes(operation))
                    if operation.name == "receive":
                        self._link(span, operation.meta)

    def _inject(self, meta: Any) -> None:
        """Add the current span's id to a frame's meta, if it names no span yet and has room."""
        carrier: dict[str, str] = {}
        self._context.inject(carrier)
        if "traceparent" in meta:
            return
        for key, value in carrier.items():
            try:
                pack_meta({**meta, key: value})
            except InvalidArgumentError:
                return  # no room; if the program's meta is wrong, the operation says so
            meta[key] = value

    def _link(self, span: Any, meta: dict[str, MetaValue] | None) -> None:
        """Add to `span` a link to the span that the frame's meta names, if it names a span."""
        texts = {key: value for key, value in (meta or {}).items() if isinstance(value, str)}
        if "traceparent" in texts:
            came = self._api.get_current_span(self._context.extract(texts)).get_span_context()
            if came.is_valid and came != span.get_span_context():
                span.add_link(came)

    def __reduce__(self) -> tuple[Callable[..., OpenTelemetryTracer], tuple[Any, ...]]:
        return _open_telemetry, self._arguments


def _open_telemetry(tracer_provider: Any, propagate: Any) -> OpenTelemetryTracer:
    return OpenTelemetryTracer(tracer_provider, propagate=propagate)


def _class_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _attributes(operation: Operation) -> dict[str, str | int]:
    """Return the attributes of an operation's span, under OpenTelemetry's standard names where such names exist."""
    found: dict[str, str | int | None] = {"poolbridge.pool.name": operation.pool}
    if operation.channel is None:
        found["poolbridge.operation.name"] = operation.name
        found["poolbridge.buffer.name"] = operation.buffer
        found["poolbridge.buffer.size"] = operation.nbytes
    else:
        found["messaging.system"] = _SYSTEM
        found["messaging.operation.name"] = operation.name
        found["messaging.operation.type"] = _TYPES.get(operation.name)
        found["messaging.destination.name"] = operation.channel
        found["messaging.message.id"] = None if operation.seq is None else str(operation.seq)
        found["messaging.message.body.size"] = operation.nbytes
        found["poolbridge.frame.dropped"] = operation.dropped or None
    return {key: value for key, value in found.items() if value is not None}


class NvtxTracer:
    """Makes an NVTX range for each operation. This class needs ``pip install 'poolbridge[nvtx]'``.

    Tools such as Nsight Systems show the ranges. A range has the name of the operation and of its channel or pool, such
    as ``publish camera``. The ranges of a `Client` are nested in the thread's other ranges. The ranges of an
    `AsyncClient` belong to the process: the tasks of one thread take turns, so their ranges overlap and cannot be
    nested in ranges of the thread. If no tool collects NVTX events, a range costs a few function calls and has no other
    effect.

    Parameters
    ----------
    domain
        Name of the NVTX domain.

    Raises
    ------
    UnavailableError
        ``nvtx`` is not installed.
    """

    def __init__(self, domain: str = _SYSTEM) -> None:
        try:
            import nvtx
        except ImportError as error:
            raise UnavailableError("NvtxTracer needs the package nvtx: pip install 'poolbridge[nvtx]'") from error
        self._name = domain
        self._domain: Any = nvtx.get_domain(domain)
        self._attributes = lru_cache(_MOST_TITLES)(self._domain.get_event_attributes)

    @contextmanager
    def trace(self, operation: Operation, /) -> Generator[None]:
        """Make the range of an operation; see `Tracer.trace`."""
        attributes = self._attributes(operation.title)
        if operation.concurrent:
            range_ = self._domain.start_range(attributes)
            try:
                yield
            finally:
                self._domain.end_range(range_)
        else:
            self._domain.push_range(attributes)
            try:
                yield
            finally:
                self._domain.pop_range()

    def __reduce__(self) -> tuple[type[NvtxTracer], tuple[str]]:
        return NvtxTracer, (self._name,)

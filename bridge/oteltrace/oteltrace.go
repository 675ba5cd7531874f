// Package oteltrace makes an OpenTelemetry span for each operation of a client of poolbridge:
//
//	client, err := bridge.Dialer{Tracer: oteltrace.New(oteltrace.Config{})}.Dial(ctx, bridge.DefaultSocket())
//
// The package is a Go module of its own, so that a program without tracing does not depend on OpenTelemetry. Spans follow the semantic
// conventions for messaging: a frame that is published in the channel "camera" has a span "publish camera".
package oteltrace

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/poolbridge/poolbridge/bridge"
)

// These are the names of attributes for which the semantic conventions have no name.
const (
	OperationNameKey = attribute.Key("poolbridge.operation.name") // name of an operation without a channel, such as "allocate"
	PoolNameKey      = attribute.Key("poolbridge.pool.name")      // the pool of the buffer
	BufferNameKey    = attribute.Key("poolbridge.buffer.name")    // the name under which the buffer is published
	BufferSizeKey    = attribute.Key("poolbridge.buffer.size")    // bytes of a buffer that is not a frame
	FrameDroppedKey  = attribute.Key("poolbridge.frame.dropped")  // frames that the subscriber missed before the received frame
)

// Config has the options of [New]. The zero Config has useful defaults.
type Config struct {
	// Provider makes the spans. If Provider is nil, the tracer uses the program's global provider.
	Provider trace.TracerProvider
	// If Propagate is true, the tracer sends the ids of a publication's span with the frame, as the entry "traceparent" of the frame's Meta,
	// unless Meta has that entry already. If the span has a trace state, the tracer also adds the entry "tracestate". All subscribers see
	// these entries. When a client with a tracer receives the frame, the tracer links the span of the receipt to that of the publication. The
	// receiver needs no Propagate.
	Propagate bool
}

// Tracer is a [bridge.Tracer] that makes spans.
type Tracer struct {
	tracer    trace.Tracer
	propagate bool
}

var _ bridge.Tracer = (*Tracer)(nil)

// New returns a tracer for [bridge.Dialer].
func New(c Config) *Tracer {
	if c.Provider == nil {
		c.Provider = otel.GetTracerProvider()
	}
	return &Tracer{c.Provider.Tracer("github.com/poolbridge/poolbridge/bridge", trace.WithSchemaURL(semconv.SchemaURL)), c.Propagate}
}

// TraceStart begins the span of an operation. The new span is a child of the span in ctx.
func (t *Tracer) TraceStart(ctx context.Context, o *bridge.Operation) context.Context {
	sends := t.propagate && o.Name == bridge.OpPublish && o.Meta != nil
	kind := trace.SpanKindClient
	if sends {
		kind = trace.SpanKindProducer
	}
	ctx, _ = t.tracer.Start(ctx, o.Title(), trace.WithSpanKind(kind), trace.WithAttributes(attributes(o)...))
	if sends {
		inject(ctx, o.Meta)
	}
	return ctx
}

// TraceEnd ends the span of an operation. If the operation failed, the span has the error. The span's attribute error.type is the error's
// code (see [bridge.Code]), or the error's Go type if the error has no code.
func (t *Tracer) TraceEnd(ctx context.Context, o *bridge.Operation, err error) {
	span := trace.SpanFromContext(ctx)
	defer span.End()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attributes(o)...)
	if o.Name == bridge.OpReceive {
		link(span, o.Meta)
	}
	if err != nil {
		span.RecordError(err)
		if code := bridge.Code(err); code != "" {
			span.SetAttributes(semconv.ErrorTypeKey.String(code))
		} else {
			span.SetAttributes(semconv.ErrorType(err))
		}
		span.SetStatus(codes.Error, err.Error())
	}
}

const traceparent = "traceparent"

// inject adds the span of ctx to the Meta of a frame, unless Meta has a span already.
func inject(ctx context.Context, meta map[string]any) {
	if meta[traceparent] != nil {
		return
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	for key, value := range carrier {
		meta[key] = value
	}
}

// link links a span to the span that came with a frame.
func link(span trace.Span, meta map[string]any) {
	carrier := propagation.MapCarrier{}
	for _, key := range (propagation.TraceContext{}).Fields() {
		if text, ok := meta[key].(string); ok {
			carrier[key] = text
		}
	}
	if carrier[traceparent] == "" {
		return
	}
	came := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
	if came.IsValid() {
		span.AddLink(trace.Link{SpanContext: came})
	}
}

// attributes returns the known attributes of an operation's span.
func attributes(o *bridge.Operation) []attribute.KeyValue {
	var all []attribute.KeyValue
	if o.Pool != "" {
		all = append(all, PoolNameKey.String(o.Pool))
	}
	if o.Channel == "" {
		all = append(all, OperationNameKey.String(o.Name))
		if o.Buffer != "" {
			all = append(all, BufferNameKey.String(o.Buffer))
		}
		if o.Bytes > 0 {
			all = append(all, BufferSizeKey.Int64(int64(o.Bytes)))
		}
		return all
	}
	all = append(all, semconv.MessagingSystemKey.String("poolbridge"), semconv.MessagingOperationName(o.Name),
		semconv.MessagingDestinationName(o.Channel))
	switch o.Name {
	case bridge.OpPublish:
		all = append(all, semconv.MessagingOperationTypeSend)
	case bridge.OpReceive:
		all = append(all, semconv.MessagingOperationTypeReceive)
	case bridge.OpRelease:
		all = append(all, semconv.MessagingOperationTypeSettle)
	}
	if o.Seq > 0 {
		all = append(all, semconv.MessagingMessageID(strconv.FormatUint(o.Seq, 10)))
	}
	if o.Bytes > 0 {
		all = append(all, semconv.MessagingMessageBodySize(int(o.Bytes)))
	}
	if o.Dropped > 0 {
		all = append(all, FrameDroppedKey.Int64(int64(o.Dropped)))
	}
	return all
}

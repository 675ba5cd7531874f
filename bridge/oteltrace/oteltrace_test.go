package oteltrace

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/poolbridge/poolbridge/bridge"
)

// provider returns a provider of spans, and an exporter that keeps these spans.
func provider(t *testing.T) (*sdk.TracerProvider, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	p := sdk.NewTracerProvider(sdk.WithSyncer(spans))
	t.Cleanup(func() { assert.NoError(t, p.Shutdown(context.Background())) })
	return p, spans
}

// do begins an operation, calls results to set the operation's results, and ends the operation.
func do(ctx context.Context, tr *Tracer, o bridge.Operation, results func(*bridge.Operation), err error) *bridge.Operation {
	ctx = tr.TraceStart(ctx, &o)
	if results != nil {
		results(&o)
	}
	tr.TraceEnd(ctx, &o, err)
	return &o
}

// values returns the attributes of a span by their names.
func values(s tracetest.SpanStub) map[string]any {
	all := make(map[string]any)
	for _, a := range s.Attributes {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	return all
}

func TestSpansHaveTheNamesAndAttributesOfTheConventions(t *testing.T) {
	p, exported := provider(t)
	tr := New(Config{Provider: p})
	ctx, step := p.Tracer("test").Start(t.Context(), "step")
	do(ctx, tr, bridge.Operation{Name: bridge.OpAllocate, Pool: "frames"}, func(o *bridge.Operation) { o.Bytes = 16 }, nil)
	do(ctx, tr, bridge.Operation{Name: bridge.OpGet, Buffer: "weights"}, func(o *bridge.Operation) { o.Pool, o.Bytes = "frames", 16 }, nil)
	for _, name := range []string{bridge.OpPublish, bridge.OpReceive, bridge.OpRelease} {
		do(ctx, tr, bridge.Operation{Name: name, Channel: "camera"}, func(o *bridge.Operation) {
			o.Pool, o.Bytes, o.Seq, o.Dropped = "frames", 16, 7, 2
		}, nil)
	}
	spans := exported.GetSpans()
	require.Len(t, spans, 5)
	for i, name := range []string{"allocate frames", "get", "publish camera", "receive camera", "release camera"} {
		assert.Equal(t, name, spans[i].Name)
		assert.Equal(t, trace.SpanKindClient, spans[i].SpanKind)
		assert.Equal(t, step.SpanContext().SpanID(), spans[i].Parent.SpanID())
		assert.Equal(t, codes.Unset, spans[i].Status.Code)
	}
	buffer := map[string]any{"poolbridge.pool.name": "frames", "poolbridge.buffer.size": int64(16), "poolbridge.operation.name": "allocate"}
	assert.Equal(t, buffer, values(spans[0]))
	buffer["poolbridge.operation.name"], buffer["poolbridge.buffer.name"] = "get", "weights"
	assert.Equal(t, buffer, values(spans[1]))
	for i, kind := range []string{"send", "receive", "settle"} {
		name, _, _ := strings.Cut(spans[i+2].Name, " ")
		assert.Equal(t, map[string]any{"poolbridge.pool.name": "frames", "messaging.system": "poolbridge", "messaging.operation.name": name,
			"messaging.operation.type": kind, "messaging.destination.name": "camera", "messaging.message.id": "7",
			"messaging.message.body.size": int64(16), "poolbridge.frame.dropped": int64(2)}, values(spans[i+2]))
		assert.Empty(t, spans[i+2].Links)
	}
}

func TestTheSpanOfAFailedOperationHasTheError(t *testing.T) {
	p, exported := provider(t)
	do(t.Context(), New(Config{Provider: p}), bridge.Operation{Name: bridge.OpGet}, nil, fmt.Errorf("no buffer: %w", fs.ErrNotExist))
	spans := exported.GetSpans()
	require.Len(t, spans, 1)
	assert.Equal(t, sdk.Status{Code: codes.Error, Description: "no buffer: file does not exist"}, spans[0].Status)
	assert.NotEmpty(t, values(spans[0])["error.type"])
	require.Len(t, spans[0].Events, 1)
	assert.Contains(t, spans[0].Events[0].Attributes, attribute.String("exception.message", "no buffer: file does not exist"))
}

func TestTheTypeOfAnErrorIsItsCodeIfItHasOne(t *testing.T) {
	p, exported := provider(t)
	tr := New(Config{Provider: p})
	failures := []error{fmt.Errorf("get: %w", bridge.ErrNotFound), fmt.Errorf("%w (%w)", bridge.ErrBusy, context.DeadlineExceeded), fs.ErrNotExist}
	for _, err := range failures {
		do(t.Context(), tr, bridge.Operation{Name: bridge.OpGet}, nil, err)
	}
	var types []any
	for _, s := range exported.GetSpans() {
		types = append(types, values(s)["error.type"])
	}
	assert.Equal(t, []any{"not-found", "timeout", "*errors.errorString"}, types)
}

func TestAFrameCarriesTheSpanOfItsPublicationWhereThatWasAskedFor(t *testing.T) {
	p, exported := provider(t)
	publish := bridge.Operation{Name: bridge.OpPublish, Channel: "c", Meta: map[string]any{}}
	do(t.Context(), New(Config{Provider: p}), publish, nil, nil)
	assert.Empty(t, publish.Meta)
	tr := New(Config{Provider: p, Propagate: true})
	sent := do(t.Context(), tr, publish, nil, nil)
	assert.Contains(t, sent.Meta, "traceparent")
	do(t.Context(), tr, bridge.Operation{Name: bridge.OpReceive, Channel: "c"}, func(o *bridge.Operation) { o.Meta = sent.Meta }, nil)
	spans := exported.GetSpans()
	require.Len(t, spans, 3)
	assert.Equal(t, trace.SpanKindProducer, spans[1].SpanKind)
	require.Len(t, spans[2].Links, 1)
	assert.Equal(t, spans[1].SpanContext.SpanID(), spans[2].Links[0].SpanContext.SpanID())
	assert.NotEqual(t, spans[1].SpanContext.TraceID(), spans[2].SpanContext.TraceID())
}

func TestAFrameKeepsTheSpanThatTheProgramSent(t *testing.T) {
	p, exported := provider(t)
	tr := New(Config{Provider: p, Propagate: true})
	own := map[string]any{"traceparent": "00-11111111111111111111111111111111-2222222222222222-01"}
	sent := do(t.Context(), tr, bridge.Operation{Name: bridge.OpPublish, Channel: "c", Meta: own}, nil, nil)
	assert.Equal(t, "00-11111111111111111111111111111111-2222222222222222-01", sent.Meta["traceparent"])
	broken := map[string]any{"traceparent": "nonsense"}
	do(t.Context(), tr, bridge.Operation{Name: bridge.OpReceive, Channel: "c"}, func(o *bridge.Operation) { o.Meta = broken }, nil)
	spans := exported.GetSpans()
	assert.Empty(t, spans[len(spans)-1].Links)
}

func TestTheGlobalProviderMakesTheSpansOfAnEmptyConfig(t *testing.T) {
	p, exported := provider(t)
	before := otel.GetTracerProvider()
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	otel.SetTracerProvider(p)
	do(t.Context(), New(Config{}), bridge.Operation{Name: bridge.OpAllocate}, nil, nil)
	assert.Len(t, exported.GetSpans(), 1)
}

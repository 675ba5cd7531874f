package verify

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func TestAKernelIsHeldOnlyOnceTheMemoryOfEarlierChecksHasGoneBack(t *testing.T) {
	svc := service.New(service.Config{})
	t.Cleanup(svc.Close)
	socket := filepath.Join(t.TempDir(), "s.sock")
	srv, err := server.Listen(socket, svc, server.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, srv.Close()) })
	client, err := bridge.Dial(t.Context(), socket)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	s := &scene{stage: &stage{ctx: t.Context(), client: client}, kind: mempool.Host}
	var l *bridge.Lease
	require.NoError(t, s.pool(t.Context(), 1<<20, func(p *bridge.Pool) (err error) {
		l, err = p.TryAllocate(t.Context(), mempool.Bytes(100))
		return err
	}))

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.quiet(ctx), context.DeadlineExceeded, "the lease still maps the memory of the destroyed pool")
	require.NoError(t, l.Release(false))
	require.NoError(t, s.quiet(t.Context()))
	assert.Empty(t, s.leaving)
}

func TestAWorkerIsUsedAgainUnlessItIsGone(t *testing.T) {
	stage := &stage{ctx: context.WithoutCancel(t.Context()), options: Options{Self: "cat"}, idle: make(map[string][]*worker)}
	first, second := &scene{stage: stage}, &scene{stage: stage}
	one, err := first.hire(goConsumer)
	require.NoError(t, err)
	two, err := second.hire(goConsumer)
	require.NoError(t, err)
	assert.NotSame(t, one, two, "nobody else has a worker until its check has ended")
	first.end()
	again, err := second.hire(goConsumer)
	require.NoError(t, err)
	assert.Same(t, one, again)
	again.Kill()
	second.end()
	third, err := first.hire(goConsumer)
	require.NoError(t, err)
	assert.Same(t, two, third, "the worker that was killed is not used again")
	third.Kill()
}

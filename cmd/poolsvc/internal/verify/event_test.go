package verify

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func TestPublishingThatReturnsWhileAKernelIsHeldPasses(t *testing.T) {
	_, err := meanwhile(func() { t.Error("nothing had to be let go") }, nil, func() error { return nil })
	require.NoError(t, err)
	failed := errors.New("failed")
	_, err = meanwhile(func() {}, nil, func() error { return failed })
	assert.ErrorIs(t, err, failed)
}

func TestPublishingThatWaitsForAKernelIsToldFromADriverThatHoldsUpEveryCall(t *testing.T) {
	for name, serialises := range map[string]bool{
		"publishing waited for a kernel":  false,
		"the driver held up this process": true,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kernel := make(chan struct{})
				_, err := meanwhile(func() { close(kernel) }, func() (bool, error) {
					if serialises {
						<-kernel
					}
					return true, nil
				}, func() error {
					<-kernel
					return nil
				})
				assert.ErrorContains(t, err, name)
			})
		})
	}
}

// destroyed returns a scene whose only pool was destroyed while a lease still holds a block of the pool. release ends
// the lease.
func destroyed(t *testing.T) (s *scene, release func()) {
	t.Helper()
	svc := service.New(service.Config{})
	t.Cleanup(svc.Close)
	socket := filepath.Join(t.TempDir(), "s.sock")
	srv, err := server.Listen(socket, svc, server.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, srv.Close()) })
	client, err := bridge.Dial(t.Context(), socket)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	s = &scene{stage: &stage{ctx: t.Context(), client: client}, kind: mempool.Host}
	pool, undo, err := s.pool(t.Context(), "p", 1<<20)
	require.NoError(t, err)
	l, err := pool.TryAllocate(t.Context(), mempool.Bytes(100))
	require.NoError(t, err)
	require.NoError(t, undo())
	return s, func() { require.NoError(t, l.Release(false)) }
}

func TestAKernelIsHeldOnlyOnceTheMemoryOfEarlierChecksHasGoneBack(t *testing.T) {
	s, release := destroyed(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := s.quiet(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, `pool "p"`)
	release()
	require.NoError(t, s.quiet(t.Context()))
	assert.Empty(t, s.leaving)
}

package server

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
	"github.com/poolbridge/poolbridge/tests/harness"
)

// longUnused starts a server that was last used longer ago than Config.Unused allows.
func longUnused(t *testing.T) *rig {
	t.Helper()
	r := start(t, Config{Unused: time.Hour}, unhurried)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = time.Now().Add(-2 * time.Hour)
	return r
}

func watch(t *testing.T, r *rig) *bridge.Client {
	t.Helper()
	c, err := bridge.Dialer{Watch: true}.Dial(t.Context(), r.path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

func TestAWatcherDoesNotKeepAnUnusedServer(t *testing.T) {
	r := longUnused(t)
	c := watch(t, r)
	<-r.Unused()
	_, err := c.Stats(t.Context())
	require.NoError(t, err)
}

func TestAWatcherCannotUseAServiceThatMayEndMeanwhile(t *testing.T) {
	r := start(t, Config{}, unhurried)
	_, err := watch(t, r).CreatePool(t.Context(), hostPool("p", 4096))
	require.ErrorIs(t, err, bridge.ErrInvalid)
	assert.ErrorContains(t, err, "only watches")
}

func TestAClientKeepsAServerUntilItLeavesWatchersOrNot(t *testing.T) {
	r := longUnused(t)
	c := dial(t, r.path)
	watch(t, r)
	select {
	case <-r.Unused():
		t.Fatal("a client is connected")
	default:
	}
	before := time.Now()
	require.NoError(t, c.Close())
	eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.conns) == r.watchers && r.left.After(before)
	})
	r.mu.Lock()
	r.left = time.Now().Add(-2 * time.Hour)
	r.mu.Unlock()
	watch(t, r)
	<-r.Unused()
}

// shelf is a store that keeps what a service without memory has.
type shelf map[string]*os.File

func (s shelf) Keep(name string, f *os.File) error {
	s[name] = f
	return nil
}

func (shelf) Drop(string) {}

func TestAServerThatTookOverIsNotUnusedWhileClientsMayComeBack(t *testing.T) {
	store, began := make(shelf), time.Now()
	before := service.New(service.Config{Store: store})
	t.Cleanup(before.Close)
	_, err := before.OpenSession(mempool.Self(), "", nil)
	require.NoError(t, err)
	next, err := service.Adopt(service.Config{ResumeTime: time.Second}, store)
	require.NoError(t, err)
	t.Cleanup(next.Close)
	s, err := Listen(harness.SocketPath(t), next, Config{Unused: time.Nanosecond})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	<-s.Unused()
	assert.GreaterOrEqual(t, time.Since(began), time.Second)
}

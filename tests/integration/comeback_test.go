package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// lowered starts a guarded service with a configuration, and returns a function that gives the service another one.
func lowered(t *testing.T, config string) (*rig.Service, func(config string)) {
	path := filepath.Join(t.TempDir(), "poolsvc.yaml")
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--config", path)
	return s, func(config string) {
		require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
		require.NoError(t, s.Process.Signal(syscall.SIGHUP))
		s.Said(t, "the configuration was reloaded")
	}
}

func TestSessionsComeBackThoughTheirLimitWasLowered(t *testing.T) {
	s, lower := lowered(t, "limits:\n  sessions: 50\n")
	var clients []*bridge.Client
	for range 10 {
		clients = append(clients, dial(t, s))
	}
	lower("limits:\n  sessions: 4\n")
	killService(t, s.Process.Pid)
	for _, c := range clients {
		_, err := c.Stats(t.Context())
		assert.NoError(t, err)
	}
	_, err := bridge.Dial(t.Context(), s.Socket)
	assert.ErrorIs(t, err, bridge.ErrLimit)
	lower("limits:\n  sessions: 50\n") // a client that closes asks the service whether its session has ended
}

func TestNewcomersDoNotTakeThePlacesOfSessionsThatComeBack(t *testing.T) {
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--limit", "sessions=10")
	var clients []*bridge.Client
	for range 10 {
		clients = append(clients, dial(t, s))
	}
	ctx, stop := context.WithCancel(t.Context())
	var newcomers sync.WaitGroup
	for range 4 {
		newcomers.Go(func() {
			for ctx.Err() == nil {
				c, err := bridge.Dial(ctx, s.Socket)
				if err == nil {
					assert.NoError(t, c.Close())
				}
				assert.Error(t, err, "there is room for ten")
			}
		})
	}
	for range 3 {
		killService(t, s.Process.Pid)
		for _, c := range clients {
			_, err := c.Stats(t.Context())
			assert.NoError(t, err)
		}
	}
	stop()
	newcomers.Wait()
}

func TestRequestsThatWaitGoOnThoughTheirLimitWasLowered(t *testing.T) {
	s, lower := lowered(t, "limits:\n  waits: 50\npools:\n  - name: p\n    max: 1MiB\n")
	c, publisher := dial(t, s), dial(t, s)
	var gets sync.WaitGroup
	const waiting = 10
	await := func() {
		require.Eventually(t, func() bool {
			n := 0
			for one, err := range publisher.Sessions(t.Context()) {
				require.NoError(t, err)
				n += one.Waits
			}
			return n == waiting
		}, time.Minute, time.Millisecond)
	}
	for i := range waiting {
		gets.Go(func() {
			l, err := c.Get(t.Context(), fmt.Sprint(i), bridge.LeaseOptions{})
			if assert.NoError(t, err) {
				assert.NoError(t, l.Release(false))
			}
		})
	}
	await()
	lower("limits:\n  waits: 4\npools:\n  - name: p\n    max: 1MiB\n")
	killService(t, s.Process.Pid)
	await()
	p, err := publisher.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	for i := range waiting {
		l, err := p.TryAllocate(t.Context(), mempool.Bytes(64))
		require.NoError(t, err)
		require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: fmt.Sprint(i)}))
		require.NoError(t, l.Release(false))
	}
	gets.Wait()
}

func TestAProducerOfManyConsumersComesBack(t *testing.T) {
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--pool", "name=p,max=64MiB")
	c := dial(t, s)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	readers := []*bridge.Client{dial(t, s), dial(t, s), dial(t, s), dial(t, s), dial(t, s), dial(t, s)}
	var publishers []*bridge.Publisher
	for i := range 8 {
		name := fmt.Sprint(i)
		ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: name, Pool: p.Info().ID, Capacity: 4, Full: mempool.DropOldest})
		require.NoError(t, err)
		pub, err := ch.Publisher(t.Context(), mempool.Bytes(4096))
		require.NoError(t, err)
		publishers = append(publishers, pub)
		for _, reader := range readers {
			for range 25 { // 1,200 in all
				_, err := reader.Subscribe(t.Context(), name, bridge.SubscribeOptions{})
				require.NoError(t, err)
			}
		}
	}
	for range 2 {
		for _, pub := range publishers {
			l, err := pub.Loan(t.Context())
			require.NoError(t, err)
			_, err = pub.Publish(t.Context(), l, mempool.FrameOptions{})
			require.NoError(t, err)
		}
		killService(t, s.Process.Pid)
		for _, client := range append(readers, c) {
			_, err = client.Stats(t.Context())
			require.NoError(t, err)
		}
	}
}

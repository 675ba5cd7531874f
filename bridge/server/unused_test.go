package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
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

// leave closes the only client. It says whether the time of Config.Unused begins again.
func leave(t *testing.T, r *rig, c *bridge.Client) (begins bool) {
	t.Helper()
	before := time.Now()
	require.NoError(t, c.Close())
	eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		begins = r.left.After(before)
		return len(r.conns) == 0
	})
	return begins
}

func TestAClientThatOnlyLooksDoesNotKeepAnUnusedServer(t *testing.T) {
	for name, look := range map[string]func(*bridge.Client) error{
		"statistics": func(c *bridge.Client) error { _, err := c.Stats(t.Context()); return err },
		"events":     func(c *bridge.Client) error { _, err := c.TryEvents(t.Context(), 0); return err },
		"a list": func(c *bridge.Client) error {
			for _, err := range c.Sessions(t.Context()) {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := longUnused(t)
			c := dial(t, r.path)
			require.NoError(t, look(c))
			select {
			case <-r.Unused():
				t.Fatal("a client is connected")
			default:
			}
			require.False(t, leave(t, r, c))
			<-r.Unused()
		})
	}
}

func TestAClientThatDoesMoreThanLookKeepsTheServer(t *testing.T) {
	for name, use := range map[string]func(*bridge.Client){
		"connects": func(*bridge.Client) {},
		"looks, and makes a pool": func(c *bridge.Client) {
			_, err := c.Stats(t.Context())
			require.NoError(t, err)
			createPool(t, c, hostPool("x", 1<<20))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := longUnused(t)
			c := dial(t, r.path)
			use(c)
			assert.True(t, leave(t, r, c))
		})
	}
}

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// openDir makes a folder that every user can read.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "poolbridge-abroad-")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

func TestPythonStreamsToUsersInOtherNamespaces(t *testing.T) {
	for _, kind := range []mempool.Kind{mempool.Host, mempool.Device} {
		t.Run(string(kind), func(t *testing.T) {
			if err := kind.Probe(""); err != nil {
				t.Skip(err)
			}
			const sender, receiver, frames = 4242, 4343, 30
			python := rig.Python(t)
			from, to := python.Abroad(t, sender), python.Abroad(t, receiver)
			pool := fmt.Sprintf("name=p,kind=%s,max=64MiB,uid=%d,uid=%d,uid=%d", kind, os.Getuid(), sender, receiver)
			s := rig.ServeAt(t, filepath.Join(openDir(t), "s"), "--mode", "0666", "--pool", pool)
			c := dial(t, s)
			ctx := context.Background()
			p, err := c.TryOpenPool(ctx, "p")
			require.NoError(t, err)
			ch, err := c.CreateChannel(ctx, mempool.ChannelSpec{Name: "c", Pool: p.Info().ID, Capacity: 8})
			require.NoError(t, err)

			consumer := to.Start(t, stressScript, "consume", s.Socket, string(kind), "4")
			require.Equal(t, "ready", consumer.Line(t))
			producer := from.Start(t, stressScript, "produce", s.Socket, string(kind), string(mempool.Block))
			require.Equal(t, "ready", producer.Line(t))
			producer.Say(t, fmt.Sprint("1 ", frames))
			for n := 1; n <= frames; n++ {
				require.Equal(t, fmt.Sprintf("sent %d %d", n, n), producer.Line(t))
				require.Equal(t, fmt.Sprintf("got %d %d 0", n, n), consumer.Line(t))
			}
			producer.End(t)
			require.NoError(t, ch.Close(ctx))
			assert.Equal(t, "ended", consumer.End(t))
		})
	}
}

package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// neighborRole is an environment variable. If it is set, this program is a neighbor of the benchmark, and the value
// of the variable is a key of the map neighbors.
const neighborRole = "POOLBRIDGE_TEST_NEIGHBOR"

const holderSessions, buffersEach = 1000, 100

// neighbors are functions that other processes run while the benchmark measures transfers. When a function has finished
// its preparation, it calls its parameter began.
var neighbors = map[string]func(ctx context.Context, socket string, began func()) error{
	"holds": func(ctx context.Context, socket string, began func()) error {
		for range holderSessions {
			c, err := bridge.Dialer{Wait: true}.Dial(ctx, socket)
			if err != nil {
				return err
			}
			pool, err := c.TryOpenPool(ctx, "p")
			if err != nil {
				return err
			}
			for range buffersEach {
				if _, err := pool.TryAllocate(ctx, mempool.Bytes(64)); err != nil {
					return err
				}
			}
		}
		began()
		<-ctx.Done()
		return nil
	},
	"computes": func(ctx context.Context, _ string, began func()) error {
		began()
		for ctx.Err() == nil {
		}
		return nil
	},
	"lists once a second": func(ctx context.Context, socket string, began func()) error {
		return lists(ctx, socket, began, time.Second)
	},
	"lists without a pause": func(ctx context.Context, socket string, began func()) error { return lists(ctx, socket, began, 0) },
	"has the page open": func(ctx context.Context, socket string, began func()) error {
		web := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(filepath.Dir(socket), "http"))
		}}}
		response, err := web.Get("http://service/page/stream")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		began()
		_, err = io.Copy(io.Discard, response.Body)
		return err
	},
}

// lists reads the list of all buffers again and again, with a pause between two reads.
func lists(ctx context.Context, socket string, began func(), pause time.Duration) error {
	c, err := bridge.Dialer{Wait: true}.Dial(ctx, socket)
	if err != nil {
		return err
	}
	began()
	for {
		for _, err := range c.Buffers(ctx) {
			if err != nil {
				return err
			}
		}
		time.Sleep(pause)
	}
}

// beNeighbor runs the neighbor with a role, until standard input ends.
func beNeighbor(role string) error {
	ctx, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
		os.Exit(0)
	}()
	return neighbors[role](ctx, os.Getenv("POOLBRIDGE_SOCKET"), func() { fmt.Println("began") })
}

// beside starts a neighbor in a new process, and returns a function that ends the process.
func beside(b *testing.B, s *rig.Service, role string) (end func()) {
	b.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), neighborRole+"="+role, "POOLBRIDGE_SOCKET="+s.Socket)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(b, err)
	out, err := c.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, c.Start())
	require.True(b, bufio.NewScanner(out).Scan(), "it did not begin")
	return func() {
		require.NoError(b, in.Close())
		require.NoError(b, c.Wait())
	}
}

// serveLarge starts a service that has 1,000 sessions and 100,000 buffers.
func serveLarge(b *testing.B) (s *rig.Service) {
	b.Helper()
	dir, err := os.MkdirTemp("", "pb")
	require.NoError(b, err)
	b.Cleanup(func() { assert.NoError(b, os.RemoveAll(dir)) })
	s = rig.ServeAt(b, filepath.Join(dir, "poolsvc.sock"), "--pool", "name=p,kind=host,max=1GiB", "--limit", fmt.Sprint("sessions=", holderSessions+20), "--http", "unix:"+filepath.Join(dir, "http"))
	b.Cleanup(beside(b, s, "holds"))
	return s
}

// BenchmarkTransferBesideThoseWhoLook measures a transfer through a service with 1,000 sessions and 100,000 buffers: first
// alone, and then while one other process runs. The other process only computes, or lists the buffers of the service,
// or has the page of the service open, or lists the buffers of another service. A process that lists the buffers of another
// service uses as much CPU time as one that lists the buffers of the measured service, but sends no requests to the measured service.
func BenchmarkTransferBesideThoseWhoLook(b *testing.B) {
	s, another := serveLarge(b), serveLarge(b)
	var pools []*bridge.Pool
	var clients []*bridge.Client
	for range 2 {
		c, err := bridge.Dialer{Wait: true}.Dial(b.Context(), s.Socket)
		require.NoError(b, err)
		defer c.Close()
		pool, err := c.TryOpenPool(b.Context(), "p")
		require.NoError(b, err)
		clients, pools = append(clients, c), append(pools, pool)
	}
	last := 0
	transfers := func(b *testing.B) {
		var took []time.Duration
		for b.Loop() {
			last++
			begun := time.Now()
			l, err := pools[0].TryAllocate(b.Context(), mempool.Bytes(64))
			require.NoError(b, err)
			name := fmt.Sprint(last)
			require.NoError(b, l.Publish(b.Context(), mempool.Publication{Name: name}))
			got, err := clients[1].Get(b.Context(), name, bridge.LeaseOptions{})
			require.NoError(b, err)
			require.NoError(b, got.Release(false))
			require.NoError(b, l.Release(false))
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	}
	b.Run("alone", transfers)
	for _, role := range []string{"computes", "lists once a second", "has the page open", "lists without a pause"} {
		b.Run("beside one that "+role, func(b *testing.B) {
			defer beside(b, s, role)()
			transfers(b)
		})
	}
	b.Run("beside one that lists another service", func(b *testing.B) {
		defer beside(b, another, "lists without a pause")()
		transfers(b)
	})
}

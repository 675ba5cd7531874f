package integration

import (
	"context"
	"io"
	"iter"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

func TestWhatClientsDoMovesTheMetricsOfTheService(t *testing.T) {
	path := filepath.Join(t.TempDir(), "http")
	s := rig.Serve(t, "--http", "unix:"+path, "--pool", "name=frames,kind=host,max=1MiB", "--pool", "name=p,kind=host,max=8MiB")
	web := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	t.Cleanup(web.CloseIdleConnections)
	metrics := func() string {
		response, err := web.Get("http://service/metrics")
		require.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return string(text)
	}
	shows := func(texts ...string) { // shows waits, because the service counts a request only after the answer
		t.Helper()
		require.Eventually(t, func() bool {
			text := metrics()
			return !slices.ContainsFunc(texts, func(one string) bool { return !strings.Contains(text, one) })
		}, time.Minute, 10*time.Millisecond, "%q", texts)
	}
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	pool, err := c.TryOpenPool(t.Context(), "frames")
	require.NoError(t, err)
	ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "camera", Pool: pool.Info().ID, Capacity: 4})
	require.NoError(t, err)
	l, err := pool.TryAllocate(t.Context(), mempool.Bytes(4096))
	require.NoError(t, err)
	_, err = pool.TryAllocate(t.Context(), mempool.Bytes(2<<20))
	require.ErrorIs(t, err, bridge.ErrLimit)
	shows(`poolbridge_pool_leased_bytes{UUID="",gpu="",kind="host",pool="frames"} 4096`,
		`poolbridge_pool_used_bytes{UUID="",gpu="",kind="host",pool="frames"} 4096`,
		`poolbridge_pool_reserved_bytes{UUID="",gpu="",kind="host",pool="frames"} 4096`,
		`poolbridge_pool_blocks{UUID="",gpu="",kind="host",pool="frames"} 1`,
		"poolbridge_leases 1", "poolbridge_buffers 1",
		`poolbridge_requests_total{operation="alloc",result="ok"} 1`,
		`poolbridge_requests_total{operation="alloc",result="limit"} 1`,
		`poolbridge_request_duration_seconds_count{operation="alloc"} 2`,
		"poolbridge_sessions 1",
		`poolbridge_channel_frames_total{channel="camera",full="block",mode="broadcast",pool="frames"} 0`)
	_, err = ch.Publish(t.Context(), l, mempool.FrameOptions{})
	require.NoError(t, err)
	shows(`poolbridge_channel_frames_total{channel="camera",full="block",mode="broadcast",pool="frames"} 1`,
		`poolbridge_channel_dropped_frames_total{channel="camera",full="block",mode="broadcast",pool="frames"} 0`)
	shows(`poolbridge_driver_calls_total{call="allocate"} 1`)
	next, stop := iter.Pull2(ch.Frames(t.Context(), mempool.SubscribeOptions{Oldest: true, Full: mempool.DropOldest}))
	_, err, _ = next()
	require.NoError(t, err)
	for range 6 { // the channel keeps four of these six frames
		l, err := pool.TryAllocate(t.Context(), mempool.Bytes(4096))
		require.NoError(t, err)
		_, err = ch.Publish(t.Context(), l, mempool.FrameOptions{})
		require.NoError(t, err)
	}
	shows(`poolbridge_channel_subscriber_lag_frames{channel="camera",full="block",mode="broadcast",pool="frames",subscriber="0"} 6`,
		`poolbridge_channel_waiting_frames{channel="camera",full="block",mode="broadcast",pool="frames"} 6`,
		`poolbridge_channel_used_frames{channel="camera",full="block",mode="broadcast",pool="frames"} 4`,
		`poolbridge_channel_dropped_frames_total{channel="camera",full="block",mode="broadcast",pool="frames"} 2`)
	f, err, _ := next()
	require.NoError(t, err)
	assert.EqualValues(t, 2, f.Dropped)
	shows(`poolbridge_channel_subscriber_lag_frames{channel="camera",full="block",mode="broadcast",pool="frames",subscriber="0"} 3`,
		`poolbridge_channel_dropped_frames_total{channel="camera",full="block",mode="broadcast",pool="frames"} 2`)
	stop()
	shows(`poolbridge_events_total{kind="pool-full"} 1`)
	require.NoError(t, c.Close())
	left := regexp.MustCompile(`poolbridge_sessions_ended_total{how="left"} [2-9]`)
	require.Eventually(t, func() bool { return left.MatchString(metrics()) }, time.Minute, 10*time.Millisecond)
	shows(`poolbridge_sessions_ended_total{how="lost"} 0`, "poolbridge_reclaim_duration_seconds_count 0", "process_open_fds")

	worker := leaseHolder(t, s)
	require.NoError(t, worker.Process.Kill())
	shows(`poolbridge_sessions_ended_total{how="lost"} 1`, "poolbridge_reclaim_duration_seconds_count 1",
		`poolbridge_pool_cached_bytes{UUID="",gpu="",kind="host",pool="p"} 1.048576e+06`)

	c, err = bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := c.Get(ctx, "nothing", bridge.LeaseOptions{})
		ended <- err
	}()
	shows(`poolbridge_waiting_requests{for="name"} 1`)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, c.Close())
	shows(`poolbridge_waiting_requests{for="name"} 0`)
}

func TestFlagsOfHTTPThatMeanNothingAloneAreRefused(t *testing.T) {
	out, err := poolsvc(t, "serve", "--pprof")
	require.Error(t, err)
	assert.Contains(t, out, "--http")
	out, err = poolsvc(t, "serve", "--http", "0.0.0.0:0")
	require.Error(t, err)
	assert.Contains(t, out, "--http-allow-remote")
}

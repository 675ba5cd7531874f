package integration

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
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
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	pool, err := c.OpenPool(t.Context(), "frames", 0)
	require.NoError(t, err)
	ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "camera", Pool: pool.Info().ID, Capacity: 4})
	require.NoError(t, err)
	l, err := pool.Allocate(t.Context(), mempool.Bytes(4096), 0)
	require.NoError(t, err)
	_, err = pool.Allocate(t.Context(), mempool.Bytes(2<<20), 0)
	require.ErrorIs(t, err, bridge.ErrLimit)
	text := metrics()
	assert.Contains(t, text, `poolbridge_pool_leased_bytes{UUID="",gpu="",kind="host",pool="frames"} 4096`)
	assert.Contains(t, text, `poolbridge_requests_total{operation="alloc",result="ok"} 1`)
	assert.Contains(t, text, `poolbridge_requests_total{operation="alloc",result="limit"} 1`)
	assert.Contains(t, text, `poolbridge_request_duration_seconds_count{operation="alloc"} 2`)
	assert.Contains(t, text, "poolbridge_sessions 2")
	assert.Contains(t, text, `poolbridge_channel_frames_total{channel="camera",pool="frames"} 0`)
	_, err = ch.Publish(t.Context(), l, mempool.FrameOptions{})
	require.NoError(t, err)
	assert.Contains(t, metrics(), `poolbridge_channel_frames_total{channel="camera",pool="frames"} 1`)
	assert.Contains(t, metrics(), `poolbridge_driver_calls_total{call="allocate"} 1`)
	assert.Contains(t, metrics(), `poolbridge_events_total{kind="pool-full"} 1`)
	require.NoError(t, c.Close())
	assert.Contains(t, metrics(), `poolbridge_sessions_ended_total{how="left"}`)
	assert.Contains(t, metrics(), `poolbridge_sessions_ended_total{how="lost"} 0`)
	assert.Contains(t, metrics(), "poolbridge_reclaim_duration_seconds_count 0")
	assert.Contains(t, metrics(), "process_open_fds")

	worker := leaseHolder(t, s)
	require.NoError(t, worker.Process.Kill())
	require.Eventually(t, func() bool {
		text := metrics()
		return strings.Contains(text, `poolbridge_sessions_ended_total{how="lost"} 1`) && strings.Contains(text, "poolbridge_reclaim_duration_seconds_count 1")
	}, time.Minute, 10*time.Millisecond)

	c, err = bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := c.Get(ctx, "nothing", bridge.LeaseOptions{Wait: time.Hour})
		ended <- err
	}()
	require.Eventually(t, func() bool { return strings.Contains(metrics(), `poolbridge_waiting_requests{for="name"} 1`) }, time.Minute, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, c.Close())
	assert.Contains(t, metrics(), `poolbridge_waiting_requests{for="name"} 0`)
}

func TestFlagsOfHTTPThatMeanNothingAloneAreRefused(t *testing.T) {
	out, err := poolsvc(t, "serve", "--pprof")
	require.Error(t, err)
	assert.Contains(t, out, "--http")
	out, err = poolsvc(t, "serve", "--http", "0.0.0.0:0")
	require.Error(t, err)
	assert.Contains(t, out, "--http-allow-remote")
}

package metrics

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// fake is a Source that returns the given values.
type fake struct {
	stats    mempool.ServiceStats
	channels []service.Flow
	counts   mempool.Counts
}

func (f *fake) Stats() mempool.ServiceStats { return f.stats }
func (f *fake) Flows() []service.Flow       { return f.channels }
func (f *fake) Counts() mempool.Counts      { return f.counts }

func channel(id uint64, name string, mode mempool.ChannelMode) mempool.ChannelIdentity {
	return mempool.ChannelIdentity{ID: id, ChannelSpec: mempool.ChannelSpec{Name: name, Pool: 2, Mode: mode, Capacity: 8, Full: mempool.Block}}
}

func busy() *fake {
	return &fake{
		stats: mempool.ServiceStats{Sessions: 3, Leases: 2, Buffers: 4, Names: 1, Pools: []mempool.PoolStats{
			{Pool: mempool.PoolInfo{ID: 1, Name: "frames", Kind: mempool.Host, MaxBytes: 9, Device: mempool.NoDevice}},
			{Pool: mempool.PoolInfo{ID: 2, Name: "frames", Kind: mempool.Device, MaxBytes: 1000, Device: mempool.DeviceInfo{Ordinal: 1, UUID: "GPU-x"}}, Reserved: 700,
				Leased: 500, Used: 400, Cached: 150, Held: 50, Blocks: 7},
		}},
		channels: []service.Flow{
			{ChannelInfo: mempool.ChannelInfo{ChannelIdentity: channel(1, "camera", mempool.Broadcast), Closed: true, Published: 1}},
			{
				ChannelInfo: mempool.ChannelInfo{ChannelIdentity: channel(3, "camera", mempool.Broadcast), Producers: 1, Consumers: 3,
					Published: 100, Waiting: 5, Used: 6, Dropped: 40},
				Members: []service.FlowMember{{Session: 4, Role: service.Consumer, Behind: 5}, {Session: 4, Role: service.Consumer, Seat: 63, Behind: 1},
					{Session: 5, Role: service.Consumer, Seat: 64}, {Session: 6, Role: service.Producer, Seat: 1}},
			},
			{
				ChannelInfo: mempool.ChannelInfo{ChannelIdentity: channel(4, "jobs", mempool.WorkQueue), Consumers: 1},
				Members:     []service.FlowMember{{Session: 4, Role: service.Consumer}},
			},
		},
		counts: mempool.Counts{Events: map[mempool.EventKind]uint64{mempool.PoolFull: 3}, Endings: map[mempool.SessionEnding]uint64{mempool.SessionLost: 2},
			Waiting: map[string]int{"room": 1}, DriverCalls: map[string]uint64{"allocate": 7}, DriverErrors: map[string]uint64{"allocate": 4},
			Reclaims: mempool.Durations{Count: 2, Sum: 3 * time.Second, Buckets: map[time.Duration]uint64{time.Second: 1, time.Minute: 2}}},
	}
}

func registry(t *testing.T, from Source) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(Collector{from}))
	return r
}

func TestSeriesFollowTheConventionsOfPrometheus(t *testing.T) {
	r := registry(t, busy())
	NewRequests(r).Answered("alloc", "ok", time.Millisecond)
	problems, err := testutil.GatherAndLint(r)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func TestEveryNumberOfAServiceIsASeries(t *testing.T) {
	want := `
# HELP poolbridge_channel_capacity_frames Frames that the channel keeps.
# TYPE poolbridge_channel_capacity_frames gauge
poolbridge_channel_capacity_frames{channel="camera",full="block",mode="broadcast",pool="frames"} 8
poolbridge_channel_capacity_frames{channel="jobs",full="block",mode="queue",pool="frames"} 8
# HELP poolbridge_channel_dropped_frames_total Frames that consumers missed because they were behind; of a queue, frames that no consumer got.
# TYPE poolbridge_channel_dropped_frames_total counter
poolbridge_channel_dropped_frames_total{channel="camera",full="block",mode="broadcast",pool="frames"} 40
poolbridge_channel_dropped_frames_total{channel="jobs",full="block",mode="queue",pool="frames"} 0
# HELP poolbridge_channel_subscriber_lag_frames Frames that a consumer of a broadcast has not taken; subscriber is its seat in the channel.
# TYPE poolbridge_channel_subscriber_lag_frames gauge
poolbridge_channel_subscriber_lag_frames{channel="camera",full="block",mode="broadcast",pool="frames",subscriber="0"} 5
poolbridge_channel_subscriber_lag_frames{channel="camera",full="block",mode="broadcast",pool="frames",subscriber="63"} 1
# HELP poolbridge_channel_used_frames Places of the channel that are taken up: if that is the capacity, the next frame waits, fails, or drops another.
# TYPE poolbridge_channel_used_frames gauge
poolbridge_channel_used_frames{channel="camera",full="block",mode="broadcast",pool="frames"} 6
poolbridge_channel_used_frames{channel="jobs",full="block",mode="queue",pool="frames"} 0
# HELP poolbridge_channel_frames_total Frames that were published.
# TYPE poolbridge_channel_frames_total counter
poolbridge_channel_frames_total{channel="camera",full="block",mode="broadcast",pool="frames"} 100
poolbridge_channel_frames_total{channel="jobs",full="block",mode="queue",pool="frames"} 0
# HELP poolbridge_driver_calls_total Calls of the driver or the system for pools and blocks.
# TYPE poolbridge_driver_calls_total counter
poolbridge_driver_calls_total{call="allocate"} 7
# HELP poolbridge_driver_errors_total Of these calls, those that failed.
# TYPE poolbridge_driver_errors_total counter
poolbridge_driver_errors_total{call="allocate"} 4
# HELP poolbridge_events_total Events, by kind, including those that the history does not have one by one.
# TYPE poolbridge_events_total counter
poolbridge_events_total{kind="pool-full"} 3
# HELP poolbridge_reclaim_duration_seconds How long memory was held for the processes of sessions that had ended.
# TYPE poolbridge_reclaim_duration_seconds histogram
poolbridge_reclaim_duration_seconds_bucket{le="1"} 1
poolbridge_reclaim_duration_seconds_bucket{le="60"} 2
poolbridge_reclaim_duration_seconds_bucket{le="+Inf"} 2
poolbridge_reclaim_duration_seconds_sum 3
poolbridge_reclaim_duration_seconds_count 2
# HELP poolbridge_sessions_ended_total Sessions that ended, by how they ended: left, lost, error, closed, shutdown.
# TYPE poolbridge_sessions_ended_total counter
poolbridge_sessions_ended_total{how="lost"} 2
# HELP poolbridge_waiting_requests Requests that wait, by what they wait for.
# TYPE poolbridge_waiting_requests gauge
poolbridge_waiting_requests{for="room"} 1
# HELP poolbridge_pool_leased_bytes Bytes of the blocks that buffers use.
# TYPE poolbridge_pool_leased_bytes gauge
poolbridge_pool_leased_bytes{UUID="GPU-x",gpu="1",kind="device",pool="frames"} 500
# HELP poolbridge_pool_held_bytes Bytes of free blocks that are being recalled, freed, or wait for a process to end.
# TYPE poolbridge_pool_held_bytes gauge
poolbridge_pool_held_bytes{UUID="GPU-x",gpu="1",kind="device",pool="frames"} 50
# HELP poolbridge_sessions Sessions that have not ended.
# TYPE poolbridge_sessions gauge
poolbridge_sessions 3
`
	require.NoError(t, testutil.GatherAndCompare(registry(t, busy()), strings.NewReader(want), "poolbridge_channel_capacity_frames",
		"poolbridge_channel_frames_total", "poolbridge_channel_dropped_frames_total", "poolbridge_channel_used_frames",
		"poolbridge_channel_subscriber_lag_frames", "poolbridge_pool_leased_bytes", "poolbridge_pool_held_bytes", "poolbridge_sessions", "poolbridge_events_total",
		"poolbridge_sessions_ended_total", "poolbridge_reclaim_duration_seconds", "poolbridge_waiting_requests", "poolbridge_driver_calls_total",
		"poolbridge_driver_errors_total"))
}

func TestASeriesSaysHowLongProducersHaveWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := busy()
		from.channels[2].BlockedSince = time.Now()
		time.Sleep(90 * time.Second)
		want := `
# HELP poolbridge_channel_blocked_seconds How long producers have waited for room because consumers are behind; 0: they do not wait.
# TYPE poolbridge_channel_blocked_seconds gauge
poolbridge_channel_blocked_seconds{channel="camera",full="block",mode="broadcast",pool="frames"} 0
poolbridge_channel_blocked_seconds{channel="jobs",full="block",mode="queue",pool="frames"} 90
`
		require.NoError(t, testutil.GatherAndCompare(registry(t, from), strings.NewReader(want), "poolbridge_channel_blocked_seconds"))
	})
}

func TestRequestsAreCountedByOperationAndResult(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	requests := NewRequests(r)
	requests.Answered("alloc", "ok", time.Millisecond)
	requests.Answered("alloc", "limit", time.Second)
	requests.Answered("alloc", "ok", time.Millisecond)
	assert.InDelta(t, 2, testutil.ToFloat64(requests.answered.WithLabelValues("alloc", "ok")), 0)
	assert.InDelta(t, 1, testutil.ToFloat64(requests.answered.WithLabelValues("alloc", "limit")), 0)
	assert.Equal(t, 1, testutil.CollectAndCount(requests.took))
}

func serve(t *testing.T, c Config, healthy func(context.Context) error) *Server {
	t.Helper()
	c.Log = slog.New(slog.DiscardHandler)
	if c.Ready == nil {
		c.Ready = healthy
	}
	s, err := Serve(c, registry(t, busy()), healthy)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func well(context.Context) error { return nil }

func get(t *testing.T, method, url, host string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	require.NoError(t, err)
	if host != "" {
		r.Host = host
	}
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

func TestMetricsAndHealthAreServed(t *testing.T) {
	sick := errors.New("it does not answer")
	var wrong error
	s := serve(t, Config{Address: "127.0.0.1:0"}, func(context.Context) error { return wrong })
	url := "http://" + s.Addr().String()
	code, text := get(t, "GET", url+"/metrics", "")
	assert.Equal(t, 200, code)
	assert.Contains(t, text, "poolbridge_pool_reserved_bytes")
	code, _ = get(t, "GET", url+"/healthz", "")
	assert.Equal(t, 200, code)
	wrong = sick
	code, text = get(t, "GET", url+"/readyz", "")
	assert.Equal(t, 503, code)
	assert.Contains(t, text, sick.Error())
	code, _ = get(t, "GET", url+"/debug/pprof/", "")
	assert.Equal(t, 404, code, "profiles are served on request")
}

func TestAHealthyServiceMayNotBeReadyYet(t *testing.T) {
	early := errors.New("it does not listen yet")
	url := "http://" + serve(t, Config{Address: "127.0.0.1:0", Ready: func(context.Context) error { return early }}, well).Addr().String()
	code, _ := get(t, "GET", url+"/healthz", "")
	assert.Equal(t, 200, code)
	code, text := get(t, "GET", url+"/readyz", "")
	assert.Equal(t, 503, code)
	assert.Contains(t, text, early.Error())
}

func TestNothingCanBeChangedOverHTTP(t *testing.T) {
	url := "http://" + serve(t, Config{Address: "127.0.0.1:0", Profile: true}, well).Addr().String()
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
		for _, path := range []string{"/metrics", "/healthz", "/debug/pprof/"} {
			code, _ := get(t, method, url+path, "")
			assert.Equal(t, 405, code, method+path)
		}
	}
}

func TestARequestThatNamesAnotherHostIsRefused(t *testing.T) {
	url := "http://" + serve(t, Config{Address: "127.0.0.1:0"}, well).Addr().String()
	for host, want := range map[string]int{"evil.example:80": 403, "evil.example": 403, "localhost:80": 200, "LOCALHOST:80": 200, "[::1]:80": 200, "127.0.0.1": 200} {
		code, _ := get(t, "GET", url+"/metrics", host)
		assert.Equal(t, want, code, host)
	}
}

func TestAnAddressThatOtherMachinesReachHasToBeAllowed(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, address := range []string{":0", "0.0.0.0:0", "[::]:0", "192.0.2.1:0"} {
		_, err := Serve(Config{Address: address, Log: log}, registry(t, busy()), well)
		require.ErrorIs(t, err, ErrRemote, address)
		assert.ErrorContains(t, err, "--http-allow-remote")
	}
	serve(t, Config{Address: "0.0.0.0:0", AllowRemote: true}, well)
}

func TestAnAddressInUseIsSaid(t *testing.T) {
	first := serve(t, Config{Address: "127.0.0.1:0"}, well)
	_, err := Serve(Config{Address: first.Addr().String(), Log: slog.New(slog.DiscardHandler)}, registry(t, busy()), well)
	require.ErrorContains(t, err, "address already in use")
	_, err = Serve(Config{Address: "nonsense", Log: slog.New(slog.DiscardHandler)}, registry(t, busy()), well)
	require.ErrorContains(t, err, "expected HOST:PORT")
}

func TestASocketOfTheFileSystemIsThisUsersAloneAndTakenOverOnceNobodyListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "http")
	stale, err := net.Listen("unix", path)
	require.NoError(t, err)
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	_, err = Serve(Config{Address: "unix:" + path, Log: slog.New(slog.DiscardHandler)}, registry(t, busy()), well)
	require.ErrorContains(t, err, "another process listens there")
	require.NoError(t, stale.Close())
	serve(t, Config{Address: "unix:" + path}, well)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm())
	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}}
	response, err := client.Get("http://any/healthz")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Equal(t, 200, response.StatusCode)
}

func TestASocketWhoseFileIsLostIsMadeAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "http")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	losses := make(chan [2]error, 10)
	s := serve(t, Config{Address: "unix:" + path, OnLost: func(lost, failed error) { losses <- [2]error{lost, failed} }}, well)
	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}}
	defer client.CloseIdleConnections()
	require.NoError(t, os.Remove(path))
	one := <-losses
	require.ErrorIs(t, one[0], seqpacket.ErrSocketLost)
	require.NoError(t, one[1])
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm())
	response, err := client.Get("http://any/healthz")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Equal(t, 200, response.StatusCode)

	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("keep"), 0o600))
	assert.ErrorContains(t, (<-losses)[1], "is not a socket")
	require.NoError(t, os.Remove(path))
	require.NoError(t, (<-losses)[1], "it tries again")
	require.NoError(t, s.Close())
	assert.NoFileExists(t, path)
}

func TestNoFileIsRemovedForTheSocketOfHTTPExceptADeadSocketOfThisUser(t *testing.T) {
	dir := t.TempDir()
	notes, link, dead := filepath.Join(dir, "notes.txt"), filepath.Join(dir, "link"), filepath.Join(dir, "dead")
	require.NoError(t, os.WriteFile(notes, []byte("keep"), 0o600))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	for _, target := range []string{notes, dead, filepath.Join(dir, "nothing")} {
		require.NoError(t, os.Symlink(target, link))
		for _, path := range []string{notes, link, dir} {
			_, err := Serve(Config{Address: "unix:" + path, Log: slog.New(slog.DiscardHandler)}, registry(t, busy()), well)
			require.ErrorContains(t, err, "is not a socket: remove it, or choose another path")
		}
		text, err := os.ReadFile(notes)
		require.NoError(t, err)
		assert.Equal(t, "keep", string(text))
		assert.FileExists(t, dead)
		require.NoError(t, os.Remove(link), "the link is still there")
	}
}

func TestADeadSocketOfAnotherUserStaysWhereHTTPIsToListen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
	const other = 4242
	dead := filepath.Join(t.TempDir(), "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	require.NoError(t, os.Chown(dead, other, other))
	_, err = Serve(Config{Address: "unix:" + dead, Log: slog.New(slog.DiscardHandler)}, registry(t, busy()), well)
	require.ErrorContains(t, err, "a file of user 4242 is there: remove it, or choose another path")
	assert.FileExists(t, dead)
}

func TestTheEndOfAServerRemovesItsOwnSocketAndNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "http")
	config := Config{Address: "unix:" + path, Log: slog.New(slog.DiscardHandler)}
	first, err := Serve(config, registry(t, busy()), well)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	second, err := Serve(config, registry(t, busy()), well)
	require.NoError(t, err)
	require.NoError(t, first.Close())
	assert.FileExists(t, path, "it is the socket of the second server")
	require.NoError(t, second.Close())
	assert.NoFileExists(t, path)
}

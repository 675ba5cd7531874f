package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// busy returns a service with a pool, two sessions and a buffer of each use.
func busy(t *testing.T) *service.Service {
	t.Helper()
	svc := service.New(service.Config{})
	t.Cleanup(svc.Close)
	writer, err := svc.OpenSession(mempool.Self(), "train\x1b[2J.py", nil)
	require.NoError(t, err)
	reader, err := svc.OpenSession(mempool.Self(), "infer.py", nil)
	require.NoError(t, err)
	pool, err := writer.CreatePool(mempool.PoolSpec{Name: "models", Kind: mempool.Host, MaxBytes: 1 << 20})
	require.NoError(t, err)
	for _, tensor := range []mempool.Tensor{{DType: mempool.Float32, Shape: []uint64{64, 128}}, mempool.Bytes(4096)} {
		g, err := writer.Allocate(t.Context(), pool.Info().ID, tensor, 0, 0)
		require.NoError(t, err)
		if tensor.DType == mempool.Float32 {
			_, err = writer.Publish(g.Grant.ID, mempool.Publication{Name: "weights"})
			require.NoError(t, err)
		}
	}
	_, err = reader.Get(t.Context(), "weights", false, service.Known{}, 0)
	require.NoError(t, err)
	return svc
}

// serve serves a page whose looks follow each other without a pause.
func serve(t *testing.T, p *Page) *httptest.Server {
	t.Helper()
	p.feed.interval = time.Millisecond
	mux := http.NewServeMux()
	p.Register(mux)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Cleanup(p.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return s
}

// answer is the response to a request. The body is closed when the test ends.
type answer struct {
	status int
	header http.Header
	body   io.ReadCloser
}

func get(t *testing.T, url string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return answer{response.StatusCode, response.Header, response.Body}
}

// eventually waits until a condition is true.
func eventually(t *testing.T, so func() bool) {
	t.Helper()
	for !so() {
		require.NoError(t, t.Context().Err())
		time.Sleep(time.Millisecond)
	}
}

func (f *feed) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readers
}

// readEvent reads one server-sent event.
func readEvent(t *testing.T, from *bufio.Reader) (kind, data string) {
	t.Helper()
	for {
		text, err := from.ReadString('\n')
		require.NoError(t, err)
		name, value, _ := strings.Cut(strings.TrimSuffix(text, "\n"), ": ")
		switch name {
		case "event":
			kind = value
		case "data":
			data = value
		case "id":
			assert.NotEmpty(t, value)
		case "":
			return kind, data
		default:
			require.Fail(t, "unexpected field", text)
		}
	}
}

func TestEveryPartOfThePageIsServedAndNothingComesFromElsewhere(t *testing.T) {
	s := serve(t, New(busy(t), "1.2.3"))
	addresses := regexp.MustCompile(`(https?:)?//[a-z0-9]+\.[a-z0-9.]+`)
	var files []string
	require.NoError(t, fs.WalkDir(assets, "assets", func(path string, d fs.DirEntry, err error) error {
		if !d.IsDir() {
			files = append(files, d.Name())
		}
		return err
	}))
	require.Contains(t, files, "main.js")
	for _, file := range append(files, "") {
		path := "/page/" + file
		if file == "" || file == "index.html" {
			path = "/"
		}
		response := get(t, s.URL+path)
		assert.Equal(t, http.StatusOK, response.status, path)
		assert.Equal(t, policy, response.header.Get("Content-Security-Policy"))
		assert.Empty(t, response.header.Get("Access-Control-Allow-Origin"))
		var text bytes.Buffer
		_, err := text.ReadFrom(response.body)
		require.NoError(t, err)
		for _, found := range addresses.FindAllString(text.String(), -1) {
			assert.Equal(t, "http://www.w3.org", found, "%s: the name space of SVG alone", path)
		}
		assert.NotRegexp(t, `(?i)innerHTML|\son[a-z]+=|<script>|<style|style="`, text.String(), path)
	}
	assert.Equal(t, http.StatusNotFound, get(t, s.URL+"/page/..%2fpage.go").status)
}

func TestThePageNamesFirstWhoBlocksAndThenWhoWaits(t *testing.T) {
	holders := make([]service.Holder, 4)
	for i := range holders {
		holders[i].ID, holders[i].Bytes = uint64(i+1), 100-uint64(i)
	}
	flow := service.Flow{ChannelInfo: mempool.ChannelInfo{Blocked: true, Slowest: 4, Consumers: 2}, Members: []service.FlowMember{
		{Session: 3, Program: "camera.py", Role: service.Producer}, {Session: 4, Role: service.Consumer}, {Session: 2, Role: service.Consumer}}}
	shown := encoder{of: busy(t)}.look(service.Overview{Holders: holders, Flows: []service.Flow{flow}}, time.Now())
	var order [][2]int
	for _, s := range shown.Sessions {
		order = append(order, [2]int{int(s.ID), s.Part})
	}
	assert.Equal(t, [][2]int{{4, 2}, {3, 1}, {1, 0}, {2, 0}}, order)
	assert.True(t, shown.Channels[0].Blocks)
	assert.Equal(t, "camera.py", shown.Channels[0].Victims)
}

func TestABlockOfSeveralArraysSaysHowToGetThem(t *testing.T) {
	several := mempool.Tensor{DType: mempool.Uint8, Shape: []uint64{9}, LayoutBytes: 1}
	assert.Equal(t, "several arrays: client.get_dict(NAME)", tensor(several))
}

func TestAQueueWithoutAConsumerThatDropsFramesStandsAmongTheChannelsThatBlock(t *testing.T) {
	info := mempool.ChannelInfo{Untaken: true}
	info.Mode = mempool.WorkQueue
	worked := info
	worked.Untaken = false
	shown := encoder{of: busy(t)}.look(service.Overview{Flows: []service.Flow{{ChannelInfo: info}, {ChannelInfo: worked}}}, time.Now())
	assert.True(t, shown.Channels[0].Blocks)
	assert.False(t, shown.Channels[1].Blocks)
}

func TestThePageIsForThisMachineAlone(t *testing.T) {
	mux := http.NewServeMux()
	p := New(busy(t), "1.2.3")
	t.Cleanup(p.Close)
	p.Register(mux)
	tcp := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 9377}
	for _, one := range []struct {
		remote, host string
		at           net.Addr
		want         int
	}{
		{"127.0.0.1:40000", "127.0.0.1:9377", tcp, 200},
		{"[::1]:40000", "[::1]:9377", tcp, 200},
		{"[::1]:40000", "[::1]", tcp, 200},
		{"127.0.0.1:40000", "localhost:9377", tcp, 200},
		{"[::ffff:127.0.0.1]:40000", "localhost", tcp, 200},
		{"192.0.2.9:40000", "192.0.2.7:9377", tcp, 403},
		{"192.0.2.9:40000", "localhost:9377", tcp, 403},
		{"127.0.0.1:40000", "evil.example:9377", tcp, 403},
		{"127.0.0.1:40000", "localhost.evil.example", tcp, 403},
		{"@", "any", &net.UnixAddr{Name: "/run/http", Net: "unix"}, 200},
	} {
		for _, path := range []string{"/", "/page/main.js", "/page/stream"} {
			r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, one.at), http.MethodHead, path, http.NoBody)
			r.RemoteAddr, r.Host = one.remote, one.host
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r)
			assert.Equal(t, one.want, w.Code, "%+v %s", one, path)
			if one.want == 403 {
				assert.Contains(t, w.Body.String(), "ssh -L 9377:127.0.0.1:9377")
			}
		}
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/page/stream", http.NoBody))
	assert.Equal(t, http.StatusMethodNotAllowed, w.Code)
}

func TestTheStreamTellsWhatTheServiceHas(t *testing.T) {
	svc := busy(t)
	response := get(t, serve(t, New(svc, "1.2.3")).URL+"/page/stream")
	assert.Equal(t, "text/event-stream", response.header.Get("Content-Type"))
	from := bufio.NewReader(response.body)
	var seen look
	var maps atlas
	var events []event
	for _, want := range []string{"map", "events", "look"} { // the page draws when the look comes
		kind, data := readEvent(t, from)
		require.Equal(t, want, kind)
		require.NoError(t, json.Unmarshal([]byte(data), map[string]any{"look": &seen, "map": &maps, "events": &events}[kind]))
	}
	assert.Equal(t, "1.2.3", seen.Version)
	assert.Equal(t, svc.Epoch().String(), seen.Epoch)
	require.Len(t, seen.Sessions, 2)
	assert.Equal(t, "train?[2J.py", seen.Sessions[0].Program, "the one that holds most comes first")
	assert.EqualValues(t, mempool.Self().PID, seen.Sessions[0].PID)
	assert.Equal(t, svc.Stats().Pools[0].Leased, seen.Sessions[0].Bytes)
	require.Len(t, maps.Pools[0].Blocks, 2)
	first := maps.Pools[0].Blocks[0]
	assert.Equal(t, "float32 [64, 128]", first.Tensor)
	assert.Equal(t, "weights v1", first.Name)
	assert.Equal(t, "read", first.Use)
	assert.Contains(t, first.Readers, seen.Sessions[1].ID)
	total := uint64(0)
	for _, b := range maps.Pools[0].Blocks {
		total += b.Bytes
	}
	assert.Equal(t, maps.Pools[0].Reserved, total)
	assert.Equal(t, seen.Pools[0].Reserved, total)
	assert.Equal(t, string(mempool.SessionBegan), events[len(events)-1].Kind, "the newest event comes first")
	_, err := svc.OpenSession(mempool.Self(), "", nil)
	require.NoError(t, err)
	for seen.Count != 3 {
		kind, data := readEvent(t, from)
		if kind == "look" {
			require.NoError(t, json.Unmarshal([]byte(data), &seen))
		}
	}
}

func TestNothingIsLookedAtWhileNoPageIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		f := newFeed(func(int) (made [messages][]byte, took time.Duration) {
			return made, time.Duration(looks.Add(1))
		})
		time.Sleep(time.Minute)
		assert.Zero(t, looks.Load())
		require.NoError(t, f.join())
		synctest.Wait()
		assert.EqualValues(t, 1, looks.Load(), "the first page waits for nothing")
		f.removeReader()
		time.Sleep(time.Minute)
		assert.EqualValues(t, 1, looks.Load())
		f.close()
	})
}

func TestAllPagesTogetherCostTheServiceOneLookASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks, withMaps atomic.Int64
		f := newFeed(func(most int) (made [messages][]byte, took time.Duration) {
			looks.Add(1)
			if most > 0 {
				withMaps.Add(1)
				took = 50 * time.Millisecond
			}
			return made, took
		})
		for range maxPages {
			require.NoError(t, f.join())
		}
		require.ErrorIs(t, f.join(), errFull)
		for range 100 { // the feed does no more work if pages are opened and closed
			f.removeReader()
			synctest.Wait()
			require.NoError(t, f.join())
		}
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		assert.EqualValues(t, 60, looks.Load())
		assert.EqualValues(t, 6, withMaps.Load(), "what holds others up for 50 ms has a rest of 10 s")
		for range maxPages {
			f.removeReader()
		}
		for range 100 {
			require.NoError(t, f.join())
			synctest.Wait()
			f.removeReader()
			synctest.Wait()
		}
		assert.LessOrEqual(t, looks.Load(), int64(61))
		f.close()
	})
}

func TestAPageThatIsOpenedSoonAfterAnotherHasTheMapThatThereIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(func(most int) (made [messages][]byte, took time.Duration) {
			time.Sleep(time.Millisecond) // until who joined has read what there was
			made[lookMessage] = []byte("a look")
			if most > 0 {
				made[mapMessage] = []byte("a map of " + time.Now().Format(time.TimeOnly))
				took = time.Second / 10
			}
			return made, took
		})
		show := func() (seen [messages]string) {
			require.NoError(t, f.join())
			defer f.removeReader()
			newest, _ := f.read()
			for i, one := range newest {
				seen[i] = string(one.data)
			}
			synctest.Wait()
			return seen
		}
		assert.Equal(t, [messages]string{}, show())
		time.Sleep(10 * time.Second)
		assert.Equal(t, [messages]string{mapMessage: "a map of 00:00:00"}, show(), "the next is due later")
		time.Sleep(10 * time.Second)
		assert.Equal(t, [messages]string{}, show(), "it would be old")
		synctest.Wait()
		f.close()
	})
}

func TestOneMorePageThanThereMayBeIsToldSo(t *testing.T) {
	p := New(busy(t), "1.2.3")
	s := serve(t, p)
	var open []answer
	for range maxPages {
		open = append(open, get(t, s.URL+"/page/stream"))
		require.Equal(t, http.StatusOK, open[0].status)
	}
	for range 500 - maxPages {
		response := get(t, s.URL+"/page/stream")
		require.Equal(t, http.StatusServiceUnavailable, response.status)
		require.Equal(t, "30", response.header.Get("Retry-After"))
		require.NoError(t, response.body.Close())
	}
	require.NoError(t, open[0].body.Close())
	eventually(t, func() bool { return p.feed.count() < maxPages })
	assert.Equal(t, http.StatusOK, get(t, s.URL+"/page/stream").status)
}

func TestAReaderThatNeverReadsIsDropped(t *testing.T) {
	p := New(busy(t), "1.2.3")
	var looks byte
	p.feed.source = func(int) (made [messages][]byte, _ time.Duration) {
		looks++
		made[lookMessage] = bytes.Repeat([]byte{'0' + looks%10}, 8<<20)
		return made, 0
	}
	p.patience = 10 * time.Millisecond
	s := serve(t, p)
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("GET /page/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	require.NoError(t, err)
	eventually(t, func() bool {
		newest, _ := p.feed.read()
		return newest[lookMessage].number > 0
	})
	eventually(t, func() bool { return p.feed.count() == 0 })
}

func TestClosingThePageEndsItsStreams(t *testing.T) {
	p := New(busy(t), "1.2.3")
	response := get(t, serve(t, p).URL+"/page/stream")
	p.Close()
	var rest bytes.Buffer
	_, err := rest.ReadFrom(response.body)
	require.NoError(t, err)
	eventually(t, func() bool { return p.feed.count() == 0 })
}

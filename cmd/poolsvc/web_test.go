package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// openPage is a connection over which the test has requested the stream of the page, with the status and the headers of
// the answer.
type openPage struct {
	net.Conn
	status     int
	retryAfter string
	body       *bufio.Reader
}

func open(t *testing.T, at string) openPage {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	require.NoError(t, err)
	_, err = io.WriteString(conn, "GET /page/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return openPage{conn, response.StatusCode, response.Header.Get("Retry-After"), bufio.NewReader(response.Body)}
}

// descriptors returns how many files this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(files)
}

// The page sends the message "look" only once a second, so this test takes several seconds.
func TestOf500PagesThoseThatCameFirstAreServedAndTheOthersAreToldAndCostNothing(t *testing.T) {
	const served, pages, atOnce = 32, 500, 32
	svc := service.New(service.Config{})
	defer svc.Close()
	well := func(context.Context) error { return nil }
	log := slog.New(slog.DiscardHandler)
	w, err := web{address: "127.0.0.1:0"}.serve(svc, &server.Config{Log: log}, well, well)
	require.NoError(t, err)
	defer w.close(log)
	at := w.server.Addr().String()
	goroutines, files := runtime.NumGoroutine(), descriptors(t)

	looks := func(from *bufio.Reader) { // reads until the next look
		for {
			line, err := from.ReadString('\n')
			require.NoError(t, err)
			if line == "event: look\n" {
				return
			}
		}
	}
	var first []openPage
	for range served {
		page := open(t, at)
		defer page.Close()
		require.Equal(t, http.StatusOK, page.status)
		looks(page.body)
		first = append(first, page)
	}
	most := runtime.NumGoroutine()
	var others sync.WaitGroup
	inFlight := make(chan struct{}, atOnce)
	for range pages - served {
		inFlight <- struct{}{}
		others.Go(func() {
			defer func() { <-inFlight }()
			page := open(t, at)
			defer page.Close()
			text, err := io.ReadAll(page.body)
			assert.NoError(t, err)
			assert.Equal(t, http.StatusServiceUnavailable, page.status)
			assert.Equal(t, "30", page.retryAfter)
			assert.Contains(t, string(text), "32 pages are open already")
		})
	}
	others.Wait()
	for _, page := range first {
		looks(page.body)
		looks(page.body)
	}
	settle := func(files, goroutines int) {
		for descriptors(t) > files || runtime.NumGoroutine() > goroutines {
			require.NoError(t, t.Context().Err())
			time.Sleep(time.Millisecond)
		}
	}
	settle(files+2*served, most) // the refused pages have left nothing open
	for _, page := range first {
		require.NoError(t, page.Close())
	}
	settle(files, goroutines) // the served pages have left nothing open either
	page := open(t, at)
	defer page.Close()
	require.Equal(t, http.StatusOK, page.status, "there is room again")
	looks(page.body)
}

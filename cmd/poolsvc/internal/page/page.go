// Package page serves a web page that shows the pools, sessions and channels of a service, and keeps them up to date.
package page

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

//go:embed assets
var assets embed.FS

// patience is how long a browser may take to read a message. If the browser takes longer, the server ends the stream to
// this browser.
const patience = 10 * time.Second

// policy makes the browser load only files from this server.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'"

// Page serves the web page: its files, and a stream of the data that the page shows.
type Page struct {
	feed     *feed
	patience time.Duration
}

// Source is a service.
type Source interface {
	Epoch() mempool.Epoch
	Overview(most int) service.Overview
	Events(ctx context.Context, after uint64, most int) (mempool.EventPage, error)
	LastEvent() uint64
}

// New makes the page of a service. The page shows `version` as the version of the service.
func New(of Source, version string) *Page {
	return &Page{feed: newFeed(encoder{of, version}.encode), patience: patience}
}

// Register adds the addresses of the page to mux. The page answers only GET and HEAD requests.
func (p *Page) Register(mux *http.ServeMux) {
	files, _ := fs.Sub(assets, "assets") // never fails: the folder is embedded
	static := http.FileServerFS(files)
	mux.Handle("GET /{$}", local(static))
	mux.Handle("GET /page/{file}", local(http.StripPrefix("/page", static)))
	mux.Handle("GET /page/stream", local(http.HandlerFunc(p.stream)))
}

// Close ends the open streams.
func (p *Page) Close() { p.feed.close() }

// local refuses requests from other machines, and requests whose Host header does not name this machine. The reason is that the page,
// unlike the metrics, shows processes and users. Without the check of the Host header, a page of another site could read this page, because
// that site can make its own host name point to this machine.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if at != nil && at.Network() != "unix" && (!loopback(r.RemoteAddr) || !loopback(r.Host)) {
			http.Error(w, "The page tells of processes and users, so it is for this machine alone. From another machine, forward a port: "+
				"ssh -L 9377:"+net.JoinHostPort("127.0.0.1", port(at))+" HOST, and then open http://127.0.0.1:9377/", http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		w.Header().Set("Cross-Origin-Opener-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

// loopback says whether an address is a loopback address. The address may have a port.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if host == "localhost" {
		return true
	}
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func port(at net.Addr) string {
	_, port, _ := net.SplitHostPort(at.String())
	return port
}

// stream sends each message of the feed as a server-sent event. When a message has changed, stream sends it again. If the browser does not
// read a message within the time p.patience, the method `stream` returns, which ends the connection.
func (p *Page) stream(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		return
	}
	if err := p.feed.join(); err != nil {
		w.Header().Set("Retry-After", "30")
		w.Header().Set("Connection", "close")
		http.Error(w, fmt.Sprintf("%d pages are open already, and there may be no more: close one", maxPages), http.StatusServiceUnavailable)
		return
	}
	defer p.feed.removeReader()
	out := http.NewResponseController(w)
	if err := out.SetReadDeadline(time.Time{}); err != nil { // otherwise the server's limit for reading a request would end the stream
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy such as nginx must send each message at once
	var seen [messages]uint64
	for {
		newest, changed := p.feed.read()
		var text bytes.Buffer
		for i, one := range newest {
			if one.number != seen[i] {
				seen[i] = one.number
				frame(&text, [messages]string{"map", "events", "look"}[i], one)
			}
		}
		if text.Len() > 0 {
			if out.SetWriteDeadline(time.Now().Add(p.patience)) != nil {
				return
			}
			if _, err := w.Write(text.Bytes()); err != nil || out.Flush() != nil {
				return
			}
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-p.feed.end:
			return
		}
	}
}

// frame writes a message as a server-sent event. The data of the message are one line of JSON.
func frame(to *bytes.Buffer, event string, m message) {
	to.WriteString("event: " + event + "\nid: " + strconv.FormatUint(m.number, 10) + "\ndata: ")
	to.Write(m.data)
	to.WriteString("\n\n")
}

package page

import (
	"bytes"
	"errors"
	"sync"
	"time"
)

const (
	// interval is the time between two looks at the service while a page is open.
	interval = time.Second
	// rest bounds the share of the time that looks take: after a look the feed pauses rest times as long as the look took, because requests
	// have less of the CPU during a look.
	rest = 200
	// maxBlocks is how many blocks of all pools a map has one by one.
	maxBlocks = 1200
	// maxPages is how many pages may be open.
	maxPages = 32
)

var errFull = errors.New("too many pages are open")

// The messages of a feed. A reader that is behind gets the newest of each.
const (
	lookMessage   = iota // everything else: it changes all the time
	mapMessage           // of the pools
	eventsMessage        // of the history
	messages
)

// feed describes a service for all open pages together, while at least one is open.
type feed struct {
	// source describes the service; most is as in encode. took is how long the service worked on that. A message is nil if there is none.
	source   func(most int) (made [messages][]byte, took time.Duration)
	interval time.Duration

	mu      sync.Mutex
	readers int
	running bool
	newest  [messages]message
	changed chan struct{} // closed when there is a newer message
	closed  bool
	end     chan struct{} // closed by close
	idle    chan struct{} // closed when the last reader has left
	done    sync.WaitGroup
	due     [messages]time.Time
}

// message is a message for the pages. Its number counts the messages of its kind; 0: there is none yet.
type message struct {
	number uint64
	data   []byte
}

func newFeed(source func(most int) ([messages][]byte, time.Duration)) *feed {
	return &feed{source: source, interval: interval, changed: make(chan struct{}), end: make(chan struct{})}
}

// join counts a reader, which must leave.
//
// Errors: errFull.
func (f *feed) join() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers == maxPages {
		return errFull
	}
	f.readers++
	if f.readers == 1 {
		f.idle = make(chan struct{})
	}
	if !f.running && !f.closed {
		f.running = true
		kept := f.newest[mapMessage]
		f.newest = [messages]message{} // these are old
		if time.Now().Before(f.due[mapMessage]) {
			f.newest[mapMessage] = kept // a newer one is not due yet
		}
		f.done.Go(f.run)
	}
	return nil
}

func (f *feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers--; f.readers == 0 {
		close(f.idle)
	}
}

// read returns the newest messages, and a channel that is closed when there are newer ones.
func (f *feed) read() (newest [messages]message, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.newest, f.changed
}

// close ends the feed.
func (f *feed) close() {
	f.mu.Lock()
	if !f.closed {
		f.closed = true
		close(f.end)
	}
	f.mu.Unlock()
	f.done.Wait()
}

// run looks at the service until there is no reader.
func (f *feed) run() {
	for {
		f.mu.Lock()
		if f.readers == 0 || f.closed {
			f.running = false
			f.mu.Unlock()
			return
		}
		idle := f.idle
		f.mu.Unlock()
		pause := time.NewTimer(time.Until(f.due[lookMessage]))
		select {
		case <-pause.C:
			f.look()
		case <-idle:
		case <-f.end:
		}
		pause.Stop()
	}
}

func (f *feed) look() {
	which, most := lookMessage, 0
	begun := time.Now()
	if !begun.Before(f.due[mapMessage]) {
		which, most = mapMessage, maxBlocks
	}
	made, took := f.source(most)
	f.due[lookMessage] = begun.Add(f.interval)
	f.due[which] = begun.Add(max(f.interval, rest*took))
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, one := range made {
		if one != nil && !bytes.Equal(one, f.newest[i].data) {
			f.newest[i] = message{f.newest[i].number + 1, one}
		}
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

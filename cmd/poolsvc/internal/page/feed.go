package page

import (
	"bytes"
	"errors"
	"sync"
	"time"
)

const (
	// interval is how often the service is looked at while a page is open.
	interval = time.Second
	// rest is how many times as long as a look takes the service is left alone afterwards: nobody else is served while it is looked at.
	rest = 200
	// maxBlocks is how many blocks of all pools a map tells one by one.
	maxBlocks = 1200
	// maxPages is how many pages may be open.
	maxPages = 32
)

var errFull = errors.New("too many pages are open")

// The messages of a feed. A reader that is behind gets the newest of each.
const (
	lookMessage   = iota // what changes all the time
	mapMessage           // of the pools
	eventsMessage        // what happened
	messages
)

// feed looks at a service for all open pages at once, and only while there is one.
type feed struct {
	// source looks at the service, with a map or without, and says how long that held others up. A message is nil if there is none.
	source   func(most int) (made [messages][]byte, took time.Duration)
	interval time.Duration

	mu      sync.Mutex
	readers int
	running bool
	newest  [messages]message
	changed chan struct{} // closed when there is a newer message
	closed  bool
	end     chan struct{} // closed when no page gets anything any more
	idle    chan struct{} // closed when the last reader has left
	done    sync.WaitGroup
	due     [messages]time.Time
}

// message is one for the pages. Its number tells it from those before; 0: there is none.
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
		f.newest = [messages]message{} // what was is not what is
		if time.Now().Before(f.due[mapMessage]) {
			f.newest[mapMessage] = kept // there is no newer one yet
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

// read gives the newest messages, and what is closed when there are newer ones.
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

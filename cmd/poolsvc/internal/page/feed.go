package page

import (
	"bytes"
	"errors"
	"sync"
	"time"
)

const (
	// interval is the time between two descriptions of the service while a page is open.
	interval = time.Second
	// rest limits how much CPU time the service uses to describe itself, because requests need this CPU time. If a description took the
	// time T, the next description of the same kind begins not earlier than rest × T after the beginning of that description.
	rest = 200
	// maxBlocks is how many blocks the maps of all pools together show one by one.
	maxBlocks = 1200
	// maxPages is how many pages may be open at the same time.
	maxPages = 32
)

var errFull = errors.New("too many pages are open")

// These are the kinds of messages of a feed, in the order in which a reader gets them. A slow reader gets only the newest message of each kind.
const (
	mapMessage    = iota // the maps of the pools
	eventsMessage        // the events of the service
	lookMessage          // the look: pools, sessions and channels, which change all the time. The page draws when the look comes
	messages
)

// feed repeatedly asks the service for its state, and passes the resulting messages to all open pages. It works while at least one page is
// open.
type feed struct {
	// source returns the messages that describe the service. `most` limits how many blocks the maps show one by one. `took` is how long the
	// service worked on the description. `made` has one element for each kind of message. If `source` made no message of a kind, the
	// element of this kind is nil.
	source   func(most int) (made [messages][]byte, took time.Duration)
	interval time.Duration

	mu      sync.Mutex
	readers int
	running bool
	newest  [messages]message
	changed chan struct{} // closed when there is a newer message
	closed  bool
	end     chan struct{} // the method close closes it
	idle    chan struct{} // closed when the last page has left
	done    sync.WaitGroup
	due     [messages]time.Time
}

// message is a message for the pages. `number` counts the messages of one kind, from 1. If `number` is 0, there is no message of this kind
// yet.
type message struct {
	number uint64
	data   []byte
}

func newFeed(source func(most int) ([messages][]byte, time.Duration)) *feed {
	return &feed{source: source, interval: interval, changed: make(chan struct{}), end: make(chan struct{})}
}

// join counts a new reader. The reader must call leave at its end.
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
		f.newest = [messages]message{} // the old messages are out of date
		if time.Now().Before(f.due[mapMessage]) {
			f.newest[mapMessage] = kept // the next map is not due yet
		}
		f.done.Go(f.run)
	}
	return nil
}

func (f *feed) removeReader() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers--; f.readers == 0 {
		close(f.idle)
	}
}

// read returns the newest messages, and a channel that the feed closes when it has newer messages.
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

// run describes the service again and again until there is no reader.
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
			f.refresh()
		case <-idle:
		case <-f.end:
		}
		pause.Stop()
	}
}

func (f *feed) refresh() {
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

package main

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"
)

// relay passes texts to a writer that may block, such as a terminal, a pipe or a full disk. A method of relay never waits for that writer:
// one goroutine calls the writer, and a bounded number of bytes wait for the goroutine. If they are too many, relay leaves out the next texts
// and counts them.
type relay struct {
	to   io.Writer
	most int // how many bytes may wait
	// missing returns the text that says how many texts were left out. The goroutine writes this text where they are missing. If missing is nil,
	// the goroutine writes no such text.
	missing func(n int) []byte
	// impaired is called in a goroutine of its own when a text is left out, or when the writer fails. It is called again only after the
	// writer has taken a text.
	impaired func(err error)

	mu    sync.Mutex
	queue []relayed
	bytes int  // of the queue
	left  int  // texts that were left out since the last text of the queue
	told  bool // impaired was called, and the writer has taken no text since then
	wake  chan struct{}
	over  chan struct{} // closed when no more texts come
	done  chan struct{} // closed when the goroutine has ended
}

// relayed is a text, with the number of texts that were left out before it.
type relayed struct {
	text []byte
	left int
}

// maxWaiting is how many bytes of the log wait while the log cannot be written.
const maxWaiting = 1 << 20

// relayFlush is how long the end of the service waits until the last texts are written.
const relayFlush = time.Second

var errNobodyReads = errors.New("nobody reads it: it takes no text")

// start starts the goroutine of the relay.
func (r *relay) start() *relay {
	r.wake, r.over, r.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go r.run()
	return r
}

// Write queues a text, or leaves it out. It returns no error.
func (r *relay) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bytes+len(p) > r.most {
		r.left++
		r.tell(errNobodyReads)
		return len(p), nil
	}
	r.queue = append(r.queue, relayed{bytes.Clone(p), r.left})
	r.bytes += len(p)
	r.left = 0
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return len(p), nil
}

// tell calls impaired, if it was not called before. The caller holds r.mu.
func (r *relay) tell(err error) {
	if !r.told && r.impaired != nil {
		go r.impaired(err)
	}
	r.told = true
}

func (r *relay) run() {
	defer close(r.done)
	for last := false; !last; {
		select {
		case <-r.wake:
		case <-r.over:
			last = true
		}
		for one, more := r.next(); more; one, more = r.next() {
			r.put(one)
		}
	}
}

// next returns the oldest text. If no text waits, but texts were left out, `one` has only their number, unless the writer has just failed.
func (r *relay) next() (one relayed, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) > 0 {
		one, r.queue = r.queue[0], r.queue[1:]
		return one, true
	}
	if r.left == 0 || r.told || r.missing == nil {
		return one, false
	}
	one.left, r.left = r.left, 0
	return one, true
}

// put writes a text. A text that the writer does not take counts as left out.
func (r *relay) put(one relayed) {
	text := one.text
	if one.left > 0 && r.missing != nil {
		text = append(r.missing(one.left), text...)
	}
	_, err := r.to.Write(text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes -= len(one.text)
	if err == nil {
		r.told = false
		return
	}
	if one.text != nil {
		one.left++
	}
	if len(r.queue) > 0 {
		r.queue[0].left += one.left
	} else {
		r.left += one.left
	}
	r.tell(err)
}

// close waits until all texts are written, but not longer than relayFlush. It reports whether they are written.
func (r *relay) close() bool {
	close(r.over)
	select {
	case <-r.done:
		return true
	case <-time.After(relayFlush):
		return false
	}
}

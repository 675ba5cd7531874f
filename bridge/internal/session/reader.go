package session

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
)

// reader is a caller that reads packets itself while it waits for a reply. This saves a switch between goroutines, which may wake a thread.
type reader struct {
	mu    sync.Mutex
	conn  *seqpacket.Conn // from which it reads; nil: no caller reads
	woken bool            // the connection has a read deadline that has passed
}

func (r *reader) begin(conn *seqpacket.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conn = conn
}

// wake makes the caller that reads look whether it is still to wait.
func (r *reader) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != nil {
		r.woken = true
		_ = r.conn.SetReadDeadline(time.Unix(1, 0)) // fails only if the connection is closed, which ends the reading, too
	}
}

// settle lets the caller read on after wake.
func (r *reader) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settleLocked()
}

func (r *reader) settleLocked() {
	if r.woken {
		r.woken = false
		_ = r.conn.SetReadDeadline(time.Time{})
	}
}

func (r *reader) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settleLocked()
	r.conn = nil
}

// readFor reads packets until the reply to c has come or ctx has ended, unless another goroutine reads. The caller has sent its request, so the
// service does not wait for it to read while it waits to send. It also handles the packets of others, so handlers neither send nor wait for
// other requests, or for a mutex that is held while a driver works.
func (s *Session) readFor(ctx context.Context, c *Call) (err error, answered bool) {
	select {
	case s.reading <- struct{}{}:
	default:
		return nil, false
	}
	if s.fault != nil { // another caller has found the end of the connection
		<-s.reading
		return nil, false
	}
	conn := s.Conn()
	conn.SetWatched(false)
	s.reader.begin(conn)
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, s.reader.wake)
	}
	defer func() { // also if a handler panics
		stop()
		s.reader.end()
		conn.SetWatched(true)
		<-s.reading
	}()
	for !answered && ctx.Err() == nil {
		select {
		case err, answered = <-c.done:
			continue
		default:
		}
		read := s.receiveOne(conn.RecvInto(packets))
		if errors.Is(read, os.ErrDeadlineExceeded) {
			s.reader.settle()
		} else if read != nil {
			s.fault = read       // for the receiving goroutine, which takes the session up again, or ends it
			_ = conn.CloseRead() // wakes it; fails only if the connection is closed, which wakes it, too
			break
		}
	}
	return err, answered
}

package session

import "sync"

// calls are the requests of a session that wait for their replies. calls also counts the callers whose work must end before the session does.
type calls struct {
	mu      sync.Mutex
	last    uint32 // number of the newest request
	pending map[uint32]*Call
	err     error         // why the connection is gone
	busy    int           // number of calls, and of callers that use a reply
	quiet   chan struct{} // closed when the session is being closed and busy is 0
	closing bool
}

// add adds a call and returns the number of its request.
func (cs *calls) add(c *Call) (uint32, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	switch {
	case cs.err != nil:
		return 0, cs.err
	case cs.closing && !c.Closing:
		return 0, ErrClientClosed
	}
	for {
		cs.last++
		if _, taken := cs.pending[cs.last]; cs.last != 0 && !taken {
			cs.pending[cs.last] = c
			cs.busy++
			return cs.last, nil
		}
	}
}

// remove removes a call and returns it. It returns nil if there is no such call. The removed call still counts as busy until leave.
func (cs *calls) remove(q uint32) *Call {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.pending[q]
	delete(cs.pending, q)
	return c
}

// abandon marks a call as abandoned by its caller. It returns false if the reply has come.
func (cs *calls) abandon(q uint32) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.pending[q]
	if c == nil || c.abandoned {
		return false
	}
	c.abandoned = true
	return true
}

// givenUp returns the numbers of the calls that were abandoned.
func (cs *calls) givenUp() (all []uint32) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for q, c := range cs.pending {
		if c.abandoned {
			all = append(all, q)
		}
	}
	return all
}

// abandonAll makes all waiting calls fail with err. The goroutine that made a call then cancels the request of this call.
func (cs *calls) abandonAll(err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.abandonAllLocked(err)
}

func (cs *calls) abandonAllLocked(err error) {
	for _, c := range cs.pending {
		if !c.abandoned {
			c.abandoned = true
			c.done <- err
		}
	}
}

// fail makes all calls fail, because the connection is gone. It returns the error of these calls: err, unless the session is being closed.
func (cs *calls) fail(err error) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closing {
		err = ErrClientClosed
	}
	cs.err = err
	cs.abandonAllLocked(err)
	cs.pending = nil
	return err
}

// close refuses further calls. It returns false if they are refused already.
func (cs *calls) close() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closing {
		return false
	}
	cs.closing = true
	cs.quietenLocked()
	return true
}

// do calls f, unless the session is being closed.
func (cs *calls) do(f func()) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closing {
		return ErrClientClosed
	}
	f()
	return nil
}

func (cs *calls) leave() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.busy--
	cs.quietenLocked()
}

// quietenLocked closes cs.quiet if the session is being closed and no caller is busy. The session itself makes requests after that, and then
// quietenLocked does nothing.
func (cs *calls) quietenLocked() {
	if cs.busy > 0 || !cs.closing {
		return
	}
	select {
	case <-cs.quiet:
	default:
		close(cs.quiet)
	}
}

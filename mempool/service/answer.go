package service

import "github.com/poolbridge/poolbridge/mempool"

// Answer is an answer that the session's client may lack. It is made again.
type Answer struct {
	session *Session
	// From is the id of what the request has made, or another number; the kind of the request says which.
	From uint64
}

// Answer returns what the answer to request q is made from again, for a session that was taken up after its service had died. It returns
// false if the session has not carried the request out, if the request changed nothing, or if the client is known to have the answer.
func (s *Session) Answer(q uint32) (answer Answer, did bool) {
	s.svc.mu.Lock()
	defer s.svc.mu.Unlock()
	a := s.rec.Answers[q]
	if a == nil {
		return answer, false
	}
	return Answer{s, a.From}, true
}

// Answered notes that the client has the answers to requests.
func (s *Session) Answered(requests []uint32) {
	s.svc.mu.Lock()
	defer s.svc.mu.Unlock()
	s.rec.Answered(requests)
}

// Token returns the proof with which the session's client can take the session up again: see [Service.Resume]. It returns false if the session
// ends with this process.
func (s *Session) Token() (token mempool.Epoch, lasts bool) { return s.rec.Token, s.svc.books != nil }

// MadePool returns the pool that the session has made. Those who may use the pool need not include its maker.
//
// Errors: [mempool.ErrNotFound].
func (a Answer) MadePool() (*Pool, error) {
	svc := a.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	p, err := svc.ledger.SeenPool(a.session.rec, a.From)
	if err != nil {
		return nil, err
	}
	return svc.pools.of(p), nil
}

// Granted returns the lease again.
//
// Errors: [mempool.ErrReleased].
func (a Answer) Granted() (g GrantedLease, err error) {
	s := a.session
	s.svc.mu.Lock()
	defer s.svc.mu.Unlock()
	l, err := s.rec.Lease(a.From)
	if err != nil {
		return g, err
	}
	if b := l.Buffer.Block; s.rec.Mapped[b.ID] == b {
		s.rec.Unmap(b) // the export may be lost with the first answer, and is sent again
	}
	_, g.Version, _ = l.Buffer.Published()
	g.Lease, g.Grant, g.Mapped = Lease{s, l}, s.svc.describe(l), false
	return g, nil
}

// Joined returns again what Join has returned.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied], [mempool.ErrClosed].
func (a Answer) Joined() (Joined, error) {
	svc := a.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	m, err := svc.ledger.Member(a.session.rec, a.From>>memberBits, a.From&(1<<memberBits-1))
	if err != nil {
		return Joined{}, err
	}
	return svc.channels.of(m.Channel).describeJoined(m), nil
}

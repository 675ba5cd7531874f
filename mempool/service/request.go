package service

import "context"

// This file, with answer.go, carries out each request once, also if the service dies meanwhile: the books have the answers that a client may
// lack.

type requestKey struct{}

// BeginRequest says which request the calling goroutine, the only one of the session that does not wait, carries out now.
func (s *Session) BeginRequest(r Request) { s.request = r }

// WithQuery returns a context for a request that waits in a goroutine of its own.
func WithQuery(ctx context.Context, q uint32) context.Context {
	return context.WithValue(ctx, requestKey{}, Request{Query: q})
}

// keepAnswerLocked notes that the request of ctx, or without ctx that of BeginRequest, has changed something, and from what its answer is made again.
func (s *Session) keepAnswerLocked(ctx context.Context, answer uint64) {
	if s.svc.books == nil {
		return
	}
	r := s.request
	if waits, ok := ctx.Value(requestKey{}).(Request); ok {
		r = waits
	}
	s.rec.Did(r.Packet, r.Query, answer)
}

package service

import (
	"reflect"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Compare returns an error if the client describes one of its leases differently from the service. It does not compare what the client must
// wait for. A lease that has ended has no description.
//
// Errors: [mempool.ErrInvalid].
func (s *Session) Compare(seen mempool.Grant) error {
	s.svc.mu.Lock()
	defer s.svc.freeAndUnlock()
	l := s.rec.Leases[seen.ID]
	if l == nil {
		return nil
	}
	have := s.svc.describe(l)
	same := have.Tensor.Equal(seen.Tensor)
	have.Tensor, have.Wait, have.Event = seen.Tensor, seen.Wait, seen.Event
	if same && reflect.DeepEqual(have, seen) {
		return nil
	}
	return typed.Errorf(mempool.ErrInvalid, "the client describes lease %d as %+v, the service as %+v", l.ID, seen, s.svc.describe(l))
}

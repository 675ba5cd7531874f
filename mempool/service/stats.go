package service

import (
	"cmp"
	"slices"

	"github.com/poolbridge/poolbridge/mempool"
)

// Stats counts what the session may see: the sessions of its user, and the pools that the session may see, with what is in them.
func (v View) Stats() mempool.ServiceStats {
	svc := v.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return svc.statsLocked(v.session)
}

// Stats returns the counts of the service and of all pools.
func (s *Service) Stats() mempool.ServiceStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statsLocked(nil)
}

// statsLocked counts what the session `to` may see, or everything if `to` is nil.
func (s *Service) statsLocked(to *Session) mempool.ServiceStats {
	st := mempool.ServiceStats{Sessions: s.ledger.Sessions.Len(), Guard: s.guard, GuardPID: s.guardPID, Takeovers: s.takeovers}
	if to != nil && !to.rec.Owner {
		st.Sessions = s.ledger.SessionsOf(to.rec.Peer.UID)
	}
	for _, p := range s.ledger.Pools {
		if to != nil && !p.VisibleTo(to.rec) {
			continue
		}
		st.Leases, st.Buffers, st.Names = st.Leases+p.Has.Leases, st.Buffers+p.Has.Buffers, st.Names+p.Has.Names
		ps := mempool.PoolStats{Pool: p.Info, Reserved: p.Reserved, Leased: p.Leased, Cached: p.Cached, Held: p.Held, Used: p.Used, Blocks: p.Blocks}
		if to != nil {
			s.poolOf(p).recharge()
			ps.Session, _ = to.rec.Counts(p)
			ps.User = p.UserBytes(to.rec.Peer.UID)
		}
		st.Pools = append(st.Pools, ps)
	}
	slices.SortFunc(st.Pools, func(a, b mempool.PoolStats) int { return cmp.Compare(a.Pool.ID, b.Pool.ID) })
	return st
}

// Package stream has a client's ends of channels in shared memory: producers, with the memory that comes back to them, publishers, consumers,
// and the frames that consumers have.
package stream

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

// Streams has the members of a session in all channels.
type Streams struct {
	session *session.Session
	tallies tallies
	giving  sync.WaitGroup // counts goroutines that wait for consumers' work and then release a lease

	mu         sync.Mutex
	members    map[uint64]map[*member]struct{} // by channel
	producers  map[uint64]*Producer            // by channel
	publishers map[*Publisher]struct{}
	ticking    bool // a timer or a task will call Streams.tick
}

// New returns the streams of a session that has not begun yet.
func New(s *session.Session) *Streams {
	st := &Streams{session: s, members: make(map[uint64]map[*member]struct{}), producers: make(map[uint64]*Producer),
		publishers: make(map[*Publisher]struct{})}
	s.MemberCame, s.Wanted, s.Collect, s.Lost = st.MemberCame, st.Wanted, st.Collect, st.requeueAll
	return st
}

func (st *Streams) enlist(m *member) {
	st.mu.Lock()
	defer st.mu.Unlock()
	of := st.members[m.channel.ID]
	if of == nil {
		of = make(map[*member]struct{})
		st.members[m.channel.ID] = of
	}
	of[m] = struct{}{}
	st.tallies.join(m)
}

func (st *Streams) forget(m *member) {
	st.mu.Lock()
	defer st.mu.Unlock()
	of := st.members[m.channel.ID]
	st.tallies.leave(m)
	if delete(of, m); len(of) == 0 {
		delete(st.members, m.channel.ID)
	}
}

// MemberCame passes a notice about a member, with the member's file, to this client's members of the other role. It runs in the receiving
// goroutine.
func (st *Streams) MemberCame(n *wire.MemberCame, fds *seqpacket.FDs) {
	files := session.TakeFiles(fds, n.Export.FDs)
	defer session.CloseFiles(files)
	st.mu.Lock()
	members := slices.Collect(maps.Keys(st.members[n.Channel]))
	st.mu.Unlock()
	for _, m := range members {
		if m.role.String() != n.Role {
			m.meet(n, files)
		}
	}
}

// Leave removes the client's members from all channels. Before that, the client ends its leases. The method giveUp has started goroutines,
// each of which releases a lease when the consumers' work on the lease's memory has ended. Leave waits for these goroutines, but not long.
func (st *Streams) Leave() {
	st.mu.Lock()
	var leaving []*member
	for _, of := range st.members {
		leaving = slices.AppendSeq(leaving, maps.Keys(of))
	}
	st.mu.Unlock()
	ctx, cancel := st.session.Grace()
	defer cancel()
	for _, m := range leaving {
		m.depart(ctx)
	}
	given := make(chan struct{})
	go func() {
		st.giving.Wait()
		close(given)
	}()
	select {
	case <-given:
	case <-ctx.Done(): // the service releases the remaining leases when the session ends
	}
}

// Close unmaps the channels in which the client is a producer.
func (st *Streams) Close() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	var errs []error
	for _, p := range st.producers {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}

// Size returns how many members, producers and publishers the streams have.
func (st *Streams) Size() (members, producers, publishers int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, of := range st.members {
		members += len(of)
	}
	return members, len(st.producers), len(st.publishers)
}

package anomaly

import (
	"context"
	"errors"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// operation is something that the service does for a client.
type operation struct {
	name string
	// before is what the client has done, act what it does then.
	before, act []string
	// prepare and local are what this process does before that.
	prepare, local func(*stage) error
	// free: it makes no driver call.
	free bool
	// abrupt: the service gives memory back that clients map, for it allocates none any more that they could take it for.
	abrupt bool
	// calm: what a ruined GPU does to it, it does to another operation too.
	calm bool
	// streams: not for memory that is worked on by the CPU.
	streams bool
}

// meant is what the detector reports although it is meant to be.
func (o operation) meant(lost bool) (reports []string) {
	if o.abrupt {
		reports = append(reports, "kind=free-while-mapped")
	}
	if lost { // what the driver does not take back goes with its pool, and at the latest with the process
		reports = append(reports, "kind=wrong-order: cuMemPoolDestroy", "kind=leak")
	}
	return reports
}

var operations = []operation{
	{name: "create pool", act: []string{"create"}},
	{name: "open pool", calm: true, prepare: createPool, act: []string{"open"}},
	{name: "allocate", before: []string{"create"}, act: []string{"alloc a"}},
	{name: "allocate again", before: []string{"create", "alloc a", "release a"}, act: []string{"alloc b"}, free: true},
	{name: "fill and check", before: []string{"create", "alloc a"}, act: []string{"fill a", "check a"}},
	{name: "transfer", before: []string{"create", "alloc a", "fill a"}, act: []string{"publish a", "get a", "check a'"}},
	{name: "release", before: []string{"create", "alloc a", "fill a"}, act: []string{"release a"}},
	{name: "release after reading", calm: true, before: []string{"create", "alloc a", "fill a", "publish a", "get a", "check a'"},
		act: []string{"release a'", "release a"}},
	{name: "trim", before: []string{"create", "alloc a", "fill a", "alloc b", "release b", "release a"}, act: []string{"trim"}},
	{name: "destroy", before: []string{"create", "alloc a", "fill a", "release a"}, act: []string{"destroy"}},
	{name: "destroy while leased", calm: true, before: []string{"create", "alloc a", "fill a"}, act: []string{"destroy", "release a"}},
	{name: "session end", before: []string{"create", "alloc a", "fill a", "publish a", "alloc b", "fill b"}, act: []string{"close"}},
	{name: "shut down", before: []string{"create", "alloc a", "fill a", "publish a", "alloc b"}, abrupt: true,
		local: (*stage).shutDown, act: []string{"close"}},
	{name: "transfer early", before: []string{"create", "alloc a", "fill a", "promise a"}, local: takeEarly, streams: true, calm: true},
	{name: "publish an event", before: []string{"create", "alloc a", "fill a", "stream"}, act: []string{"event a"}, calm: true},
	{name: "take by an event", before: []string{"create", "alloc a", "fill a", "stream", "event a"}, local: takeByEvent, calm: true},
	{name: "driver's numbers", prepare: createPool, local: lookUp, calm: true},
	{name: "in the service", prepare: createPool, local: transferHere},
}

func createPool(s *stage) error {
	_, err := s.admin.CreatePool(poolSpec(s.kind, s.client.device))
	return err
}

// transferHere allocates, fills, transfers and checks in the service's own process.
func transferHere(s *stage) error {
	ctx := context.Background()
	p, err := s.admin.OpenPool(ctx, "p", 0)
	if err != nil {
		return err
	}
	l, err := s.admin.Allocate(ctx, p.Info().ID, mempool.Bytes(bufferBytes), 0)
	if err != nil {
		return err
	}
	if err = fill(l, "a"); err == nil {
		err = l.Publish(mempool.Publication{Name: "here"})
	}
	if err == nil {
		var got *service.Lease
		if got, err = s.admin.Get(ctx, "here", false, 0); err == nil {
			err = errors.Join(check(got, "a"), s.release(got))
		}
		err = errors.Join(err, s.admin.Unpublish("here"))
	}
	err = errors.Join(err, s.release(l))
	_, trimmed := s.admin.TrimPool(p.Info().ID, 0)
	return errors.Join(err, trimmed)
}

// takeEarly leases what the client has published and not finished: a stream here waits for it.
func takeEarly(s *stage) error {
	got, err := s.admin.Get(context.Background(), "a", false, 0)
	if err != nil {
		return err
	}
	m, err := got.Memory()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		err = got.WaitOn(ctx, m.Queue())
		cancel()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil // the stream could not be told to wait, and the client has not kept its promise yet
	}
	if _, kept := s.client.do("keep a"); kept != nil {
		err = errors.Join(err, kept)
	}
	if err == nil {
		err = check(got, "a")
	}
	return errors.Join(err, s.release(got))
}

// takeByEvent leases what only an event of the client says to be complete.
func takeByEvent(s *stage) error {
	got, err := s.admin.Get(context.Background(), "a", false, 0)
	if err != nil {
		return err
	}
	return errors.Join(check(got, "a"), s.release(got))
}

func lookUp(s *stage) error {
	p, err := s.admin.OpenPool(context.Background(), "p", 0)
	if err == nil {
		_, err = p.DriverInUse()
	}
	return err
}

// release ends a lease of this process, or keeps it for later: while its work can neither be marked nor waited for, it goes
// on.
func (s *stage) release(l *service.Lease) error {
	err := l.Release(false)
	if err != nil {
		s.owed = append(s.owed, l)
	}
	return err
}

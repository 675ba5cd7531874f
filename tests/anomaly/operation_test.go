package anomaly

import (
	"context"
)

// operation is a request of a client or a task of the service whose driver calls fail in the tests.
type operation struct {
	name string
	// before has the steps of the client before the operation. act has the steps of the operation itself.
	before, act []string
	// prepare is what this process and the neighbour do before the steps in before. local is what this process does
	// directly before the steps in act, as a part of the operation. after is what this process and the neighbour do
	// after the operation.
	prepare, local, after func(*stage) error
	// free says that the operation makes no driver call.
	free bool
	// abrupt says that the service frees memory that clients still map. The service may do so, because it does not use
	// the freed memory again.
	abrupt bool
	// calm says that a ruined GPU affects another operation in the same way, so the tests with ruined GPUs leave out
	// this operation.
	calm bool
}

// meant returns the texts of the reports that the test expects from the detector.
func (o operation) meant(lost bool) (reports []string) {
	if o.abrupt {
		reports = append(reports, "kind=free-while-mapped")
	}
	if lost { // the driver did not free some memory; it frees the memory with the pool, or else when the process ends
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
	{name: "transfer early", before: []string{"create", "alloc a", "fill a", "stream", "promise a"},
		act: []string{"get a", "early a'", "keep a", "check a'"}, calm: true},
	{name: "publish an event", before: []string{"create", "alloc a", "fill a", "stream"}, act: []string{"event a"}, calm: true},
	{name: "take by an event", prepare: offerByEvent, act: []string{"get e", "check e'"}, after: withdraw, calm: true},
	{name: "driver's numbers", prepare: createPool, local: lookUp, calm: true},
}

func createPool(s *stage) error {
	_, err := s.admin.CreatePool(poolSpec("p", s.kind, s.client.device))
	return err
}

// offerByEvent makes the neighbour publish a buffer in the client's pool. Only an event says when the content of the
// buffer is complete.
func offerByEvent(s *stage) error {
	err := createPool(s)
	if err == nil {
		_, err = s.beside().do("open", "alloc e", "fill e", "stream", "event e")
	}
	return err
}

// withdraw makes the neighbour withdraw the buffer that offerByEvent published.
func withdraw(s *stage) error {
	_, err := s.beside().do("release e", "unpublish e")
	return err
}

// beside returns the neighbour as a client that works in the client's pool.
func (s *stage) beside() *remote {
	r := *s.neighbour
	r.pool, r.kind, r.device = "p", s.kind, s.client.device
	return &r
}

func lookUp(s *stage) error {
	p, err := s.admin.OpenPool(context.Background(), "p", 0)
	if err == nil {
		_, err = p.DriverInUse()
	}
	return err
}

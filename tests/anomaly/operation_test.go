package anomaly

import (
	"context"
)

// operation is something that the service does for a client.
type operation struct {
	name string
	// before is what the client has done, act what it does then.
	before, act []string
	// prepare and local are what this process and the neighbour do before that, after is what they do in the end.
	prepare, local, after func(*stage) error
	// free: it makes no driver call.
	free bool
	// abrupt: the service gives memory back that clients map, for it allocates none any more that they could take it for.
	abrupt bool
	// calm: what a ruined GPU does to it, it does to another operation too.
	calm bool
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

// offerByEvent has the neighbour publish in the client's pool what only an event says to be complete.
func offerByEvent(s *stage) error {
	err := createPool(s)
	if err == nil {
		_, err = s.beside().do("open", "alloc e", "fill e", "stream", "event e")
	}
	return err
}

// withdraw takes that back.
func withdraw(s *stage) error {
	_, err := s.beside().do("release e", "unpublish e")
	return err
}

// beside is the neighbour as it works in the client's pool.
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

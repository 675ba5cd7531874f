package server

import (
	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/program"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// operation says how the server carries out one kind of request of the protocol.
type operation struct {
	name    string
	feature string // feature that the session must have; "" if it needs no feature
	slow    bool   // with much memory the driver may take long, so the client gets notices that the request still runs
	looks   bool   // a session that only watches may ask for it
	run     func(c *connection, q uint32, r wire.Request)
}

// operations has every request that a session may send after hello.
var operations = byName(
	on((*connection).create).slowly(),
	on((*connection).open),
	done(func(s *service.Session, r *wire.Destroy) error { return s.DestroyPool(r.Pool) }).slowly(),
	on((*connection).trim).slowly(),

	on((*connection).alloc),
	on((*connection).get),
	on((*connection).lease),
	answered(publishBuffer),
	done(func(s *service.Session, r *wire.Unpublish) error { return s.Unpublish(r.Name) }),
	on((*connection).release),
	on((*connection).allocRange).needs(wire.FeatureRanges),
	answered(returned).needs(wire.FeatureRanges),
	on((*connection).cancelRequest).looking(),
	done(func(s *service.Session, r *wire.Dropped) error { return s.Dropped(r.Blocks) }).slowly(),

	answered(stats).looking(),
	on((*connection).list).looking(),
	on((*connection).events).looking(),
	on((*connection).endSession),
	on((*connection).bye).looking(),

	on((*connection).timeline).needs(wire.FeatureTimelines),
	done(func(s *service.Session, _ *wire.Seal) error { return s.SealTimeline() }).needs(wire.FeatureTimelines),

	answered(makeChannel).needs(wire.FeatureChannels),
	on((*connection).find).needs(wire.FeatureChannels),
	done(func(s *service.Session, r *wire.CloseChannel) error {
		if r.Discard {
			return s.Channel(r.Channel).Discard()
		}
		return s.Channel(r.Channel).Close()
	}).needs(wire.FeatureChannels),
	on((*connection).awaitConsumers).needs(wire.FeatureChannels),
	on((*connection).join).needs(wire.FeatureChannels),
	on((*connection).enter).needs(wire.FeatureChannels),
	done(func(s *service.Session, r *wire.Leave) error { return s.Channel(r.Channel).Member(r.Member).Leave() }).needs(wire.FeatureChannels),
	on((*connection).mapBlock).needs(wire.FeatureChannels),
	done(func(s *service.Session, r *wire.Doubt) error {
		return s.Channel(r.Channel).Member(r.Member).Doubt(r.Sequence, r.Deliveries)
	}).needs(wire.FeatureChannels),
)

// handle carries out one request of an open session and answers it.
func (c *connection) handle(q uint32, r wire.Request) {
	o, ok := operations[r.Op()]
	switch { // requests that handle refuses are not counted, because a client could invent any number of names
	case !ok:
		c.fail(q, unknown(r.Op()))
		return
	case o.feature != "" && !c.features[o.feature]:
		c.fail(q, typed.Errorf(convert.ErrUnsupported, "the service is poolsvc %s; %q belongs to the feature %q, which this session does not have",
			program.Version(), r.Op(), o.feature))
		return
	case c.features[wire.FeatureWatch] && !o.looks:
		c.fail(q, typed.Errorf(mempool.ErrInvalid, "this session only watches, and the service may end meanwhile: connect without Watch to ask for %q", o.name))
		return
	}
	if o.slow {
		defer c.tellWorking(0)()
	}
	defer c.timings.begin(q, o.name)()
	if _, lists := r.(*wire.List); !lists {
		c.server.lists.others.Add(1)
	}
	o.run(c, q, r)
}

// on returns the operation of requests of type R. run carries out such a request and answers it.
func on[R wire.Request](run func(c *connection, q uint32, r R)) operation {
	var none R
	return operation{name: none.Op(), run: func(c *connection, q uint32, r wire.Request) { run(c, q, r.(R)) }}
}

// answered returns the operation of requests of type R. The server calls the function `do`, and answers with its reply or its error.
func answered[R wire.Request](do func(s *service.Session, r R) (wire.Reply, error)) operation {
	return on(func(c *connection, q uint32, r R) {
		reply, err := do(c.session, r)
		c.answer(q, reply, err)
	})
}

// done returns an `operation`: what the server does for requests of type R. The server calls the function `do` and then answers with an
// EmptyReply, or with the error of `do`.
func done[R wire.Request](do func(s *service.Session, r R) error) operation {
	return on(func(c *connection, q uint32, r R) { c.done(q, do(c.session, r)) })
}

// slowly returns a copy of o with `slow` set.
func (o operation) slowly() operation {
	o.slow = true
	return o
}

// looking returns a copy of o with `looks` set.
func (o operation) looking() operation {
	o.looks = true
	return o
}

// needs returns a copy of o that requires the feature.
func (o operation) needs(feature string) operation {
	o.feature = feature
	return o
}

func byName(all ...operation) map[string]operation {
	out := make(map[string]operation, len(all))
	for _, o := range all {
		out[o.name] = o
	}
	return out
}

// unknown returns the error of an operation that this version of the service does not know.
func unknown(op string) error {
	return typed.Errorf(convert.ErrUnsupported, "the service is poolsvc %s and does not know the operation %q", program.Version(), op)
}

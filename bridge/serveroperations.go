package bridge

import (
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/program"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// operation is how the server carries out one request of the protocol.
type operation struct {
	name    string
	feature string // that the session must have; "" if every session may ask
	slow    bool   // the kernel and drivers take their time for much memory: the client is told that work goes on
	run     func(c *serverConn, q uint32, r wire.Request)
}

// operations has every request that a session may send after hello.
var operations = byName(
	on((*serverConn).create).slowly(),
	on((*serverConn).open),
	done(func(s *service.Session, r *wire.Destroy) error { return s.DestroyPool(r.Pool) }).slowly(),
	on((*serverConn).trim).slowly(),

	on((*serverConn).alloc),
	on((*serverConn).get),
	on((*serverConn).lease),
	done(publishBuffer),
	done(func(s *service.Session, r *wire.Unpublish) error { return s.Unpublish(r.Name) }),
	done(releaseLeases),
	on((*serverConn).cancelRequest),
	done(func(s *service.Session, r *wire.Dropped) error { return s.Dropped(r.Blocks) }).slowly(),

	on((*serverConn).stats),
	on((*serverConn).list),
	on((*serverConn).events),
	on((*serverConn).endSession),
	on((*serverConn).bye),

	on((*serverConn).timeline).needs(featureTimelines),
	done(func(s *service.Session, _ *wire.Seal) error { return s.SealTimeline() }).needs(featureTimelines),

	on((*serverConn).makeChannel).needs(featureChannels),
	on((*serverConn).find).needs(featureChannels),
	done(func(s *service.Session, r *wire.CloseChannel) error { return s.CloseChannel(r.Channel) }).needs(featureChannels),
	on((*serverConn).join).needs(featureChannels),
	on((*serverConn).enter).needs(featureChannels),
	done(func(s *service.Session, r *wire.Leave) error { return s.LeaveChannel(r.Channel, r.Member) }).needs(featureChannels),
	on((*serverConn).mapBlock).needs(featureChannels),
	done(func(s *service.Session, r *wire.Doubt) error { return s.DoubtFrame(r.Channel, r.Member, r.Sequence) }).needs(featureChannels),
)

// handle carries out one request of an open session and answers it.
func (c *serverConn) handle(q uint32, r wire.Request) {
	o, ok := operations[r.Op()]
	switch { // clients cannot have names of their own counted
	case !ok:
		c.fail(q, unknown(r.Op()))
		return
	case o.feature != "" && !c.features[o.feature]:
		c.fail(q, situation.Of(ErrUnsupported, "the service is poolsvc %s; %q belongs to the feature %q, which this session does not have",
			program.Version(), r.Op(), o.feature))
		return
	}
	if o.slow {
		defer c.tellWorking(0)()
	}
	if c.server.config.Answered != nil {
		defer c.begins(q, o.name)()
	}
	o.run(c, q, r)
}

// on is an operation that answers by itself.
func on[R wire.Request](run func(c *serverConn, q uint32, r R)) operation {
	var none R
	return operation{name: none.Op(), run: func(c *serverConn, q uint32, r wire.Request) { run(c, q, r.(R)) }}
}

// done is an operation that is answered with an EmptyReply once it is done.
func done[R wire.Request](do func(s *service.Session, r R) error) operation {
	return on(func(c *serverConn, q uint32, r R) { c.done(q, do(c.session, r)) })
}

func (o operation) slowly() operation {
	o.slow = true
	return o
}

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

// unknown is the error of an operation that this version of the service does not know.
func unknown(op string) error {
	return situation.Of(ErrUnsupported, "the service is poolsvc %s and does not know the operation %q", program.Version(), op)
}

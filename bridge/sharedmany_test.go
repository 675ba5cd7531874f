package bridge

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
)

func TestManyConsumersOfAChannelJoinAndEachGetsEveryFrame(t *testing.T) {
	const each, sessions = 16, 6
	r := start(t, ServerConfig{}, unhurried)
	a := sharing(t, r.path)
	pool, channel := a.makeShared(1<<16, wire.MakeChannel{Capacity: 4})
	from := a.produce(pool, channel)
	var sinks []*sink
	for range sessions {
		p := sharing(t, r.path)
		p.findShared()
		for range each {
			sinks = append(sinks, p.consume(wire.Join{Channel: channel}))
		}
	}
	for range 2 {
		from.alloc(100)
		from.publish(7, shmchannel.Ticket{})
	}
	require.Len(t, a.others, len(sinks), "the producer's session was told of each")
	for _, s := range sinks {
		for n := range uint64(2) {
			f := s.next()
			assert.Equal(t, n+1, f.Number)
			assert.EqualValues(t, 7, s.read(f))
			require.NoError(t, s.Release(f, shmchannel.Ticket{}))
		}
	}
}
